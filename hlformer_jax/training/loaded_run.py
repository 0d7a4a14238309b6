"""Trained parameters from a directory: a loaded run, a checkpoint evaluated, sentences asked of it.

A sentence is asked, over the prepared videos of a data set, by the features of its words: those of
an encoder, or of a prepared caption. They mean something where the encoder is the one that made the
features the model was trained on; an encoder of another width, or with another fingerprint than the
data set records, is refused.
"""

import contextlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax import files, training
from hlformer_jax.config import default, family_of, leaves
from hlformer_jax.data import dataset, synthetic
from hlformer_jax.data.split import Split
from hlformer_jax.encoders.protocol import TokenEncoder
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import evaluation, moments, ranking
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import devices, processes
from hlformer_jax.text import suggestion
from hlformer_jax.training import Family, checkpoints
from hlformer_jax.training.prvr import PRVR


class RunError(UserError, ValueError):
    """A directory that holds no run that this version reads."""


class LoadedRun(NamedTuple):
    """A run that has a checkpoint, with the parameters of its best epoch."""

    directory: Path
    config: ConfigDict
    family: Any
    params: Any


def read_config(directory: Path) -> ConfigDict:
    """The configuration of a run, of whichever family."""
    path = directory / "config.json"
    try:
        recorded = files.parse_json(path.read_text(encoding="utf-8"))["config"]
        recorded = checkpoints.without_retired(recorded)
        config = default(family_of(ConfigDict({"model": recorded["model"]})))
        with config.ignore_type():
            config.update(recorded)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"{directory} has no config.json: give the directory of a run (its --workdir)"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} is no configuration of this version ({type(error).__name__}): train the model"
            " again"
        ) from None
    return config


def load(directory: Path, changes: Mapping[str, Any] | None = None) -> LoadedRun:
    """Loads a run; its data is opened when it is asked for.

    `changes` are fields by their full names, such as "data.manual_dir", for what has been moved
    since; what the run's family has no field for is left alone.
    """
    config = read_config(directory)
    fields = {name for name, _ in leaves(family_of(config))}
    known = {name: value for name, value in (changes or {}).items() if name in fields}
    config.update_from_flattened_dict(known)
    mesh = devices.mesh()
    family = training.build(config, mesh)
    with contextlib.closing(checkpoints.open_params(directory)) as saved:
        return LoadedRun(directory, config, family, _restored(saved, family, mesh))


def evaluate_checkpoint(
    config: ConfigDict,
    path: Path,
    scores_file: Path | None,
    report: Callable[[str], None],
    directory: Path | None = None,
    overwrite: bool = False,
    embeddings_file: Path | None = None,
) -> Result:
    """Evaluate a run's directory or a converted checkpoint on the test split.

    Args:
      config: the configuration it was trained with.
      path: the checkpoint.
      scores_file: file for the score matrix, .npz; see `Family.test_scores`. None for none.
      report: takes one line about the checkpoint.
      directory: directory for the metrics; see `checkpoints.check_evaluation`. None for none.
      overwrite: whether files may be replaced that are there.
      embeddings_file: file for the embeddings of the test split, .npz; see
        `Family.test_embeddings`. None for none.

    Returns:
      The metrics of the test split.

    Raises:
      UserError: when a file must not be replaced, before anything is computed.
    """
    with processes.first_alone("scores"):
        if processes.is_first():  # now, and not when all is computed
            for file in (scores_file, embeddings_file):
                if file is not None:
                    files.check_output(file, files.replacing(overwrite))
            if directory is not None and directory.is_dir():
                checkpoints.check_evaluation(directory, path, config, overwrite=overwrite)
                ranking.check_place(directory, files.replacing(overwrite, listed=True))
    family, params = open_checkpoint(config, path, report, devices.mesh())
    if directory is not None:
        checkpoints.check_evaluation(directory, path, config, family.fingerprint, overwrite)
    if embeddings_file is not None:
        arrays = family.test_embeddings(params)
        if processes.is_first():
            files.write_npz(embeddings_file, arrays, files.replacing(overwrite))
    if scores_file is None:
        result = family.test(params)
    else:
        result, arrays = family.test_scores(params)
        if processes.is_first():
            files.write_npz(scores_file, arrays, files.replacing(overwrite))
    if directory is not None and processes.is_first():
        ranking.write_result(result, directory, files.replacing(overwrite, listed=True))
        checkpoints.record_evaluation(directory, path, config, family.fingerprint)
    return result


def open_checkpoint(
    config: ConfigDict, path: Path, report: Callable[[str], None], mesh: Mesh
) -> tuple[Family, Any]:
    """The family of a configuration, and the parameters of a checkpoint that is of its model."""
    family = training.build(config, mesh)
    with contextlib.closing(checkpoints.open_params(path)) as saved:
        info = saved.info()
        _check_same_model(path, info, family)
        params = _restored(saved, family, mesh)
    described = ", ".join(f"{key} {value}" for key, value in info.items() if "." not in key)
    if processes.is_first():
        report(f"checkpoint {path} ({described})")
    return family, params


def _restored(saved: checkpoints.Series, family: Family, mesh: Mesh) -> Any:
    template = devices.abstract(mesh, jax.eval_shape(family.init_params))
    return family.project(saved.restore(template))


def _check_same_model(path: Path, info: Mapping[str, Any], family: Family) -> None:
    """Refuses a configuration that means another model than the checkpoint says it is of."""
    wanted = family.describe()
    recorded = {key: info.get(key, value) for key, value in wanted.items()}
    ours, theirs = family.meaning(wanted), family.meaning(recorded)
    differing = [key for key in ours if ours[key] != theirs[key] and wanted[key] != recorded[key]]
    if differing:
        what = ", ".join(f"config.{key} is {wanted[key]}" for key in differing)
        flags = " ".join(shlex.quote(f"--config.{key}={recorded[key]}") for key in differing)
        raise checkpoints.CheckpointError(
            f"{path} is of another model: {what}; to evaluate it add {flags}"
        )


# Queries


TVR = "tvr"


class QueryError(UserError, ValueError):
    """A sentence that cannot be asked; the message says why, and what can."""


class Found(NamedTuple):
    """A video of an answer, and its first moment.

    Times are seconds, or, where the length of the video is not known, percent of it.
    """

    video: str
    score: float
    start: float
    end: float
    seconds: bool


class Archive:
    """The encoded videos of a split, to be asked."""

    def __init__(
        self,
        config: ConfigDict,
        path: Path,
        split: str = "test",
        report: Callable[[str], None] = print,
    ) -> None:
        """Encodes the videos with a run or a converted checkpoint, as `evaluate_checkpoint`."""
        mesh = devices.mesh()
        family, params = open_checkpoint(config, path, report, mesh)
        if not isinstance(family, PRVR):
            raise QueryError(f"{path} is of a model of action trees, which ranks no whole videos")
        self.split: Split = getattr(family.data, split)
        self._config, self._params, self._model = config, params, family.model
        self._evaluator = family.evaluator
        with contextlib.closing(self._evaluator.feed(self.split)) as feed:
            self._stored, _ = self._evaluator.encode(params, feed)
        self._durations = _durations(self.split)

    def words(self, caption_id: str) -> Float[np.ndarray, "W E"]:
        """The prepared features of a caption; a QueryError where the split has none of that id."""
        ids = self.split.caption_ids()
        if caption_id not in ids:
            raise QueryError(
                f"--caption={caption_id}: the split has no such caption"
                f"{suggestion(caption_id, ids) or f'; its first is {ids[0]!r}'}"
            )
        row = ids.index(caption_id)
        video = self.split.caption_video[row]
        first = int(np.searchsorted(self.split.caption_video, video))
        return self.split[video].words[row - first].astype(np.float32)

    def ask(self, words: Sequence[Float[np.ndarray, "_ E"]], top: int = 10) -> list[list[Found]]:
        """The best videos of each sentence, best first, by the features of its words."""
        data, split = self._config.data, self.split
        queries = evaluation.encode_words(self._model, self._params, words, data)
        scores = self._evaluator.score(self._stored, evaluation.Queries(queries, None), split)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        every = np.repeat(queries, best.shape[1], axis=0)
        videos = best.reshape(-1).astype(np.int32)
        over_time = self._evaluator.scores_over_time(self._stored, every, videos, split)
        found = []
        for score, video, row in zip(
            np.take_along_axis(scores, best, axis=1).reshape(-1), videos, over_time, strict=True
        ):
            duration = self._durations.get(int(video))
            [moment] = moments.first_moments(row[None], duration or 100.0)
            name = split.video_ids[int(video)]
            times = moment.start, moment.end, duration is not None
            found.append(Found(name, float(score), *times))
        return [found[k : k + best.shape[1]] for k in range(0, len(found), best.shape[1])]


def _durations(split: Split) -> dict[int, float]:
    """Seconds that videos last, by their index, of those of which a moment is known."""
    if not split.spans:
        return {}
    spans = zip(split.caption_video, map(split.spans.get, split.caption_ids()), strict=True)
    return {int(video): span.duration for video, span in spans if span is not None}


def check_encoder(
    config: ConfigDict, encoder: TokenEncoder | None, warn: Callable[[str], None]
) -> None:
    """Refuses an encoder (or None) that did not make the data set's features; warns of TVR's.

    Raises:
      QueryError: saying what is asked for.
    """
    data = config.data
    if synthetic.is_synthetic(data):
        raise QueryError(
            "the synthetic corpus has no sentences that an encoder knows: ask one of its captions"
            " by --caption=ID"
        )
    if encoder is None:
        raise QueryError(
            "--encoder is missing: give the hub id or the folder of what made the features of the"
            " captions, for example FacebookAI/roberta-large (docs/training.md)"
        )
    if encoder.token_width != data.text_dim:
        raise QueryError(
            f"{encoder.name} gives features of width {encoder.token_width}, and the model reads"
            f" words of width {data.text_dim}: give the encoder that made the features of"
            f" {data.collection} by --encoder"
        )
    known = dataset.text_encoder(data)
    if known is not None and known[1] != encoder.fingerprint:
        raise QueryError(
            f"the features of {data.collection} were made by {known[0]!r}, and {encoder.name!r} is"
            " another encoder, or another version of it: give that one by --encoder"
        )
    if known is None and data.collection == TVR:
        warn(
            "TVR's published text features are of a roberta-base that was fine-tuned on its"
            " captions and is not public: with another encoder's these rankings mean little"
        )


def answer(
    config: ConfigDict,
    path: Path,
    sentences: Sequence[str],
    captions: Sequence[str] = (),
    encoder: TokenEncoder | None = None,
    split: str = "test",
    top: int = 10,
    report: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
) -> None:
    """Asks sentences, and captions by their ids, and reports the best videos of each, line by line.

    Args:
      config: the configuration that the model was trained with.
      path: a run's directory or a converted checkpoint.
      sentences: free sentences; their features are the encoder's.
      captions: ids of captions of the split; their features are prepared.
      encoder: the encoder of the training features; None without sentences.
      split: the split whose videos are ranked.
      top: how many videos of each.
      report: takes lines of the answer.
      warn: takes lines about what the answer is worth.
    """
    if not (sentences or captions):
        raise QueryError("nothing is asked: give --query=SENTENCE or --caption=ID")
    if sentences:
        check_encoder(config, encoder, warn)
    archive = Archive(config, path, split, warn)
    words = [
        *(encoder.encode_tokens(sentences) if encoder is not None and sentences else ()),
        *map(archive.words, captions),
    ]
    for asked, videos in zip((*sentences, *captions), archive.ask(words, top), strict=True):
        report(f"{asked!r}: the best of {len(archive.split)} videos of {split}")
        report(f"{'rank':>4}  {'score':>7}  {'moment':<17}  video")
        for rank, one in enumerate(videos, 1):
            span = f"{one.start:.1f}–{one.end:.1f} {'s' if one.seconds else '%'}"
            report(f"{rank:>4}  {one.score:>7.4f}  {span:<17}  {one.video}")
