"""Features extracted from a user's videos, as a source: a folder of arrays.

    features.json   table of contents: splits, captions with their times, rows of each video and
                    caption, widths
    frames.npy      vectors of all frames, a row each, video by video, float16
    words.npy       token features of all captions, and of the texts of parents, a row each, float32
    encoder.json    facts that identify the encoder

`python -m hlformer_jax.search features` writes such a folder, and `configs/own.py` trains on it.
Captions with times make action trees, on which `configs/hover_own.py` trains. As in HOVER's paper,
the joined text of a parent is encoded as one text.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from absl import logging
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.cli import command_line
from hlformer_jax.data.annotations.moments import AnnotatedMoment, TimedVideo, annotate
from hlformer_jax.data.annotations.parsing import as_seconds, field, parse_object, read_text
from hlformer_jax.data.annotations.spans import Span, possible_times
from hlformer_jax.data.sources.protocol import (
    SPLITS,
    Caption,
    DataError,
    MissingDataError,
    MissingSourceError,
    Reader,
    digest,
    stamps,
)
from hlformer_jax.data.trees import parent_texts

COLLECTION = "own"
"""`config.data.collection` of such a folder."""

FORMAT = 1
PARENTS = "parents"
"""Key of the table of contents: the texts of parents, by video and by id."""

CONTENTS, FRAMES, WORDS, ENCODER = "features.json", "frames.npy", "words.npy", "encoder.json"
NAMES = (FRAMES, WORDS, ENCODER, CONTENTS)
"""The files, in the order in which they are put into place."""


def contents(folder: str | Path) -> dict[str, Any]:
    """Read the table of contents of a folder of features.

    Raises:
      MissingSourceError: if the table does not exist.
      DataError: if it is damaged, incomplete, or of another version of the format.
    """
    path = files.expand(folder) / CONTENTS
    try:
        table = parse_object(read_text(path), str(path))
    except FileNotFoundError:
        remedy = f"make it by {command_line('search', 'features')}"
        raise MissingSourceError(f"{path} is missing", remedy) from None
    except DataError as error:
        raise DataError(f"{path} is damaged: make the features again ({error})") from None
    if table.get("format") != FORMAT or "digest" not in table:
        # A table without a digest belongs to a folder whose writing was interrupted.
        raise DataError(f"{path} is incomplete, or not of format {FORMAT}: make the features again")
    return table


class RecordedEncoder(NamedTuple):
    """The encoder of features, as their folder records it.

    Attributes:
      name: a hub id, or the base name of a folder.
      fingerprint: digest of its weights, tokenizer and preprocessing.
      places: hub id or folders from which it was loaded.
    """

    name: str
    fingerprint: str
    places: tuple[str, ...] = ()


def encoder_of(*folders: str | Path) -> RecordedEncoder | None:
    """Return the encoder that the first folder with an encoder.json records, or None.

    Raises:
      DataError: if an encoder.json is damaged.
    """
    notes = (files.expand(folder) / ENCODER for folder in folders)
    note = next((note for note in notes if note.is_file()), None)
    if note is None:
        return None
    try:
        facts = files.parse_json(note.read_text(encoding="utf-8"))
        places = tuple(map(str, facts.get("places", ())))
        return RecordedEncoder(str(facts["name"]), str(facts["fingerprint"]), places)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{note} is damaged: make the features again") from None


@dataclasses.dataclass(frozen=True)
class ExtractedSource:
    """The `Source` of a folder of features."""

    folder: str
    feature: str  # name of the encoder, with the beginning of its fingerprint
    visual_dim: int
    text_dim: int
    timed: bool = False  # whether only captions with times are read

    @property
    def name(self) -> str:
        """The collection, with a suffix if only captions with times are read."""
        return f"{COLLECTION}_moments" if self.timed else COLLECTION

    def fingerprint(self) -> str:
        """Return a fingerprint of the written digest and of the sizes and times of all files.

        The digest alone would not change when a file is edited after the extraction.

        Raises:
          MissingSourceError: if the folder has no features.
          DataError: if a file is missing, or they are damaged, or of another encoder than
            `feature`.
        """
        table = contents(self.folder)
        feature = field(table, "feature", str(self.folder))
        if feature != self.feature:
            raise DataError(
                f"{self.folder} has features of {feature}, but config.data.feature is"
                f" {self.feature}: start from `config`=configs/own.py:{self.folder}"
            )
        folder = files.expand(self.folder)
        paths = [folder / name for name in NAMES]
        for path in paths:
            if not path.is_file() and path.name != ENCODER:  # needed only for times of captions
                raise MissingDataError(f"{path}: no such file", "make the features again")
        written = field(table, "digest", str(self.folder))
        content = digest(
            COLLECTION, FORMAT, "with times", written, *stamps(filter(Path.is_file, paths))
        )
        return digest("moments", content) if self.timed else content

    def open(self) -> contextlib.nullcontext["ExtractedReader"]:
        """Open the folder; its arrays are mapped into memory, not read."""
        return contextlib.nullcontext((TimedReader if self.timed else ExtractedReader)(self.folder))


class ExtractedReader(Reader):
    """The `Reader` of a folder of features."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = files.expand(folder)
        table = self._contents = contents(self._folder)
        try:
            self._frame_rows = _row_ranges(table["frames"])
            self._word_rows = _row_ranges(table["words"])
            self._splits = {
                split: {
                    video: tuple(Caption(*fields) for fields in captions)
                    for video, captions in table["splits"][split].items()
                }
                for split in SPLITS
            }
            widths = int(table["visual_dim"]), int(table["text_dim"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise DataError(
                f"{self._folder / CONTENTS} is damaged: make the features again"
            ) from None
        self._frames = self._map(FRAMES, self._frame_rows, widths[0])
        self._words = self._map(WORDS, self._word_rows, widths[1])

    @property
    def splits(self) -> Mapping[str, Mapping[str, Sequence[Caption]]]:
        """For each split, the captions of every video, with their times."""
        return self._splits

    def num_frames(self, video: str) -> int:
        """The number of frames of a video."""
        start, end = self._frame_rows[video]
        return end - start

    def num_words(self, caption_id: str) -> int:
        """The number of tokens of a caption."""
        start, end = self._word_rows[caption_id]
        return end - start

    def read_frames(self, video: str) -> Float[np.ndarray, "T D"]:
        """The vectors of a video's frames, float32."""
        return self._frames[slice(*self._frame_rows[video])].astype(np.float32)

    def read_words(self, caption_id: str) -> Float[np.ndarray, "T E"]:
        """The token features of a caption, float32."""
        return self._words[slice(*self._word_rows[caption_id])].astype(np.float32)

    def annotations(self, split: str) -> Any:
        """Return the moments of captions that have times, as `spans.configured_spans` reads.

        The interval of the frames is given, because it is the error of the videos' lengths.
        """
        spans = {
            caption.caption_id: (caption.start, caption.end, self.duration(video))
            for video, captions in self._splits[split].items()
            for caption in captions
            if _is_timed(caption)
        }
        interval = {"seconds_per_frame": 1 / self._frames_per_second} if spans else {}
        return {"spans": spans, **interval}

    def duration(self, video: str) -> float:
        """Return the length of a video in seconds; a DataError if the frame rate is unknown."""
        return self.num_frames(video) / self._frames_per_second

    @functools.cached_property
    def _frames_per_second(self) -> float:
        path = self._folder / ENCODER
        try:
            facts = parse_object(read_text(path), str(path))
            rate: float = field(facts, "fps", str(path), as_seconds)
        except (OSError, DataError) as error:
            raise DataError(
                f"{path}: does not give the number of frames per second ({error}); make the"
                " features again"
            ) from None
        if not rate > 0:
            raise DataError(f"{path}: gives {rate} frames per second; make the features again")
        return rate

    def _map(self, name: str, rows: Mapping[str, Sequence[int]], width: int) -> np.ndarray:
        path = self._folder / name
        try:
            mapped = np.lib.format.open_memmap(path, "r")  # unlike np.load, only .npy files
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} cannot be read ({error}): make the features again") from None
        most = max((end for _, end in rows.values()), default=0)
        if mapped.ndim != 2 or mapped.shape[1] != width or len(mapped) < most:
            raise DataError(
                f"{path} has shape {mapped.shape}, not {(most, width)}: make the features again"
            )
        return mapped


class TimedReader(ExtractedReader):
    """Reader of only the captions with times, in the order of their start.

    The captions of a video are followed by the joined texts of parents, which have features too.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        untimed = 0
        self._timed: dict[str, Mapping[str, tuple[Caption, ...]]] = {}
        # Features that an earlier version extracted have no texts of parents.
        self._joined: dict[str, dict[str, str]] = self._contents.get(PARENTS, {})
        for split, videos in self._splits.items():
            timed = {video: _in_time(captions) for video, captions in videos.items()}
            untimed += sum(map(len, videos.values())) - sum(map(len, timed.values()))
            self._timed[split] = {video: captions for video, captions in timed.items() if captions}
            self._splits[split] = {
                video: captions + self._parents(video)
                for video, captions in self._timed[split].items()
            }
            if not self._splits[split]:
                raise DataError(
                    f'{folder}: no caption of {split} has a time; give captions "start" and "end",'
                    " and make the features again"
                )
        if untimed:
            logging.warning("%s: %d captions have no times and are left out", folder, untimed)

    def annotations(self, split: str) -> dict[str, Any]:
        """Return durations, moments and texts of parents of a split; see `moments.annotate`.

        Raises:
          DataError: for an impossible time.
        """
        timed = super().annotations(split)
        spans = {name: Span(*span) for name, span in timed["spans"].items()}
        possible_times(spans, self._folder / CONTENTS, timed["seconds_per_frame"])
        videos = [
            TimedVideo(video, self.duration(video), _moments(captions))
            for video, captions in self._timed[split].items()
        ]
        notes = annotate(COLLECTION, videos, self)
        parents = [self._parents(video.video) for video in videos]
        words = [[self.num_words(text.caption_id) for text in texts] for texts in parents]
        return notes | {
            "words": [counts + more for counts, more in zip(notes["words"], words, strict=True)],
            "parents": [[text.sentence for text in texts] for texts in parents],
        }

    def _parents(self, video: str) -> tuple[Caption, ...]:
        """Return the joined texts of a video's parents, as captions."""
        return tuple(Caption(name, text) for name, text in self._joined.get(video, {}).items())


def _row_ranges(rows: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, int]]:
    return {name: (int(start), int(end)) for name, (start, end) in rows.items()}


def _is_timed(caption: Caption) -> bool:
    return caption.start is not None and caption.end is not None


def _in_time(captions: Sequence[Caption]) -> tuple[Caption, ...]:
    """Return the captions with times, in the order of their start."""
    return tuple(sorted(filter(_is_timed, captions), key=lambda caption: caption.start or 0.0))


def _moments(captions: Sequence[Caption]) -> tuple[AnnotatedMoment, ...]:
    return tuple(
        AnnotatedMoment(x.caption_id, x.start or 0.0, x.end or 0.0, x.sentence) for x in captions
    )


# Writing

SPLIT_SHARES = (0.8, 0.1)
"""Shares of the videos in train and val if the captions name no split; test has the rest."""


def split_captions(
    captions: Sequence[tuple[str, str, Caption]], seed: int
) -> dict[str, dict[str, tuple[Caption, ...]]]:
    """Divide captions into train, val and test: by the splits they name, or by video at random.

    Args:
      captions: for each caption its video, the split that it names (or ""), and the caption.
      seed: seed of random splits.

    Returns:
      The captions of every video of every split.

    Raises:
      DataError: if only some captions name a split, or a split would be empty.
    """
    named = [split for _, split, _ in captions if split]
    videos = sorted({video for video, _, _ in captions})
    if named and len(named) < len(captions):
        video, caption = next((video, caption) for video, split, caption in captions if not split)
        raise DataError(
            f'{len(named)} captions name a "split" and others do not, such as {caption.sentence!r}'
            f" of {video!r}: give it to all, or to none"
        )
    if not named and len(videos) < 3:
        raise DataError(
            f"the captions are on {len(videos)} indexed videos: training, validation and test need"
            ' at least one each (or give each caption a "split")'
        )
    order = np.random.default_rng(seed).permutation(len(videos))
    train, val = (max(1, round(share * len(videos))) for share in SPLIT_SHARES)
    train = min(train, len(videos) - val - 1)
    random_split = {
        videos[row]: SPLITS[0 if rank < train else 1 if rank < train + val else 2]
        for rank, row in enumerate(order)
    }
    splits: dict[str, dict[str, tuple[Caption, ...]]] = {split: {} for split in SPLITS}
    for video, split, caption in captions:
        by_video = splits[split or random_split[video]]
        by_video[video] = (*by_video.get(video, ()), caption)
    for split, by_video in splits.items():
        if not by_video:
            raise DataError(f'no caption on an indexed video has the "split" {split!r}')
    return splits


def parents_of(
    splits: Mapping[str, Mapping[str, Sequence[Caption]]],
) -> dict[str, dict[str, str]]:
    """Return the texts of the parents of all videos' action trees, by video and by a new id.

    The moments of the trees are the captions with times, in the order of their start.

    Args:
      splits: for each split, the captions of every video.

    Returns:
      video -> id -> text, for trees of every entry of `trees.FORMS`.
    """
    captioned = [item for videos in splits.values() for item in videos.items()]
    ids = {caption.caption_id for _, captions in captioned for caption in captions}
    parents: dict[str, dict[str, str]] = {}
    for video, captions in captioned:
        moments = _moments(_in_time(captions))
        end = max((moment.end for moment in moments), default=0.0)
        texts = parents.setdefault(video, {})
        for text in parent_texts(TimedVideo(video, end, moments), COLLECTION):
            number = len(texts)
            while (name := f"{video}#parent#{number}") in ids:
                number += 1
            ids.add(name)
            texts.setdefault(name, text)
    return {video: texts for video, texts in parents.items() if texts}


def check_place(folder: str | Path, overwrite: bool) -> None:
    """Check that features may be written into a folder.

    The folder may be missing or empty. With `overwrite` it may contain features, which will be
    replaced. Other files are never replaced.

    Raises:
      OutputError: if the folder contains something that must not be replaced.
      OSError: if the folder cannot be made or written to.
    """
    folder = Path(folder)
    files.check_directory(folder)
    files.check_writable(folder)
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        has_features = "format" in files.parse_json((folder / CONTENTS).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        has_features = False  # an unreadable table is an OSError, which ends the command
    if not has_features:
        raise files.OutputError(f"{folder} contains other files: give another folder, or empty it")
    if not overwrite:
        raise files.OutputError(
            f"{folder} already contains features: give another folder, or `overwrite`"
        )
    for name in NAMES:
        files.check_output(folder / name, files.Replace.ANY)


def write(
    folder: str | Path,
    feature: str,
    encoder: Mapping[str, Any],
    splits: Mapping[str, Mapping[str, Sequence[Caption]]],
    frames: Iterator[tuple[str, Float[np.ndarray, "T D"]]],
    words: Iterator[tuple[str, Float[np.ndarray, "T E"]]],
    overwrite: bool = False,
    parents: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Write a folder of features atomically.

    Args:
      folder: the folder.
      feature: name of the encoder and the beginning of its fingerprint, without characters that a
        file name cannot have.
      encoder: facts that identify the encoder, for `encoder.json`.
      splits: the captions of every video of train, val and test.
      frames: ids and frame features of all videos, one after the other.
      words: ids and token features of all captions, and of the texts of parents.
      overwrite: whether existing features are replaced.
      parents: video -> id -> text of a parent of its action tree; see `parents_of`.

    Raises:
      OutputError: if the folder contains something that must not be replaced.
      OSError: if it cannot be written.
    """
    folder = Path(folder)
    check_place(folder, overwrite)
    draft = folder.with_name(f".{folder.name}.draft")
    _remove(draft)  # left by a killed process
    draft.mkdir(parents=True)
    try:
        with files.naming(folder):
            hashed = hashlib.sha256()
            frame_rows, visual_dim = _stack(draft / FRAMES, frames, np.float16, hashed)
            word_rows, text_dim = _stack(draft / WORDS, words, np.float32, hashed)
            captions = [
                caption.caption_id
                for videos in splits.values()
                for listed in videos.values()
                for caption in listed
            ]
            content = {
                "format": FORMAT,
                "feature": feature,
                "visual_dim": visual_dim,
                "text_dim": text_dim,
                "max_words": max(word_rows[name][1] - word_rows[name][0] for name in captions),
                "splits": {
                    split: {
                        video: [(x.caption_id, x.sentence, x.start, x.end) for x in captions]
                        for video, captions in videos.items()
                    }
                    for split, videos in splits.items()
                },
                "frames": frame_rows,
                "words": word_rows,
            }
            if parents:
                content[PARENTS] = {video: dict(texts) for video, texts in parents.items()}
            hashed.update(json.dumps(content, sort_keys=True).encode())
            content["digest"] = hashed.hexdigest()
            (draft / ENCODER).write_text(
                json.dumps(dict(encoder), indent=2) + "\n", encoding="utf-8"
            )
            (draft / CONTENTS).write_text(json.dumps(content) + "\n", encoding="utf-8")
            folder.mkdir(parents=True, exist_ok=True)
            # Replace the table of contents by one without a digest, which is invalid, until all
            # arrays are in place. NAMES lists the table last.
            check_place(folder, overwrite)
            files.write_json(folder / CONTENTS, {"format": FORMAT})
            for name in NAMES:
                (draft / name).replace(folder / name)
    finally:
        _remove(draft)


def _remove(draft: Path) -> None:
    """Remove a draft; an OSError if other files lie in it."""
    for name in NAMES:
        (draft / name).unlink(missing_ok=True)
    if draft.exists():
        draft.rmdir()


def _stack(
    path: Path, features: Iterator[tuple[str, np.ndarray]], dtype: type[np.floating], hashed: Any
) -> tuple[dict[str, list[int]], int]:
    """Write all rows as one .npy; return the range of rows of each id, and their width."""
    rows: dict[str, list[int]] = {}
    total, width = 0, 0
    with path.open("wb") as file:
        _write_header(file, dtype, (total, width))
        for name, values in features:
            values = np.ascontiguousarray(values, dtype)
            rows[name] = [total, total + len(values)]
            total, width = total + len(values), values.shape[1]
            file.write(values.tobytes())
            hashed.update(values.tobytes())
        # NumPy pads the header, so that it can be overwritten when the number of rows is known.
        file.seek(0)
        _write_header(file, dtype, (total, width))
    return rows, width


def _write_header(file: BinaryIO, dtype: type[np.floating], shape: tuple[int, int]) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(file, header)
