"""The score of a model whose branches have a sentence embedding each (DL-DKD)."""

from collections.abc import Mapping

import flax.struct
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.retrieval import over_time, vectors
from hlformer_jax.retrieval.scoring import Similarities
from hlformer_jax.retrieval.similarity import MaximumSimilarity
from hlformer_jax.retrieval.vectors import Stored
from hlformer_jax.typing import Array


@flax.struct.dataclass
class BranchwiseSimilarity(MaximumSimilarity):
    """A `MaximumSimilarity` of queries that are two vectors side by side, one for each branch.

    Attributes:
      parts: number of vectors in a query: 1 where the model has one branch alone.
    """

    parts: int = flax.struct.field(pytree_node=False, default=2)

    def of_branches(self, queries: Float[Array, "*batch H"]) -> dict[str, Array]:
        """The halves of the queries, of the clips' branch and of the frames'."""
        if self.parts == 1:
            return super().of_branches(queries)
        halves = jnp.split(jnp.asarray(queries), 2, axis=-1)
        return dict(zip(VideoEncoding._fields, halves, strict=True))

    def width(self, stored: Stored) -> int:
        """The width of the vectors, times their number in a query."""
        return self.parts * vectors.width(stored)

    def over_time(
        self,
        cosines: Mapping[str, Float[np.ndarray, "*batch L"]],
        num_frames: int,
        max_clips: int,
        max_frames: int,
    ) -> Float[np.ndarray, "*batch F"]:
        """Weighted cosines of the branches' sampled frames over each frame of a video."""
        weights = zip(VideoEncoding._fields, np.asarray(self.weights), strict=True)
        parts = [
            weight * over_time.of_sampled_frames(cosines[name], num_frames)
            for name, weight in weights
            if name in cosines
        ]
        total: np.ndarray = sum(parts[1:], parts[0])
        return total

    def similarities(
        self,
        queries: Float[Array, "Q H"],
        videos: VideoEncoding,
        owner: Int[Array, " Q"],
    ) -> Similarities:
        """Maxima over positions, each branch with its own query; see `scoring.TrainingScorer`."""
        alone = {"clips": videos._replace(frames=None), "frames": videos._replace(clips=None)}
        found = {
            name: MaximumSimilarity.similarities(self, part, alone[name], owner)
            for name, part in self.of_branches(queries).items()
        }
        return Similarities(*found["clips"][:2], *found["frames"][2:])
