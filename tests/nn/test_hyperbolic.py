"""Hyperbolic layers against the formulas of the papers, in both models."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compiled import compile_space, lorentz, poincare
from flax import nnx

import hlformer_jax as hl
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


# Textbook formulas in NumPy, each for points of one model.
def time(s, c=C):
    return np.sqrt(1 / c + np.sum(s * s, -1, keepdims=True))


def lift(s, c=C):
    return np.concatenate([time(s, c), s], -1)


def to_ball(x, c=C):
    return x[..., 1:] / (1 + np.sqrt(c) * x[..., :1])


def factor(p, c=C):
    return 2 / (1 - c * np.sum(p * p, -1, keepdims=True))


def lorentz_logits(x, c=C):
    length, root = np.linalg.norm(NORMALS, axis=1), np.sqrt(c)
    across = x[..., 1:] @ NORMALS.T / length
    rise = np.cosh(root * OFFSETS) * across - np.sinh(root * OFFSETS) * x[..., :1]
    return length * np.arcsinh(root * rise) / root


def ball_logits(p, c=C):
    """Return the logits of Shimizu et al., with normals of half the length and half the offset."""
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
    """Return Ungar's gyromidpoint: the Möbius half of the mean of λ q over the mean of λ − 1."""
    w = weights(lift(factor(p) * p), lift(factor(q) * q), scale)
    m = w @ (factor(q) * q) / (w @ (factor(q) - 1))
    return m / (1 + np.sqrt(1 - C * np.sum(m * m, -1, keepdims=True)))


def normalised(s):
    s = (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + 1e-5)
    return s * SCALE + BIAS


LAYERS = {
    "linear": lambda space, x, y, p: layers.linear(space, x, p["normals"], p["offsets"]),
    "mlr": lambda space, x, y, p: layers.mlr(space, x, p["normals"], p["offsets"]),
    "attention": lambda space, x, y, p: layers.attention(space, x, y, y, p["attention"]),
    "layer_norm": lambda space, x, y, p: layers.layer_norm(space, x, p["scale"], p["bias"]),
    "residual": lambda space, x, y, p: layers.residual(space, x, y, p["residual"]),
    "embed": lambda space, x, y, p: layers.embed(space, x, jnp.asarray([[3, 0], [3, 1]])),
}
PARAMS = {
    "normals": NORMALS, "offsets": OFFSETS, "scale": SCALE, "bias": BIAS,
    "attention": 1.3, "residual": 0.4,
}  # fmt: skip
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


def results(space, x, y, p):
    """Return the result of every layer."""
    return {name: layer(space, x, y, p) for name, layer in LAYERS.items()}


every_layer = jax.jit(results)


def computed(name, c=C):
    params = jax.tree.map(jnp.asarray, PARAMS)
    return every_layer(SPACES[name](c), *points(name, c=c), params)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
def test_layers_follow_their_formulas_in_both_models():
    outputs = {name: computed(name) for name in SPACES}
    for name in SPACES:
        for layer, formulas in FORMULAS.items():
            want = formulas[name == "poincare"](*map(np.asarray, points(name)))
            np.testing.assert_allclose(
                outputs[name][layer], want, rtol=1e-11, atol=1e-13, err_msg=f"{name} {layer}"
            )
    for layer, value in outputs["lorentz"].items():
        value = value if layer == "mlr" else poincare.from_lorentz(value, C)
        np.testing.assert_allclose(
            value, outputs["poincare"][layer], rtol=1e-11, atol=1e-13, err_msg=layer
        )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("layer", ["mlr", "layer_norm"])
def test_layer_in_the_ball_follows_its_formula(layer):
    p, q = points("poincare")
    params = jax.tree.map(jnp.asarray, PARAMS)
    got = jax.jit(LAYERS[layer])(Poincare(C), p, q, params)
    want = FORMULAS[layer][1](np.asarray(p), np.asarray(q))
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-13)


@pytest.mark.slow  # compiles each operation separately
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", SPACES)
def test_layer_has_the_same_values_without_jit(name):
    single = results(SPACES[name](C), *points(name), jax.tree.map(jnp.asarray, PARAMS))
    for layer, want in computed(name).items():
        np.testing.assert_allclose(single[layer], want, rtol=1e-11, atol=1e-13, err_msg=layer)


@pytest.mark.usefixtures("float64")
def test_nearly_flat_layers_are_euclidean():
    x, y = U
    e = np.exp(-np.sum((x[:, None] - y[None]) ** 2, -1) / 1.3)
    want = {
        "linear": x @ NORMALS.T - np.linalg.norm(NORMALS, axis=1) * OFFSETS,
        "residual": x + 0.4 * y,
        "attention": e / e.sum(-1, keepdims=True) @ y,
    }
    got = computed("lorentz", 1e-10)
    for layer, flat in want.items():
        np.testing.assert_allclose(got[layer][:, 1:], flat, rtol=1e-5, atol=1e-6, err_msg=layer)


@pytest.mark.usefixtures("float64")
def test_attention_layer_equals_lorentz_attention():
    x, y = (lift(u, 1.0) for u in U)
    mask = np.asarray([True, False, True, True, False])
    attend = jax.jit(lambda x, y, mask: layers.attention(Lorentz(1.0), x, y, y, 1.3, mask))
    of_models = jax.jit(lambda x, y, mask: attention.lorentz_attention(x, y, y, 1.3, mask=mask))
    got, want = attend(x, y, mask), of_models(x[None], y[None], mask)[0]
    np.testing.assert_allclose(got, want, rtol=1e-11)
    batch = jax.eval_shape(attend, x[None], y[None], mask)  # one mask for all videos
    assert batch.shape == (1, 5, 5)
    fully_masked, centroid = attend(x, y, np.zeros(5, bool)), lorentz.centroid(y)
    np.testing.assert_allclose(fully_masked, np.broadcast_to(centroid, (5, 5)), rtol=1e-11)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", SPACES)
def test_layers_are_finite_at_every_edge(name):
    """At the origin, at equal points, with zero parameters, and at the most distant points."""
    space = SPACES[name](jnp.float32(C))
    radius = 30.0 if name == "lorentz" else 14.0
    u = np.zeros((5, 4), np.float32)
    u[1:, 0] = [1e-30, 1e-6, radius, -radius]
    x = compile_space(space).exp_map0(
        jnp.asarray(u) / (1 if name == "lorentz" else 2) / np.float32(C**0.5)
    )

    def total(space, x, p):
        values = results(space, x, x, p)
        return sum(jnp.sum(jnp.arcsinh(value)) for value in values.values()), values

    run = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))
    for size in (0, 1):
        p = {
            key: jnp.full(np.shape(z), size if np.ndim(z) else 1, "float32")
            for key, z in PARAMS.items()
        }
        (value, values), slopes = run(space, x, p)
        assert np.isfinite(value)
        for layer, y in values.items():
            assert np.isfinite(y).all() and y.dtype == jnp.float32, layer
        assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", SPACES)
def test_narrow_inputs_give_float32(name):
    x, y = points(name, dtype=jnp.bfloat16)
    params = {key: jnp.asarray(value, jnp.float32) for key, value in PARAMS.items()}
    got, want = (
        every_layer(SPACES[name](C), x.astype(d), y.astype(d), params) for d in (x.dtype, "float32")
    )
    for layer, value in got.items():
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, want[layer], rtol=1e-6, err_msg=layer)


def modules(space):
    """Return a module of each kind, and its arguments."""
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


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("name", SPACES)
def test_modules_call_their_functions_in_linen_and_nnx(name):
    space = SPACES[name](C)
    kinds = {kind: (module, args) for kind, (module, *args) in modules(space).items()}

    def init(key):
        return {kind: module.init(key, *args) for kind, (module, args) in kinds.items()}

    fresh = jax.jit(init)(jax.random.key(0))
    params = jax.tree.map(lambda p: p + 0.1 * np.cos(np.arange(p.size)).reshape(p.shape), fresh)

    def planes(tree):
        return tuple(tree["hyperplanes"][key] for key in ("normals", "offsets"))

    functions = {
        "Linear": lambda p, x: layers.linear(space, x, *planes(p)),
        "MLR": lambda p, x: layers.mlr(space, x, *planes(p)),
        "Attention": lambda p, *args: _attention(space, p, *args),
        "LayerNorm": lambda p, x: layers.layer_norm(space, x, p["scale"], p["bias"]),
        "Embedding": lambda p, x: layers.embed(space, p["embedding"], x),
        "Residual": lambda p, x: layers.residual(
            space, x, layers.linear(space, x, *planes(p["layer"])), p["weight"]
        ),
        "Concatenate": lambda p, x: layers.concatenate(space, x),
    }

    @jax.jit
    def both(params):
        got = {kind: module.apply(params[kind], *args) for kind, (module, args) in kinds.items()}
        want = {
            kind: functions[kind](params[kind].get("params", {}), *args)
            for kind, (_, args) in kinds.items()
        }
        return got, want, {kind: space.project(y) for kind, y in got.items() if kind != "MLR"}

    got, want, projected = both(params)
    for kind, value in want.items():
        np.testing.assert_allclose(got[kind], value, rtol=1e-4, atol=1e-5, err_msg=kind)
    for kind, value in projected.items():
        np.testing.assert_allclose(got[kind], value, rtol=1e-5, atol=1e-5, err_msg=kind)

    @nnx.jit
    def bridge(key):
        bridged = {
            kind: nnx.bridge.ToNNX(module, rngs=nnx.Rngs(key)).lazy_init(*args)
            for kind, (module, args) in kinds.items()
        }

        def total(bridged):
            ys = {kind: layer(*kinds[kind][1]) for kind, layer in bridged.items()}
            return sum(jnp.sum(y**2) for y in ys.values()), ys

        states = {kind: nnx.state(layer, nnx.Param) for kind, layer in bridged.items()}
        return states, *nnx.grad(total, has_aux=True)(bridged)

    states, slopes, starts = bridge(jax.random.key(0))
    for kind, start in starts.items():
        linen = dict(fresh[kind].get("params", {}))
        assert jax.tree.map(jnp.shape, nnx.to_pure_dict(states[kind])) == jax.tree.map(
            jnp.shape, linen
        )
        assert start.shape == got[kind].shape and np.isfinite(start).all(), kind
        gradients = jax.tree.leaves(slopes[kind])
        assert all(np.isfinite(slope).all() for slope in gradients), kind
        assert bool(gradients) == (kind != "Concatenate")


@pytest.mark.parametrize("name", SPACES)
def test_initial_layers_keep_the_scale_of_their_points(name):
    space = SPACES[name](jnp.float32(C))

    @jax.jit
    def fresh(key):
        origin = space.origin(50, jnp.float32)
        layers_of = (
            layers.Linear(800, space),
            layers.LayerNorm(space),
            layers.Residual(layers.LayerNorm(space), space),
        )
        params = [layer.init(key, origin)["params"] for layer in layers_of]
        table = layers.Embedding(400, 20, space, deviation=0.3).init(key, jnp.zeros(1, int))
        return *params, space.log_map0(table["params"]["embedding"])

    linear, norm, added, tangents = fresh(jax.random.key(0))
    # A sum of 50 products keeps the variance of a component.
    assert np.std(linear["hyperplanes"]["normals"]) == pytest.approx(50**-0.5, rel=0.02)
    assert not linear["hyperplanes"]["offsets"].any() and not norm["bias"].any()
    assert (norm["scale"] == 1).all() and added["weight"] == 1
    assert np.std(tangents) == pytest.approx(0.3, rel=0.03)


class Sum(nn.Module):
    """Layer that returns the sum of its further arguments."""

    def __call__(self, x, y, *, z):
        return y + z


@pytest.mark.usefixtures("float64")
def test_modules_pass_epsilon_and_further_arguments():
    space, (x, y) = Lorentz(C), points("lorentz")
    scale, bias = jnp.asarray(SCALE), jnp.asarray(BIAS)

    @jax.jit
    def both(x, y):
        norm, added = layers.LayerNorm(space, 0.5), layers.Residual(Sum(), space)
        got = (
            norm.apply({"params": {"scale": scale, "bias": bias}}, x),
            added.apply({"params": {"weight": jnp.asarray(0.4)}}, x, y, z=x),
        )
        return got, (
            layers.layer_norm(space, x, scale, bias, 0.5),
            layers.residual(space, x, x + y, 0.4),
        )

    got, want = both(x, y)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def _attention(space, params, x, context, mask):
    """Compute attention by the functions, one head at a time."""
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
    merged = lorentz.concatenate(
        [layers.attention(hyperboloid, *head, scale, mask) for head in heads], C
    )
    out = params["out"]["hyperplanes"]
    return layers.linear(space, space.from_lorentz(merged), out["normals"], out["offsets"])


class Classifier(nn.Module):
    """Embeddings, attention and classes in a space with a learned curvature."""

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
def test_model_of_all_layers_learns(name):
    """The class of a sentence is the most frequent class of its words."""
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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("space", [Lorentz(1.0), Poincare(1.0)])
def test_layers_refuse_sizes_that_do_not_fit(space):
    x, y = space.exp_map0(jnp.ones((2, 4))), space.exp_map0(jnp.ones((2, 1)))
    with pytest.raises(ValueError, match="same number of coordinates, got 4 and 1"):
        layers.residual(space, x, y)  # one coordinate would broadcast
    with pytest.raises(ValueError, match="num_heads must divide the 7 features, got 2"):
        layers.Attention(7, 2, space).init(jax.random.key(0), x)
    # These would broadcast to other coordinates, hyperplanes or keys than their names say.
    four, one = jnp.ones(4), jnp.ones(1)
    with pytest.raises(ValueError, match=r"weight must have shape \(\), got \(4,\)"):
        layers.residual(space, x, x, four)
    with pytest.raises(ValueError, match=r"scale must have shape \(4,\), got \(1,\)"):
        layers.layer_norm(space, x, one, four)
    with pytest.raises(ValueError, match=r"bias must have shape \(4,\), got \(1,\)"):
        layers.layer_norm(space, x, four, one)
    with pytest.raises(ValueError, match=r"scale must have shape \(\), got \(2,\)"):
        layers.attention(space, x, x, x, jnp.ones(2))
    for name in ("variance", "scale"):
        numbers = {"variance": 1.0, "scale": 1.0, name: jnp.ones(1)}
        with pytest.raises(ValueError, match=rf"{name} must have shape \(\), got \(1,\)"):
            hl.nn.batch_norm(space, x, x[0], bias=four, **numbers)
    with pytest.raises(ValueError, match=r"mask must have shape \(1, 2\), got \(2,\)"):
        hl.nn.batch_moments(space, x[None], jnp.ones(2, bool))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("space", [Lorentz(1.0), Poincare(1.0)])
def test_attention_refuses_a_mask_that_is_added_to_logits(space):
    x = space.exp_map0(jnp.ones((2, 4)))
    with pytest.raises(TypeError, match="mask must be boolean, .* got the dtype float32"):
        layers.attention(space, x, x, x, 1.0, jnp.asarray([0, -jnp.inf]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("space", [
    hl.manifolds.Euclidean(), hl.manifolds.Sphere(1.0), hl.manifolds.Product((Lorentz(1.0),)), None,
])  # fmt: skip
def test_layers_refuse_other_spaces_than_hyperbolic_ones(space):
    x, z, b = jnp.ones((2, 5)), jnp.ones((3, 4)), jnp.ones(4)
    calls = (
        lambda: layers.linear(space, x, z, b[:3]),
        lambda: layers.mlr(space, x, z, b[:3]),
        lambda: layers.attention(space, x, x, x, 1.0),
        lambda: layers.layer_norm(space, x, b, b),
        lambda: layers.residual(space, x, x),
        lambda: layers.concatenate(space, [x, x]),
        lambda: hl.nn.activate(space, x, jax.nn.relu),
        lambda: hl.nn.activate_tangent(space, x, jax.nn.relu),
        lambda: hl.nn.batch_moments(space, x),
        lambda: hl.nn.batch_norm(space, x, x[0], 1.0, 1.0, b),
        *(
            functools.partial(module.init, jax.random.key(0), x)
            for module in (
                layers.Linear(3, space), layers.MLR(3, space), layers.LayerNorm(space),
                layers.Attention(4, 2, space),
            )
        ),
        lambda: hl.nn.BatchNorm(space).init(jax.random.key(0), x, False),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(TypeError, match="space must be a Lorentz or a Poincare, got"):
            call()
