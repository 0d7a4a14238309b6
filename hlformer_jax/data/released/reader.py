"""Reader of the released layout (see `layout`), strict about what it finds.

Opening a collection checks everything that can be checked without reading all features: sizes,
names, captions, the shape of every caption's word features, and a sample of rows. Values are
checked as they are read. Every error names the file, the line or the id, and what to do.
"""

import os
from collections.abc import Mapping

import h5py
import numpy as np
from absl import logging

from hlformer_jax.data.released.captions import Caption, read_captions
from hlformer_jax.data.released.frame_lists import Rows, read_frame_lists, read_row_names, row_name
from hlformer_jax.data.released.layout import SPLITS, Collection, ReleasedDataError

# Far beyond any feature, far below what wrongly decoded bytes reach.
_LARGEST, _SMALLEST = 1e10, 1e-20
_SAMPLED_ROWS = 64

Captions = Mapping[str, tuple[Caption, ...]]


def open_collection(collection: Collection) -> "Released":
    """Opens a collection and checks its structure.

    Args:
      collection: where it lies, and the widths that are expected.

    Returns:
      The reader.

    Raises:
      ReleasedDataError: at the first thing that is not as the layout says.
    """
    return Released(collection)


class Released:
    """A collection whose structure was found sound.

    Attributes:
      collection: what was opened.
      splits: for every split, the captions of every video; videos and captions in order of first
        appearance.
      rows: rows of feature.bin of every captioned video, in time order, int32 [F_i].
      word_counts: the number of words of every caption.
    """

    def __init__(self, collection: Collection) -> None:
        collection.check_files()
        self.collection = collection
        self._bin = collection.feature_dir / "feature.bin"
        self._ids = collection.feature_dir / "id.txt"
        self.splits: dict[str, Captions] = {
            split: read_captions(collection.captions(split)) for split in SPLITS
        }
        num_rows = self._read_shape()
        self.rows: dict[str, Rows] = self._read_rows(num_rows)
        self._text = self._open_text()
        self._file = open(self._bin, "rb", buffering=0)  # noqa: SIM115, closed by close()
        try:
            self.word_counts: dict[str, int] = self._check_text()
            self._check_values(num_rows)
        except BaseException:
            self.close()
            raise
        self._warn()

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        self._text.close()

    def __enter__(self) -> "Released":
        """Returns the reader; leaving the block closes it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the files."""
        self.close()

    def read_video(self, video: str) -> np.ndarray:
        """Reads the features of a video.

        Args:
          video: its id.

        Returns:
          Features in time order, float32 [F_i, D].

        Raises:
          ReleasedDataError: if one of them is not a number that a feature can be.
        """
        rows = self.rows[video]
        frames = self._read(rows)
        # min and max hand a NaN on, so two passes without a temporary array see everything.
        if not (frames.max() <= _LARGEST and frames.min() >= -_LARGEST):
            wrong = int(np.flatnonzero(~(np.abs(frames) <= _LARGEST).all(axis=1))[0])
            values = frames[wrong][~(np.abs(frames[wrong]) <= _LARGEST)]
            raise ReleasedDataError(
                f"{self._bin}: frame {row_name(self._ids, int(rows[wrong]))!r} (row {rows[wrong]}) "
                f"of video {video!r} holds {values[0]}; the file is damaged or not little-endian "
                f"float32, download it again"
            )
        return frames

    def read_words(self, caption: str) -> np.ndarray:
        """Reads the word features of a caption.

        Args:
          caption: its id.

        Returns:
          Features of its words, float32 [W_i, E].

        Raises:
          ReleasedDataError: if one of them is not a number that a feature can be.
        """
        words = np.empty((self.word_counts[caption], self.collection.text_dim), np.float32)
        h5py.h5d.open(self._text.id, caption.encode()).read(h5py.h5s.ALL, h5py.h5s.ALL, words)
        if not (words.max() <= _LARGEST and words.min() >= -_LARGEST):
            value = words[~(np.abs(words) <= _LARGEST)][0]
            raise ReleasedDataError(
                f"{self.collection.text_features}: the features of caption {caption!r} hold "
                f"{value}; the file is damaged, download it again"
            )
        return words

    def _read(self, rows: Rows) -> np.ndarray:
        """Reads rows with as few reads as runs of neighbouring rows allow."""
        # Plain reads, not a memory map: the resident set stays flat however large the file is, and
        # a disk error or a file cut short is an exception, not a signal.
        width = self.collection.visual_dim
        order = np.argsort(rows, kind="stable")
        in_order = rows[order]
        starts = np.flatnonzero(np.diff(in_order, prepend=-2) != 1)
        ends = np.append(starts[1:], len(rows))
        frames = np.empty((len(rows), width), "<f4")
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            target = frames[start:end].data.cast("B")
            offset = int(in_order[start]) * width * 4
            while len(target):
                count = os.preadv(self._file.fileno(), [target], offset)
                if count == 0:
                    raise ReleasedDataError(
                        f"{self._bin}: became shorter while it was read; download it again"
                    )
                target, offset = target[count:], offset + count
        if not np.array_equal(order, np.arange(len(rows))):
            unordered, frames = frames, np.empty_like(frames)
            frames[order] = unordered
        return frames.astype(np.float32, copy=False)

    def _read_shape(self) -> int:
        path, width = self.collection.feature_dir / "shape.txt", self.collection.visual_dim
        text = path.read_text(encoding="utf-8", errors="replace")
        fields = text.split()
        if len(fields) != 2 or not all(f.isascii() and f.isdigit() and int(f) for f in fields):
            raise ReleasedDataError(
                f"{path}:1: {text.strip()[:60]!r} is not 'ROWS WIDTH', two positive numbers; "
                f"correct it or download it again"
            )
        rows, found = int(fields[0]), int(fields[1])
        if found != width:
            raise ReleasedDataError(
                f"{path}:1: the features are {found} wide, the configuration says {width}; set "
                f"data.visual_dim to {found}, or choose another data.feature"
            )
        size, expected = self._bin.stat().st_size, rows * width * 4
        if size != expected:
            guess = {expected * 2: "float64", expected // 2: "float16"}.get(size)
            guess = f" (as many as for {guess}, which is not read)" if guess else ""
            raise ReleasedDataError(
                f"{self._bin}: is {abs(size - expected)} bytes too "
                f"{'long' if size > expected else 'short'}: shape.txt says {rows} x {width} "
                f"float32, {expected} bytes, and the file has {size}{guess}; download it again"
            )
        return rows

    def _read_rows(self, num_rows: int) -> dict[str, Rows]:
        path = self.collection.feature_dir / "video2frames.txt"
        wanted = {video for captions in self.splits.values() for video in captions}
        rows = read_frame_lists(path, read_row_names(self._ids, num_rows), wanted)
        for split, videos in self.splits.items():
            for video, captions in videos.items():
                listed = f"{self.collection.captions(split)}:{captions[0].line}"
                if video not in rows:
                    raise ReleasedDataError(
                        f"{listed}: video {video!r} is not in {path}; the two files belong to "
                        f"different downloads, or the caption's id is misspelt"
                    )
                if len(rows[video]) == 0:
                    raise ReleasedDataError(
                        f"{path}: video {video!r}, captioned at {listed}, has no frames; remove "
                        f"its captions or download the features again"
                    )
        self._unused = [video for video in rows if video not in wanted]
        return {video: rows[video] for video in wanted}

    def _open_text(self) -> h5py.File:
        path = self.collection.text_features
        try:
            return h5py.File(path, "r")
        except OSError as error:
            raise ReleasedDataError(
                f"{path}: cannot be read as HDF5 ({error}); download it again"
            ) from None

    def _check_text(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for split, videos in self.splits.items():
            for captions in videos.values():
                for caption in captions:
                    if caption.caption_id not in counts:
                        where = f"{self.collection.captions(split)}:{caption.line}"
                        try:
                            count = self._count_words(caption.caption_id, where)
                        except RuntimeError as error:  # of HDF5
                            raise ReleasedDataError(
                                f"{self.collection.text_features}: is damaged ({error}); download"
                                " it again"
                            ) from None
                        counts[caption.caption_id] = count
        return counts

    def _count_words(self, caption: str, where: str) -> int:
        path, width = self.collection.text_features, self.collection.text_dim
        try:
            # The low-level call is several times faster than File.__getitem__.
            data = h5py.h5d.open(self._text.id, caption.encode())
        except KeyError:
            if caption in self._text:
                problem = f"{path}: {caption!r} is a group; its features must be a dataset"
                raise ReleasedDataError(f"{problem} at the top level, download it again") from None
            groups = [n for n in self._top_level() if isinstance(self._text[n], h5py.Group)]
            hint = f"; {path} nests them in groups such as {groups[0]!r}" if groups else ""
            raise ReleasedDataError(
                f"{where}: caption {caption!r} has no features in {path}{hint}; they must be a "
                f"dataset of that name at the top level, correct the id or download both again"
            ) from None
        shape, dtype = data.shape, data.dtype
        named = f"{path}: the features of caption {caption!r}"
        if dtype.kind != "f":
            raise ReleasedDataError(f"{named} are {dtype}, not floating point; download them again")
        if len(shape) != 2:
            raise ReleasedDataError(
                f"{named} have shape {shape}, not (words, width); download them again"
            )
        if shape[1] != width:
            raise ReleasedDataError(
                f"{named} are {shape[1]} wide, the configuration says {width}; set data.text_dim "
                f"to {shape[1]}, or use the text features that belong to it"
            )
        if shape[0] == 0:
            raise ReleasedDataError(f"{named} have no words; remove the caption")
        return int(shape[0])

    def _top_level(self) -> list[str]:
        return [name for name, _ in zip(self._text, range(100), strict=False)]

    def _check_values(self, num_rows: int) -> None:
        """Looks at a sample of rows for numbers stored in another format than float32."""
        sample = np.linspace(0, num_rows - 1, min(num_rows, _SAMPLED_ROWS)).astype(np.int32)
        values = self._read(np.unique(sample))
        if not values.any():
            raise ReleasedDataError(
                f"{self._bin}: is zero in every row that was looked at, as after a download that"
                " was broken off; download it again"
            )
        if _plausible(values):
            return
        swapped = _plausible(values.view(">f4").astype(np.float32))
        guess = "big-endian float32" if swapped else "float64, integers or damaged"
        raise ReleasedDataError(
            f"{self._bin}: its numbers make no sense as little-endian float32 (magnitudes beyond "
            f"{_LARGEST:g} or mostly below {_SMALLEST:g}); they look {guess}; convert the file or "
            f"download it again"
        )

    def _warn(self) -> None:
        if self._unused:
            logging.warning(
                "%s: %d videos have no caption in any split and are left out (%s, ...)",
                self.collection.feature_dir / "video2frames.txt",
                len(self._unused),
                self._unused[0],
            )
        for other in ("val", "test"):
            shared = [video for video in self.splits["train"] if video in self.splits[other]]
            if shared:
                logging.warning(
                    "%s: %d of its videos are training videos too (%s, ...); results on it will "
                    "look better than they are",
                    self.collection.captions(other),
                    len(shared),
                    shared[0],
                )


def _plausible(values: np.ndarray) -> bool:
    # A NaN or an infinity alone is a damaged value, found and named when its row is read.
    size = np.abs(values[np.isfinite(values) & (values != 0)]).astype(np.float64)
    if size.size == 0:  # so there are such, beside zeros
        return True
    return float(size.max()) <= _LARGEST and float(np.median(size)) >= _SMALLEST
