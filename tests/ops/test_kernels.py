"""What the Pallas kernels share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import triton

from hlformer_jax.ops import kernels


@pytest.mark.parametrize(("backend", "default"), [("cpu", True), ("tpu", True), ("gpu", False)])
def test_kernels_are_interpreted_as_asked_or_where_there_is_no_gpu(monkeypatch, backend, default):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    asked = [kernels.interpreted(interpret) for interpret in (None, True, False)]
    assert asked == [default, True, False]


@pytest.mark.parametrize("older", [False, True])
def test_parameters_are_tritons_whatever_their_class_is_called(monkeypatch, older):
    if older:
        own = triton.CompilerParams
        monkeypatch.delattr(triton, "CompilerParams")
        monkeypatch.setattr(triton, "TritonCompilerParams", own, raising=False)
    params = kernels.compiler_params(4, 2)
    assert (params.num_warps, params.num_stages) == (4, 2)


def test_sizes_are_the_least_powers_of_two_that_triton_multiplies():
    found = {size: kernels.power_of_two(size) for size in (1, 15, 16, 17, 32, 33, 384, 512, 513)}
    assert found == {
        1: 16, 15: 16, 16: 16, 17: 32, 32: 32, 33: 64, 384: 512, 512: 512, 513: 1024,
    }  # fmt: skip


def test_the_last_axes_are_padded_behind_with_a_value_and_no_others():
    x = jnp.arange(1.0, 13).reshape(2, 2, 3)
    padded = np.asarray(kernels.pad(x, (4, 5), -1.0))
    assert padded.shape == (2, 4, 5)
    np.testing.assert_array_equal(padded[:, :2, :3], x)
    assert (padded[:, 2:] == -1).all() and (padded[..., 3:] == -1).all()
    assert kernels.pad(x, (4,))[..., 3].tolist() == [[0, 0], [0, 0]]


def test_an_array_of_the_size_is_returned_as_it_is():
    x = jnp.ones((2, 16, 32))
    assert kernels.pad(x, (16, 32)) is x
