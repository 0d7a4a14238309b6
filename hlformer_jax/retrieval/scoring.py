"""Scores of videos for queries, as a corpus, a search and a loss compute them.

A scorer owns the rule by which the positions of a video make its score: the best position of each
branch (HLFormer eq. 8, 9), with a query for each branch (DL-DKD), or the best proposal plus its
frame score (MS-SL); another rule is another subclass of `MaximumSimilarity`. A scorer is a pytree,
so that its weights are arguments of compiled programs. Zero vectors, which padded frames are, have
cosine 0 with everything and take part in the maximum, as released.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from hlformer_jax.data import transforms
from hlformer_jax.models import Model
from hlformer_jax.models.ms_sl import GuidedEncoding, proposals
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.ops.numerics import exact_precision, inverse_norm, unit
from hlformer_jax.typing import Array

DTYPES = ("float32", "bfloat16", "int8")
"""Dtypes of the unit vectors of a corpus; int8 has one scale for each vector."""


class Similarities(NamedTuple):
    """Cosines and dot products of captions and videos in each branch, [Q, V]; None where it is off.

    Of the frames [Q, Q], where `frame_columns` is "captions".
    """

    clip_cosine: Float[Array, "Q V"] | None
    clip_dot: Float[Array, "Q V"] | None
    frame_cosine: Float[Array, "Q V"] | None
    frame_dot: Float[Array, "Q V"] | None


class Vectors(NamedTuple):
    """Unit vectors in the dtype of a corpus, and the scale of int8 values."""

    values: Array
    scale: Array | None


Stored = dict[str, Vectors]
"""Vectors of every position of videos, [B, L, H], by the name of their branch."""


def width(stored: Stored) -> int:
    """Width H of the vectors."""
    branch = next(iter(stored.values()))
    return int(branch.values.shape[-1])


def store(vectors: Float[Array, "*batch H"], dtype: DTypeLike) -> Vectors:
    """Unit vectors in the dtype of a corpus.

    int8 rounds each coordinate to a 127th of its vector's largest: an error of at most half of
    that, 0.4 % of the largest coordinate.
    """
    units = unit(vectors)
    if jnp.dtype(dtype) != jnp.int8:
        return Vectors(units.astype(dtype), None)
    largest = jnp.max(jnp.abs(units), axis=-1, keepdims=True)
    scale = jnp.where(largest > 0, largest, 1.0) / 127
    return Vectors(jnp.round(units / scale).astype(jnp.int8), scale[..., 0])


def cosines(query: Vectors, vectors: Vectors) -> Float[Array, "Q B L"]:
    """Cosines of queries [Q, H] and the positions of videos [B, L, H].

    Inner products are accumulated in float32, or in int32 for int8.
    """
    wide = jnp.int32 if vectors.scale is not None else jnp.float32
    exact = jax.lax.Precision.HIGHEST  # of float32 vectors; a GPU may round them to fewer bits
    if len(query.values) == 1:  # a matrix by a vector, for which XLA has a better program on CPUs
        rows = vectors.values.reshape(-1, vectors.values.shape[-1])
        products = jnp.dot(rows, query.values[0], precision=exact, preferred_element_type=wide)
        products = products.reshape(1, *vectors.values.shape[:-1])
    else:
        products = jnp.einsum(
            "qh,blh->qbl",
            query.values,
            vectors.values,
            precision=exact,
            preferred_element_type=wide,
        )
    if vectors.scale is None or query.scale is None:
        return products
    return products.astype(jnp.float32) * vectors.scale[None] * query.scale[:, None, None]


def paired_cosines(query: Vectors, videos: Vectors) -> Float[Array, "Q L"]:
    """Return the cosines of queries [Q, H] and a video for each, [Q, L, H]."""
    products = jnp.einsum(
        "qh,qlh->ql", query.values.astype(jnp.float32), videos.values.astype(jnp.float32)
    )
    if videos.scale is None or query.scale is None:
        return products
    return products * videos.scale * query.scale[:, None]


@flax.struct.dataclass
class MaximumSimilarity:
    """Weighted sum over both branches of the largest cosine of the query and a position."""

    branches: ClassVar[tuple[str, ...]] = VideoEncoding._fields

    sum_of_maxima: ClassVar[bool] = True
    """Whether the score adds the best cosines of branches, each found on its own."""

    weights: Any

    @property
    def frame_columns(self) -> str:
        """The meaning of a column of the frame branch: "videos" or "captions"."""
        return "videos"

    def of_branches(self, queries: Float[Array, "*batch H"]) -> dict[str, Array]:
        """Return the part of the query for each branch: here the whole query."""
        return dict.fromkeys(self.branches, queries)

    def store(self, videos: Any, dtype: DTypeLike) -> Stored:
        """Return the stored form of B videos: unit vectors of the branches that are on."""
        return {
            name: store(branch, dtype)
            for name, branch in videos._asdict().items()
            if branch is not None
        }

    def similarities_per_video(self, stored: Stored) -> int:
        """Number of similarities of one query and one video: the positions of all branches."""
        return sum(branch.values.shape[-2] for branch in stored.values())

    def width(self, stored: Stored) -> int:
        """Width H that queries must have."""
        return width(stored)

    def scores(self, queries: Float[Array, "Q H"], stored: Stored) -> Float[Array, "Q B"]:
        """Ranking scores, float32; higher is better (HLFormer eq. 9)."""
        total: Any = 0.0
        parts = self.of_branches(queries)
        for weight, name in zip(self.weights, self.branches, strict=True):
            if name in stored:
                query = store(parts[name], stored[name].values.dtype)
                total = total + weight * best(cosines(query, stored[name]))
        return total

    def locate(self, queries: Float[Array, "Q H"], stored: Stored) -> dict[str, Int[Array, " Q"]]:
        """The positions that made the score of each query's video, by the name of their branch."""
        branches = self.position_cosines(queries, stored)
        return {
            name: jnp.argmax(branch, axis=-1).astype(jnp.int32) for name, branch in branches.items()
        }

    def position_cosines(
        self, queries: Float[Array, "Q H"], stored: Stored
    ) -> dict[str, Float[Array, "Q L"]]:
        """Cosines of each query and the positions of its video, by branch."""
        parts = self.of_branches(queries)
        return {
            name: paired_cosines(store(parts[name], branch.values.dtype), branch)
            for name, branch in stored.items()
        }

    def over_time(
        self,
        cosines: Mapping[str, Float[np.ndarray, "*batch L"]],
        num_frames: int,
        max_clips: int,
        max_frames: int,
    ) -> Float[np.ndarray, "*batch F"]:
        """Weighted cosines of the clip and of the sampled frame over each frame of a video.

        With proposals in place of clips (MS-SL without its frames), a frame has the best score of
        the proposals that hold its clip. A single vector gives all frames the same score.

        Args:
          cosines: as `position_cosines` gives them.
          num_frames: F, the number of frames of the video in its source.
          max_clips: C, the number of clips that the video was pooled to.
          max_frames: the number of frames that it was sampled to at most.
        """
        total: Any = 0.0
        for weight, name in zip(np.asarray(self.weights), self.branches, strict=True):
            if name not in cosines:
                continue
            branch = cosines[name]
            if name == "clips":
                if branch.shape[-1] != max_clips:
                    branch = proposals_to_clips(branch, max_clips)
                branch = clips_to_frames(branch, num_frames)
            elif branch.shape[-1] == max_frames:
                branch = samples_to_frames(branch, num_frames)
            total = total + weight * branch
        return np.broadcast_to(total, (*total.shape[:-1], num_frames))

    def similarities(
        self, queries: Float[Array, "Q H"], videos: VideoEncoding, owner: Int[Array, " Q"]
    ) -> Similarities:
        """Maxima over positions of both branches.

        One product serves both: the cosines are the dot products over the norms.
        """
        query_norm = inverse_norm(queries)

        def both(positions: Array | None) -> tuple[Array | None, Array | None]:
            if positions is None:
                return None, None
            dots = jnp.einsum("qh,vlh->qvl", queries, positions, precision=exact_precision())
            scaled = best(dots * inverse_norm(positions)[None]) * query_norm[:, None]
            return scaled, best(dots)

        return Similarities(*both(videos.clips), *both(videos.frames))


@flax.struct.dataclass
class BranchwiseSimilarity(MaximumSimilarity):
    """A `MaximumSimilarity` of queries that are `parts` vectors side by side (DL-DKD).

    A vector for each branch, or one where the model has one branch alone.
    """

    parts: int = flax.struct.field(pytree_node=False, default=2)

    def of_branches(self, queries: Float[Array, "*batch H"]) -> dict[str, Array]:
        """The halves of the queries, of the clips' branch and of the frames'."""
        if self.parts == 1:
            return super().of_branches(queries)
        halves = jnp.split(jnp.asarray(queries), 2, axis=-1)
        return dict(zip(self.branches, halves, strict=True))

    def width(self, stored: Stored) -> int:
        """The width of the vectors, times their number in a query."""
        return self.parts * width(stored)

    def over_time(
        self,
        cosines: Mapping[str, Float[np.ndarray, "*batch L"]],
        num_frames: int,
        max_clips: int,
        max_frames: int,
    ) -> Float[np.ndarray, "*batch F"]:
        """Weighted cosines of the branches' sampled frames over each frame of a video."""
        weights = zip(self.branches, np.asarray(self.weights), strict=True)
        parts = [
            weight * samples_to_frames(cosines[name], num_frames)
            for name, weight in weights
            if name in cosines
        ]
        total: np.ndarray = sum(parts[1:], parts[0])
        return total

    def similarities(
        self, queries: Float[Array, "Q H"], videos: VideoEncoding, owner: Int[Array, " Q"]
    ) -> Similarities:
        """Maxima over positions, each branch with its own query."""
        alone = {"clips": videos._replace(frames=None), "frames": videos._replace(clips=None)}
        branches = {
            name: MaximumSimilarity.similarities(self, part, alone[name], owner)
            for name, part in self.of_branches(queries).items()
        }
        return Similarities(*branches["clips"][:2], *branches["frames"][2:])


@flax.struct.dataclass
class GuidedSimilarity(MaximumSimilarity):
    """MS-SL's score: the best proposal, plus the cosine of that proposal's guided frame vector."""

    branches: ClassVar[tuple[str, ...]] = GuidedEncoding._fields
    sum_of_maxima: ClassVar[bool] = False

    @property
    def frame_columns(self) -> str:
        """In training every caption has a guided vector of its own."""
        return "captions"

    def scores(self, queries: Float[Array, "Q H"], stored: Stored) -> Float[Array, "Q B"]:
        """Ranking scores."""
        clip_weight, guided_weight = self.weights
        query = store(queries, stored["clips"].values.dtype)
        proposals = cosines(query, stored["clips"])
        index = jnp.argmax(proposals, axis=-1)[..., None]
        guided = jnp.take_along_axis(cosines(query, stored["guided"]), index, axis=-1)
        return clip_weight * best(proposals) + guided_weight * guided[..., 0]

    def locate(self, queries: Float[Array, "Q H"], stored: Stored) -> dict[str, Int[Array, " Q"]]:
        """The best proposal."""
        return MaximumSimilarity.locate(self, queries, {"clips": stored["clips"]})

    def over_time(
        self,
        cosines: Mapping[str, Float[np.ndarray, "*batch L"]],
        num_frames: int,
        max_clips: int,
        max_frames: int,
    ) -> Float[np.ndarray, "*batch F"]:
        """The best of the proposals over each frame, each with its guided vector."""
        clip_weight, guided_weight = np.asarray(self.weights)
        both = clip_weight * cosines["clips"] + guided_weight * cosines["guided"]
        return clips_to_frames(proposals_to_clips(both, max_clips), num_frames)

    def similarities(
        self, queries: Float[Array, "Q H"], videos: Any, owner: Int[Array, " Q"]
    ) -> Similarities:
        """Proposals against videos, guided vectors against captions.

        Column r of the frame branch is the guided vector of caption r's best proposal in its own
        video.
        """
        query_norm = inverse_norm(queries)
        products = jnp.einsum("qh,vlh->qvl", queries, videos.clips, precision=exact_precision())
        scaled = products * inverse_norm(videos.clips)[None]
        in_video = jnp.take_along_axis(scaled, owner[:, None, None], axis=1)[:, 0]
        guided = jnp.asarray(videos.guided)[owner, jnp.argmax(in_video, axis=-1)]
        dots = jnp.einsum("qh,rh->qr", queries, guided, precision=exact_precision())
        cosines = dots * query_norm[:, None] * inverse_norm(guided)[None]
        clip_cosine = best(scaled) * query_norm[:, None]
        return Similarities(clip_cosine, best(products), cosines, dots)


def build_scorer(config: ConfigDict, model: Model) -> MaximumSimilarity:
    """Build the scorer of a model, with the branch weights of a configuration."""
    fields, module = config.model, model.module
    both = fields.gaze and fields.glance
    # A single branch is the whole score.
    weights = (fields.clip_weight, fields.frame_weight) if both else (1.0, 1.0)
    values = np.asarray(weights, np.float32)
    if module.query_per_branch:
        return BranchwiseSimilarity(values, parts=2 if both else 1)
    kind = GuidedSimilarity if both and module.guides_frames else MaximumSimilarity
    return kind(values)


def best(similarities: Float[Array, "*batch L"]) -> Float[Array, "*batch"]:
    """Return the similarity of a video: its best position's (HLFormer eq. 8)."""
    return jnp.max(similarities, axis=-1)


# Scores of frames from the scores of the spans that hold them, the best of several


def clips_to_frames(
    scores: Float[np.ndarray, "*batch C"], num_frames: int
) -> Float[np.ndarray, "*batch F"]:
    """Return the scores of the frames of a video from its clips' scores."""
    bounds = transforms.boundaries(num_frames, scores.shape[-1], np.float32)
    return spans_to_frames(scores, bounds, num_frames)


def samples_to_frames(
    scores: Float[np.ndarray, "*batch L"], num_frames: int
) -> Float[np.ndarray, "*batch F"]:
    """Return the scores of the frames of a video from the L sampled frames' scores.

    Of a video with at most L frames, each was read unchanged, and the rest is padding.
    """
    length = scores.shape[-1]
    if num_frames <= length:
        return scores[..., :num_frames]
    return spans_to_frames(scores, transforms.boundaries(num_frames, length), num_frames)


def spans_to_frames(
    scores: Float[np.ndarray, "*batch spans"], bounds: Int[np.ndarray, " spans+1"], num_frames: int
) -> Float[np.ndarray, "*batch F"]:
    """For each frame the largest score of the spans that it was pooled into.

    Args:
      scores: scores of the spans.
      bounds: boundaries of the spans, of `transforms.boundaries`; an empty span has the frame at
        its start, and the frames that the released code leaves out belong to the last.
      num_frames: F.
    """
    starts = bounds[:-1]
    ends = np.append(np.maximum(bounds[1:-1], starts[:-1] + 1), num_frames)
    return _largest_of_spans(scores, starts, ends, num_frames)


def proposals_to_clips(
    scores: Float[np.ndarray, "*batch P"], num_clips: int
) -> Float[np.ndarray, "*batch C"]:
    """For each clip the largest score of the proposals that hold it (MS-SL)."""
    return _largest_of_spans(scores, *proposals(num_clips), num_clips)


def _largest_of_spans(
    scores: np.ndarray, starts: np.ndarray, ends: np.ndarray, length: int
) -> np.ndarray:
    position = np.arange(length)[:, None]
    inside = (position >= starts) & (position < ends)
    best: np.ndarray = np.where(inside, scores[..., None, :], -np.inf).max(axis=-1)
    return best.astype(scores.dtype)
