"""Scores of videos for queries, for a corpus, a search and a loss.

A scorer computes the score of a video from the similarities of its positions: the best position of
each branch (HLFormer eq. 8, 9), the same with a query for each branch (DL-DKD), or the best
proposal plus the score of its frames (MS-SL). For another rule, subclass `MaximumSimilarity`. A
scorer is a pytree, so that its weights are arguments of compiled programs. Padded frames are zero
vectors, have cosine 0 with every query, and take part in the maximum, as released.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

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
from hlformer_jax.pytrees import STATIC, register_dataclass
from hlformer_jax.typing import Array

DTYPES = ("float32", "bfloat16", "int8")
"""Dtypes of the unit vectors of a corpus; int8 vectors have one scale each."""

FEW_QUERIES = 256
"""Number of queries below which a CPU computes products with the videos first."""


class Similarities(NamedTuple):
    """Largest cosines and dot products of captions and videos in each branch.

    None for a branch that is off. The matrices of the frame branch are [Q, Q] if the scorer's
    `frame_columns` is "captions".
    """

    clip_cosine: Float[Array, "Q V"] | None
    clip_dot: Float[Array, "Q V"] | None
    frame_cosine: Float[Array, "Q V"] | None
    frame_dot: Float[Array, "Q V"] | None


class Vectors(NamedTuple):
    """Unit vectors in the dtype of a corpus.

    Attributes:
      values: coordinates [..., H].
      scale: for int8 the factors [...] of the values; otherwise None.
    """

    values: Array
    scale: Array | None


Stored = dict[str, Vectors]
"""Vectors of every position of B videos, [B, L, H], by the name of the branch."""


def width(stored: Stored) -> int:
    """Return the width H of the vectors."""
    branch = next(iter(stored.values()))
    return int(branch.values.shape[-1])


def store(vectors: Float[Array, "*batch H"], dtype: DTypeLike) -> Vectors:
    """Normalise vectors and convert them to the dtype of a corpus.

    int8 rounds the coordinates of a vector to multiples of a 127th of its largest coordinate. The
    error is at most half of such a step, 0.4 % of the largest coordinate.

    Args:
      vectors: vectors of any norm.
      dtype: "float32", "bfloat16" or "int8".
    """
    units = unit(vectors)
    if jnp.dtype(dtype) != jnp.int8:
        return Vectors(units.astype(dtype), None)
    largest = jnp.max(jnp.abs(units), axis=-1, keepdims=True)
    scale = jnp.where(largest == 0, 1.0, largest) / 127  # NaN stays
    return Vectors(jnp.round(units / scale).astype(jnp.int8), scale[..., 0])


def cosines(query: Vectors, vectors: Vectors) -> Float[Array, "Q B L"]:
    """Return the cosines of all queries and the positions of all videos.

    Inner products are accumulated in float32, or in int32 for int8.

    Args:
      query: unit vectors of the queries, [Q, H].
      vectors: unit vectors of the positions of videos, [B, L, H].
    """
    products = jax.lax.platform_dependent(
        query.values, vectors.values, cpu=_products_on_cpu, default=_products
    )
    if vectors.scale is None or query.scale is None:
        return products
    return products.astype(jnp.float32) * vectors.scale[None] * query.scale[:, None, None]


def _products(queries: Array, vectors: Array) -> Array:
    """Return the inner products [Q, B, L] of vectors [Q, H] and [B, L, H]."""
    return _exact_einsum("qh,blh->qbl", queries, vectors)


def _products_on_cpu(queries: Array, vectors: Array) -> Array:
    """Return the inner products as `_products`, faster on a CPU if there are few queries.

    XLA for CPUs multiplies a large matrix by a small one faster than the small one by the large
    one. In bfloat16 and int8 it has no fast product of a matrix and a single vector.
    """
    count = len(queries)
    if count >= FEW_QUERIES:
        return _products(queries, vectors)
    if count == 1 and queries.dtype == jnp.float32:
        return _exact_einsum("blh,h->bl", vectors, queries[0])[None]
    if count == 1:
        queries = jnp.tile(queries, (2, 1))
    return jnp.moveaxis(_exact_einsum("blh,qh->blq", vectors, queries), -1, 0)[:count]


def _exact_einsum(subscripts: str, first: Array, second: Array) -> Array:
    return jnp.einsum(
        subscripts,
        first,
        second,
        precision=jax.lax.Precision.HIGHEST,  # otherwise a GPU may round float32 vectors
        preferred_element_type=jnp.int32 if first.dtype == jnp.int8 else jnp.float32,
    )


def paired_cosines(query: Vectors, videos: Vectors) -> Float[Array, "Q L"]:
    """Return the cosines of each query [Q, H] and the positions of its own video [Q, L, H]."""
    vectors, positions = query.values.astype(jnp.float32), videos.values.astype(jnp.float32)
    products = _exact_einsum("qh,qlh->ql", vectors, positions)
    if videos.scale is None or query.scale is None:
        return products
    return products * videos.scale * query.scale[:, None]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class MaximumSimilarity:
    """Weighted sum over both branches of the largest cosine of the query and a position.

    Attributes:
      weights: weights of the branches, in the order of ``branches``.
    """

    branches: ClassVar[tuple[str, ...]] = VideoEncoding._fields

    sum_of_maxima: ClassVar[bool] = True
    """Whether the score is a sum over branches of the largest cosine in each branch."""

    frame_columns: ClassVar[str] = "videos"
    """The meaning of a column of the frame branch: "videos" or "captions"."""

    clips_are_frames: ClassVar[bool] = False
    """Whether the positions of the clip branch are sampled frames, as in the frame branch."""

    weights: Any

    def of_branches(self, queries: Float[Array, "*batch H"]) -> dict[str, Array]:
        """Return the vector of each query for each branch: here the whole query for both."""
        return dict.fromkeys(self.branches, queries)

    def store(self, videos: Any, dtype: DTypeLike) -> Stored:
        """Return the stored form of B videos: unit vectors of the branches that are on.

        Args:
          videos: encoded videos, a NamedTuple of branches.
          dtype: "float32", "bfloat16" or "int8".
        """
        return {
            name: store(branch, dtype)
            for name, branch in videos._asdict().items()
            if branch is not None
        }

    def similarities_per_video(self, stored: Stored) -> int:
        """Return the number of similarities of a query and a video, over all branches."""
        return sum(branch.values.shape[-2] for branch in stored.values())

    def width(self, stored: Stored) -> int:
        """Return the width that queries must have."""
        return width(stored)

    def scores(self, queries: Float[Array, "Q H"], stored: Stored) -> Float[Array, "Q B"]:
        """Return float32 scores of queries and stored videos; higher is better (HLFormer eq. 9).

        Args:
          queries: encoded queries, of any norm.
          stored: videos from `store`.
        """
        total: Any = 0.0
        parts = self.of_branches(queries)
        for weight, name in zip(self.weights, self.branches, strict=True):
            if name in stored:
                query = store(parts[name], stored[name].values.dtype)
                total = total + weight * best(cosines(query, stored[name]))
        return total

    def locate(self, queries: Float[Array, "Q H"], stored: Stored) -> dict[str, Int[Array, " Q"]]:
        """Return the best position of each query in its own video, by branch.

        Args:
          queries: encoded queries.
          stored: the stored video of each query, [Q, L, H].
        """
        branches = self.position_cosines(queries, stored)
        return {
            name: jnp.argmax(branch, axis=-1).astype(jnp.int32) for name, branch in branches.items()
        }

    def position_cosines(
        self, queries: Float[Array, "Q H"], stored: Stored
    ) -> dict[str, Float[Array, "Q L"]]:
        """Return the cosines of each query and the positions of its own video, by branch.

        Args:
          queries: encoded queries, of any norm.
          stored: the stored video of each query, [Q, L, H].
        """
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
        """Return a score of each frame of a video: weighted cosines of its clip and sampled frame.

        With proposals in place of clips (MS-SL without the frame branch), the score of a frame is
        the best score of the proposals that contain its clip. A branch with a single vector adds
        the same number to all frames.

        Args:
          cosines: cosines by branch, from `position_cosines`.
          num_frames: F, the number of frames of the video in its source.
          max_clips: C, the number of clips that the video was pooled to.
          max_frames: the largest number of frames that the video was sampled to.
        """
        total: Any = 0.0
        for weight, name in zip(np.asarray(self.weights), self.branches, strict=True):
            if name not in cosines:
                continue
            branch = cosines[name]
            if name == "clips" and not self.clips_are_frames:
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
        """Return the largest cosines and the largest dot products over the positions of videos.

        The dot products are computed once; the cosines are the dot products divided by the norms.

        Args:
          queries: encoded captions.
          videos: encoded videos.
          owner: index of each caption's own video.
        """
        query_norm = inverse_norm(queries)

        def both(positions: Array | None) -> tuple[Array | None, Array | None]:
            if positions is None:
                return None, None
            dots = jnp.einsum("qh,vlh->qvl", queries, positions, precision=exact_precision())
            scaled = best(dots * inverse_norm(positions)[None]) * query_norm[:, None]
            return scaled, best(dots)

        return Similarities(*both(videos.clips), *both(videos.frames))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class BranchwiseSimilarity(MaximumSimilarity):
    """A `MaximumSimilarity` with a separate query vector for each branch (DL-DKD).

    Attributes:
      parts: number of vectors that are concatenated in a query: 2, or 1 if the model has a single
        branch.
    """

    clips_are_frames: ClassVar[bool] = True

    parts: int = dataclasses.field(metadata=STATIC, default=2)

    def of_branches(self, queries: Float[Array, "*batch H"]) -> dict[str, Array]:
        """Return the first half of each query for the clips' branch, the second for the frames'."""
        if self.parts == 1:
            return super().of_branches(queries)
        halves = jnp.split(jnp.asarray(queries), 2, axis=-1)
        return dict(zip(self.branches, halves, strict=True))

    def width(self, stored: Stored) -> int:
        """Return the width that queries must have: `parts` times the width of the vectors."""
        return self.parts * width(stored)

    def similarities(
        self, queries: Float[Array, "Q H"], videos: VideoEncoding, owner: Int[Array, " Q"]
    ) -> Similarities:
        """Return the largest similarities over positions, each branch with its own query."""
        alone = {"clips": videos._replace(frames=None), "frames": videos._replace(clips=None)}
        branches = {
            name: MaximumSimilarity.similarities(self, part, alone[name], owner)
            for name, part in self.of_branches(queries).items()
        }
        return Similarities(*branches["clips"][:2], *branches["frames"][2:])


@register_dataclass
@dataclasses.dataclass(frozen=True)
class GuidedSimilarity(MaximumSimilarity):
    """MS-SL's score: the best proposal, plus the cosine of that proposal's guided frame vector."""

    branches: ClassVar[tuple[str, ...]] = GuidedEncoding._fields
    sum_of_maxima: ClassVar[bool] = False
    frame_columns: ClassVar[str] = "captions"  # each caption has a guided vector

    def scores(self, queries: Float[Array, "Q H"], stored: Stored) -> Float[Array, "Q B"]:
        """Return float32 scores of queries and stored videos; higher is better."""
        clip_weight, guided_weight = self.weights
        query = store(queries, stored["clips"].values.dtype)
        proposals = cosines(query, stored["clips"])
        index = jnp.argmax(proposals, axis=-1)[..., None]
        guided = jnp.take_along_axis(cosines(query, stored["guided"]), index, axis=-1)
        return clip_weight * best(proposals) + guided_weight * guided[..., 0]

    def locate(self, queries: Float[Array, "Q H"], stored: Stored) -> dict[str, Int[Array, " Q"]]:
        """Return the best proposal of each query in its own video, as the branch "clips"."""
        return MaximumSimilarity.locate(self, queries, {"clips": stored["clips"]})

    def over_time(
        self,
        cosines: Mapping[str, Float[np.ndarray, "*batch L"]],
        num_frames: int,
        max_clips: int,
        max_frames: int,
    ) -> Float[np.ndarray, "*batch F"]:
        """Return a score of each frame: the best score of the proposals that contain its clip.

        The score of a proposal includes the score of its guided vector.
        """
        clip_weight, guided_weight = np.asarray(self.weights)
        both = clip_weight * cosines["clips"] + guided_weight * cosines["guided"]
        return clips_to_frames(proposals_to_clips(both, max_clips), num_frames)

    def similarities(
        self, queries: Float[Array, "Q H"], videos: Any, owner: Int[Array, " Q"]
    ) -> Similarities:
        """Return the similarities of captions with proposals, and with guided vectors.

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
    # With a single branch, the score is the cosine of that branch.
    weights = (fields.clip_weight, fields.frame_weight) if both else (1.0, 1.0)
    values = np.asarray(weights, np.float32)
    if module.query_per_branch:
        return BranchwiseSimilarity(values, parts=2 if both else 1)
    kind = GuidedSimilarity if both and module.guides_frames else MaximumSimilarity
    return kind(values)


def best(similarities: Float[Array, "*batch L"]) -> Float[Array, "*batch"]:
    """Return the similarity of the best position of a video (HLFormer eq. 8)."""
    return jnp.max(similarities, axis=-1)


# The score of a frame is the largest score of the spans that contain it


def clips_to_frames(
    scores: Float[np.ndarray, "*batch C"], num_frames: int
) -> Float[np.ndarray, "*batch F"]:
    """Return the scores of the frames of a video from its clips' scores."""
    bounds = transforms.boundaries(num_frames, scores.shape[-1], np.float32)
    return spans_to_frames(scores, bounds, num_frames)


def samples_to_frames(
    scores: Float[np.ndarray, "*batch L"], num_frames: int
) -> Float[np.ndarray, "*batch F"]:
    """Return the scores of the frames of a video from the scores of L sampled frames.

    A video with at most L frames was not sampled: its frames come first, and the rest is padding.
    """
    length = scores.shape[-1]
    if num_frames <= length:
        return scores[..., :num_frames]
    return spans_to_frames(scores, transforms.boundaries(num_frames, length), num_frames)


def spans_to_frames(
    scores: Float[np.ndarray, "*batch spans"], bounds: Int[np.ndarray, " spans+1"], num_frames: int
) -> Float[np.ndarray, "*batch F"]:
    """Return for each frame the largest score of the spans that it was pooled into.

    Args:
      scores: scores of the spans.
      bounds: boundaries of the spans, from `transforms.boundaries`. An empty span contains the
        frame at its start. Frames at the end that the released code leaves out belong to the last
        span.
      num_frames: F.
    """
    starts = bounds[:-1]
    ends = np.append(np.maximum(bounds[1:-1], starts[:-1] + 1), num_frames)
    return _largest_of_spans(scores, starts, ends, num_frames)


def proposals_to_clips(
    scores: Float[np.ndarray, "*batch P"], num_clips: int
) -> Float[np.ndarray, "*batch C"]:
    """Return for each clip the largest score of the proposals that contain it (MS-SL)."""
    return _largest_of_spans(scores, *proposals(num_clips), num_clips)


def _largest_of_spans(
    scores: np.ndarray, starts: np.ndarray, ends: np.ndarray, length: int
) -> np.ndarray:
    position = np.arange(length)[:, None]
    inside = (position >= starts) & (position < ends)
    best: np.ndarray = np.where(inside, scores[..., None, :], -np.inf).max(axis=-1)
    return best.astype(scores.dtype)
