"""Trained parameters from a directory: loading a run, evaluating a checkpoint, ranking for queries.

A query ranks the prepared videos of a data set by the features of the query's words. The features
come from an encoder or from a prepared caption. The encoder must be the encoder that made the
model's training features: an encoder with another width, or with another fingerprint than the data
set records, is refused.
"""

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float
from ml_collections import ConfigDict

from hlformer_jax import files, terminal, training
from hlformer_jax.config import FIELDS, ConfigError, default, family_of, leaves
from hlformer_jax.config.names import field_suggestion
from hlformer_jax.data import dataset
from hlformer_jax.data.sources import synthetic
from hlformer_jax.data.split import Split
from hlformer_jax.encoders.protocol import TokenEncoder
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import ensemble, evaluation, moments, ranking
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import devices, processes
from hlformer_jax.text import printable, suggestion
from hlformer_jax.training import Family, checkpoints, run_directory
from hlformer_jax.training.prvr import PRVR


class RunError(UserError, ValueError):
    """A directory does not hold a run that this version can read."""


class LoadedRun(NamedTuple):
    """A run with the parameters of its best epoch.

    Attributes:
      directory: directory of the run.
      config: configuration of the run.
      family: family of the run's model, with its data.
      params: parameters of the best epoch.
    """

    directory: Path
    config: ConfigDict
    family: Any
    params: Any


def read_config(directory: str | Path) -> ConfigDict:
    """Read the configuration of a run of any family.

    Raises:
      RunError: if the directory holds no configuration of this version, or its file is damaged.
    """
    path = Path(directory) / "config.json"
    remedy = "give the directory of a run (its `workdir`)"
    try:
        recorded = run_directory.read_record(path, ("config",), remedy)["config"]
        config = default(family_of(ConfigDict({"model": recorded["model"]})))
        with config.ignore_type():
            config.update(recorded)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{directory} has no config.json: {remedy}") from None
    except run_directory.WorkdirError as error:
        raise RunError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} is not a configuration of this version ({type(error).__name__}): train"
            " the model again"
        ) from None
    return config


def load(directory: Path | str, changes: Mapping[str, Any] | None = None) -> LoadedRun:
    """Load a run; its data is opened at first use.

    Args:
      directory: the directory of the run.
      changes: new values of fields by their full names, for example of "data.manual_dir" if the
        data was moved; fields that only other families have are ignored.

    Raises:
      RunError: if the directory holds no configuration of this version.
      ConfigError: if no family has a field of `changes`, or its value is not allowed.
      TypeError: if a value of `changes` has another type than its field.
      CheckpointError: if the checkpoint is missing, damaged or of another model.
    """
    directory = Path(directory)
    config = read_config(directory)
    fields = {name for name, _ in leaves(family_of(config))}
    for name in (changes or {}).keys() - {name for key in FIELDS for name, _ in leaves(key)}:
        raise ConfigError(f"config.{name}: there is no such field{field_suggestion(name, fields)}")
    updates = {name: value for name, value in (changes or {}).items() if name in fields}
    config.update_from_flattened_dict(updates)
    mesh = devices.mesh()
    family = training.build(config, mesh)
    with contextlib.closing(checkpoints.open_params(directory)) as saved:
        return LoadedRun(directory, config, family, _restored(saved, directory, family, mesh))


def evaluate_checkpoint(
    config: ConfigDict,
    path: str | Path,
    scores_file: str | Path | None,
    report: Callable[[str], None],
    directory: str | Path | None = None,
    overwrite: bool = False,
    embeddings_file: str | Path | None = None,
) -> Result:
    """Evaluate a run's directory or a converted checkpoint on the test split.

    Args:
      config: the configuration with which the model was trained.
      path: the run's directory or the converted checkpoint.
      scores_file: .npz file for the score matrix, see `Family.test_scores`; None writes no file.
      report: receives a line about the checkpoint, and remarks on the test split.
      directory: directory of the metrics, see `run_directory.check_evaluation`; None writes none.
      overwrite: whether existing files may be replaced.
      embeddings_file: .npz file for the embeddings of the test split, see `Family.test_embeddings`;
        None writes no file.

    Returns:
      The metrics of the test split.

    Raises:
      UserError: if an existing file must not be replaced, or both .npz files or the files of a run
        are the same, which is checked before anything is computed; if the checkpoint is missing,
        damaged or of another model; or if scores are not finite.
    """
    path = Path(path)
    directory, scores_file, embeddings_file = (
        None if place is None else Path(place)
        for place in (directory, scores_file, embeddings_file)
    )
    with processes.first_alone("scores"):
        if processes.is_first():  # checked before the long computation
            arrays_files = {"scores": scores_file, "embeddings": embeddings_file}
            outputs = {name: file for name, file in arrays_files.items() if file is not None}
            _check_distinct(outputs, path if directory is None else directory)
            for file in outputs.values():
                files.check_output(file, files.replacing(overwrite))
            if directory is not None and directory.is_dir():
                run_directory.check_evaluation(directory, path, config, overwrite=overwrite)
                _check_place(directory, overwrite)
    if (unfinished := run_directory.describe_unfinished(path)) and processes.is_first():
        report(f"{path} is not finished ({unfinished}): its best epoch so far is evaluated")
    family, params = open_checkpoint(config, path, report, devices.mesh())
    if directory is not None:
        inputs = run_directory.Fingerprints.from_family(family)
        run_directory.check_evaluation(directory, path, config, inputs, overwrite)
    slow_line = "evaluating"
    if jax.default_backend() == "gpu":
        slow_line += ": the first evaluation compiles for a minute"
    with terminal.reported_if_slow(slow_line) if processes.is_first() else contextlib.nullcontext():
        if scores_file is None:
            result = family.test(params)
        else:
            result, arrays = family.test_scores(params)
            if processes.is_first():
                files.write_npz(scores_file, arrays, files.replacing(overwrite))
        if embeddings_file is not None:
            arrays = family.test_embeddings(params)
            if processes.is_first():
                files.write_npz(embeddings_file, arrays, files.replacing(overwrite))
    for note in getattr(family, "notes", list)() if processes.is_first() else ():
        report(note)
    result = dataclasses.replace(result, unfinished=unfinished)
    if directory is not None and processes.is_first():
        ranking.write_result(result, directory, files.replacing(overwrite, listed=True))
        run_directory.record_evaluation(directory, path, config, inputs)
    return result


def _check_distinct(outputs: Mapping[str, Path], directory: Path) -> None:
    """Check that outputs are distinct, and not files that a run or an evaluation itself writes.

    Args:
      outputs: the file of each argument.
      directory: the directory of the metrics.

    Raises:
      OutputError: names the argument.
    """
    if len({file.resolve() for file in outputs.values()}) < len(outputs):
        listed = " and ".join(f"`{name}`={file}" for name, file in outputs.items())
        raise files.OutputError(f"{listed} are the same file: give each another name")
    records = "config.json", run_directory.EVALUATION_FILE, ensemble.SETTINGS_FILE
    for name, file in outputs.items():
        for place in (file.resolve(), *file.resolve().parents):
            folder = place.parent
            is_written = place.name in (*records, *run_directory.WRITTEN)
            is_place = folder == directory.resolve() or any((folder / x).exists() for x in records)
            if is_written and is_place:
                suggestion = folder / f"{name}.npz"
                raise files.OutputError(
                    f"`{name}`={file} is a file that a run or an evaluation writes itself: give"
                    f" another name, such as {suggestion}"
                )


def _check_place(directory: Path, overwrite: bool) -> None:
    try:
        ranking.check_place(directory, files.replacing(overwrite, listed=True))
    except OSError as error:
        if error.errno is None:  # the message says what is wrong
            raise
        raise files.OutputError(
            f"{directory} cannot be written ({error.strerror}): give another `workdir` for the"
            " metrics"
        ) from None


def open_checkpoint(
    config: ConfigDict, path: Path, report: Callable[[str], None], mesh: Mesh
) -> tuple[Family, Any]:
    """Return the family of a configuration, and the parameters of a checkpoint of its model.

    Args:
      config: the configuration with which the model was trained.
      path: a run's directory or a converted checkpoint.
      report: receives one line about the checkpoint.
      mesh: the devices.

    Raises:
      CheckpointError: if the checkpoint is missing, damaged or of another model.
    """
    family = training.build(config, mesh)
    with contextlib.closing(checkpoints.open_params(path)) as saved:
        info = saved.info()
        _check_same_model(path, info, family)
        params = _restored(saved, path, family, mesh)
    if processes.is_first():
        report(f"checkpoint {path} ({checkpoints.summary(info)})")
    return family, params


def _restored(saved: checkpoints.Series, path: Path, family: Any, mesh: Mesh) -> Any:
    """Return the parameters of a checkpoint, and tell the family of its data."""
    family.trained_on = run_directory.recorded_inputs(path).data  # None for a converted checkpoint
    template = devices.abstract(mesh, jax.eval_shape(family.init_params))
    return family.project(saved.restore(template))


def _check_same_model(path: Path, info: Mapping[str, Any], family: Family) -> None:
    """Raise CheckpointError if the configuration has another model than the checkpoint."""
    fields = family.describe()
    recorded = {key: info.get(key, value) for key, value in fields.items()}
    meaning, recorded_meaning = family.meaning(fields), family.meaning(recorded)
    differing = [
        key
        for key in meaning
        if meaning[key] != recorded_meaning[key] and fields[key] != recorded[key]
    ]
    if differing:
        values = ", ".join(f"config.{key} is {fields[key]}" for key in differing)
        settings = " ".join(
            f"`config.{key}`={shlex.quote(str(recorded[key]))}" for key in differing
        )
        raise checkpoints.CheckpointError(
            f"{path} belongs to another model: {values}; to evaluate it add {settings}"
        )


# Queries


TVR = "tvr"


class RunQueryError(UserError, ValueError):
    """A query cannot be answered; the message gives the reason and a query that can."""


class RankedVideo(NamedTuple):
    """A video of an answer, and its first moment.

    Attributes:
      video: id of the video.
      score: score of the video; higher is better.
      start: start of the moment.
      end: end of the moment.
      seconds: True if the times are seconds, False if they are percent of the video, whose length
        is unknown.
    """

    video: str
    score: float
    start: float
    end: float
    seconds: bool


class EncodedSplit:
    """The encoded videos of a split, for queries."""

    def __init__(
        self,
        config: ConfigDict,
        path: Path,
        split: str = "test",
        report: Callable[[str], None] = print,
    ) -> None:
        """Encode the videos of a split with a run or a converted checkpoint.

        Args:
          config: the configuration with which the model was trained.
          path: the run's directory or the converted checkpoint.
          split: "train", "val" or "test".
          report: receives one line about the checkpoint.

        Raises:
          RunQueryError: for a model of action trees.
          CheckpointError: if the checkpoint is missing, damaged or of another model.
        """
        mesh = devices.mesh()
        family, params = open_checkpoint(config, path, report, mesh)
        if not isinstance(family, PRVR):
            raise RunQueryError(
                f"{path} is a model of action trees, which cannot rank whole videos"
            )
        self.split: Split = getattr(family.data, split)
        self._config, self._params, self._model = config, params, family.model
        self._evaluator = family.evaluator
        with contextlib.closing(self._evaluator.feed(self.split)) as feed:
            self._stored, _ = self._evaluator.encode(params, feed)
        self._durations = _durations(self.split)

    def words(self, caption_id: str) -> Float[np.ndarray, "W E"]:
        """Return the prepared features of a caption.

        Raises:
          RunQueryError: if the split has no caption with that id.
        """
        ids = self.split.caption_ids()
        if caption_id not in ids:
            raise RunQueryError(
                f"`caption`={caption_id}: the split has no such caption"
                f"{suggestion(caption_id, ids) or f'; its first is {ids[0]!r}'}"
            )
        row = ids.index(caption_id)
        video = self.split.caption_video[row]
        first = int(np.searchsorted(self.split.caption_video, video))
        return self.split[video].words[row - first].astype(np.float32)

    def ask(
        self, words: Sequence[Float[np.ndarray, "_ E"]], top: int = 10
    ) -> list[list[RankedVideo]]:
        """Return the best videos for each query, best first.

        Args:
          words: features of the words of each query.
          top: largest number of videos for each query.

        Raises:
          ScoreError: if a score is not finite.
        """
        split = self.split
        queries = evaluation.encode_words(self._model, self._params, words, self._config)
        scores = self._evaluator.score(self._stored, evaluation.Queries(queries, None), split)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        repeated = np.repeat(queries, best.shape[1], axis=0)
        videos = best.reshape(-1).astype(np.int32)
        over_time = self._evaluator.scores_over_time(self._stored, repeated, videos, split)
        ranked = []
        for score, video, row in zip(
            np.take_along_axis(scores, best, axis=1).reshape(-1), videos, over_time, strict=True
        ):
            duration = self._durations.get(int(video))
            [moment] = moments.first_moments(row[None], duration or 100.0)
            name = split.video_ids[int(video)]
            times = moment.start, moment.end, duration is not None
            ranked.append(RankedVideo(name, float(score), *times))
        return [ranked[k : k + best.shape[1]] for k in range(0, len(ranked), best.shape[1])]


def _durations(split: Split) -> dict[int, float]:
    """Return the durations in seconds of videos with annotated moments, by index of the video."""
    if not split.spans:
        return {}
    spans = zip(split.caption_video, map(split.spans.get, split.caption_ids()), strict=True)
    return {int(video): span.duration for video, span in spans if span is not None}


def check_encoder(
    config: ConfigDict, encoder: TokenEncoder | None, warn: Callable[[str], None]
) -> None:
    """Check that an encoder made the data set's text features; warn if it cannot be TVR's encoder.

    Args:
      config: the configuration of the model.
      encoder: the encoder; None if the user gave none.
      warn: receives a warning.

    Raises:
      RunQueryError: if the encoder is missing or did not make the features, or if the data set is
        synthetic.
    """
    data = config.data
    if synthetic.is_synthetic(data):
        raise RunQueryError(
            "the synthetic corpus has no encoder: query by one of its captions, `caption`=ID"
        )
    if encoder is None:
        raise RunQueryError(
            "`encoder` is missing: give the hub id or folder of the encoder that made the captions'"
            " features, for example FacebookAI/roberta-large (docs/training.md)"
        )
    if encoder.token_width != data.text_dim:
        raise RunQueryError(
            f"{encoder.name} gives features of width {encoder.token_width}, but the model"
            f" reads words of width {data.text_dim}: give the encoder that made the features"
            f" of {data.collection} by `encoder`"
        )
    recorded = dataset.text_encoder(data)
    if recorded is not None and recorded[1] != encoder.fingerprint:
        raise RunQueryError(
            f"the features of {data.collection} were made by {recorded[0]!r}, but"
            f" {encoder.name!r} is another encoder or version: give `encoder`={recorded[0]}"
        )
    if recorded is None and data.collection == TVR:
        warn(
            "TVR's published text features come from a roberta-base that was fine-tuned on"
            " its captions and is not public: rankings by another encoder mean little"
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
    """Report the best videos for sentences and captions, line by line.

    Args:
      config: the configuration that the model was trained with.
      path: a run's directory or a converted checkpoint.
      sentences: free sentences, whose features come from the encoder.
      captions: ids of captions of the split, whose features are prepared.
      encoder: the encoder of the training features; None without sentences.
      split: the split whose videos are ranked.
      top: number of videos to report.
      report: receives the lines of the answer.
      warn: receives lines about the checkpoint and about the reliability of the answer.

    Raises:
      RunQueryError: if there is no query, or if a query cannot be answered.
    """
    if not (sentences or captions):
        raise RunQueryError("there is no query: give `query`=SENTENCE or `caption`=ID")
    if sentences:
        check_encoder(config, encoder, warn)
    archive = EncodedSplit(config, path, split, warn)
    words = [
        *(encoder.encode_tokens(sentences) if encoder is not None and sentences else ()),
        *map(archive.words, captions),
    ]
    for query, videos in zip((*sentences, *captions), archive.ask(words, top), strict=True):
        report(f"{query!r}: the best of {len(archive.split)} videos of {split}")
        report(f"{'rank':>4}  {'score':>7}  {'moment':<17}  video")
        for rank, video in enumerate(videos, 1):
            span = f"{video.start:.1f}–{video.end:.1f} {'s' if video.seconds else '%'}"
            report(f"{rank:>4}  {video.score:>7.4f}  {span:<17}  {printable(video.video)}")
