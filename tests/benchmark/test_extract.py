"""Extraction as the benchmark measures it: its parts, and the operations that it counts."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from hlformer_jax import parallel
from hlformer_jax.benchmark import extract
from hlformer_jax.benchmark.measure import Options
from hlformer_jax.encoders import train, transformer
from hlformer_jax.search import demo


def test_operations_of_an_image_are_those_that_a_compiler_counts():
    # One layer, as a compiler counts one turn of the loop over them.
    encoder = train.untrained(32, ["a b"], size=train.Size(64, 1, 4, 4, 8))
    config, shapes = encoder.config, jax.ShapeDtypeStruct((4, 32, 32, 3), np.uint8)
    encode = lambda params, pixels: transformer.encode_images(
        params, config, pixels, (0.0,) * 3, (1.0,) * 3
    )
    counted = parallel.count_flops(encode, encoder.params["vision"], shapes)
    # Beside products there are norms, softmax and GELU: tens of operations an element.
    assert 1 <= counted / (4 * extract.operations(config.vision)) < 1.15


@pytest.mark.slow  # it renders and encodes videos
def test_extraction_is_measured_in_multiples_of_real_time(monkeypatch):
    for name in ("ROUNDS", "RENDERED"):
        monkeypatch.setattr(extract, name, 1)
    found = extract.extract(ConfigDict(), Options(repeats=1, encoder="tiny"))
    rows = {row.what.strip(): row for row in found}
    parts = [rows[name].facts for name in ("decoding", "preprocessing", "encoding")]
    assert sum(part["share, %"] for part in parts) == pytest.approx(100)
    whole = rows["index"]
    length = whole.facts["seconds of video"]
    assert length == round(demo.stories(0, 1)[0].duration) >= 20
    assert whole.facts["x real time"] * whole.timing.median == pytest.approx(length)
    assert whole.floor.seconds > rows["encoding"].floor.seconds > 0
