"""Functions of hyperbolic space beside hyperbolix and geoopt, if they are installed.

Each function is timed in both models, with and without its gradient, alternating with the other
libraries. Layers and a step of Riemannian Adam are timed as well. Ratios use the shortest time of
all repeats, because other processes can only make a run slower. `taskset -c 0` before the command
measures one core.

Errors of values and gradients are measured in float32 and float64, against at least 60 digits
(mpmath). The points are 1e-12 to 12 from the origin. A second point lies in another direction, near
the first, very near it, or opposite. Gradients are with respect to the coordinates of both points
in the ball, or the space components of both on the hyperboloid, as one vector. An error is the
length of the difference of two vectors over the length of the exact one. Values that are not finite
are counted separately, also at equal points.
"""

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from benchmarks.measure import Options, Row, announce, clock, floor, summary
from hlformer_jax import nn
from hlformer_jax.data.sources.synthetic import is_synthetic
from hlformer_jax.lazy import optional
from hlformer_jax.ops import lorentz, manifolds, optim, poincare


class Sizes(NamedTuple):
    """Sizes of the inputs of a function, and the cases of its errors."""

    pairs: int = 10_000  # number of pairs of points
    dimension: int = 128  # dimension of these points
    classes: int = 100  # hyperplanes of `mlr`, and dimension of the results of `linear`
    heads: tuple[int, int, int] = (8, 128, 32)  # of attention: heads, positions, dimensions
    sets: tuple[int, int, int] = (256, 32, 64)  # of a centroid: sets, points of each, dimensions
    points: tuple[int, int] = (4096, 64)  # of `pairwise_distance`: points, dimensions
    # Distances of the points from the origin, for errors.
    radii: tuple[float, ...] = (1e-12, 1e-9, 1e-6, 1e-3, 0.1, 1.0, 3.0, 6.0, 12.0)
    dtypes: tuple[str, ...] = ("float32", "float64")  # dtypes whose errors are measured


SMALL = Sizes(20, 4, 3, (2, 4, 4), (2, 4, 8), (8, 4), (1e-3, 1.0), ("float32",))
"""Sizes with a configuration on synthetic data."""

KINDS = ("generic", "near", "nearest", "opposite", "same")
DIGITS = 60
MODELS = ("lorentz", "poincare")
FUNCTIONS = ("exp_map", "log_map", "distance", "transport", "centroid", "pairwise_distance")
LAYERS = ("mlr", "linear", "attention", "adam")
"""Layers, and a step of Riemannian Adam; their errors are not measured."""


class Library(NamedTuple):
    """A library's functions, by model and name, and its arrays."""

    functions: Mapping[tuple[str, str], Callable[..., Any]]
    numpy: ModuleType  # jax.numpy, or torch
    array: Callable[[np.ndarray], Any]
    compile: Callable[[Callable[..., Any]], Callable[..., Any]]
    gradient: Callable[[Callable[..., Any]], Callable[..., Any]]
    """Returns the compiled gradient of a scalar function in its first two arguments."""


def geometry(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Yield a row for each function in each model; see `Sizes`."""
    optional("mpmath", "test")
    sizes = SMALL if is_synthetic(config.data) else Sizes()
    if config.compile_fast:
        jax.config.update("jax_disable_most_optimizations", True)
    libraries = {"ours": package_functions(), **peers("float32", sizes)}
    for model in MODELS:
        for name in (*FUNCTIONS, *LAYERS):
            if (model, name) not in libraries["ours"].functions:
                continue
            announce(f"time {model}.{name}")
            what, inputs = _inputs(model, name, sizes)
            rows = _times(model, name, inputs, libraries, options.repeats)
            wrong = errors(model, name, sizes) if name in FUNCTIONS else {}
            seconds, facts = rows["ours"], wrong.get("ours", {})
            slopes = seconds[1]
            if len(slopes):
                facts |= {"with gradients, ms": float(np.min(slopes)) * 1e3}
            for peer in [peer for peer in rows if peer != "ours"]:
                kinds = zip(("", "gradients "), seconds, rows[peer], strict=True)
                for kind, own_seconds, peer_seconds in kinds:
                    if len(peer_seconds):
                        ratio = float(np.min(peer_seconds) / np.min(own_seconds))
                        facts[f"{peer}: {kind}times as long"] = ratio
                facts |= {f"{peer}: {k}": v for k, v in wrong.get(peer, {}).items()}
            results = jax.eval_shape(libraries["ours"].functions[model, name], *inputs)
            moved = 4.0 * sum(x.size for x in (*inputs, *jax.tree.leaves(results)))
            count, dimension = sizes.points
            flops = 2.0 * count**2 * dimension if name == "pairwise_distance" else 0.0
            timing = summary(seconds[0].tolist())
            yield Row(f"{model}.{name}, {what}", timing, floor(flops, moved), facts)


def package_functions() -> Library:
    """Return this package's functions, which take the dtype of their arguments."""
    functions: dict[tuple[str, str], Callable[..., Any]] = {}
    for model, module in (("lorentz", lorentz), ("poincare", poincare)):
        for name in ("exp_map", "log_map", "distance", "pairwise_distance"):
            functions[model, name] = getattr(module, name)
        functions[model, "transport"] = module.parallel_transport
        space = getattr(manifolds, model.capitalize())()
        functions[model, "mlr"] = functools.partial(nn.mlr, space)
        functions[model, "linear"] = functools.partial(nn.linear, space)
        functions[model, "adam"] = functools.partial(_adam_step, space)
    attend = functools.partial(nn.attention, manifolds.Lorentz(), scale=1.0)
    functions["lorentz", "attention"] = attend
    functions |= {
        ("lorentz", "centroid"): lambda x: lorentz.centroid(x)[..., 0, :],
        ("poincare", "centroid"): lambda x: poincare.gyromidpoint(x)[..., 0, :],
    }
    return _of_jax(functions)


def _adam_step(space: manifolds.Manifold, x: Any, gradient: Any, moment: Any) -> Any:
    """Take a step of Riemannian Adam with one second moment per point, as other libraries do."""
    adam = optim.scale_by_length_adam(per_coordinate=False)
    optimizer = optim.riemannian(optax.chain(adam, optax.scale(-0.01)), space)
    state = optimizer.init(x)
    frame = moment[..., -state[0].mu.shape[-1] :]
    state = (state[0]._replace(mu=frame), *state[1:])
    updates, state = optimizer.update(gradient, state, x)
    return updates, state


def peers(dtype: str, sizes: Sizes) -> dict[str, Library]:
    """Return the installed other libraries, set to a dtype and to the widths of layers."""
    results = {}
    for name, make in (("hyperbolix", _hyperbolix), ("geoopt", _geoopt)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results[name] = make(dtype, sizes)
        except ImportError:
            continue
    return results


def _of_jax(functions: Mapping[tuple[str, str], Callable[..., Any]]) -> Library:
    return Library(functions, jnp, jnp.asarray, jax.jit, lambda f: jax.jit(jax.grad(f, (0, 1))))


def _hyperbolix(dtype: str, sizes: Sizes) -> Library:
    """Return hyperbolix, whose functions take single points.

    `pairwise_distance` is computed row by row, to fit into memory.
    """
    manifolds = importlib.import_module("hyperbolix.manifolds")
    core = importlib.import_module("hyperbolix.nn_layers.hyperboloid_core")
    ball = importlib.import_module("hyperbolix.nn_layers.poincare_batchnorm")
    layers = importlib.import_module("hyperbolix.nn_layers")
    nnx = importlib.import_module("flax.nnx")
    functions: dict[tuple[str, str], Callable[..., Any]] = {}
    for model, kind in (("lorentz", "Hyperboloid"), ("poincare", "Poincare")):
        space = getattr(manifolds, kind)(dtype=jnp.dtype(dtype))
        of_points: dict[str, Callable[..., Any]] = {
            "exp_map": lambda x, v, space=space: space.expmap(v, x, 1.0),
            "log_map": lambda x, y, space=space: space.logmap(y, x, 1.0),
            "distance": lambda x, y, space=space: space.dist(x, y, 1.0),
            "transport": lambda x, y, v, space=space: space.ptransp(v, x, y, 1.0),
        }
        functions |= {(model, name): jax.vmap(f) for name, f in of_points.items()}
        functions[model, "pairwise_distance"] = functools.partial(
            _map_rows, jax.vmap(of_points["distance"], (None, 0))
        )
        functions |= _hyperbolix_layers(model, space, layers, nnx, sizes)
    attend = layers.HyperbolicFullAttention(
        sizes.heads[-1] + 1, sizes.heads[-1], centroid_form="gemm", init_tau=1.0, rngs=nnx.Rngs(0)
    )

    def attention(*inputs: Any) -> Any:
        return attend._attend(*(x[:, :, None] for x in inputs), 1.0, 1.0)

    def lorentz_centroid(x: Any) -> Any:
        weights = jnp.full((*x.shape[:-2], 1, x.shape[-2]), 1 / x.shape[-2], x.dtype)
        return core.lorentz_midpoint(x, weights, 1.0)[..., 0, :]

    functions["lorentz", "attention"] = attention
    functions["lorentz", "centroid"] = lorentz_centroid
    space = manifolds.Poincare(dtype=jnp.dtype(dtype))
    functions["poincare", "centroid"] = jax.vmap(lambda x: ball.poincare_midpoint(x, space, 1.0))
    return _of_jax(functions)


def _map_rows(distances: Callable[..., Any], x: Any, y: Any) -> Any:
    """Return the distances of all pairs, a row for each point of x."""
    return jax.lax.map(lambda point: distances(point, y), x)


def _hyperbolix_layers(
    model: str, space: Any, layers: ModuleType, nnx: ModuleType, sizes: Sizes
) -> dict[tuple[str, str], Callable[..., Any]]:
    """Return layers of hyperbolix with parameters as arguments, and its Riemannian Adam."""
    optimizers = importlib.import_module("hyperbolix.optim")
    scores = space.compute_mlr if model == "lorentz" else space.compute_mlr_pp
    name = "HypLinearHyperboloidPLFC" if model == "lorentz" else "HypLinearPoincarePP"
    width = sizes.dimension + (model == "lorentz"), sizes.classes + (model == "lorentz")
    graph, state = nnx.split(getattr(layers, name)(space, *width, rngs=nnx.Rngs(0)))

    def linear(x: Any, normals: Any, offsets: Any) -> Any:
        layer = nnx.merge(graph, state)
        layer.kernel, layer.bias = nnx.Param(normals), nnx.Param(offsets[:, None])
        return layer(x, 1.0)

    def adam(x: Any, gradient: Any, moment: Any) -> Any:
        optimizer = optimizers.riemannian_adam(0.01)
        point = optimizers.ManifoldParam(x, manifold=space, curvature=1.0)
        state = optimizer.init(point)._replace(m1=moment)
        return optimizer.update(gradient, state, point)

    return {
        (model, "mlr"): lambda x, normals, offsets: scores(x, normals, offsets[:, None], 1.0),
        (model, "linear"): linear,
        (model, "adam"): adam,
    }


def _geoopt(dtype: str, sizes: Sizes) -> Library:
    """Return geoopt, which has no centroid in the Lorentz model.

    `pairwise_distance` is computed in blocks of rows.
    """
    del sizes  # none of its functions is constructed with a width
    torch, geoopt = map(importlib.import_module, ("torch", "geoopt"))
    functions: dict[tuple[str, str], Callable[..., Any]] = {}
    for model, kind in (("lorentz", geoopt.Lorentz), ("poincare", geoopt.PoincareBall)):
        space = kind().to(getattr(torch, dtype))
        functions |= {
            (model, "exp_map"): space.expmap,
            (model, "log_map"): space.logmap,
            (model, "distance"): space.dist,
            (model, "transport"): space.transp,
            (model, "pairwise_distance"): lambda x, y, space=space: torch.cat(
                [space.dist(block[:, None], y[None]) for block in x.split(128)]
            ),
        }
    functions["poincare", "centroid"] = functools.partial(space.weighted_midpoint, reducedim=[-2])

    def no_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with torch.no_grad():
                return function(*args)

        return run

    def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            first = [x.detach().requires_grad_() for x in args[:2]]
            value = function(*first, *args[2:])
            return torch.autograd.grad(value, first, allow_unused=True, materialize_grads=True)

        return run

    return Library(functions, torch, torch.from_numpy, no_gradient, gradient)


def _times(
    model: str,
    name: str,
    inputs: Sequence[np.ndarray],
    libraries: Mapping[str, Library],
    repeats: int,
) -> dict[str, tuple[np.ndarray, ...]]:
    """Return the seconds of a function and of its gradient by library, measured alternately.

    There is no gradient of `pairwise_distance`, for which another library would need several arrays
    of 4 GiB, nor of a step of an optimiser.
    """
    results: dict[str, tuple[np.ndarray, ...]] = {}
    libraries = {k: v for k, v in libraries.items() if (model, name) in v.functions}
    for with_gradient in (False, True):
        clocks = np.zeros((0, len(libraries)))
        if not (with_gradient and name in ("pairwise_distance", "adam")):
            runs = [_run(x, model, name, inputs, with_gradient) for x in libraries.values()]
            for run in runs:
                clock(run)  # compiles
            count = 3 if name == "pairwise_distance" else max(repeats, 3)
            clocks = np.zeros((count, len(runs)))
            for turn in range(count):  # alternate the order: the first run finds cold caches
                for i in range(len(runs))[:: -1 if turn % 2 else 1]:
                    clocks[turn, i] = clock(runs[i])
        for library, seconds in zip(libraries, clocks.T, strict=True):
            results[library] = (*results.get(library, ()), seconds)
    return results


def _run(
    library: Library, model: str, name: str, inputs: Sequence[np.ndarray], with_gradient: bool
) -> Callable[[], Any]:
    function, args = library.functions[model, name], [library.array(x) for x in inputs]
    if not with_gradient:
        return functools.partial(library.compile(function), *args)
    if name == "centroid":  # of one argument
        args.append(library.array(np.zeros(1, np.float32)))

    def total(*args: Any) -> Any:
        return (function(*args[: len(inputs)]) ** 2).sum()

    return functools.partial(library.gradient(total), *args)


def _inputs(model: str, name: str, sizes: Sizes) -> tuple[str, list[np.ndarray]]:
    """Return the shape, as text, and the inputs for timing a function: points about 1 from 0."""
    shapes: dict[str, tuple[int, ...]] = {
        "centroid": sizes.sets,
        "pairwise_distance": sizes.points,
        "attention": sizes.heads,
    }
    shape = shapes.get(name, (sizes.pairs, sizes.dimension))
    module = lorentz if model == "lorentz" else poincare

    def draw(seed: int) -> Any:
        return jax.random.normal(jax.random.key(seed), shape) / np.float32(shape[-1] ** 0.5)

    x, y = (module.exp_map0(draw(seed)) for seed in (0, 1))
    v = module.transport0(x, draw(2))
    normals, offsets = draw(3)[: sizes.classes], draw(4)[0, : sizes.classes]
    inputs = {
        "exp_map": (x, v),
        "transport": (x, y, v),
        "centroid": (x,),
        "mlr": (x, normals, offsets),
        "linear": (x, normals, offsets),
        "attention": (x, y, x),
        "adam": (x, v, v),
    }.get(name, (x, y))
    return f"[{', '.join(map(str, shape))}]", [np.asarray(value) for value in inputs]


def _cases(radii: Sequence[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs of points (space components) and tangent vectors in the first point's frame.

    There is a pair of every entry of KINDS for each radius.
    """
    rng = np.random.default_rng(0)
    rows = []
    for radius in radii:
        for kind in KINDS:
            e, f = rng.normal(size=(2, 4))
            e /= np.linalg.norm(e)
            f -= e * (f @ e)
            f /= np.linalg.norm(f)
            size = np.sinh(radius)
            x = size * e
            y = {
                "generic": np.sinh(0.7 * radius) * (0.6 * e + 0.8 * f),
                "near": size * ((1 + 1e-3) * e + 1e-3 * f),
                "nearest": size * ((1 + 1e-6) * e + 1e-6 * f),
                "opposite": -x,
                "same": x,
            }[kind]
            direction = -e if kind == "opposite" else 0.6 * e + 0.8 * f
            share = {"near": 1e-3, "nearest": 1e-6}.get(kind, 0.5)
            rows.append((x, y, share * min(radius, 1.0) * direction))
    x, y, u = (np.stack(column) for column in zip(*rows, strict=True))
    return x, y, u


def errors(model: str, name: str, sizes: Sizes) -> dict[str, dict[str, float]]:
    """Return the largest errors of a function and the counts of non-finite values, by library."""
    results: dict[str, dict[str, float]] = {}
    x64 = jax.config.read("jax_enable_x64")
    try:
        for dtype in sizes.dtypes:
            jax.config.update("jax_enable_x64", dtype == "float64")
            libraries = {"ours": package_functions(), **peers(dtype, sizes)}
            announce(f"errors of {model}.{name}, {dtype}")
            for library, facts in errors_of(model, name, dtype, libraries, sizes.radii):
                facts = {f"{fact}, {dtype}": value for fact, value in facts.items()}
                results.setdefault(library, {}).update(facts)
    finally:
        jax.config.update("jax_enable_x64", x64)
    return results


def errors_of(
    model: str,
    name: str,
    dtype: str,
    libraries: Mapping[str, Library],
    radii: Sequence[float] = Sizes().radii,
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the errors of one function in one dtype, by library.

    Args:
      model: "lorentz" or "poincare".
      name: an entry of `FUNCTIONS`.
      dtype: "float32" or "float64".
      libraries: the libraries, set to this dtype.
      radii: distances of the points from the origin.

    Yields:
      The name of a library, its largest error, its largest error of gradients, and the number of
      its values and gradients that are not finite.
    """
    a, b, u = _cases(radii)
    if name != "exp_map":  # all other functions are linear in u, so its length does not matter
        u = u / np.linalg.norm(u, axis=-1, keepdims=True) / 2
    tau = np.sqrt(1 + np.sum(a * a, -1, keepdims=True))
    if model == "lorentz":
        v = u + np.sum(a * u, -1, keepdims=True) / (1 + tau) * a
    else:
        a, b = (s / (1 + np.sqrt(1 + np.sum(s * s, -1, keepdims=True))) for s in (a, b))
        v = (1 - np.sum(a * a, -1, keepdims=True)) * u / 2
    charts = [value.astype(dtype) for value in (a, b, v)]
    weights = np.random.default_rng(1).normal(size=a.shape).astype(dtype)
    exact = _exact(model, name, charts, weights)
    for library, parts in libraries.items():
        if (model, name) not in parts.functions:
            continue
        function = functools.partial(_in_charts, parts.numpy, model, name, parts.functions)

        def total(*args: Any, f: Callable[..., Any] = function) -> Any:
            value, weight = f(*args[:3]), args[3]
            return (value * (weight if value.ndim > 1 else 1)).sum()

        args = [parts.array(value) for value in (*charts, weights)]
        value = np.asarray(parts.compile(function)(*args[:3]), np.float64).reshape(len(a), -1)
        slopes = [np.asarray(x, np.float64) for x in parts.gradient(total)(*args)]
        slope = np.concatenate(slopes, -1)
        differ = np.arange(len(a)) % len(KINDS) != KINDS.index("same")
        infinite = ~np.isfinite(value).all(-1), ~np.isfinite(slope).all(-1)
        yield (
            library,
            {
                "error": _largest(value, exact[0], differ & ~infinite[0]),
                "gradient's error": _largest(slope, exact[1], differ & ~infinite[1]),
                "not finite": float(np.sum(infinite[0]) + np.sum(infinite[1])),
            },
        )


def _largest(got: np.ndarray, want: Sequence[list], counted: np.ndarray) -> float:
    mp = importlib.import_module("mpmath")
    largest = 0.0
    for row in np.flatnonzero(counted).tolist():
        gap = mp.norm([mp.mpf(x) - y for x, y in zip(got[row].tolist(), want[row], strict=True)])
        largest = max(largest, float(gap / mp.norm(want[row])))
    return largest


def _in_charts(
    xp: ModuleType, model: str, name: str, functions: Mapping, a: Any, b: Any, v: Any
) -> Any:
    """Call a library's function with, and convert its result to, coordinates without time.

    These are the coordinates of the ball, or the space components of the hyperboloid.
    """
    x, y = a, b
    if model == "lorentz":
        time = xp.sqrt(1 + (a * a).sum(-1))[..., None]
        x = xp.concatenate([time, a], -1)
        y = xp.concatenate([xp.sqrt(1 + (b * b).sum(-1))[..., None], b], -1)
        v = xp.concatenate([(a * v).sum(-1)[..., None] / time, v], -1)
    function = functions[model, name]
    if name == "pairwise_distance":
        return xp.diagonal(function(x, y), 0)
    if name == "distance":
        return function(x, y)
    if name == "centroid":
        value = function(xp.stack([x, y, y], -2))
    else:
        value = {
            "exp_map": lambda: function(x, v),
            "log_map": lambda: function(x, y),
            "transport": lambda: function(x, y, v),
        }[name]()
    return value[..., 1:] if model == "lorentz" else value


def _exact(
    model: str, name: str, charts: Sequence[np.ndarray], weights: np.ndarray
) -> tuple[list[list], list[list]]:
    """Return values and gradients computed with mpmath.

    Values come from textbook formulas, gradients from central differences with a relative step of
    1e-45. The formulas can lose up to a hundred digits by cancellation, which are computed in
    addition to `DIGITS`.
    """
    mp = importlib.import_module("mpmath")
    values, slopes = [], []
    with mp.workdps(DIGITS + 120):
        for *rows, weight in zip(*charts, weights, strict=True):
            a, b, v, k = ([mp.mpf(float(x)) for x in row] for row in (*rows, weight))
            value = _reference(mp, model, name, a, b, v)
            values.append(value)
            k = k if len(value) > 1 else [mp.mpf(1)]
            gradient = []
            for which in (0, 1):
                step = mp.norm((a, b)[which]) * mp.mpf(10) ** -45
                for i in range(len(a)):
                    ends = []
                    for sign in (1, -1):
                        moved = (list(a), list(b))
                        moved[which][i] += sign * step
                        end = _reference(mp, model, name, moved[0], moved[1], v)
                        ends.append(mp.fdot(k, end))
                    gradient.append((ends[0] - ends[1]) / (2 * step))
            slopes.append(gradient)
    return values, slopes


def _reference(mp: ModuleType, model: str, name: str, a: list, b: list, v: list) -> list:
    """Compute a function at c = 1 by formulas of the hyperboloid, also for points of the ball."""
    if model == "poincare":
        grow = [2 / (1 - mp.fdot(p, p)) for p in (a, b)]
        v = [grow[0] * w + grow[0] ** 2 * mp.fdot(a, v) * p for p, w in zip(a, v, strict=True)]
        a, b = ([scale * p for p in point] for scale, point in zip(grow, (a, b), strict=True))

    def tau(s: list) -> Any:
        return mp.sqrt(1 + mp.fdot(s, s))

    def mix(p: Any, s: list, q: Any, t: list) -> list:
        return [p * x + q * y for x, y in zip(s, t, strict=True)]

    product = tau(a) * tau(b) - mp.fdot(a, b)
    at, vector = a, False
    if name in ("distance", "pairwise_distance"):
        return [mp.acosh(product)]
    if name == "exp_map":
        size = mp.sqrt(mp.fdot(v, v) - (mp.fdot(a, v) / tau(a)) ** 2)
        s = mix(mp.cosh(size), a, mp.sinh(size) / size, v)
    elif name == "log_map":
        factor = 1 if product == 1 else mp.acosh(product) / mp.sqrt(product**2 - 1)
        s, vector = mix(factor, b, -factor * product, a), True
    elif name == "transport":
        along = (mp.fdot(b, v) - tau(b) * mp.fdot(a, v) / tau(a)) / (1 + product)
        s, at, vector = mix(1, v, along, mix(1, a, 1, b)), b, True
    else:
        total, time = mix(1, a, 2, b), tau(a) + 2 * tau(b)
        s = [x / mp.sqrt(time**2 - mp.fdot(total, total)) for x in total]
    if model == "lorentz":
        return s
    denominator = 1 + tau(at if vector else s)
    if not vector:
        return [x / denominator for x in s]
    return mix(1 / denominator, s, -mp.fdot(at, s) / tau(at) / denominator**2, at)
