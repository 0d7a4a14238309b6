"""A trained model of video retrieval as a ranker of an index.

The model's visual features are the frame embeddings, pooled and sampled as for training. Its words
are the token features of the same encoder; features of another encoder are refused. The model's
scorer (`retrieval.scoring`) scores videos and frames. The encoded videos are stored in the index's
directory, in a file whose name identifies the videos and the parameters, so a model encodes them
once.
"""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from ml_collections import ConfigDict

from hlformer_jax import files, models
from hlformer_jax.config import family_of
from hlformer_jax.data import transforms
from hlformer_jax.data.sources import extracted
from hlformer_jax.data.sources.released.layouts import keeps_last_row
from hlformer_jax.encoders.protocol import Encoder, TokenEncoder
from hlformer_jax.errors import QueryError, SearchError
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.retrieval import corpus, evaluation, scoring
from hlformer_jax.retrieval.corpus import Corpus
from hlformer_jax.retrieval.scoring import MaximumSimilarity, Vectors
from hlformer_jax.runtime import devices
from hlformer_jax.search.index import Index, packed
from hlformer_jax.search.index.records import (
    EncoderFacts,
    Record,
    VideoArrays,
    present_places,
)
from hlformer_jax.search.signals.rankers import ScoreKind
from hlformer_jax.training import loaded_run
from hlformer_jax.training.loaded_run import LoadedRun, RunError
from hlformer_jax.typing import Videos


def read_config(path: Path) -> ConfigDict:
    """Return the configuration of the run in a directory.

    Raises:
      QueryError: if the directory has no run, or one whose model cannot rank videos.
    """
    try:
        config = loaded_run.read_config(path)
    except RunError as error:
        raise QueryError("{checkpoint}: {problem}", field="checkpoint", problem=error) from None
    if family_of(config) != "prvr":
        raise QueryError(
            "{checkpoint} {path} has the model {model!r}, which cannot rank videos: give a"
            " run of partially relevant video retrieval, for example of configs/own.py",
            field="checkpoint", path=path, model=config.model.name,
        )  # fmt: skip
    return config


def identity(path: Path) -> str:
    """Return a digest of a run's configuration and parameters; the parameters are not read."""
    digest = hashlib.sha256((path / "config.json").read_bytes())
    # Every checkpoint has a file of the checksums of its files.
    for sums in sorted(path.rglob("SHA256SUMS")):
        digest.update(sums.read_bytes())
    return digest.hexdigest()


def place_of_encoder(path: Path) -> str | None:
    """Return where the encoder of a run's features can be loaded from, None if it is not recorded.

    Args:
      path: the directory of the run.

    Returns:
      The first recorded hub id or folder that is not missing, else the first of them.

    Raises:
      QueryError: if the directory has no run, or one whose model cannot rank videos.
    """
    config = read_config(path)
    recorded = extracted.encoder_of(path, Path(config.data.manual_dir))
    if recorded is None:
        return None
    places = recorded.places or (recorded.name,)
    return (*present_places(places), places[0])[0]


def check_encoder(config: ConfigDict, path: Path, encoder: EncoderFacts) -> None:
    """Check that a run was trained on features of the encoder of an index.

    Args:
      config: the configuration of the run.
      path: the directory of the run.
      encoder: the encoder of the index.

    Raises:
      QueryError: if the encoders or their widths differ, or the run does not record its encoder.
    """
    of_run = extracted.encoder_of(path, Path(config.data.manual_dir))
    if of_run is None:
        raise QueryError(
            ("{checkpoint} {path} does not record the encoder of its features: train it on"
             " the output of the command `features`, or, if that has moved, copy"
             f' {extracted.ENCODER} from there into {{checkpoint}}'),
            field="checkpoint", path=path,
        )  # fmt: skip
    if of_run.fingerprint != encoder.fingerprint:
        raise QueryError(
            "{checkpoint} {path} was trained on features of the encoder {name!r}, but the"
            " index has the encoder {other!r}: make another index with {encoder} {name}",
            field="checkpoint", path=path, name=of_run.name, other=encoder.name,
        )  # fmt: skip
    if config.data.visual_dim != encoder.width:
        raise QueryError(
            "{checkpoint} {path} was trained on features of width {run_width}, but the index"
            " has embeddings of width {width}: make another index with its encoder",
            field="checkpoint", path=path, run_width=config.data.visual_dim, width=encoder.width,
        )  # fmt: skip


def videos_of(vectors: Sequence[Float[np.ndarray, "_ d"]], data: ConfigDict, size: int) -> Videos:
    """Return a batch of videos for the model, padded with zeros.

    Args:
      vectors: the frame embeddings of each video, at most `size`.
      data: the section `data` of the run's configuration.
      size: number of videos of the batch.
    """
    raw = [rows.astype(np.float32) for rows in vectors]
    clips = [transforms.normalise(transforms.pool_to_clips(rows, data.max_clips)) for rows in raw]
    sampled = [transforms.normalise(transforms.sample_frames(x, data.max_frames)) for x in raw]

    def pad(rows: list[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
        return transforms.pad(rows, (size, length, data.visual_dim), data.dtype)

    frames, mask = pad(sampled, data.max_frames)
    return Videos(pad(clips, data.max_clips)[0], frames, mask, mask[:, 0])


def empty_corpus(run: LoadedRun, count: int) -> Corpus:
    """Return an empty corpus of the run's model, with room for `count` >= 1 videos."""
    mesh = devices.mesh()
    size = devices.round_up(min(run.config.eval.video_batch, count), mesh.size)
    encode = functools.partial(models.encode_video, run.family.model, run.params)
    shapes = jax.eval_shape(encode, videos_of([], run.config.data, size))
    dtype = run.config.eval.corpus
    return corpus.empty(run.family.evaluator.scorer, shapes, -(-count // size), dtype, mesh)


def encode_videos(
    run: LoadedRun, vectors: Iterator[Float[np.ndarray, "F d"]], count: int
) -> Corpus:
    """Encode videos by the run's model, one batch after the other.

    Args:
      run: the run.
      vectors: yields the frame embeddings of each video.
      count: number of videos.

    Returns:
      The corpus of the encoded videos, in order.
    """
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
    """Return the model's unit vector of a text.

    Args:
      run: the run.
      tokens: the encoder's features of the text's tokens.

    Raises:
      SearchError: if the model was trained on features of another width.
    """
    data = run.config.data
    if tokens.shape[-1] != data.text_dim:
        raise SearchError(
            f"the model reads token features of width {data.text_dim}, but the encoder gives"
            f" {tokens.shape[-1]}: it was trained with another encoder"
        )
    return evaluation.encode_words(run.family.model, run.params, [tokens], run.config)[0]


class TrainedRanker:
    """A trained model as a ranker over the contents of an index; see `rankers.Ranker`."""

    calibrated = False
    score_kind: ScoreKind | None = "model"
    is_trained = True
    top, dtype = 1, "float32"

    def __init__(self, path: Path, index: Index, records: Sequence[Record] | None) -> None:
        """Load a run, and encode all contents.

        Args:
          path: the directory of the run.
          index: the index.
          records: a record of each content; None if a store ranks them, so nothing is encoded.

        Raises:
          QueryError: if the directory has no run that can rank videos, or its encoder is another.
          DamagedError: if embeddings of a content are missing or damaged.
        """
        check_encoder(read_config(path), path, index.encoder)
        self._model, self.identity = loaded_run.load(path), f"trained {identity(path)}"
        config = self._model.config
        self.max_tokens = None if keeps_last_row(config) else config.data.max_words
        self._scorer = self._model.family.evaluator.scorer
        self._count = len(records or ())
        if records is None:
            self._corpus = empty_corpus(self._model, 1)
        else:
            self._corpus = _load_or_encode(self._model, path, index, records)
        self._scores = jax.jit(corpus.scores)

    def encode(self, encoder: Encoder, sentence: str) -> Float[np.ndarray, " H"]:
        """Return the model's vector of a text; see `Ranker`.

        Raises:
          SearchError: if the encoder has no token features, or their width is another.
        """
        if not isinstance(encoder, TokenEncoder):
            raise SearchError(
                f"a trained model needs features of tokens, which {encoder.name!r} does not have"
            )
        return encode_query(self._model, np.asarray(encoder.encode_tokens([sentence])[0]))

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """Return the model's scores; see `Ranker`."""
        return np.asarray(self._scores(self._corpus, query[None]))[0, : self._count]

    def best(
        self, query: Float[np.ndarray, " H"], count: int, allowed: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """Return the scores of all contents; see `Ranker`."""
        return self.scores(query)

    def over_time(
        self,
        content: int,
        arrays: VideoArrays,
        query: Float[np.ndarray, " H"],
        vectors: Callable[[], dict[str, np.ndarray]] | None = None,
    ) -> Float[np.ndarray, " F"]:
        """Return for each frame the model's score of that position; see `RowRanker`."""
        branches = self.vectors(content, arrays) if vectors is None else vectors()
        parts = self._scorer.of_branches(query)
        cosines = {
            name: rows @ transforms.unit(np.asarray(parts[name], np.float32))
            for name, rows in branches.items()
        }
        data = self._model.config.data
        scores: np.ndarray = self._scorer.over_time(
            cosines, len(arrays.times), data.max_clips, data.max_frames
        )
        return scores.astype(np.float32)

    @property
    def branches(self) -> dict[str, float] | None:
        """Weights of the branches whose largest cosines are added; None for any other score."""
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
        """Return the query of each branch, rounded to the dtype of the corpus, as float32."""
        dtype = jax.tree.leaves(self._corpus.stored)[0].dtype
        parts = self._scorer.of_branches(query)
        return {name: _float32(scoring.store(part, dtype)) for name, part in parts.items()}

    def vectors(self, content: int, arrays: VideoArrays) -> dict[str, Float[np.ndarray, "L H"]]:
        """Return the vectors of a content by branch, float32; see `RowRanker`."""
        block, row = divmod(content, self._corpus.mask.shape[1])
        branches = jax.tree.map(lambda x: x[block, row], self._corpus.stored)
        return {name: _float32(branch) for name, branch in branches.items()}


def _float32(stored: Vectors) -> np.ndarray:
    """Return vectors of a corpus as float32."""
    values = np.asarray(jnp.asarray(stored.values, jnp.float32))
    scale = stored.scale
    return values if scale is None else values * np.asarray(scale, np.float32)[..., None]


def _load_or_encode(run: LoadedRun, path: Path, index: Index, records: Sequence[Record]) -> Corpus:
    """Return the encoded videos, read from their file in the index's directory if it exists."""
    contents = [record.content for record in records]
    source = "\0".join([index.key, identity(path), *contents])
    digest = hashlib.sha256(source.encode()).hexdigest()[:32]
    file = index.directory / "packed" / f"trained-{digest}.npz"
    stored = _load_corpus(file, empty_corpus(run, len(records)))
    if stored is not None:
        return stored
    index.check(contents)
    frames = (index.read(content).vectors for content in contents)
    encoded = encode_videos(run, frames, len(records))
    # If the file cannot be written, the next process encodes the videos again.
    with contextlib.suppress(OSError):
        leaves = jax.tree.leaves((encoded.stored, encoded.mask))
        files.write_npz(file, {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)})
        packed.discard_outdated(index.directory, "trained-", file)
    return encoded


def _load_corpus(file: Path, empty: Corpus) -> Corpus | None:
    """Return the corpus of a file; None if it is missing, damaged or of another form."""
    leaves, form = jax.tree.flatten((empty.stored, empty.mask))
    try:
        arrays = files.read_npz(file, [str(i) for i in range(len(leaves))])
        # NumPy writes the bits of bfloat16 without its name.
        values = [arrays[str(i)].view(leaf.dtype) for i, leaf in enumerate(leaves)]
    except (OSError, ValueError):
        return None
    if any(value.shape != leaf.shape for value, leaf in zip(values, leaves, strict=True)):
        return None
    placed = [jax.device_put(x, leaf.sharding) for x, leaf in zip(values, leaves, strict=True)]
    stored, mask = jax.tree.unflatten(form, placed)
    return empty._replace(stored=stored, mask=mask)
