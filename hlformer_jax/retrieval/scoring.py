"""How a family of models scores videos for queries: what a corpus, a search and a loss ask it.

A scorer owns the rule by which the positions of a video make its score. `similarity` holds that of
HLFormer and its ancestors (eq. 8, 9), `guided` that of MS-SL; a family with another geometry brings
its own. A scorer is a pytree, so that its weights are arguments of compiled programs.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from hlformer_jax.typing import Array


class Similarities(NamedTuple):
    """What the training losses compare, [Q, V] each; those of a branch that is off are None.

    Attributes:
      clip_cosine: cosines of captions and videos in the clip branch.
      clip_dot: dot products in the clip branch.
      frame_cosine: cosines in the frame branch; [Q, Q] where `frame_columns` is "captions".
      frame_dot: dot products in the frame branch, likewise.
    """

    clip_cosine: Float[Array, "Q V"] | None
    clip_dot: Float[Array, "Q V"] | None
    frame_cosine: Float[Array, "Q V"] | None
    frame_dot: Float[Array, "Q V"] | None


@runtime_checkable
class Scorer(Protocol):
    """Scores encoded videos; `Stored` below is what it makes of them, a pytree of [B, ...]."""

    def store(self, videos: Any, dtype: DTypeLike) -> Any:
        """What a corpus keeps of B encoded videos, in a dtype of `vectors.DTYPES`."""

    def similarities_per_video(self, stored: Any) -> int:
        """Number of similarities that are computed for one query and one video."""

    def width(self, stored: Any) -> int:
        """Width H that queries must have."""

    def scores(self, queries: Float[Array, "Q H"], stored: Any) -> Float[Array, "Q B"]:
        """Ranking scores, float32; higher is better."""

    def locate(self, queries: Float[Array, "Q H"], stored: Any) -> dict[str, Int[Array, " Q"]]:
        """The positions that made the score of each query's video, by the name of their branch.

        Args:
          queries: encoded queries.
          stored: one stored video for each query.
        """


@runtime_checkable
class TrainingScorer(Scorer, Protocol):
    """A scorer of the family, which the objective and the localisation of moments ask as well."""

    def position_cosines(
        self, queries: Float[Array, "Q H"], stored: Any
    ) -> dict[str, Float[Array, "Q L"]]:
        """Cosines of a query and each position of its video, by the name of the branch.

        Args:
          queries: encoded queries.
          stored: one stored video for each query.
        """

    def over_time(
        self,
        cosines: Mapping[str, Float[np.ndarray, "*batch L"]],
        num_frames: int,
        max_clips: int,
        max_frames: int,
    ) -> Float[np.ndarray, "*batch F"]:
        """What the positions over each frame of a video say together; higher is better.

        Args:
          cosines: as `position_cosines` gives them.
          num_frames: F, the number of frames of the video in its source.
          max_clips: C, the number of clips that the video was pooled to.
          max_frames: the number of frames that it was sampled to at most.
        """

    @property
    def frame_columns(self) -> str:
        """What a column of the frame branch is: "videos", or "captions" (a vector for each)."""

    def of_branches(self, queries: Float[Array, "*batch H"]) -> dict[str, Array]:
        """What the positions of each branch are compared with, by the branch's name."""

    def similarities(
        self,
        queries: Float[Array, "Q H"],
        videos: Any,
        owner: Int[Array, " Q"],
    ) -> Similarities:
        """Cosines and dot products of both branches, as the training losses need them.

        Args:
          queries: sentence embeddings.
          videos: encoded videos.
          owner: row of each caption's video.
        """
