"""A trained model of the family as a ranker of an index.

The model reads what it was trained on: the vectors of frames as visual features, and the token
features of the same encoder as words, pooled and sampled as for training. Features that another
encoder made are refused. A video's score, and those of its frames, are the model's own, by the
scorer of `retrieval`. The encoded videos are kept beside the index under a name that says of which
videos and parameters, so that a model encodes them once.
"""

import contextlib
import hashlib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from ml_collections import ConfigDict

from hlformer_jax import files, models
from hlformer_jax.config import family_of
from hlformer_jax.data import extracted, transforms
from hlformer_jax.encoders.protocol import Encoder, TokenEncoder
from hlformer_jax.errors import SearchError
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.retrieval import corpus, evaluation, scoring
from hlformer_jax.retrieval.corpus import Corpus
from hlformer_jax.retrieval.scoring import MaximumSimilarity, Vectors
from hlformer_jax.runtime import devices
from hlformer_jax.search.index import packed
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.index.storage import EncoderFacts, Record, VideoArrays
from hlformer_jax.training import loaded_run
from hlformer_jax.training.loaded_run import LoadedRun, RunError
from hlformer_jax.typing import Videos


def read_config(path: Path) -> ConfigDict:
    """The configuration of the run in a directory; a SearchError where no model of it ranks."""
    try:
        config = loaded_run.read_config(path)
    except RunError as error:
        raise SearchError(f"--checkpoint: {error}") from None
    if family_of(config) != "prvr":
        raise SearchError(
            f"--checkpoint={path} is of the model {config.model.name!r}: give a run of partially"
            " relevant video retrieval, for example of configs/own.py"
        )
    return config


def identity(path: Path) -> str:
    """Identifies the parameters and the configuration of a run, without reading the parameters."""
    digest = hashlib.sha256((path / "config.json").read_bytes())
    # Of the checkpoints' files; written with each of them.
    for sums in sorted(path.rglob("SHA256SUMS")):
        digest.update(sums.read_bytes())
    return digest.hexdigest()


def check_encoder(config: ConfigDict, path: Path, ours: EncoderFacts) -> None:
    """Refuses a run, in the directory `path`, whose features another encoder than ours made."""
    theirs = extracted.encoder_of(path, Path(config.data.manual_dir))
    if theirs is None:
        raise SearchError(
            f"--checkpoint={path} does not say which encoder made its features: it was not trained"
            f" on what the command `features` writes, or that was moved: put its"
            f" {extracted.ENCODER} there"
        )
    name, fingerprint = theirs
    if fingerprint != ours.fingerprint:
        raise SearchError(
            f"--checkpoint={path} was trained on features of the encoder {name!r}, and the index"
            f" has those of {ours.name!r}: index with --encoder={name} into another --index"
        )
    if config.data.visual_dim != ours.width:
        raise SearchError(
            f"--checkpoint={path} was trained on features of width {config.data.visual_dim}, and"
            f" the index has vectors of width {ours.width}: index with its encoder"
        )


def videos_of(vectors: Sequence[Float[np.ndarray, "_ d"]], data: ConfigDict, size: int) -> Videos:
    """A batch of `size` videos, from the vectors of their frames; zeros fill it up."""
    raw = [rows.astype(np.float32) for rows in vectors]
    clips = [transforms.normalise(transforms.pool_to_clips(rows, data.max_clips)) for rows in raw]
    some = [transforms.normalise(transforms.sample_frames(rows, data.max_frames)) for rows in raw]
    pad = lambda rows, length: transforms.pad(rows, (size, length, data.visual_dim), data.dtype)
    frames, mask = pad(some, data.max_frames)
    return Videos(pad(clips, data.max_clips)[0], frames, mask, mask[:, 0])


def empty_corpus(run: LoadedRun, count: int) -> Corpus:
    """A corpus of the model for `count` >= 1 videos, still without them."""
    mesh = devices.mesh()
    size = devices.round_up(min(run.config.eval.video_batch, count), mesh.size)
    encode = lambda videos: models.encode_video(run.family.model, run.params, videos)
    shapes = jax.eval_shape(encode, videos_of([], run.config.data, size))
    dtype = run.config.eval.corpus
    return corpus.empty(run.family.evaluator.scorer, shapes, -(-count // size), dtype, mesh)


def encode_videos(
    run: LoadedRun, vectors: Iterator[Float[np.ndarray, "F d"]], count: int
) -> Corpus:
    """Encodes `count` videos, read as they are needed, a batch at a time."""
    data, stored = run.config.data, empty_corpus(run, count)
    blocks, size = stored.mask.shape

    def encode(stored: Corpus, block: Any, videos: Videos) -> Corpus:
        encoded = models.encode_video(run.family.model, run.params, videos)
        return corpus.write(stored, block, encoded, jnp.asarray(videos.mask))

    write = jax.jit(encode, donate_argnums=0)
    rest = count
    for block in range(blocks):
        batch = [next(vectors) for _ in range(min(size, rest))]
        rest -= len(batch)
        stored = write(stored, np.int32(block), videos_of(batch, data, size))
    return stored


def encode_query(run: LoadedRun, tokens: Float[np.ndarray, "W E"]) -> Float[np.ndarray, " H"]:
    """The unit vector of a sentence, from the encoder's token features."""
    data = run.config.data
    if tokens.shape[-1] != data.text_dim:
        raise SearchError(
            f"the model reads token features of width {data.text_dim}, and the encoder gives"
            f" {tokens.shape[-1]}: it was trained with another encoder"
        )
    return evaluation.encode_words(run.family.model, run.params, [tokens], data)[0]


class Trained:
    """A trained model as a ranker over the contents of an index; see `rankers.Ranker`."""

    calibrated = False
    top, dtype = 1, "float32"

    def __init__(self, path: Path, index: Index, records: Sequence[Record] | None) -> None:
        """Loads the run of a directory and encodes all contents; None: a store ranks them."""
        check_encoder(read_config(path), path, index.manifest.encoder)
        self._model, self.identity = loaded_run.load(path), f"trained {identity(path)}"
        self._scorer = self._model.family.evaluator.scorer
        self._count = len(records or ())
        if records is None:
            self._corpus = empty_corpus(self._model, 1)
        else:
            self._corpus = _encoded(self._model, path, index, records)
        self._scores = jax.jit(corpus.scores)

    def encode(self, encoder: Encoder, sentence: str) -> Float[np.ndarray, " H"]:
        """The model's vector of a sentence; see `Ranker`."""
        if not isinstance(encoder, TokenEncoder):
            raise SearchError(
                f"a trained model reads features of tokens, which {encoder.name!r} does not have"
            )
        return encode_query(self._model, np.asarray(encoder.encode_tokens([sentence])[0]))

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """The model's scores; see `Ranker`."""
        return np.asarray(self._scores(self._corpus, query[None]))[0, : self._count]

    def best(
        self, query: Float[np.ndarray, " H"], count: int, among: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """The scores of all contents; see `Ranker`."""
        return self.scores(query)

    def over_time(
        self,
        content: int,
        arrays: VideoArrays,
        query: Float[np.ndarray, " H"],
        vectors: Callable[[], dict[str, np.ndarray]] | None = None,
    ) -> Float[np.ndarray, " F"]:
        """What the positions over each frame say; see the module and `RowRanker`."""
        own = self.vectors(content, arrays) if vectors is None else vectors()
        parts = self._scorer.of_branches(query)
        unit_length = lambda part: part / max(float(np.linalg.norm(part)), 1e-12)
        cosines = {
            name: rows @ unit_length(np.asarray(parts[name])).astype(np.float32)
            for name, rows in own.items()
        }
        data = self._model.config.data
        scores: np.ndarray = self._scorer.over_time(
            cosines, len(arrays.times), data.max_clips, data.max_frames
        )
        return scores.astype(np.float32)

    @property
    def branches(self) -> dict[str, float] | None:
        """Weights of the branches whose best cosines the score adds; None: it is another one."""
        scorer = self._scorer
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
        parts = self._scorer.of_branches(query)
        return {name: _float32(scoring.store(part, dtype)) for name, part in parts.items()}

    def vectors(self, content: int, arrays: VideoArrays) -> dict[str, Float[np.ndarray, "L H"]]:
        """The vectors of the content of that index by their branch, float32; see `RowRanker`."""
        block, row = divmod(content, self._corpus.mask.shape[1])
        own = jax.tree.map(lambda x: x[block, row], self._corpus.stored)
        return {name: _float32(branch) for name, branch in own.items()}


def _float32(stored: Vectors) -> np.ndarray:
    """Vectors of a corpus as numbers."""
    values = np.asarray(jnp.asarray(stored.values, jnp.float32))
    scale = stored.scale
    return values if scale is None else values * np.asarray(scale, np.float32)[..., None]


def _encoded(run: LoadedRun, path: Path, index: Index, records: Sequence[Record]) -> Corpus:
    """The encoded videos, from beside the index where they are there already."""
    contents = [record.content for record in records]
    known = "\0".join([index.manifest.key, identity(path), *contents])
    digest = hashlib.sha256(known.encode()).hexdigest()[:32]
    file = index.directory / "packed" / f"trained-{digest}.npz"
    kept = _kept(file, empty_corpus(run, len(records)))
    if kept is not None:
        return kept
    index.check(contents)
    frames = (index.read(content).vectors for content in contents)
    made = encode_videos(run, frames, len(records))
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
        if not file.is_file():  # to open a pipe is to wait for its writer
            return None
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            # NumPy writes the bits of bfloat16 without its name.
            raw_leaves = [arrays[str(i)] for i in range(len(leaves))]
            if arrays["digest"] != _digest(raw_leaves):
                return None
            values = [x.view(leaf.dtype) for x, leaf in zip(raw_leaves, leaves, strict=True)]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if any(one.shape != leaf.shape for one, leaf in zip(values, leaves, strict=True)):
        return None
    placed = [jax.device_put(x, leaf.sharding) for x, leaf in zip(values, leaves, strict=True)]
    stored, mask = jax.tree.unflatten(form, placed)
    return empty._replace(stored=stored, mask=mask)
