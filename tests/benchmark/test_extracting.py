"""Extraction as the benchmark measures it: its parts, and the operations that it counts."""

import json

import jax
import numpy as np
import processes
import pytest

from hlformer_jax.benchmark.extracting import operations
from hlformer_jax.encoders import train, vision
from hlformer_jax.parallel import analysis

pytest.importorskip("av")


def test_operations_of_an_image_are_those_that_a_compiler_counts():
    # One layer, as a compiler counts one turn of the loop over them.
    encoder = train.untrained(32, ["a b"], size=train.Size(64, 1, 4, 4, 8))
    config, shapes = encoder.config, jax.ShapeDtypeStruct((4, 32, 32, 3), np.uint8)
    encode = lambda params, pixels: vision.encode(params, config, pixels, (0.0,) * 3, (1.0,) * 3)
    counted = analysis.count(encode, encoder.params["vision"], shapes)
    # Beside products there are norms, softmax and GELU: tens of operations an element.
    assert 1 <= counted / (4 * operations(config.vision)) < 1.15


def test_extraction_is_measured_in_multiples_of_real_time(tmp_path):
    arguments = "--videos=1", "--encoder=tiny", f"--json={tmp_path}/extract.json"
    result = processes.run("benchmark", "extract", *arguments)
    assert result.returncode == 0, result.stderr
    rows = {row["what"]: row for row in json.loads((tmp_path / "extract.json").read_text())["rows"]}
    parts = [rows[name]["facts"] for name in ("decoding", "preprocessing", "encoding")]
    assert sum(part["share, %"] for part in parts) == pytest.approx(100)
    whole = rows["index"]
    length = whole["facts"]["seconds of video"]
    assert 20 <= length <= 40
    speed = whole["facts"]["x real time"]
    assert speed * whole["seconds"]["median"] == pytest.approx(length)
    assert whole["floor"]["seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("extract", "--videos=nowhere"), "--videos=nowhere: give a folder of videos"),
        (("query", "--videos=few"), "--videos=few: give a number of videos"),
        (("search", "--hours=0"), "--hours=0: give a number of hours"),
    ],
)
def test_a_wrong_option_is_one_clear_line(arguments, message):
    result = processes.run("benchmark", *arguments)
    assert result.returncode == 1
    assert message in result.stderr.strip().splitlines()[-1]
