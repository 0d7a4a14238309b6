"""Images on a CPU: OpenVINO's programs beside XLA's, and their precision."""

import dataclasses
import subprocess
import sys

import numpy as np
import processes
import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import config, cpu

AGREEMENT = 2e-6
"""Largest difference of unit vectors of float32 programs."""


def pixels(encoder, count=5):
    size = (count, encoder.image_size, encoder.image_size, 3)
    return np.random.default_rng(0).integers(0, 256, size, np.uint8)


def distance(actual, reference):
    return np.linalg.norm(actual - reference, axis=-1).max()


@pytest.mark.slow  # it takes seconds
def test_openvino_gives_the_vectors_of_xla(kind, golden, monkeypatch):
    encoder, lines = encoders.load(golden / kind), []
    encoder.set_image_precision("float32", lines.append)
    assert encoder.image_backend == "OpenVINO"
    actual = encoder.encode_images(pixels(encoder))
    assert lines == []
    monkeypatch.setattr(cpu, "is_installed", lambda: False)
    by_xla = encoders.load(golden / kind)
    assert by_xla.image_backend == "XLA"
    assert distance(actual, by_xla.encode_images(pixels(encoder))) < AGREEMENT


OFTEN = ("gelu", "quick_gelu")
"""Activations of the encoders that users have; the others go the same way, a program for each."""


@pytest.mark.parametrize(
    "activation",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow)
        for name in config.ACTIVATIONS
    ],
)
def test_openvino_knows_every_activation(activation, golden, monkeypatch):
    lines, vectors = [], []
    for has_openvino in (True, False):
        monkeypatch.setattr(cpu, "is_installed", lambda has=has_openvino: has)
        encoder = encoders.load(golden / "siglip")
        vision = dataclasses.replace(encoder.config.vision, activation=activation)
        encoder.config = dataclasses.replace(encoder.config, vision=vision)
        encoder.set_image_precision("float32", lines.append)
        vectors.append(encoder.encode_images(pixels(encoder)))
    assert lines == []
    assert distance(*vectors) < AGREEMENT


def test_an_image_has_the_same_vector_alone_and_among_others(golden):
    encoder = encoders.load(golden / "siglip")
    images = pixels(encoder, 17)
    together = encoder.encode_images(images)
    alone = np.concatenate([encoder.encode_images(images[i : i + 1]) for i in (0, 5, 16)])
    np.testing.assert_array_equal(alone, together[[0, 5, 16]])


def test_xla_takes_over_what_openvino_cannot_compile(golden, monkeypatch):
    def refuse(function, argument):
        raise RuntimeError("Check failed\nno operation X\n")

    monkeypatch.setattr(cpu, "is_installed", lambda: True)
    monkeypatch.setattr(cpu, "compile_program", refuse)
    encoder, lines = encoders.load(golden / "siglip"), []
    encoder.set_image_precision("float32", lines.append)
    assert encoder.encode_images(pixels(encoder)).shape == (5, encoder.width)
    assert len(lines) == 1 and "no operation X" in lines[0]


@pytest.mark.slow  # it takes seconds
def test_only_images_are_encoded_in_bfloat16(golden, sentences):
    encoder, reference = (encoders.load(golden / "siglip") for _ in range(2))
    encoder.set_image_precision("bfloat16")
    assert encoder.image_backend == "XLA" and not encoder.lacks_openvino
    difference = distance(*(each.encode_images(pixels(each)) for each in (encoder, reference)))
    assert 1e-4 < difference < 2**-5
    np.testing.assert_array_equal(*(each.encode_texts(sentences) for each in (encoder, reference)))


def test_precision_is_checked(golden):
    encoder = encoders.load(golden / "siglip")
    with pytest.raises(encoders.EncoderError, match="must be float32 or bfloat16, got 'int4'"):
        encoder.set_image_precision("int4")
    rounded = encoders.load(golden / "siglip", dtype="bfloat16")
    with pytest.raises(encoders.EncoderError, match="precision must be bfloat16, got 'float32'"):
        rounded.set_image_precision("float32")


@pytest.mark.slow  # it takes seconds
def test_openvino_is_imported_without_telemetry():
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; from hlformer_jax.encoders import cpu;"
        "cpu._openvino(); assert 'openvino' in sys.modules;"
        "assert not [name for name in sys.modules if name.startswith('openvino_telemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=processes.environment())
