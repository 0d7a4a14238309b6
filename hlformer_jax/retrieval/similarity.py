"""The score of a video as the best of its positions in each branch (HLFormer eq. 8, 9).

Zero vectors, which padded frames are, have cosine 0 with everything and take part in the maximum,
as released.
"""

from typing import Any

import flax.struct
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.ops.fused_similarity import max_similarities
from hlformer_jax.ops.numerics import inverse_norm
from hlformer_jax.retrieval import vectors
from hlformer_jax.retrieval.scoring import Similarities
from hlformer_jax.retrieval.vectors import Stored, Vectors
from hlformer_jax.typing import Array


@flax.struct.dataclass
class MaximumSimilarity:
    """Weighted sum over branches of the largest cosine of the query and a position.

    Attributes:
      weights: weights of the clip and the frame branch, Float[Array, " 2"].
    """

    weights: Any

    @property
    def frame_columns(self) -> str:
        """A column of the frame branch is a video."""
        return "videos"

    def of_branches(self, queries: Float[Array, "*batch H"]) -> dict[str, Array]:
        """What the positions of each branch are compared with: the whole query; see `scoring`."""
        return dict.fromkeys(VideoEncoding._fields, queries)

    def store(self, videos: VideoEncoding, dtype: DTypeLike) -> Stored:
        """Unit vectors of the branches that are on, in the dtype of a corpus."""
        return {
            name: vectors.store(branch, dtype)
            for name, branch in videos._asdict().items()
            if branch is not None
        }

    def similarities_per_video(self, stored: Stored) -> int:
        """Number of positions of all branches."""
        return vectors.positions(stored)

    def width(self, stored: Stored) -> int:
        """Width of the vectors."""
        return vectors.width(stored)

    def scores(self, queries: Float[Array, "Q H"], stored: Stored) -> Float[Array, "Q B"]:
        """Ranking scores (eq. 9); see `scoring.Scorer`."""
        total: Any = 0.0
        parts = self.of_branches(queries)
        for weight, name in zip(self.weights, VideoEncoding._fields, strict=True):
            if name in stored:
                query = vectors.store(parts[name], stored[name].values.dtype)
                total = total + weight * best(vectors.cosines(query, stored[name]))
        return total

    def locate(self, queries: Float[Array, "Q H"], stored: Stored) -> dict[str, Int[Array, " Q"]]:
        """The best position of each branch; see `scoring.Scorer`."""
        parts = self.of_branches(queries)
        return {name: best_position(parts[name], branch) for name, branch in stored.items()}

    def similarities(
        self,
        queries: Float[Array, "Q H"],
        videos: VideoEncoding,
        owner: Int[Array, " Q"],
        implementation: str = "xla",
    ) -> Similarities:
        """Maxima over positions of both branches; see `scoring.TrainingScorer`.

        One product serves both: the cosines are the dot products over the norms. With "pallas" it
        is never written to memory, and the gradient of a tie goes to the first of the positions.
        """
        query_norm = inverse_norm(queries)

        def both(positions: Array | None) -> tuple[Array | None, Array | None]:
            if positions is None:
                return None, None
            if implementation == "pallas":
                return max_similarities(queries, positions)
            dots = jnp.einsum("qh,vlh->qvl", queries, positions)
            cosines = best(dots * inverse_norm(positions)[None]) * query_norm[:, None]
            return cosines, best(dots)

        return Similarities(*both(videos.clips), *both(videos.frames))


def best(similarities: Float[Array, "*batch L"]) -> Float[Array, "*batch"]:
    """The similarity of a video is that of its best position (eq. 8)."""
    return jnp.max(similarities, axis=-1)


def best_position(queries: Float[Array, "Q H"], own: Vectors) -> Int[Array, " Q"]:
    """Position of the best of a video's vectors, [Q, L, H], for the query of the same row."""
    query = vectors.store(queries, own.values.dtype)
    return jnp.argmax(vectors.own_cosines(query, own), axis=-1).astype(jnp.int32)
