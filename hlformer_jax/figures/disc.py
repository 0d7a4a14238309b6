"""The Poincaré disc as a picture."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from hlformer_jax.ops import horopca, lorentz, poincare
from hlformer_jax.plots import style
from hlformer_jax.typing import Array

SAMPLE = 400
"""Points that HoroPCA looks at; all are projected."""


def to_disc(points: Float[np.ndarray, "N n1"], c: float, seed: int) -> Float[np.ndarray, "N 2"]:
    """Points of the Lorentz model in the unit disc, reduced to two dimensions by HoroPCA.

    The base point is the origin, which is to stay the root of what is drawn. Two dimensions stay
    as they are.

    Args:
      points: points.
      c: curvature, positive.
      seed: seed of the sample and of the search.
    """
    space: Array = jnp.asarray(points, jnp.float32)
    if space.shape[-1] > 3:
        rng = np.random.default_rng(seed)
        chosen = np.sort(rng.permutation(len(points))[:SAMPLE])
        origin = lorentz.origin(space.shape[-1] - 1, c)
        fitted = horopca.fit(space[chosen], 2, c, origin, joint=True, seed=seed)
        space = horopca.project(fitted, space)
    return np.asarray(poincare.from_lorentz(space, c)) * math.sqrt(c)


def prepare(axes: Any, points: Float[np.ndarray, "N 2"]) -> None:
    """Makes axes those of a disc: as much of it as points need, with circles at whole distances.

    Args:
      axes: where the points are drawn.
      points: points of the unit disc.
    """
    radius = max(float(np.linalg.norm(points, axis=-1).max()), 1e-6)
    whole = radius > 0.5
    shown = 1.02 if whole else 1.12 * radius
    angle = np.linspace(0, 2 * np.pi, 181)
    for distance in (1.0, 2.0, 3.0, 5.0) if whole else _steps(2 * math.atanh(shown)):
        r = math.tanh(distance / 2)
        axes.plot(r * np.cos(angle), r * np.sin(angle), color="#D9D9D9", linewidth=0.7, zorder=0)
        axes.text(
            0, -r, f"{distance:.2g}", color=style.GREY, fontsize=7, ha="center", va="center",
            zorder=3, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    axes.plot(np.cos(angle), np.sin(angle), color="black", linewidth=1, zorder=0)
    axes.plot(0, 0, "+", color="black", markersize=8, zorder=5)
    axes.set_xlim(-shown, shown)
    axes.set_ylim(-shown, shown)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _steps(reach: float) -> list[float]:
    """Two to five round distances below the one that the picture reaches to."""
    unit = 10.0 ** math.floor(math.log10(reach))
    step = next(unit * k for k in (0.2, 0.5, 1.0, 2.0) if reach / (unit * k) < 6)
    return [step * k for k in range(1, int(reach / step * 0.999) + 1)]
