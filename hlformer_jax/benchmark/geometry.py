"""Functions of the Lorentz model, beside those of the package hyperbolix where it is installed."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax.benchmark.measure import Options, Row, clock, floor, summary
from hlformer_jax.ops import lorentz
from hlformer_jax.typing import Array

PAIRS, DIMENSION, POINTS = 10_000, 128, 256

Function = Callable[[Array, Array], Array]


def geometry(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Distances and logarithmic maps of 10,000 pairs of 128 dimensions; 256 by 256 distances.

    Each is timed in turn with its peer: that of hyperbolix, and broadcasting for the distances of
    all pairs. One thread is used under `taskset -c 0` only.
    """
    del config  # it has no sizes of these
    peer = _peer()
    x, y = _points(0, PAIRS), _points(1, PAIRS)
    for name, ours in (("distance", lorentz.distance), ("log_map", lorentz.log_map)):
        peers = {} if peer is None else {"hyperbolix": peer[name]}
        yield from _rows(f"{name}, [{PAIRS}, {DIMENSION}]", ours, peers, x, y, options.repeats)
    x, y = _points(0, POINTS), _points(1, POINTS)
    peers = {"broadcasting": lambda x, y: lorentz.distance(x[:, None], y[None])}
    if peer is not None:
        peers["hyperbolix"] = _all_pairs(peer["one distance"])
    name = f"pairwise_distance, {POINTS} x {POINTS}"
    yield from _rows(name, lorentz.pairwise_distance, peers, x, y, options.repeats)


def _peer() -> dict[str, Function] | None:
    """Functions of hyperbolix, of points [N, n+1]; None where it is not installed."""
    try:
        from hyperbolix.manifolds import Hyperboloid  # type: ignore[import-not-found]
    except ImportError:
        return None
    manifold = Hyperboloid()
    distance = lambda x, y: manifold.dist(x, y, 1.0)
    return {
        "one distance": distance,
        "distance": jax.vmap(distance),
        "log_map": jax.vmap(lambda x, y: manifold.logmap(y, x, 1.0)),
    }


def _all_pairs(distance: Function) -> Function:
    return jax.vmap(jax.vmap(distance, (None, 0)), (0, None))


def _points(seed: int, count: int) -> Array:
    """Random points at a distance of about 1 from the origin."""
    tangents = jax.random.normal(jax.random.key(seed), (count, DIMENSION))
    return lorentz.exp_map0(tangents / np.sqrt(DIMENSION).astype(np.float32))


def _rows(
    name: str, ours: Function, peers: dict[str, Function], x: Array, y: Array, repeats: int
) -> Iterator[Row]:
    """A function's forward pass, and the same with gradients in both arguments."""
    shape = jax.eval_shape(ours, x, y)
    moved = float(x.nbytes + y.nbytes)
    for what, build, sizes in (
        (name, jax.jit, moved + 4.0 * shape.size),
        ("  with gradients", _with_gradients, 2 * moved + 4.0),
    ):
        runs = [build(function) for function in (ours, *peers.values())]
        for run in runs:
            clock(run, x, y)  # compiles
        clocks = np.array([[clock(run, x, y) for run in runs] for _ in range(max(repeats, 3))])
        facts = {}
        for peer, seconds in zip(peers, clocks.T[1:], strict=True):
            facts[f"{peer}, ms"] = float(np.median(seconds)) * 1e3
            facts[f"times that of {peer}"] = float(np.median(clocks[:, 0] / seconds))
        yield Row(what, summary(clocks[:, 0].tolist()), floor(0.0, sizes), facts)


def _with_gradients(function: Function) -> Function:
    return jax.jit(jax.value_and_grad(lambda x, y: jnp.sum(function(x, y) ** 2), (0, 1)))
