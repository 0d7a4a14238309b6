"""Extraction as the benchmark measures it: its parts, and the operations that it counts."""

import shutil

import jax
import numpy as np
import processes
import pytest
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.benchmark import extracting
from hlformer_jax.benchmark.extracting import operations
from hlformer_jax.benchmark.inputs import Options
from hlformer_jax.encoders import train, transformer
from hlformer_jax.video import probe


def test_operations_of_an_image_are_those_that_a_compiler_counts():
    # One layer, as a compiler counts one turn of the loop over them.
    encoder = train.untrained(32, ["a b"], size=train.Size(64, 1, 4, 4, 8))
    config, shapes = encoder.config, jax.ShapeDtypeStruct((4, 32, 32, 3), np.uint8)
    encode = lambda params, pixels: transformer.encode_images(
        params, config, pixels, (0.0,) * 3, (1.0,) * 3
    )
    counted = parallel.count_flops(encode, encoder.params["vision"], shapes)
    # Beside products there are norms, softmax and GELU: tens of operations an element.
    assert 1 <= counted / (4 * operations(config.vision)) < 1.15


@pytest.mark.slow  # it renders and encodes videos
def test_extraction_is_measured_in_multiples_of_real_time(monkeypatch, tmp_path):
    for name in ("ENLARGED", "ROUNDS", "RENDERED"):
        monkeypatch.setattr(extracting, name, 1)
    rendered = []
    monkeypatch.setattr(extracting, "_render", _kept(extracting._render, rendered, tmp_path))
    found = extracting.extract(ConfigDict(), Options(0, 1, 1, None, "tiny"))
    rows = {row.what.strip(): row for row in found}
    facts = probe(rendered[0])
    assert (facts.width, facts.height, facts.rate) == (192, 144, 25)
    parts = [rows[name].facts for name in ("decoding", "preprocessing", "encoding")]
    assert sum(part["share, %"] for part in parts) == pytest.approx(100)
    whole = rows["index"]
    length = whole.facts["seconds of video"]
    assert length == round(facts.duration) >= 20
    assert whole.facts["x real time"] * whole.timing.median == pytest.approx(length)
    assert whole.floor.seconds > rows["encoding"].floor.seconds > 0


def _kept(render, rendered, folder):
    """A function that renders, and keeps a copy of each video."""

    def run(story, path):
        render(story, path)
        rendered.append(shutil.copy(path, folder / path.name))

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("extract", "--videos=nowhere"), "--videos=nowhere: give a folder of videos"),
        (("search", "--hours=0"), "--hours=0: give a number of hours"),
    ],
)
def test_a_wrong_option_is_one_clear_line(arguments, message):
    result = processes.run("benchmark", *arguments)
    assert result.returncode == 1
    assert message in result.stderr.strip().splitlines()[-1]
