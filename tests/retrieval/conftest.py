"""A pool of nodes of five trees, and ranks among them by vectors with ties."""

import numpy as np
import pytest

from hlformer_jax import parallel
from hlformer_jax.data.annotations import AnnotatedMoment, TimedVideo
from hlformer_jax.data.trees import build, make_pool
from hlformer_jax.retrieval import nodes

COUNTS = (2, 3, 5, 6, 1)


@pytest.fixture(scope="session")
def pool():
    """The nodes of trees of 2, 3, 5 and 6 leaves, and of a chain."""
    trees, videos = [], []
    for number, count in enumerate(COUNTS):
        # A single leaf is of two moments with a gap between them.
        spans = [(k * 5, k * 5 + 5) for k in range(count)] if count > 1 else [(0, 4), (20, 30)]
        moments = tuple(
            AnnotatedMoment(f"v{number}#{k}", a, b, "x") for k, (a, b) in enumerate(spans)
        )
        videos.append(TimedVideo(f"v{number}", 60.0, moments))
        trees.append(build(videos[-1], "released"))
    return make_pool(trees, videos)


@pytest.fixture(scope="session")
def vectors(pool):
    """Vectors of queries and of candidates."""
    rng = np.random.default_rng(0)
    # Few values, so that there are ties.
    return rng.integers(-1, 2, size=(2, len(pool.tree), 3)).astype(np.float32)


@pytest.fixture(scope="session")
def found(pool, vectors):
    """The ranks of all queries."""
    return nodes.ranks(*vectors, nodes.relatives(pool), 7, parallel.mesh())
