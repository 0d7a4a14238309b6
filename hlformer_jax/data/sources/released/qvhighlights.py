"""QVHighlights in the layout of Moment-DETR's authors: lines of JSON, and npz files (docs/data.md).

An annotated clip is named `{youtube id}_{start}_{end}`, in seconds, and has a row for every two
seconds. In the protocol `CLIPS`, each clip is a video, and each of the three lists is a split. In
the protocol `REGROUPED`, as in MSC's paper, a YouTube id is a video: the rows of its annotated
clips are joined in time order. The test split is val. How MSC's authors joined clips is unknown;
seconds may be missing between two clips.

As in Moment-DETR, the rows of each modality are divided by their norm, both modalities are cut to
the shorter one and to 75 rows, and SlowFast's columns come first. Windows and saliency are not
read, because a query may have several windows and an evaluation uses one span.
"""

import contextlib
import dataclasses
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.data.annotations.parsing import as_text, field, read_json_lines
from hlformer_jax.data.sources.protocol import (
    SPLITS,
    Caption,
    Captions,
    DataError,
    MissingDataError,
    MissingSourceError,
    Reader,
    check_fits,
    digest,
    stamps,
)
from hlformer_jax.data.transforms import normalise
from hlformer_jax.text import counted, shown

CLIPS, REGROUPED = "qvhighlights", "qvhighlights_youtube"
"""The values of `config.data.collection` for the two protocols."""

FEATURE = "slowfast_clip"
"""The value of `config.data.feature` for both protocols."""

WIDTHS = {"slowfast_features": 2304, "clip_features": 512}
"""Widths of the folders of frame features, in the order of their columns."""

TEXT_FOLDER, TEXT_DIM = "clip_text_features", 512
MAX_ROWS = 75  # the rows of a clip of 150 seconds
MAX_TOKENS = 77  # the limit of CLIP's text encoder


@dataclasses.dataclass(frozen=True)
class QVHighlights:
    """The `Source` of either protocol."""

    manual_dir: str
    feature: str = FEATURE
    regrouped: bool = False

    visual_dim = sum(WIDTHS.values())
    text_dim = TEXT_DIM

    @property
    def name(self) -> str:
        """The collection of the protocol."""
        return REGROUPED if self.regrouped else CLIPS

    @property
    def root(self) -> Path:
        """The folder of both protocols."""
        return files.expand(self.manual_dir) / CLIPS

    def queries(self, split: str) -> Path:
        """Return the path of the list of a split's queries."""
        split = "val" if self.regrouped and split == "test" else split
        return self.root / "data" / f"highlight_{split}_release.jsonl"

    def features(self, folder: str, name: str = "") -> Path:
        """Return the path of a folder of features, or of the file of a clip or query there."""
        return self.root / "features" / folder / (f"{name}.npz" if name else "")

    def fingerprint(self) -> str:
        """Return a fingerprint of the names, sizes and times of all files; none is read."""
        remedy = (
            "get the annotations and features that Moment-DETR's authors published (docs/data.md), "
            "and point data.manual_dir at the folder that holds qvhighlights/"
        )
        if self.feature != FEATURE:
            raise DataError(
                f"data.feature is {self.feature!r}: the only features of {self.name} are"
                f" {FEATURE!r}"
            )
        if not self.manual_dir or not self.root.is_dir():
            what = (
                f"{self.root} does not exist" if self.manual_dir else "data.manual_dir is not set"
            )
            raise MissingSourceError(what, remedy, bool(self.manual_dir))
        paths = [
            *dict.fromkeys(map(self.queries, SPLITS)),
            *map(self.features, (*WIDTHS, TEXT_FOLDER)),
        ]
        for path in paths:
            if not path.exists():
                raise MissingDataError(f"{path}: no such file or folder", remedy)
        found = [x for path in paths for x in (os.scandir(path) if path.is_dir() else [path])]
        return digest(self.name, *stamps(sorted(found, key=lambda file: file.name)))

    def open(self) -> contextlib.closing["QVReader"]:
        """Read the lists and the headers of all features; see `Source`."""
        self.fingerprint()
        return contextlib.closing(QVReader(self))


class QVReader(Reader):
    """The `Reader` of either protocol."""

    def __init__(self, source: QVHighlights) -> None:
        self._source = source
        self._clips: dict[str, dict[str, int]] = {}  # rows of each clip of a video, in time order
        self._words: dict[str, int] = {}
        self._cut: list[str] = []  # clips
        self._half_zero: dict[str, str] = {}  # a row of one modality only, by clip
        self._splits: dict[str, Captions] = {}
        for split in SPLITS:
            tested_again = source.regrouped and split == "test"
            self._splits[split] = self._splits["val"] if tested_again else self._read(split)
        if self._cut:
            logging.warning(
                "%s: cut %s with different numbers of rows in %s, or more than %d, such as %r",
                *(source.root / "features", counted(len(self._cut), "clip")),
                *(" and ".join(WIDTHS), MAX_ROWS, self._cut[0]),
            )

    def close(self) -> None:
        """Warn of the clips that were read and have rows that are zero in one modality only."""
        if self._half_zero:
            example = next(iter(self._half_zero.values()))
            logging.warning(
                "%s with rows that are zero in only one of %s, such as %s; used unchanged",
                *(counted(len(self._half_zero), "clip"), " and ".join(WIDTHS), example),
            )

    @property
    def splits(self) -> Mapping[str, Captions]:
        """For each split, the queries of every video, in order of first appearance."""
        return self._splits

    def num_frames(self, video: str) -> int:
        """The number of rows of a video."""
        return sum(self._clips[video].values())

    def num_words(self, caption_id: str) -> int:
        """The number of tokens of a query."""
        return self._words[caption_id]

    def read_frames(self, video: str) -> Float[np.ndarray, "T D"]:
        """Read the rows of a video's clips in time order, float32.

        A row has SlowFast's and CLIP's features side by side, each of norm 1.
        """
        rows = []
        for clip, count in self._clips[video].items():
            paths = [self._source.features(folder, clip) for folder in WIDTHS]
            with np.errstate(invalid="ignore"):  # values that are not finite are refused later
                parts = [normalise(_load(path, "features")[:count]) for path in paths]
            zero = ~np.stack([part.any(axis=-1) for part in parts])
            half_zero = zero.any(axis=0) & ~zero.all(axis=0)
            if half_zero.any():
                row = int(np.argmax(half_zero))
                self._half_zero[clip] = f"row {row} of {paths[int(np.argmax(zero[:, row]))]}"
            rows.append(np.concatenate(parts, axis=-1))
        return np.concatenate(rows)

    def read_words(self, caption_id: str) -> Float[np.ndarray, "T E"]:
        """The token features of a query, float32."""
        return _load(self._source.features(TEXT_FOLDER, caption_id), "last_hidden_state")

    def describe_frame(self, video: str, index: int) -> str:
        """Return the clip of a row, and the number of the row in the clip."""
        for clip, count in self._clips[video].items():
            if index < count:
                folders = " and ".join(WIDTHS)
                return f"{self._source.root}: row {index} of clip {clip!r} in {folders}"
            index -= count
        raise IndexError(f"{video} has no row {index}")

    def describe_caption(self, caption_id: str) -> str:
        """Return the path of the file of a query."""
        return str(self._source.features(TEXT_FOLDER, caption_id))

    def _read(self, split: str) -> Captions:
        source = self._source
        path = source.queries(split)
        videos: dict[str, list[Caption]] = {}
        spans: dict[str, dict[str, tuple[float, float]]] = {}
        for number, (where, record) in enumerate(read_json_lines(path), 1):
            query = field(record, "query", where, as_text)
            clip = field(record, "vid", where, as_text)
            name = f"qid{field(record, 'qid', where, _as_number)}"
            youtube, span = _parse_clip(clip, where)
            video = youtube if source.regrouped else clip
            if name in self._words:
                raise DataError(f"{where}: {name} appears twice; remove one of them")
            if video in self._clips:
                raise DataError(
                    f"{where}: video {video!r} is also in another split; all queries of a video"
                    " must be in one split"
                )
            text = source.features(TEXT_FOLDER, name)
            self._words[name] = _count(text, "last_hidden_state", TEXT_DIM, MAX_TOKENS, where)
            videos.setdefault(video, []).append(Caption(name, query, line=number))
            spans.setdefault(video, {})[clip] = span
        for video, clips in spans.items():
            in_time = sorted(clips, key=lambda clip: clips[clip])
            for first, second in zip(in_time, in_time[1:], strict=False):
                if clips[second][0] < clips[first][1]:
                    raise DataError(
                        f"{path}: clips {first!r} and {second!r} overlap, so their rows cannot"
                        " be joined; correct one of them"
                    )
            self._clips[video] = {clip: self._count_rows(clip, str(path)) for clip in in_time}
        return {video: tuple(captions) for video, captions in videos.items()}

    def _count_rows(self, clip: str, where: str) -> int:
        counts = [
            _count(self._source.features(folder, clip), "features", width, 100_000, where)
            for folder, width in WIDTHS.items()
        ]
        if len(set(counts)) > 1 or counts[0] > MAX_ROWS:
            self._cut.append(clip)
        return min(*counts, MAX_ROWS)


def _as_number(value: Any, what: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DataError(f"{where}: {what} is {shown(value)}; it must be a whole number")
    return value


def _parse_clip(clip: str, where: str) -> tuple[str, tuple[float, float]]:
    """Split the name of a clip into the YouTube id, which may have underscores, and seconds."""
    try:
        youtube, *seconds = clip.rsplit("_", 2)
        start, end = map(float, seconds)
    except ValueError:
        youtube, start, end = "", 0.0, 0.0
    if not youtube or not 0 <= start < end < 1e6 or "/" in clip or "\0" in clip:
        raise DataError(
            f"{where}: vid is {shown(clip)}; it must be YOUTUBE-ID_START_END, in seconds"
        )
    return youtube, (start, end)


def _count(path: Path, key: str, width: int, most: int, where: str) -> int:
    """Return the number of rows of an array of an npz file, read from its header.

    Raises:
      DataError: if the array is missing or damaged, not `width` wide, or has more than `most` rows.
    """
    remedy = "download the file again"
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as member:
            version = np.lib.format.read_magic(member)
            if version > (2, 0):
                raise ValueError(f"version {version} of the format")
            read = "read_array_header_1_0" if version == (1, 0) else "read_array_header_2_0"
            shape, _, dtype = getattr(np.lib.format, read)(member)
            size = archive.getinfo(f"{key}.npy").file_size
    except FileNotFoundError:
        raise DataError(f"{where}: {path} is missing; download it, or remove the query") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DataError(f"{path}: the array {key!r} cannot be read ({error}); {remedy}") from None
    if dtype.kind != "f" or len(shape) != 2 or shape[1] != width or not 0 < shape[0] <= most:
        raise DataError(
            f"{path}: {key} is {dtype} of shape {shape}, not floating point of shape (rows,"
            f" {width}) with 1 to {most} rows; {remedy}"
        )
    if size < shape[0] * shape[1] * dtype.itemsize:
        raise DataError(f"{path}: {key} is cut short; {remedy}")
    return int(shape[0])


def _load(path: Path, key: str) -> Float[np.ndarray, "T D"]:
    try:
        stored = files.read_npz(path, [key])[key]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again") from None
    check_fits(stored, lambda row: f"{path}: row {row} of {key}")
    return stored.astype(np.float32)
