"""Ensembles of runs: ranks the test split by the mean of the scores of several runs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import logging

from hlformer_jax import files
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval import ranking
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.text import shown

SETTINGS_FILE = "ensemble.json"
"""File that lists the members of the ensemble whose metrics a directory holds."""


class EnsembleError(UserError, ValueError):
    """Score files that cannot be combined; the message names the file."""


_CONTENTS = (
    ("scores", "fiu", "real numbers"),
    ("queries", "U", "texts"),
    ("videos", "U", "texts"),
    ("relevant", "iu", "whole numbers"),
    ("sentences", "U", "texts"),
    ("data", "U", "texts"),
)
"""Arrays of a score file: name, kinds of dtype, and the content in words. The last two may be
missing in files of other programs."""


def combine(members: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of the standardised scores of several models.

    Models differ in the range of their scores. Each model's scores are therefore shifted and scaled
    to mean 0 and standard deviation 1 over all queries and videos. If all scores of a model are
    equal, they count as 0.

    Args:
      members: scores of the same queries and videos, [Q, V] each; higher is better.

    Returns:
      Scores [Q, V], float64.

    Raises:
      ValueError: for no scores, scores of different shapes, or scores that are not finite.
    """
    if len({scores.shape for scores in members}) != 1:
        shapes = ", ".join(str(scores.shape) for scores in members) or "none"
        raise ValueError(f"members must be scores of one shape, got {shapes}")
    total = np.zeros(members[0].shape)
    for scores in members:
        exact = np.asarray(scores, np.float64)
        if infinite := int(np.sum(~np.isfinite(exact))):
            raise ValueError(f"members must be finite, got {infinite} scores that are not")
        # The deviation of equal scores is not always 0: their mean may be rounded.
        if exact.size and exact.min() < exact.max():
            total += (exact - exact.mean()) / exact.std()
    return total / len(members)


def evaluate(
    members: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> dict[str, Result]:
    """Rank the queries of score files by their combined scores.

    Args:
      members: files that `--mode=evaluate --scores=FILE` wrote, of the same test split; the order
        of rows and columns may differ.
      directory: directory for the metrics of the ensemble and the list of its members, not the
        directory of a run; None writes nothing.
      overwrite: whether existing metrics may be replaced.

    Returns:
      The metrics of each member, by the path of its file, and of "ensemble".

    Raises:
      EnsembleError: for fewer than two files, a file given twice, files of different queries,
        sentences or videos, a file that was not written by --scores or is damaged, scores that are
        not finite, and the directory of a run.
    """
    if len(members) < 2:
        raise EnsembleError("an ensemble needs two score files or more: give `member` for each")
    paths = [Path(path) for path in members]
    resolved = [path.resolve() for path in paths]
    for number, path in enumerate(paths):
        if resolved[number] in resolved[:number]:
            raise EnsembleError(f"{path} is given twice, and would count twice: leave one out")
    if directory is not None:
        directory = Path(directory)
        if (directory / "config.json").exists():
            raise EnsembleError(
                f"{directory} holds a run, whose metrics are not replaced: give another `workdir`"
            )
        ranking.check_place(directory, files.replacing(overwrite))
        files.check_output(directory / SETTINGS_FILE, files.replacing(overwrite))
        for path, file in zip(paths, resolved, strict=True):
            if file == (directory / ranking.QUERIES_FILE).resolve():
                raise EnsembleError(
                    f"{path} would be replaced by the ranks of the ensemble: rename it, or give"
                    " another `workdir`"
                )
    read = [_read(path) for path in paths]
    first, owners = read[0], _owners(read[0])
    for path, scores in zip(paths[1:], read[1:], strict=True):
        for name in ("queries", "videos"):
            differing = set(first[name]) ^ set(scores[name])
            if differing:
                raise EnsembleError(
                    f"{path} has other {name} than {paths[0]}: only one of the two has"
                    f" {str(min(differing))!r} ({len(differing)} differ)"
                )
        if _owners(scores) != owners:
            raise EnsembleError(f"{path} has other relevant videos than {paths[0]}")
    _check_sentences(paths, read)
    aligned = [_align(scores, first) for scores in read]
    relevant = first["relevant"]
    rows = {str(path): scores for path, scores in zip(paths, aligned, strict=True)}
    rows["ensemble"] = combine(aligned)
    results = {name: _result(scores, relevant) for name, scores in rows.items()}
    if directory is not None:
        ranking.write_result(results["ensemble"], directory, files.replacing(overwrite))
        listed = {"members": [str(path) for path in paths]}
        files.write_json(directory / SETTINGS_FILE, listed, files.replacing(overwrite))
    return results


def _read(path: Path) -> dict[str, np.ndarray]:
    """Read and check a score file."""
    try:
        arrays = files.read_npz(path)
    except ValueError as error:
        raise EnsembleError(
            f"{path} was not written by `scores`, or is damaged ({error})"
        ) from None
    missing = [name for name, _, _ in _CONTENTS[:4] if name not in arrays]
    if missing:
        raise EnsembleError(
            f"{path} has no array {missing[0]!r}, so `scores` did not write it: run"
            " `mode`=evaluate with `scores`=FILE.npz, a new name, and give that file"
        )
    for name, kinds, content in _CONTENTS:
        if name in arrays and arrays[name].dtype.kind not in kinds:
            raise EnsembleError(
                f"{path} has {name} of type {arrays[name].dtype}, not {content}: write it again"
            )
    queries, videos = arrays["queries"], arrays["videos"]
    shape = queries.shape + videos.shape
    if len(shape) != 2 or arrays["scores"].shape != shape or arrays["relevant"].shape != shape[:1]:
        raise EnsembleError(
            f"{path} has scores {arrays['scores'].shape} for {queries.size} queries and"
            f" {videos.size} videos: write it again"
        )
    if arrays.get("sentences", queries).shape != queries.shape:
        raise EnsembleError(
            f"{path} has {arrays['sentences'].size} sentences for {queries.size} queries: write it"
            " again"
        )
    if not queries.size:
        raise EnsembleError(f"{path} has no query, so it has no metrics: write it again")
    if "data" in arrays and arrays["data"].size != 1:
        raise EnsembleError(
            f"{path} has {arrays['data'].size} texts as data, which must be the fingerprint of the"
            " data: write it again"
        )
    with np.errstate(over="ignore"):  # the squares of larger scores would overflow in `combine`
        infinite = int(np.sum(~np.isfinite(arrays["scores"].astype(np.float32))))
    if infinite:
        raise EnsembleError(
            f"{path} has {infinite} of {arrays['scores'].size} scores that are not finite: leave it"
            " out, or write it again from another checkpoint"
        )
    outside = (arrays["relevant"] < 0) | (arrays["relevant"] >= len(videos))
    if outside.any():
        raise EnsembleError(
            f"{path} has the relevant video {arrays['relevant'][outside][0]}, but its videos have"
            f" the indices 0 to {len(videos) - 1}: write it again"
        )
    for name in ("queries", "videos"):
        if len(set(arrays[name])) != len(arrays[name]):
            raise EnsembleError(
                f"{path} has a name twice among its {name}, so its rows cannot be aligned"
            )
    return arrays


def _owners(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """Return the relevant video of each query, by name."""
    videos = arrays["videos"][arrays["relevant"]]
    return dict(zip(arrays["queries"].tolist(), videos.tolist(), strict=True))


def _check_sentences(members: Sequence[Path], read: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Check that a query has the same sentence in all files; warn of other or unknown data.

    Features of one test split may differ, but an id may stand for another sentence elsewhere.
    """
    first_path, first = members[0], None
    for path, arrays in zip(members, read, strict=True):
        if not {"sentences", "data"} <= arrays.keys():
            logging.warning(
                "%s does not record its data, so it is not known whether its queries have the same"
                " sentences; write it again by mode=evaluate and scores",
                path,
            )
        elif first is None:
            first_path, first = path, arrays
        else:
            sentences = dict(zip(first["queries"], first["sentences"], strict=True))
            for name, sentence in zip(arrays["queries"], arrays["sentences"], strict=True):
                if sentences[name] != sentence:
                    raise EnsembleError(
                        f"{path} is of other data than {first_path}: the sentence of query"
                        f" {str(name)!r} is {shown(str(sentence))}, not"
                        f" {shown(str(sentences[name]))}"
                    )
            if arrays["data"].item() != first["data"].item():
                logging.warning(
                    "%s has the same queries as %s, but other features, or copies of its files",
                    *(path, first_path),
                )


def _align(arrays: dict[str, np.ndarray], first: dict[str, np.ndarray]) -> np.ndarray:
    """Return scores in the order of the rows and columns of the first file."""
    rows, columns = (
        np.argsort(arrays[name])[np.searchsorted(np.sort(arrays[name]), first[name])]
        for name in ("queries", "videos")
    )
    scores: np.ndarray = arrays["scores"][rows][:, columns]
    return scores


def _result(scores: np.ndarray, relevant: np.ndarray) -> Result:
    rank = np.asarray(ranking.ranks(scores, relevant))
    queries, videos = scores.shape
    per_query = {"ranks": rank, "videos": relevant}
    return Result(ranking.metrics(rank), queries, videos, per_query)
