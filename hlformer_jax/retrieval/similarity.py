"""The score of a video as the best of its positions in each branch (HLFormer eq. 8, 9).

Zero vectors, which padded frames are, have cosine 0 with everything and take part in the maximum,
as released.
"""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.ops.numerics import inverse_norm
from hlformer_jax.retrieval import over_time, vectors
from hlformer_jax.retrieval.scoring import Similarities
from hlformer_jax.retrieval.vectors import Stored
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
        cosines = self.position_cosines(queries, stored)
        return {name: best_position(branch) for name, branch in cosines.items()}

    def position_cosines(
        self, queries: Float[Array, "Q H"], stored: Stored
    ) -> dict[str, Float[Array, "Q L"]]:
        """Cosines of the positions of each branch; see `scoring.TrainingScorer`."""
        return position_cosines(self.of_branches(queries), stored)

    def over_time(
        self,
        cosines: Mapping[str, Float[np.ndarray, "*batch L"]],
        num_frames: int,
        max_clips: int,
        max_frames: int,
    ) -> Float[np.ndarray, "*batch F"]:
        """Weighted cosines of the clip and of the sampled frame over each frame of a video.

        Of proposals in the place of clips (MS-SL without its frames) it is the best of those that
        hold a frame's clip; one vector for the whole video says the same of all frames.
        """
        total: Any = 0.0
        for weight, name in zip(np.asarray(self.weights), VideoEncoding._fields, strict=True):
            if name not in cosines:
                continue
            found = cosines[name]
            if name == "clips":
                if found.shape[-1] != max_clips:
                    found = over_time.of_proposals(found, max_clips)
                found = over_time.of_clips(found, num_frames)
            elif found.shape[-1] == max_frames:
                found = over_time.of_sampled_frames(found, num_frames)
            total = total + weight * found
        return np.broadcast_to(total, (*total.shape[:-1], num_frames))

    def similarities(
        self,
        queries: Float[Array, "Q H"],
        videos: VideoEncoding,
        owner: Int[Array, " Q"],
    ) -> Similarities:
        """Maxima over positions of both branches; see `scoring.TrainingScorer`.

        One product serves both: the cosines are the dot products over the norms.
        """
        query_norm = inverse_norm(queries)

        def both(positions: Array | None) -> tuple[Array | None, Array | None]:
            if positions is None:
                return None, None
            dots = jnp.einsum("qh,vlh->qvl", queries, positions)
            cosines = best(dots * inverse_norm(positions)[None]) * query_norm[:, None]
            return cosines, best(dots)

        return Similarities(*both(videos.clips), *both(videos.frames))


def best(similarities: Float[Array, "*batch L"]) -> Float[Array, "*batch"]:
    """The similarity of a video is that of its best position (eq. 8)."""
    return jnp.max(similarities, axis=-1)


def position_cosines(
    queries: Mapping[str, Float[Array, "Q H"]], own: Stored
) -> dict[str, Float[Array, "Q _"]]:
    """Cosines of each query with the vectors of one video, [Q, L, H].

    Args:
      queries: by the name of the branch what it is compared with, of any norm.
      own: by the name of the branch, one video for each query.
    """
    return {
        name: vectors.own_cosines(vectors.store(queries[name], branch.values.dtype), branch)
        for name, branch in own.items()
    }


def best_position(cosines: Float[Array, "Q L"]) -> Int[Array, " Q"]:
    """The first of the best positions of each query's video."""
    return jnp.argmax(cosines, axis=-1).astype(jnp.int32)
