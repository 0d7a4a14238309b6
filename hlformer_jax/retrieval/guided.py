"""The score of MS-SL: the best proposal, and what the frames say of it."""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from hlformer_jax.models.ms_sl import GuidedEncoding
from hlformer_jax.ops.numerics import inverse_norm
from hlformer_jax.retrieval import over_time, vectors
from hlformer_jax.retrieval.scoring import Similarities
from hlformer_jax.retrieval.similarity import best, best_position, position_cosines
from hlformer_jax.retrieval.vectors import Stored
from hlformer_jax.typing import Array


@flax.struct.dataclass
class GuidedSimilarity:
    """Largest cosine of a proposal, and the cosine of that proposal's guided vector.

    Attributes:
      weights: weights of the proposals and the guided vectors, Float[Array, " 2"].
    """

    weights: Any

    @property
    def frame_columns(self) -> str:
        """In training every caption has a guided vector of its own."""
        return "captions"

    def of_branches(self, queries: Float[Array, "*batch H"]) -> dict[str, Array]:
        """Proposals and guided vectors are compared with the whole query; see `scoring`."""
        return dict.fromkeys(GuidedEncoding._fields, queries)

    def store(self, videos: GuidedEncoding, dtype: DTypeLike) -> Stored:
        """Unit vectors of proposals and guided vectors, in the dtype of a corpus."""
        return {name: vectors.store(branch, dtype) for name, branch in videos._asdict().items()}

    def similarities_per_video(self, stored: Stored) -> int:
        """Number of proposals and guided vectors."""
        return vectors.positions(stored)

    def width(self, stored: Stored) -> int:
        """Width of the vectors."""
        return vectors.width(stored)

    def scores(self, queries: Float[Array, "Q H"], stored: Stored) -> Float[Array, "Q B"]:
        """Ranking scores; see `scoring.Scorer`."""
        clip_weight, guided_weight = self.weights
        query = vectors.store(queries, stored["clips"].values.dtype)
        proposals = vectors.cosines(query, stored["clips"])
        chosen = jnp.argmax(proposals, axis=-1)[..., None]
        guided = jnp.take_along_axis(vectors.cosines(query, stored["guided"]), chosen, axis=-1)
        return clip_weight * best(proposals) + guided_weight * guided[..., 0]

    def locate(self, queries: Float[Array, "Q H"], stored: Stored) -> dict[str, Int[Array, " Q"]]:
        """The best proposal; see `scoring.Scorer`."""
        cosines = self.position_cosines(queries, {"clips": stored["clips"]})
        return {"clips": best_position(cosines["clips"])}

    def position_cosines(
        self, queries: Float[Array, "Q H"], stored: Stored
    ) -> dict[str, Float[Array, "Q L"]]:
        """Cosines of proposals and guided vectors; see `scoring.TrainingScorer`."""
        return position_cosines(self.of_branches(queries), stored)

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
        return over_time.of_clips(over_time.of_proposals(both, max_clips), num_frames)

    def similarities(
        self,
        queries: Float[Array, "Q H"],
        videos: GuidedEncoding,
        owner: Int[Array, " Q"],
    ) -> Similarities:
        """Proposals against videos, guided vectors against captions; see `scoring.TrainingScorer`.

        Column r of the frame branch is the guided vector of caption r's best proposal in its own
        video.
        """
        query_norm = inverse_norm(queries)
        products = jnp.einsum("qh,vlh->qvl", queries, videos.clips)
        scaled = products * inverse_norm(videos.clips)[None]
        own = jnp.take_along_axis(scaled, owner[:, None, None], axis=1)[:, 0]
        guided = jnp.asarray(videos.guided)[owner, jnp.argmax(own, axis=-1)]
        dots = jnp.einsum("qh,rh->qr", queries, guided)
        cosines = dots * query_norm[:, None] * inverse_norm(guided)[None]
        clip_cosine = best(scaled) * query_norm[:, None]
        return Similarities(clip_cosine, best(products), cosines, dots)
