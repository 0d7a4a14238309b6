"""Projections to the plane by the packages of the extra `figures`, deterministic by seed."""

import importlib
import warnings
from typing import Any

import numpy as np
from jaxtyping import Float

from hlformer_jax.errors import UserError


class MissingExtra(UserError, ImportError):
    """A package of the extra `figures` is not installed."""


def _load(module: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of umap-learn, on packages it would like beside it
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"this figure needs {module}: pip install hlformer_jax[figures] ({error})"
        ) from None


def t_sne(points: Float[np.ndarray, "N H"], seed: int) -> Float[np.ndarray, "N 2"]:
    """t-SNE of the cosine distance.

    Args:
      points: at least four points.
      seed: seed of the random numbers.

    Raises:
      MissingExtra: when scikit-learn is not installed.
    """
    manifold = _load("sklearn.manifold")
    perplexity = min(30.0, (len(points) - 1) / 3)
    made = manifold.TSNE(
        perplexity=perplexity, metric="cosine", init="pca", random_state=seed, n_jobs=1
    )
    plane: np.ndarray = made.fit_transform(points.astype(np.float32))
    return plane


def umap(points: Float[np.ndarray, "N H"], seed: int) -> Float[np.ndarray, "N 2"]:
    """UMAP of the cosine distance, of 15 neighbours at most.

    Args:
      points: at least four points.
      seed: seed of the random numbers.

    Raises:
      MissingExtra: when umap-learn is not installed.
    """
    library = _load("umap")
    made = library.UMAP(
        n_neighbors=min(15, len(points) - 1), metric="cosine", init="pca", random_state=seed,
        n_jobs=1,
    )  # fmt: skip
    plane: np.ndarray = made.fit_transform(points.astype(np.float32))
    return plane


def silhouette(points: Float[np.ndarray, "N H"], groups: np.ndarray) -> float:
    """Mean silhouette of groups of points by the cosine distance: 1 for tight ones far apart.

    Raises:
      MissingExtra: when scikit-learn is not installed.
    """
    return float(_load("sklearn.metrics").silhouette_score(points, groups, metric="cosine"))
