"""A trained model of the family as a ranker of an index.

A video's score, and those of its frames, are the model's own, by the scorer of `retrieval`.

The encoded videos are kept beside the index under a name that says of which videos and parameters,
so that a model encodes them once.
"""

import contextlib
import hashlib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from hlformer_jax import files
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.retrieval import corpus, scoring
from hlformer_jax.retrieval.corpus import Corpus
from hlformer_jax.retrieval.scoring import MaximumSimilarity, Vectors
from hlformer_jax.search import model, packed
from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.index import Index
from hlformer_jax.search.manifest import Record


class Trained:
    """A trained model as a ranker over the contents of an index; see `rankers.Ranker`."""

    calibrated = False

    def __init__(self, path: Path, index: Index, records: Sequence[Record] | None) -> None:
        """Loads the model and encodes all contents.

        Args:
          path: the run's directory.
          index: the index.
          records: a record of each content, indexed; None where a store ranks (`store`): nothing is
            encoded, and of no content is to be asked.

        Raises:
          UserError: when the run or a file of the index cannot be read, or the encoders differ.
        """
        model.check_encoder(model.read_config(path), path, index.manifest.encoder)
        self._model = model.load(path)
        self._count = len(records or ())
        if records is None:
            self._corpus = model.empty_corpus(self._model, 1)
        else:
            self._corpus = _encoded(self._model, path, index, records)
        self._scores = jax.jit(corpus.scores)

    def encode(self, encoder: Any, sentence: str) -> Float[np.ndarray, " H"]:
        """The model's vector of a sentence; see `Ranker`."""
        return model.encode_query(self._model, np.asarray(encoder.tokens([sentence])[0]))

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """The model's scores; see `Ranker`."""
        return np.asarray(self._scores(self._corpus, query[None]))[0, : self._count]

    def best(
        self, query: Float[np.ndarray, " H"], count: int, among: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """The scores of all contents; see `Ranker`."""
        return self.scores(query)

    def over_time(
        self, content: int, arrays: VideoArrays, query: Float[np.ndarray, " H"]
    ) -> Float[np.ndarray, " F"]:
        """What the positions over each frame say; see the module."""
        return self.of_positions(self.vectors(content), len(arrays.times), query)

    @property
    def branches(self) -> dict[str, float] | None:
        """Weights of the branches whose best cosines the score adds; None: it is another one."""
        scorer = self._model.scorer
        if not (isinstance(scorer, MaximumSimilarity) and scorer.sum_of_maxima):
            return None
        weights = zip(VideoEncoding._fields, scorer.weights, strict=True)
        return {name: float(weight) for name, weight in weights if name in self._corpus.stored}

    @property
    def width(self) -> int:
        """Width H of the vectors."""
        return scoring.width(self._corpus.stored)

    def rounded(self, query: Float[np.ndarray, " H"]) -> dict[str, Float[np.ndarray, " _"]]:
        """What each branch is compared with, in the dtype of the corpus, as float32."""
        dtype = jax.tree.leaves(self._corpus.stored)[0].dtype
        parts = self._model.scorer.of_branches(query)
        return {name: _float32(scoring.store(part, dtype)) for name, part in parts.items()}

    def vectors(self, content: int) -> dict[str, Float[np.ndarray, "L H"]]:
        """The vectors of the content of that index by their branch, float32."""
        block, row = divmod(content, self._corpus.mask.shape[1])
        own = jax.tree.map(lambda x: x[block, row], self._corpus.stored)
        return {name: _float32(branch) for name, branch in own.items()}

    def of_positions(
        self, own: dict[str, Float[np.ndarray, "L H"]], frames: int, query: Float[np.ndarray, " _"]
    ) -> Float[np.ndarray, " F"]:
        """What the positions over each frame say.

        Args:
          own: vectors of a video by their branch, as `retrieval.scoring.Stored` has them.
          frames: its number of frames, F.
          query: the model's vector of a sentence.
        """
        parts = self._model.scorer.of_branches(query)
        cosines = {name: rows @ _unit(np.asarray(parts[name])) for name, rows in own.items()}
        data = self._model.config.data
        scores: np.ndarray = self._model.scorer.over_time(
            cosines, frames, data.max_clips, data.max_frames
        )
        return scores.astype(np.float32)


def _unit(query: Float[np.ndarray, " _"]) -> Float[np.ndarray, " _"]:
    return (query / max(float(np.linalg.norm(query)), 1e-12)).astype(np.float32)


def _float32(stored: Vectors) -> np.ndarray:
    """Vectors of a corpus as numbers."""
    values = np.asarray(jnp.asarray(stored.values, jnp.float32))
    scale = stored.scale
    return values if scale is None else values * np.asarray(scale, np.float32)[..., None]


def _encoded(found: model.Model, path: Path, index: Index, records: Sequence[Record]) -> Corpus:
    """The encoded videos, from beside the index where they are there already."""
    contents = [record.content for record in records]
    known = "\0".join([index.manifest.key, model.identity(path), *contents])
    digest = hashlib.sha256(known.encode()).hexdigest()[:32]
    file = index.directory / "packed" / f"trained-{digest}.npz"
    kept = _kept(file, model.empty_corpus(found, len(records)))
    if kept is not None:
        return kept
    index.check(contents)
    frames = (index.read(content).vectors for content in contents)
    made = model.encode_videos(found, frames, len(records))
    leaves = jax.tree.leaves((made.stored, made.mask))
    # Where they cannot be kept, they are encoded again the next time.
    with contextlib.suppress(OSError):
        kept_leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}
        files.write_npz(file, kept_leaves | {"digest": _digest(kept_leaves.values())})
        for other in packed.own_files(index.directory, "trained-"):
            if other != file:
                other.unlink(missing_ok=True)
    return made


def _digest(leaves: Iterable[np.ndarray]) -> np.ndarray:
    digest = hashlib.sha256()
    for leaf in leaves:
        digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return np.asarray(digest.hexdigest())


def _kept(file: Path, empty: Corpus) -> Corpus | None:
    """The corpus of a file; None where there is none of that form."""
    leaves, form = jax.tree.flatten((empty.stored, empty.mask))
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            # NumPy writes the bits of bfloat16 without its name.
            raw_leaves = [arrays[str(i)] for i in range(len(leaves))]
            if arrays["digest"] != _digest(raw_leaves):
                return None
            found = [x.view(leaf.dtype) for x, leaf in zip(raw_leaves, leaves, strict=True)]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if any(one.shape != leaf.shape for one, leaf in zip(found, leaves, strict=True)):
        return None
    placed = [jax.device_put(x, leaf.sharding) for x, leaf in zip(found, leaves, strict=True)]
    stored, mask = jax.tree.unflatten(form, placed)
    return empty._replace(stored=stored, mask=mask)
