"""The windows that are drawn are those of the model's blocks."""

import numpy as np
import pytest

from hlformer_jax.figures import windows
from hlformer_jax.figures.drawing import NotApplicable
from hlformer_jax.ops.windows import attention_windows
from hlformer_jax.training import finished


def test_the_table_has_the_middle_row_of_every_block(subject, options):
    drawn = windows.draw([subject], options)
    table = {name: np.asarray(column) for name, column in drawn.table.items()}
    for branch, length in (("clips", 4), ("frames", 8)):
        for block, width in (("E1", 2.0), ("L1", 4.0)):
            chosen = (table["branch"] == branch) & (table["block"] == block)
            want = attention_windows((width,), length)[0][length // 2]
            np.testing.assert_allclose(table["window"][chosen], want, atol=1e-6)
            assert (table["width"][chosen] == width).all()
            assert table["offset"][chosen].tolist() == list(range(-length // 2, length // 2))
    lines = drawn.figure.axes[1].get_lines()
    assert [line.get_label() for line in lines] == ["2: E1", "4: L1"]


def test_blocks_are_named_in_the_order_of_the_bank():
    named = windows.block_names((0.0, 2.0), (4.0,))
    assert named == [("E1", 0.0), ("E2", 2.0), ("L1", 4.0)]


def test_trees_have_no_windows(trees, options):
    with pytest.raises(NotApplicable, match="HOVER embeds nodes of action trees"):
        windows.draw([trees], options)


def test_plain_blocks_have_no_windows(taught, options):
    with pytest.raises(NotApplicable, match="the blocks of DL-DKD have no windows"):
        windows.draw([taught], options)


def test_what_trees_have_no_field_for_is_left_alone(trees):
    moved = {"eval.moments": "moments.json", "data.data_dir": trees.run.config.data.data_dir}
    assert finished.load(trees.run.directory, moved).config == trees.run.config
