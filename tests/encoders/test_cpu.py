"""Images on a CPU: OpenVINO's programs beside XLA's, and their precision."""

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import processes
import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import config, cpu, train

AGREEMENT = 2e-6
"""Largest difference of unit vectors of float32 programs."""


def pixels(encoder, count=5):
    size = (count, encoder.image_size, encoder.image_size, 3)
    return np.random.default_rng(0).integers(0, 256, size, np.uint8)


def distance(actual, reference):
    return np.linalg.norm(actual - reference, axis=-1).max()


@pytest.mark.slow  # it takes seconds
def test_openvino_agrees_with_xla(kind, golden, monkeypatch):
    encoder, lines = encoders.load(golden / kind), []
    encoder.set_image_precision("float32", lines.append)
    assert encoder.image_backend == "OpenVINO"
    actual = encoder.encode_images(pixels(encoder))
    assert lines == []
    monkeypatch.setattr(cpu, "is_installed", lambda: False)
    by_xla = encoders.load(golden / kind)
    assert by_xla.image_backend == "XLA"
    assert distance(actual, by_xla.encode_images(pixels(encoder))) < AGREEMENT


COMMON_ACTIVATIONS = ("gelu", "quick_gelu")
"""Activations of common encoders; each of the others, in the slow tests, compiles a program."""


@pytest.mark.parametrize(
    "activation",
    [
        name if name in COMMON_ACTIVATIONS else pytest.param(name, marks=pytest.mark.slow)
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


def refuse(function, argument, precision):
    raise RuntimeError("Check failed\nno operation X\n\nAt:\n  decoder.py(154): visit_subgraph\n")


def test_xla_is_used_if_openvino_cannot_compile(golden, monkeypatch):
    monkeypatch.setattr(cpu, "is_installed", lambda: True)
    monkeypatch.setattr(cpu, "compile_program", refuse)
    encoder, lines = encoders.load(golden / "siglip"), []
    encoder.set_image_precision("float32", lines.append)
    assert encoder.encode_images(pixels(encoder)).shape == (5, encoder.width)
    assert len(lines) == 1 and "no operation X" in lines[0]


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("by_openvino", [False, True])
def test_only_images_are_encoded_in_bfloat16(by_openvino, golden, sentences, monkeypatch):
    if by_openvino and not cpu.has_bfloat16():
        pytest.skip("this CPU has no instructions for bfloat16")
    monkeypatch.setattr(cpu, "has_bfloat16", lambda: by_openvino)
    encoder, reference = (encoders.load(golden / "siglip") for _ in range(2))
    encoder.set_image_precision("bfloat16")
    assert encoder.image_backend == ("OpenVINO" if by_openvino else "XLA")
    assert not encoder.lacks_openvino
    by_bfloat16, by_float32 = (x.encode_images(pixels(x)) for x in (encoder, reference))
    difference = distance(by_bfloat16, by_float32)
    assert 1e-4 < difference < 2**-5
    np.testing.assert_array_equal(
        encoder.encode_texts(sentences), reference.encode_texts(sentences)
    )


def test_int8_is_near_float32(golden):
    encoder, reference = (encoders.load(golden / "siglip") for _ in range(2))
    encoder.set_image_precision("int8")
    assert encoder.image_backend == "OpenVINO"
    vectors = encoder.encode_images(pixels(encoder))
    assert 1e-4 < distance(vectors, reference.encode_images(pixels(reference))) < 2**-4
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, atol=AGREEMENT)


@pytest.mark.parametrize("inputs", [256, 96, 40, 33])  # groups of 128 and 32; the others have none
def test_error_of_a_product_in_int8_is_bounded(inputs):
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((inputs, 24)).astype(np.float32)
    weights[:, 5] = 0  # a column without a largest entry
    rows = generator.standard_normal((8, inputs)).astype(np.float32)
    program = cpu.compile_program(
        lambda x: x @ weights, jax.ShapeDtypeStruct(rows.shape, np.float32), "int8"
    )
    exact = rows.astype(np.float64) @ weights
    # Entries move by at most half a unit of int8, and results by a rounding to bfloat16.
    weight_error = np.abs(rows).sum(1)[:, None] * np.abs(weights).max(0) / 254
    row_error = np.abs(rows).max(1)[:, None] * np.abs(weights).sum(0) / 254
    bound = weight_error + row_error + 2**-8 * (np.abs(rows) @ np.abs(weights))
    error = np.abs(program(rows) - exact)
    assert np.all(error <= bound)
    assert error.max() > (1e-3 if inputs % 32 == 0 else 0)  # it is rounded


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_int8_does_not_hide_weights_that_are_not_finite(bad):
    weights = np.ones((32, 4), np.float32)
    weights[3, 2] = bad
    argument = jax.ShapeDtypeStruct((2, 32), np.float32)
    program = cpu.compile_program(lambda x: x @ weights, argument, "int8")
    is_finite = np.isfinite(program(np.ones((2, 32), np.float32)))
    np.testing.assert_array_equal(is_finite, [[True, True, False, True]] * 2)


@pytest.mark.slow  # it takes seconds
def test_odd_sizes_are_near_float32_in_int8():
    # OpenVINO would compute products with an odd number of inputs wrongly in int8.
    size = train.Size(width=33, heads=3, patch=5, tokens=4)
    encoder = train.untrained(15, ["red green", "blue"], size=size)
    reference = encoder.encode_images(pixels(encoder))
    encoder.set_image_precision("int8")
    assert distance(encoder.encode_images(pixels(encoder)), reference) < 2**-4


@pytest.mark.parametrize(
    "precision",
    [
        "float32",
        *(pytest.param(name, marks=pytest.mark.slow) for name in config.IMAGE_PRECISIONS[1:]),
    ],
)
def test_embedding_does_not_depend_on_the_batch(precision, golden):
    encoder = encoders.load(golden / "siglip")
    encoder.set_image_precision(precision)
    images = pixels(encoder, 17)
    together = encoder.encode_images(images)
    alone = np.concatenate([encoder.encode_images(images[i : i + 1]) for i in (0, 5, 16)])
    np.testing.assert_array_equal(alone, together[[0, 5, 16]])


def test_int8_is_refused_where_it_cannot_be_computed(golden, monkeypatch):
    encoder = encoders.load(golden / "siglip")
    encoder.set_image_precision("int8")
    monkeypatch.setattr(cpu, "compile_program", refuse)
    with pytest.raises(encoders.EncoderError, match="in int8 .no operation X.; set the precision"):
        encoder.encode_images(pixels(encoder))
    monkeypatch.setattr(cpu, "_openvino", lambda: importlib.import_module("missing_openvino"))
    with pytest.raises(encoders.EncoderError, match=r"needs OpenVINO, .*missing_op.*\[cpu\]"):
        encoder.set_image_precision("int8")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(encoders.EncoderError, match="int8 needs a CPU: give another"):
        encoder.set_image_precision("int8")
    assert encoder.preferred_precision == "float32"


def test_processor_decides_the_preferred_precision(golden, monkeypatch):
    encoder = encoders.load(golden / "siglip")
    for has_bfloat16, precision in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(cpu, "has_bfloat16", lambda has=has_bfloat16: has)
        assert encoder.preferred_precision == precision
    assert encoders.load(golden / "siglip", dtype="bfloat16").preferred_precision == "bfloat16"


@pytest.mark.parametrize("has_openvino", [True, False])
def test_bfloat16_instructions_match_the_processor(has_openvino, monkeypatch):
    flags = Path("/proc/cpuinfo")
    if not flags.is_file():
        pytest.skip("this system has no /proc/cpuinfo")
    names = {"avx512_bf16"} | ({"amx_bf16", "avx_ne_convert"} if has_openvino else set())
    monkeypatch.setattr(cpu, "is_installed", lambda: has_openvino)
    uncached = cpu.has_bfloat16.__wrapped__
    assert uncached() == bool(names & set(flags.read_text().split()))


def test_precision_is_checked(golden):
    encoder = encoders.load(golden / "siglip")
    with pytest.raises(encoders.EncoderError, match="float32 or bfloat16 or int8, got 'int4'"):
        encoder.set_image_precision("int4")
    rounded = encoders.load(golden / "siglip", dtype="bfloat16")
    with pytest.raises(encoders.EncoderError, match="precision must be bfloat16, got 'float32'"):
        rounded.set_image_precision("float32")


FREED_IN_A_THREAD = """
import gc, signal, threading
import jax, numpy as np
from hlformer_jax.encoders import cpu

programs = [cpu.compile_program(lambda x: x + 1, jax.ShapeDtypeStruct((2, 2), np.float32))]
programs[0](np.zeros((2, 2), np.float32))

def free():
    programs.clear()
    gc.collect()

thread = threading.Thread(target=free)
thread.start()
thread.join()
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
signal.raise_signal(signal.SIGTERM)
"""


@pytest.mark.slow  # it takes seconds
def test_signal_is_handled_after_a_thread_freed_a_program():
    result = processes.finish([sys.executable, "-c", FREED_IN_A_THREAD])
    assert (result.returncode, result.stdout) == (0, "handled\n"), result.stderr


@pytest.mark.slow  # it takes seconds
def test_openvino_is_imported_without_telemetry():
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; from hlformer_jax.encoders import cpu;"
        "cpu._openvino(); assert 'openvino' in sys.modules;"
        "assert not [name for name in sys.modules if name.startswith('openvino_telemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=processes.environment())
