"""The losses of HOVER as functions of logits and numbers: hinges by hand, and nothing but padding.

`test_tree_objective` holds their values on embedded trees against loops over their definitions.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from hlformer_jax.losses import ranking, trees

MARGIN = 0.1
SIZE = 4
BELOW = np.zeros((SIZE, SIZE), bool)
BELOW[3, :3] = True

OF_LOGITS = {
    "alignment": lambda x, mask: trees.alignment(x, mask),
    "tree": lambda x, mask: trees.tree((x, x.T), mask, BELOW),
    "tree, sum": lambda x, mask: trees.tree((x, x), mask, None, "sum"),
}


def _logits(seed=0, scale=3.0):
    return np.random.default_rng(seed).normal(size=(SIZE, SIZE)) * scale


@functools.cache
def _program(name):
    return jax.jit(jax.value_and_grad(OF_LOGITS[name]))


@pytest.mark.parametrize("name", OF_LOGITS)
def test_losses_of_nothing_but_padding_are_zero_and_pull_at_nothing(name):
    value, gradient = _program(name)(_logits().astype(np.float32), np.zeros(SIZE, bool))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_losses_of_logits_as_far_apart_as_they_can_be_stay_finite(name):
    # A scale of 100 and distances up to 50 times as far as points of float32 are from the origin.
    extreme = _logits(scale=1e5).astype(np.float32)
    value, gradient = _program(name)(extreme, np.ones(SIZE, bool))
    assert np.isfinite(value) and value >= 0
    assert np.all(np.isfinite(gradient)) and np.any(gradient)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_a_constant_that_is_added_to_all_logits_changes_nothing(name):
    mask, logits = np.arange(SIZE) != 1, _logits().astype(np.float32)
    one, other = (_program(name)(x, mask) for x in (logits, logits + np.float32(8)))
    # Rounding of logits near 16 in float32, in sums of up to six pairs.
    np.testing.assert_allclose(one[0], other[0], atol=1e-5)
    np.testing.assert_allclose(one[1], other[1], atol=1e-5)


@pytest.mark.parametrize("name", ["alignment", "tree", "tree, sum"])
def test_derivatives_of_both_orders_are_those_of_differences(name, float64):
    mask = np.arange(SIZE) != 2
    value = jax.jit(lambda x: OF_LOGITS[name](x, mask))
    check_grads(value, (_logits(),), order=2, modes=["rev"])


def test_alignment_is_the_mean_of_both_directions():
    logits = _logits()
    expected = [np.log(np.sum(np.exp(x), axis=1)) - np.diagonal(x) for x in (logits, logits.T)]
    found = _program("alignment")(logits.astype(np.float32), np.ones(SIZE, bool))[0]
    assert float(found) == pytest.approx(np.mean(expected), rel=1e-6)


# The first of each pair should be lower. In order by more than the margin, in order by less, out of
# order by less, and by more; the value and the slope by the lower number, of each form.
HINGES = {
    0.5: {"corrected": (0.0, 0), "printed": (-0.6, 1)},
    0.04: {"corrected": (0.06, 1), "printed": (-0.14, 1)},
    -0.04: {"corrected": (0.14, 1), "printed": (-0.06, 1)},
    -0.5: {"corrected": (0.6, 1), "printed": (0.0, 0)},
}


@functools.cache
def _hinge(form):
    """Value and gradients of one pair, of which row 0 should be the lower."""

    def value(video, text):
        low, high, real = jnp.array([0]), jnp.array([1]), jnp.array([True])
        return trees.hinge(video, text, low, high, real, MARGIN, form)

    return jax.jit(jax.value_and_grad(value, (0, 1)))


@pytest.mark.parametrize("form", trees.FORMS)
def test_hinges_of_every_form_are_those_of_the_table(form):
    for ahead, forms in HINGES.items():
        value, slope = forms["corrected" if form == "corrected" else "printed"]
        numbers = np.array([0.3, 0.3 + ahead], np.float32)
        found, gradients = _hinge(form)(numbers, numbers)
        assert float(found) == pytest.approx(value, abs=1e-7), ahead
        # Half of it through each modality.
        for gradient in gradients:
            np.testing.assert_array_equal(gradient, [slope / 2, -slope / 2])


def test_a_hinge_compares_different_modalities_alone():
    # Within each modality the first is lower; the first text is higher than the second video.
    video, text = np.array([0.1, 0.3], np.float32), np.array([0.5, 0.9], np.float32)
    assert _hinge("corrected")(video, text)[0] == pytest.approx((0.5 - 0.3 + 0.1) / 2)
    assert _hinge("corrected")(video, video)[0] == 0


def test_a_form_that_is_unknown_is_refused_with_those_there_are():
    one, row, real = jnp.ones(1), jnp.array([0]), jnp.array([True])
    with pytest.raises(ValueError, match="paper"):
        trees.hinge(one, one, row, row, real, MARGIN, "paper")


def test_entailment_is_the_mean_over_real_edges_of_both_choices_of_the_modality():
    angles = np.array([[0.4, 0.0, np.nan], [0.2, 1.0, np.nan]], np.float32)
    mask = np.array([True, True, False])
    value = lambda angles, mask: trees.entailment((angles[0], angles[1]), mask)
    found, gradient = jax.jit(jax.value_and_grad(value))(angles, mask)
    assert float(found) == pytest.approx((0.4 + 0.0 + 0.2 + 1.0) / 4)
    np.testing.assert_array_equal(gradient, [[0.25, 0.25, 0]] * 2)
    none, gradient = jax.jit(jax.value_and_grad(value))(angles, np.zeros(3, bool))
    assert none == 0 and not np.any(gradient)


def test_padding_is_put_to_the_origin_and_its_gradient_with_it():
    points = np.array([[1.0, 2.0], [np.nan, np.inf]], np.float32)
    mask = np.array([True, False])
    value = lambda points: jnp.sum(ranking.zero_padding(points, mask) ** 2)
    found, gradient = jax.value_and_grad(value)(points)
    assert found == 5
    np.testing.assert_array_equal(gradient, [[2, 4], [0, 0]])
