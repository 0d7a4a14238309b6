"""A trained model of the family as a ranker of an index.

The model reads what it was trained on: the vectors of an index's frames as visual features, and the
token features of the same encoder as words. Frames are pooled and sampled as for training
(`data.transforms`). The run's directory says which model it is (`config.json`); the directory of
its features which encoder made them (`encoder.json`, of the command `features`), and another
encoder is refused.

A video's score is the model's own, by the scorer of `retrieval`. A frame's score is what the
positions over it say: the weighted sum of the cosines of the clip and of the sampled frame that
hold it; with MS-SL, whose proposals are windows over clips, the best of the proposals that do.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.config import default
from hlformer_jax.data import transforms
from hlformer_jax.models.ms_sl import GuidedEncoding, proposals
from hlformer_jax.parallel import devices
from hlformer_jax.retrieval import corpus, scorers
from hlformer_jax.retrieval.corpus import Corpus
from hlformer_jax.run import checkpoint
from hlformer_jax.search.arrays import VideoArrays
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.manifest import EncoderFacts, Record
from hlformer_jax.search.segments import unit
from hlformer_jax.typing import Captions, Videos

FACTS = "encoder.json"
"""File in a directory of features: what identifies the encoder that made them."""


class Model(NamedTuple):
    """A trained model.

    Attributes:
      config: its configuration.
      model: the model.
      params: its parameters.
      scorer: its scorer.
    """

    config: ConfigDict
    model: models.Model
    params: Any
    scorer: Any


def load(path: Path) -> Model:
    """Loads the best epoch of a run.

    Args:
      path: the run's directory.

    Raises:
      SearchError: when it has no configuration that this version reads.
      CheckpointError: when there is no checkpoint, or it is damaged.
      ConfigError: when its options make no sense.
    """
    config = read_config(path)
    model = models.build(config)
    template = jax.eval_shape(lambda: models.init_params(model, config))
    series = checkpoint.open_params(path)
    try:
        restored = series.restore(devices.abstract(devices.mesh(), template))
    finally:
        series.close()
    params = models.project(restored, config)
    return Model(config, model, params, scorers.build(config, model))


def read_config(path: Path) -> ConfigDict:
    """The configuration of a run.

    Raises:
      SearchError: when the directory has none that this version reads.
    """
    try:
        recorded = json.loads((path / "config.json").read_text(encoding="utf-8"))["config"]
        config = default()
        with config.ignore_type():
            config.update(recorded)
    except FileNotFoundError:
        raise SearchError(
            f"--checkpoint={path} has no config.json: give the directory of a run (its --workdir)"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SearchError(
            f"{path / 'config.json'} is no configuration of this version"
            f" ({type(error).__name__}): train the model again"
        ) from None
    return config


def check_encoder(config: ConfigDict, path: Path, ours: EncoderFacts) -> None:
    """Refuses a run whose features another encoder made.

    Args:
      config: the configuration of the run; its `data.manual_dir` is the directory of features.
      path: the run's directory.
      ours: the encoder of the index.

    Raises:
      SearchError: saying what to do.
    """
    facts = next(
        (
            folder / FACTS
            for folder in (path, Path(config.data.manual_dir))
            if (folder / FACTS).is_file()
        ),
        None,
    )
    if facts is None:
        raise SearchError(
            f"--checkpoint={path} does not say which encoder made its features: it was not trained"
            f" on what the command `features` writes, or that was moved: put its {FACTS} there"
        )
    try:
        theirs = json.loads(facts.read_text(encoding="utf-8"))
        name, fingerprint = str(theirs["name"]), str(theirs["fingerprint"])
    except (ValueError, KeyError, TypeError):
        raise SearchError(f"{facts} is damaged: make the features again") from None
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


def videos_of(vectors: Sequence[Float[np.ndarray, "F d"]], data: ConfigDict, size: int) -> Videos:
    """A batch of videos as a model reads it.

    Args:
      vectors: vectors of the frames of each video.
      data: `config.data`.
      size: number of videos of the batch; zeros fill it up.
    """
    dtype = np.dtype(data.dtype)
    clips = np.zeros((size, data.max_clips, data.visual_dim), dtype)
    frames = np.zeros((size, data.max_frames, data.visual_dim), dtype)
    counts = np.zeros(size, np.int64)
    for i, rows in enumerate(vectors):
        rows = rows.astype(np.float32)
        sampled = transforms.normalise(transforms.sample_frames(rows, data.max_frames))
        counts[i] = len(sampled)
        frames[i, : len(sampled)] = sampled
        clips[i] = transforms.normalise(transforms.pool_to_clips(rows, data.max_clips))
    frame_mask = np.arange(data.max_frames)[None] < counts[:, None]
    return Videos(clips, frames, frame_mask, counts > 0)


def encode_videos(found: Model, vectors: Iterator[Float[np.ndarray, "F d"]], count: int) -> Corpus:
    """Encodes the videos of an index, a batch at a time.

    Args:
      found: the model.
      vectors: vectors of the frames of each video, read as they are needed.
      count: number of videos, at least 1.

    Returns:
      A corpus of them, in `config.eval.corpus`'s dtype.
    """
    data, mesh = found.config.data, devices.mesh()
    size = devices.round_up(min(found.config.eval.video_batch, count), mesh.size)
    blocks = -(-count // size)
    encode = lambda videos: models.encode_video(found.model, found.params, videos)
    shapes = jax.eval_shape(encode, videos_of([], data, size))
    stored = corpus.empty(found.scorer, shapes, blocks, found.config.eval.corpus, mesh)
    write = jax.jit(
        lambda stored, block, videos: corpus.write(stored, block, encode(videos), videos.mask),
        donate_argnums=0,
    )
    rest = count
    for block in range(blocks):
        batch = [next(vectors) for _ in range(min(size, rest))]
        rest -= len(batch)
        stored = write(stored, np.int32(block), videos_of(batch, data, size))
    return stored


def encode_query(found: Model, tokens: Float[np.ndarray, "W E"]) -> Float[np.ndarray, " H"]:
    """The unit vector of a sentence.

    Args:
      found: the model.
      tokens: token features of the encoder, [W, E].

    Raises:
      SearchError: when the model was trained on token features of another width.
    """
    data = found.config.data
    if tokens.shape[-1] != data.text_dim:
        raise SearchError(
            f"the model reads token features of width {data.text_dim}, and the encoder gives"
            f" {tokens.shape[-1]}: it was trained with another encoder"
        )
    words = np.zeros((1, data.max_words, data.text_dim), np.dtype(data.dtype))
    cut = transforms.cut_words(tokens, data.max_words)
    words[0, : len(cut)] = cut
    mask = np.arange(data.max_words)[None] < len(cut)
    captions = Captions(words, mask, np.zeros(1, np.int32), np.ones(1, bool))
    encoded = np.asarray(_encode_query(found.model, found.params, captions)[0], np.float64)
    return unit(encoded).astype(np.float32)


@jax.jit
def _encode_query(model: Any, params: Any, captions: Captions) -> jax.Array:
    return jnp.asarray(models.encode_query(model, params, captions))


class Trained:
    """A trained model as a ranker over the contents of an index; see `rankers.Ranker`."""

    calibrated = False

    def __init__(self, path: Path, index: Index, records: Sequence[Record]) -> None:
        """Loads the model and encodes all contents.

        Args:
          path: the run's directory.
          index: the index.
          records: a record of each content, indexed.

        Raises:
          UserError: when the run or a file of the index cannot be read, or the encoders differ.
        """
        check_encoder(read_config(path), path, index.manifest.encoder)
        self._model = load(path)
        self._count = len(records)
        vectors = (index.read(record.content).vectors for record in records)
        self._corpus = encode_videos(self._model, vectors, len(records))
        self._scores = jax.jit(corpus.scores)

    def encode(self, encoder: Any, sentence: str) -> Float[np.ndarray, " H"]:
        """The model's vector of a sentence; see `Ranker`."""
        return encode_query(self._model, np.asarray(encoder.tokens([sentence])[0]))

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """The model's scores; see `Ranker`."""
        return np.asarray(self._scores(self._corpus, query[None]))[0, : self._count]

    def over_time(
        self, content: int, arrays: VideoArrays, query: Float[np.ndarray, " H"]
    ) -> Float[np.ndarray, " F"]:
        """What the positions over each frame say; see the module."""
        block, row = divmod(content, self._corpus.mask.shape[1])
        own = jax.tree.map(lambda x: x[block, row], self._corpus.stored)
        cosines = {name: _cosines(branch, query) for name, branch in own.items()}
        data, frames = self._model.config.data, len(arrays.times)
        clips = transforms.boundaries(frames, data.max_clips, np.float32)
        weights = np.asarray(self._model.scorer.weights, np.float32)
        if set(cosines) == set(GuidedEncoding._fields):
            both = weights[0] * cosines["clips"] + weights[1] * cosines["guided"]
            return of_frames(best_proposal(both, data.max_clips), clips, frames)
        total = np.zeros(frames, np.float32)
        if "clips" in cosines:
            found = cosines["clips"]
            if len(found) != data.max_clips:  # MS-SL without its frames
                found = best_proposal(found, data.max_clips)
            total += weights[0] * of_frames(found, clips, frames)
        if "frames" in cosines and len(cosines["frames"]) == data.max_frames:
            found = cosines["frames"]
            if frames > data.max_frames:
                sampled = transforms.boundaries(frames, data.max_frames)
                found = of_frames(found, sampled, frames)
            total += weights[1] * found[:frames]
        elif "frames" in cosines:  # one vector for the whole video
            total += weights[1] * cosines["frames"][0]
        return total


def of_frames(
    scores: Float[np.ndarray, " spans"], bounds: Int[np.ndarray, " spans+1"], frames: int
) -> Float[np.ndarray, " F"]:
    """For each frame the largest score of the spans that it was pooled into.

    Args:
      scores: scores of the spans.
      bounds: boundaries of the spans, of `transforms.boundaries`; an empty span has the frame at
        its start, and the frames that the released code leaves out belong to the last.
      frames: F.
    """
    starts = bounds[:-1]
    ends = np.append(np.maximum(bounds[1:-1], starts[:-1] + 1), frames)
    frame = np.arange(frames)
    inside = (frame[:, None] >= starts) & (frame[:, None] < ends)
    return np.where(inside, scores, -np.inf).max(axis=-1).astype(np.float32)


def best_proposal(scores: Float[np.ndarray, " P"], clips: int) -> Float[np.ndarray, " C"]:
    """For each clip the largest score of the proposals that hold it."""
    starts, ends = proposals(clips)
    position = np.arange(clips)
    inside = (position[:, None] >= starts) & (position[:, None] < ends)
    return np.where(inside, scores, -np.inf).max(axis=-1).astype(np.float32)


def _cosines(branch: Any, query: np.ndarray) -> np.ndarray:
    """Cosines of a video's stored vectors, [L, H], and a query."""
    values = np.asarray(jnp.asarray(branch.values, jnp.float32))
    found = values @ (query / max(float(np.linalg.norm(query)), 1e-12)).astype(np.float32)
    return found if branch.scale is None else found * np.asarray(branch.scale, np.float32)
