"""A tree of 500 nodes, embedded by Riemannian SGD and Adam so that neighbours are the nearest."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hlformer_jax.ops import lorentz, poincare
from hlformer_jax.ops.manifolds import Lorentz, Poincare, riemannian, scale_by_length_adam

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("float64", "standard_promotion")]

# The complete tree in which every node has four children, cut off at 500 nodes.
NODES = 500
PARENT = (np.arange(1, NODES) - 1) // 4
NEIGHBOURS = np.zeros((NODES, NODES), bool)
NEIGHBOURS[np.arange(1, NODES), PARENT] = NEIGHBOURS[PARENT, np.arange(1, NODES)] = True

OPTIMIZERS = {
    "sgd": lambda rate: optax.sgd(rate),
    "adam": lambda rate: optax.chain(scale_by_length_adam(), optax.scale_by_learning_rate(rate)),
}


def log_cosh_distances(model, x):
    """log cosh d of all pairs: as good a distance, but smooth where two points meet."""
    if model == "euclidean":
        squares = jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)
        d = jnp.sqrt(jnp.where(squares == 0, 1e-30, squares))
        return d + jnp.log1p(jnp.exp(-2 * d)) - np.log(2)
    x = poincare.to_lorentz(x) if model == "poincare" else x
    return jnp.log(jnp.maximum(-lorentz.pairwise_inner(x, x), 1))


def embed(model, optimizer, dim, rate, temperature, steps=150):
    """Coordinates of the nodes, by the softmax loss of Nickel and Kiela over all pairs at once."""
    vectors = 1e-3 * np.random.default_rng(0).normal(size=(NODES, dim))
    start = {"poincare": poincare.exp_map0, "lorentz": lorentz.exp_map0, "euclidean": jnp.asarray}
    x = start[model](vectors)

    def loss(x):
        scores = -log_cosh_distances(model, x) / temperature
        others = jnp.where(NEIGHBOURS | np.eye(NODES, dtype=bool), -jnp.inf, scores)
        against = jax.nn.logsumexp(others, axis=1, keepdims=True)
        return jnp.sum(jnp.where(NEIGHBOURS, jax.nn.softplus(against - scores), 0))

    # Small steps first, as long as all nodes are near the origin; at last ever smaller ones.
    schedule = lambda step: (
        rate * jnp.where(step < 50, 0.1, 1) * jnp.minimum(1, (steps - step) / (0.3 * steps))
    )
    optimizer = OPTIMIZERS[optimizer](schedule)
    if model != "euclidean":
        optimizer = riemannian(optimizer, {"poincare": Poincare, "lorentz": Lorentz}[model]())

    def step(carry, _):
        x, state = carry
        updates, state = optimizer.update(jax.grad(loss)(x), state, x)
        return (optax.apply_updates(x, updates), state), None

    train = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=steps)[0])
    return train((x, optimizer.init(x)))[0]


def mean_average_precision(model, x):
    """Mean over the nodes of the average precision of their neighbours among all by distance."""
    distances = np.array(log_cosh_distances(model, x))
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1)
    hits = np.take_along_axis(NEIGHBOURS, order, axis=1)
    precision = np.cumsum(hits, axis=1) / np.arange(1, NODES + 1)
    return np.mean(np.sum(precision * hits, axis=1) / np.sum(hits, axis=1))


@pytest.mark.parametrize("model", ["poincare", "lorentz"])
@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 0.02), ("adam", 0.05)])
def test_riemannian_optimizers_embed_a_tree_in_five_dimensions(optimizer, rate, model):
    """Seen: 0.999 by SGD and 0.987 by Adam, in the ball as in the Lorentz model.

    Fewer dimensions need a higher temperature and longer ways. SGD in the Lorentz model reached
    0.989 in three (rate 0.03, temperature 0.15, 200 steps) and 0.953 in two (0.1, 0.25, 300).
    """
    x = embed(model, optimizer, 5, rate, temperature=0.1)
    assert np.isfinite(x).all()
    assert mean_average_precision(model, x) > 0.95


@pytest.mark.parametrize(("optimizer", "rate"), [("sgd", 1.0), ("adam", 0.5)])
def test_euclidean_space_of_two_dimensions_does_not_hold_that_tree(optimizer, rate):
    """Seen: 0.82 by SGD and 0.75 by Adam.

    The same loss with the rates and the temperature found best for it: 0.79 with three times the
    rate or twice the steps, 0.41 with those of hyperbolic space. It is two dimensions that are too
    few, not flatness as such: in five SGD reaches 1.00 in Euclidean space as well. And it is this
    tree: of the complete binary tree two dimensions hold 0.97, of a random recursive one 0.95.
    """
    x = embed("euclidean", optimizer, 2, rate, temperature=1.0, steps=400)
    assert 0.5 < mean_average_precision("euclidean", x) < 0.95
