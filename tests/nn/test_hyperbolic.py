"""Layers of hyperbolic space against the formulas of the papers, in both models."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import lorentz, poincare, whole
from flax import nnx

from hlformer_jax.nn import hyperbolic as layers
from hlformer_jax.ops import attention
from hlformer_jax.ops.manifolds import Euclidean, Lorentz, Poincare
from hlformer_jax.ops.optim import riemannian

SPACES = {"lorentz": Lorentz, "poincare": Poincare}
C = 0.7
RNG = np.random.default_rng(0)
U = RNG.normal(size=(2, 5, 4)) / 2
"""Space components of two sets of five points."""
NORMALS, OFFSETS = RNG.normal(size=(6, 4)) / 2, RNG.normal(size=6) / 3
SCALE, BIAS = RNG.normal(size=(2, 4))

# Textbook formulas in NumPy, of points of one model each.
time = lambda s, c=C: np.sqrt(1 / c + np.sum(s * s, -1, keepdims=True))
lift = lambda s, c=C: np.concatenate([time(s, c), s], -1)
to_ball = lambda x, c=C: x[..., 1:] / (1 + np.sqrt(c) * x[..., :1])
factor = lambda p, c=C: 2 / (1 - c * np.sum(p * p, -1, keepdims=True))


def lorentz_logits(x, c=C):
    length, root = np.linalg.norm(NORMALS, axis=1), np.sqrt(c)
    across = x[..., 1:] @ NORMALS.T / length
    rise = np.cosh(root * OFFSETS) * across - np.sinh(root * OFFSETS) * x[..., :1]
    return length * np.arcsinh(root * rise) / root


def ball_logits(p, c=C):
    """Shimizu et al., with normals of half the length and r half the offset."""
    z, r, root = NORMALS / 2, OFFSETS / 2, np.sqrt(c)
    length = np.linalg.norm(z, axis=1)
    rise = root * factor(p, c) * (p @ z.T / length) * np.cosh(2 * root * r)
    rise = rise - (factor(p, c) - 1) * np.sinh(2 * root * r)
    return 2 * length / root * np.arcsinh(rise)


def ball_linear(p):
    w = np.sinh(np.sqrt(C) * ball_logits(p)) / np.sqrt(C)
    return w / (1 + np.sqrt(1 + C * np.sum(w * w, -1, keepdims=True)))


def weights(x, y, scale):
    distances = -2 / C - 2 * (
        np.einsum("mi,li->ml", x[:, 1:], y[:, 1:]) - np.outer(x[:, 0], y[:, 0])
    )
    e = np.exp(-distances / scale)
    return e / e.sum(-1, keepdims=True)


def lorentz_attention(x, y, scale):
    total = weights(x, y, scale) @ y
    norm2 = total[:, :1] ** 2 - np.sum(total[:, 1:] ** 2, -1, keepdims=True)
    return total / np.sqrt(C * norm2)


def ball_attention(p, q, scale):
    """The gyromidpoint: half the way of the mean of λ q over that of λ − 1 (Ungar)."""
    w = weights(lift(factor(p) * p), lift(factor(q) * q), scale)
    m = w @ (factor(q) * q) / (w @ (factor(q) - 1))
    return m / (1 + np.sqrt(1 - C * np.sum(m * m, -1, keepdims=True)))


def normalised(s):
    s = (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + 1e-5)
    return s * SCALE + BIAS


LAYERS = {
    "linear": lambda space, x, y: layers.linear(
        space, x, jnp.asarray(NORMALS), jnp.asarray(OFFSETS)
    ),
    "mlr": lambda space, x, y: layers.mlr(space, x, jnp.asarray(NORMALS), jnp.asarray(OFFSETS)),
    "attention": lambda space, x, y: layers.attention(space, x, y, y, 1.3),
    "layer_norm": lambda space, x, y: layers.layer_norm(
        space, x, jnp.asarray(SCALE), jnp.asarray(BIAS)
    ),
    "residual": lambda space, x, y: layers.residual(space, x, y, 0.4),
    "embed": lambda space, x, y: layers.embed(space, x, jnp.asarray([[3, 0], [3, 1]])),
}
FORMULAS = {
    "linear": (
        lambda x, y: lift(np.sinh(np.sqrt(C) * lorentz_logits(x)) / np.sqrt(C)),
        lambda p, q: ball_linear(p),
    ),
    "mlr": (lambda x, y: lorentz_logits(x), lambda p, q: ball_logits(p)),
    "attention": (
        lambda x, y: lorentz_attention(x, y, 1.3),
        lambda p, q: ball_attention(p, q, 1.3),
    ),
    "layer_norm": (
        lambda x, y: lift(normalised(x[:, 1:])),
        lambda p, q: to_ball(lift(normalised(factor(p) * p))),
    ),
    "residual": (
        lambda x, y: lift(x[:, 1:] + 0.4 * y[:, 1:]),
        lambda p, q: to_ball(lift(factor(p) * p + 0.4 * factor(q) * q)),
    ),
    "embed": (lambda x, y: x[[[3, 0], [3, 1]]], lambda p, q: p[[[3, 0], [3, 1]]]),
}


def points(name, u=U, c=C, dtype=jnp.float64):
    x = lift(np.asarray(u), c)
    return [jnp.asarray(z, dtype) for z in (to_ball(x, c) if name == "poincare" else x)]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_the_values_of_its_formula(layer, name):
    space, x = SPACES[name](C), points(name)
    got = jax.jit(LAYERS[layer])(space, *x)
    want = FORMULAS[layer][name == "poincare"](*map(np.asarray, x))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)


@pytest.mark.slow  # it compiles operation by operation
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_the_same_values_without_jit(layer, name):
    space, x = SPACES[name](C), points(name)
    want = jax.jit(LAYERS[layer])(space, *x)
    np.testing.assert_allclose(LAYERS[layer](space, *x), want, rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("layer", LAYERS)
def test_both_models_compute_the_same(layer):
    there, here = (jax.jit(LAYERS[layer])(SPACES[name](C), *points(name)) for name in SPACES)
    if layer != "mlr":
        there = poincare.from_lorentz(there, C)
    np.testing.assert_allclose(there, here, rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("layer", ["linear", "residual", "attention"])
def test_a_nearly_flat_space_has_the_layers_of_euclidean_space(layer):
    c = 1e-10
    x, y = U
    affine = x @ NORMALS.T - np.linalg.norm(NORMALS, axis=1) * OFFSETS
    e = np.exp(-np.sum((x[:, None] - y[None]) ** 2, -1) / 1.3)
    attended = e / e.sum(-1, keepdims=True) @ y
    want = {"linear": affine, "residual": x + 0.4 * y, "attention": attended}[layer]
    got = jax.jit(LAYERS[layer])(Lorentz(c), *points("lorentz", c=c))
    np.testing.assert_allclose(got[:, 1:], want, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("float64")
def test_attention_is_that_of_the_models_at_curvature_one():
    x, y = (lift(u, 1.0) for u in U)
    mask = np.asarray([True, False, True, True, False])
    attend = jax.jit(lambda x, y, mask: layers.attention(Lorentz(1.0), x, y, y, 1.3, mask))
    of_models = jax.jit(lambda x, y, mask: attention.lorentz_attention(x, y, y, 1.3, mask=mask))
    got, want = attend(x, y, mask), of_models(x[None], y[None], mask)[0]
    np.testing.assert_allclose(got, want, rtol=1e-11)
    nobody, all_of_them = attend(x, y, np.zeros(5, bool)), lorentz.centroid(y)
    np.testing.assert_allclose(nobody, np.broadcast_to(all_of_them, (5, 5)), rtol=1e-11)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("layer", LAYERS)
def test_values_and_gradients_are_finite_at_every_edge(layer, name):
    """At the origin, at a point with itself, with zero parameters, as far out as points go."""
    space = SPACES[name](jnp.float32(C))
    far = 30.0 if name == "lorentz" else 14.0
    u = np.zeros((5, 4), np.float32)
    u[1:, 0] = [1e-30, 1e-6, far, -far]
    x = whole(space).exp_map0(jnp.asarray(u) / (1 if name == "lorentz" else 2) / np.float32(C**0.5))

    def total(space, x, normals, offsets, scale, bias, weight):
        y = {
            "linear": lambda: layers.linear(space, x, normals, offsets),
            "mlr": lambda: layers.mlr(space, x, normals, offsets),
            "attention": lambda: layers.attention(space, x, x, x, weight),
            "layer_norm": lambda: layers.layer_norm(space, x, scale, bias),
            "residual": lambda: layers.residual(space, x, x, weight),
            "embed": lambda: layers.embed(space, x, jnp.asarray([0, 4])),
        }[layer]()
        return jnp.sum(jnp.arcsinh(y)), y

    one = lambda *shape: jnp.ones(shape, jnp.float32)
    for size in (0, 1):
        args = (space, x, *(size * z for z in (one(6, 4), one(6), one(4), one(4))), one())
        (value, y), slopes = jax.jit(jax.value_and_grad(total, range(7), has_aux=True))(*args)
        assert np.isfinite(value) and np.isfinite(y).all() and y.dtype == jnp.float32
        assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("layer", LAYERS)
def test_of_narrow_numbers_float32_is_returned(layer, name, monkeypatch):
    # JAX remembers, of an array of NumPy's, the dtype that it had in a test of float64.
    for constant in ("NORMALS", "OFFSETS", "SCALE", "BIAS"):
        monkeypatch.setitem(globals(), constant, globals()[constant].astype(np.float32))
    x, y = points(name, dtype=jnp.bfloat16)
    got, want = (
        jax.jit(LAYERS[layer])(SPACES[name](C), x.astype(d), y.astype(d))
        for d in (x.dtype, "float32")
    )
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, rtol=1e-6)


def modules(space):
    """A module of each kind, and what to call it with."""
    name = "lorentz" if isinstance(space, Lorentz) else "poincare"
    x, y = points(name, dtype=jnp.float32)
    return {
        "Linear": (layers.Linear(6, space), x),
        "MLR": (layers.MLR(3, space), x),
        "Attention": (layers.Attention(6, 2, space), x, y, jnp.asarray([True] * 4 + [False])),
        "LayerNorm": (layers.LayerNorm(space), x),
        "Embedding": (layers.Embedding(7, 3, space, deviation=0.5), jnp.asarray([[2, 0], [2, 6]])),
        "Residual": (layers.Residual(layers.Linear(4, space), space), x),
        "Concatenate": (layers.Concatenate(space), (x, y)),
    }


KINDS = modules(Lorentz())


@pytest.mark.parametrize("name", ["lorentz", pytest.param("poincare", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind",
    [pytest.param(x, marks=pytest.mark.slow) if x == "Attention" else x for x in KINDS],
)
def test_a_module_owns_parameters_and_calls_the_function_in_linen_and_in_nnx(kind, name):
    space = SPACES[name](C)
    module, *args = modules(space)[kind]
    params = jax.jit(module.init)(jax.random.key(0), *args)
    params = jax.tree.map(lambda p: p + 0.1 * jnp.cos(jnp.arange(p.size)).reshape(p.shape), params)
    got = jax.jit(module.apply)(params, *args)
    x = args[0]
    planes = lambda tree: tuple(tree["hyperplanes"][key] for key in ("normals", "offsets"))
    want = lambda inner: {
        "Linear": lambda: layers.linear(space, x, *planes(inner)),
        "MLR": lambda: layers.mlr(space, x, *planes(inner)),
        "Attention": lambda: _attention(space, inner, *args),
        "LayerNorm": lambda: layers.layer_norm(space, x, inner["scale"], inner["bias"]),
        "Embedding": lambda: layers.embed(space, inner["embedding"], x),
        "Residual": lambda: layers.residual(
            space, x, layers.linear(space, x, *planes(inner["layer"])), inner["weight"]
        ),
        "Concatenate": lambda: layers.concatenate(space, x),
    }[kind]()
    want = jax.jit(want)(params.get("params", {}))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    if kind != "MLR":
        np.testing.assert_allclose(whole(space).project(got), got, rtol=1e-5, atol=1e-5)

    bridged = nnx.bridge.ToNNX(module, rngs=nnx.Rngs(0)).lazy_init(*args)
    fresh = jax.eval_shape(module.init, jax.random.key(0), *args)
    assert jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(bridged, nnx.Param))) == jax.tree.map(
        jnp.shape, dict(fresh.get("params", {}))
    )

    def total(layer):
        y = layer(*args)
        return jnp.sum(y**2), y

    slopes, start = nnx.jit(nnx.grad(total, has_aux=True))(bridged)
    slopes = jax.tree.leaves(slopes)
    assert start.shape == got.shape and np.isfinite(start).all()
    assert all(np.isfinite(slope).all() for slope in slopes)
    assert bool(slopes) == (kind != "Concatenate")


def _attention(space, params, x, context, mask):
    """Head by head, by the functions."""
    hyperboloid = Lorentz(space.c)
    moved = [
        layers.linear(
            hyperboloid, space.to_lorentz(z),
            params[name]["hyperplanes"]["normals"], params[name]["hyperplanes"]["offsets"],
        )
        for name, z in (("query", x), ("key", context), ("value", context))
    ]  # fmt: skip
    heads = zip(*(lorentz.split(z, (3, 3), C) for z in moved), strict=True)
    scale = jnp.exp(params["log_scale"]) * 3**0.5
    joined = lorentz.concatenate(
        [layers.attention(hyperboloid, *head, scale, mask) for head in heads], C
    )
    out = params["out"]["hyperplanes"]
    return layers.linear(space, space.from_lorentz(joined), out["normals"], out["offsets"])


class Classifier(nn.Module):
    """Embeddings, attention over them, and classes, in a space whose curvature is learned."""

    model: type

    @nn.compact
    def __call__(self, index):
        space = self.model(jax.nn.softplus(self.param("curvature", nn.initializers.zeros, ())))
        x = layers.Embedding(12, 4, space, deviation=0.3, name="words")(index)
        x = layers.Residual(layers.Attention(4, 2, space), space)(x)
        x = layers.Linear(4, space)(layers.LayerNorm(space)(x))
        return layers.MLR(3, space)(x).mean(-2)


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("name", SPACES)
def test_a_model_of_all_layers_learns_with_its_curvature_and_points(name):
    """The class of a sentence is what most of its words, drawn from twelve, belong to."""
    rng = np.random.default_rng(0)
    index = jnp.asarray(rng.integers(12, size=(60, 5)))
    label = jnp.asarray([np.bincount(row % 3, minlength=3).argmax() for row in np.asarray(index)])
    module = Classifier(SPACES[name])
    params = module.init(jax.random.key(0), index)["params"]

    def spaces(params):
        space = SPACES[name](jax.nn.softplus(params["curvature"]))
        flat = {key: Euclidean() for key in params}
        return {**flat, "words": {"embedding": space}}

    optimizer = riemannian(optax.adam(0.03), spaces)

    def loss(params):
        logits = module.apply({"params": params}, index)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, label))

    def step(carry, _):
        params, state = carry
        value, slopes = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(slopes, state, params)
        return (optax.apply_updates(params, updates), state), value

    run = jax.jit(lambda carry: jax.lax.scan(step, carry, length=80))
    (end, _), values = run((params, optimizer.init(params)))
    assert values[-1] < 0.3 * values[0] and np.isfinite(values).all()
    assert abs(end["curvature"]) > 0.01
