"""The recurrent layer against its equations, and where positions are masked."""

import jax
import jax.numpy as jnp
import numpy as np

from hlformer_jax.nn.recurrent import LSTM

LENGTHS = np.array([4, 2, 1, 0])
MASK = np.arange(4)[None] < LENGTHS[:, None]


def _sequences(junk=5.0):
    drawn = np.random.default_rng(0).normal(size=(4, 4, 5))
    return np.where(MASK[..., None], drawn, junk).astype(np.float32)


def _layer():
    layer = LSTM(3)
    return layer, layer.init(jax.random.key(1), _sequences(), MASK)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_recurrent_layer_equals_its_equations_and_stands_still_where_masked():
    x, (layer, params) = _sequences(), _layer()
    found = np.asarray(jax.jit(layer.apply)(params, x, MASK))
    weights = {name: np.asarray(x, np.float64) for name, x in params["params"].items()}
    assert all(np.abs(x).max() <= 3**-0.5 for x in weights.values())
    for sequence, mask, outputs in zip(x, MASK, found, strict=True):
        hidden, cell = np.zeros(3), np.zeros(3)
        for row, real, output in zip(sequence, mask, outputs, strict=True):
            if real:
                gates = row @ weights["input"] + hidden @ weights["recurrent"] + weights["bias"]
                i, f, g, o = np.split(gates, 4)
                cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
                hidden = _sigmoid(o) * np.tanh(cell)
            # A few float32 products of numbers near 1.
            np.testing.assert_allclose(output, hidden, atol=2e-6)


def test_masked_positions_reach_neither_outputs_nor_gradients_whatever_they_hold():
    layer, params = _layer()
    real = lambda x: jnp.where(MASK[..., None], layer.apply(params, x, MASK), 0)
    value = jax.jit(jax.value_and_grad(lambda x: jnp.sum(real(x) ** 2)))
    (one, gradient), (other, _) = value(_sequences()), value(_sequences(junk=-9.0))
    assert one == other > 0
    np.testing.assert_array_equal(gradient[~MASK], 0)
    assert np.all(np.any(gradient[MASK], axis=-1))


def test_leading_axes_are_a_batch_and_half_precision_is_computed_in_float32():
    layer, params = _layer()
    x = _sequences().astype(np.float16)
    apply = jax.jit(layer.apply)
    whole = apply(params, x, MASK)
    assert whole.dtype == jnp.float32
    shaped = apply(params, x.reshape(2, 2, 4, 5), MASK.reshape(2, 2, 4))
    # The same products in another batch shape: rounding of float32 at most.
    np.testing.assert_allclose(shaped.reshape(whole.shape), whole, atol=1e-6)
