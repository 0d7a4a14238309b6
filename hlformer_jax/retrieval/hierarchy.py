"""What embeddings of action trees say of their hierarchy and of their order in time.

Each metric is a share in percent unless it says otherwise. Numbers that are within 8 eps of float32
of each other are equal, and a pair of equal numbers counts half.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.data.trees import Pool
from hlformer_jax.retrieval.nodes import NodeRanks

_SAME = 8 * float(np.finfo(np.float32).eps)


class Coordinates(NamedTuple):
    """Numbers of nodes in both modalities.

    Attributes:
      video: a number of every node's frames.
      text: one of every node's text.
    """

    video: Float[np.ndarray, " U"]
    text: Float[np.ndarray, " U"]


def share_in_order(
    values: Coordinates, low: Int[np.ndarray, " R"], high: Int[np.ndarray, " R"]
) -> dict[str, float]:
    """Shares of pairs of nodes of which the first has the lower number.

    Args:
      values: the numbers.
      low: rows of the nodes that should have the lower one.
      high: rows of those that should have the higher one.

    Returns:
      Under "same", pairs of one modality; under "cross", those of both. NaN without pairs.
    """
    share = lambda a, b: 100 * float(np.mean(_below(a[low], b[high]))) if len(low) else np.nan
    video, text = values
    return {
        "same": (share(video, video) + share(text, text)) / 2,
        "cross": (share(video, text) + share(text, video)) / 2,
    }


def radius_tau(norm: Float[np.ndarray, " U"], pool: Pool) -> float:
    """Kendall's τ_b of level and nearness to the origin, a mean over trees of three nodes or more.

    Args:
      norm: norms of the nodes.
      pool: the nodes.

    Returns:
      Between −1 and 1, 1 where every tree's higher nodes are nearer to the origin; NaN where no
      tree has levels and norms that differ.
    """
    order = np.argsort(pool.tree, kind="stable")
    starts = np.flatnonzero(np.diff(pool.tree[order], prepend=-1))
    found = []
    for rows in np.split(order, starts[1:]):
        if len(rows) < 3:
            continue
        level = np.sign(pool.level[rows][:, None] - pool.level[rows][None])
        near = _sign(norm[rows][None] - norm[rows][:, None], norm[rows])
        scale = np.sqrt(np.sum(level != 0) * np.sum(near != 0))
        found.append(np.sum(level * near) / scale if scale else 0.0)
    return float(np.mean(found)) if found else np.nan


def confusion(found: NodeRanks, pool: Pool) -> dict[str, float]:
    """How often an inner node's first result is another node of its own tree.

    Args:
      found: ranks of the nodes as queries.
      pool: the nodes.

    Returns:
      OwnTree, and what of it are ancestors, descendants and siblings of the query; NaN where there
      is no inner node.
    """
    inner = np.flatnonzero(pool.level > 0)
    first = found.first[inner]
    own = (pool.tree[first] == pool.tree[inner]) & (first != inner)
    code = lambda a, b: a.astype(np.int64) * len(pool.tree) + b
    pairs = {
        "Ancestor": (code(first, inner), code(*pool.ancestry.T)),
        "Descendant": (code(inner, first), code(*pool.ancestry.T)),
        "Sibling": (
            code(inner, first),
            np.concatenate([code(*pool.siblings.T), code(*pool.siblings.T[::-1])]),
        ),
    }
    kinds = {name: np.isin(asked, known) for name, (asked, known) in pairs.items()}
    mean = lambda x: 100 * float(np.mean(x)) if len(inner) else np.nan
    return {"OwnTree": mean(own)} | {name: mean(own & kind) for name, kind in kinds.items()}


def is_a(found: NodeRanks) -> dict[str, float]:
    """Whether a parent's nearest nodes of the other modality, but its own, are its children.

    Args:
      found: ranks of the nodes as queries.

    Returns:
      MAP, the mean average precision of the children, and MeanRank, their mean rank among what is
      no child, from 1; NaN where no node has children.

    References:
      Nickel and Kiela, Poincaré embeddings for learning hierarchical representations, 2017.
    """
    children = found.children[(found.children > 0).any(axis=-1)]
    if not len(children):
        return {"MAP": np.nan, "MeanRank": np.nan}
    real = children > 0
    ranked = np.sort(np.where(real, children, np.iinfo(np.int32).max), axis=-1)
    place = np.arange(1, children.shape[1] + 1)
    real = np.sort(~real, axis=-1) == 0
    precision = np.where(real, place / ranked, 0).sum(axis=-1) / real.sum(axis=-1)
    alone = np.where(real, ranked - place + 1, 0)
    return {
        "MAP": 100 * float(np.mean(precision)),
        "MeanRank": float(alone.sum() / real.sum()),
    }


def fit_direction(
    left: Float[np.ndarray, "S n"], right: Float[np.ndarray, "S n"]
) -> Float[np.ndarray, " n"]:
    """A direction of time for a model that learned none: least squares of left − right on 1.

    Args:
      left: unit vectors of the earlier nodes of pairs.
      right: those of the later ones.
    """
    ones = np.ones(len(left), np.float64)
    return np.linalg.lstsq((left - right).astype(np.float64), ones, rcond=1e-6)[0]


def metrics(
    pool: Pool, norms: Coordinates, cosines: Coordinates, found: Mapping[str, NodeRanks]
) -> dict[str, float]:
    """All metrics of the hierarchy, by names that begin with "hierarchy/".

    Args:
      pool: the nodes.
      norms: norms of their points.
      cosines: cosines of their points and the direction of time.
      found: ranks by the name of their direction, t2v or v2t.
    """
    parents, children = pool.edges.T
    left, right = pool.siblings.T
    general = share_in_order(norms, parents, children)
    early = share_in_order(cosines, right, left)
    named = {
        f"{pairs}/{name}": value[pairs]
        for pairs in ("same", "cross")
        for name, value in (("NormAcc", general), ("OrderAcc", early))
    }
    named |= {f"{name}/RadiusTau": radius_tau(x, pool) for name, x in norms._asdict().items()}
    for direction, one in found.items():
        values = confusion(one, pool) | is_a(one)
        values["WithinTree"] = 100 * float(np.mean(one.within == 1))
        named |= {f"{direction}/{name}": value for name, value in values.items()}
    return {f"hierarchy/{name}": value for name, value in named.items()}


def _below(a: np.ndarray, b: np.ndarray) -> Float[np.ndarray, " R"]:
    """1 where a is below b, ½ where they are equal."""
    return (1 + _sign(b - a, np.maximum(np.abs(a), np.abs(b)))) / 2


def _sign(difference: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Sign of a difference of numbers of that size, 0 where it is rounding."""
    return np.where(np.abs(difference) <= _SAME * size, 0, np.sign(difference))
