"""What is asked of an archive: unit vectors of the encoder's space, and what videos score for them.

    a sentence           its vector q
    a picture            that of an image's file, or of a video's frame nearest to an instant, p
    a picture and words  unit(p + q): ⟨unit(p + q), x⟩ = (⟨p, x⟩ + ⟨q, x⟩) / |p + q|, so frames x
                         rank by the sum of both cosines

Cosines of two pictures are larger than those of a picture and a sentence and lie further apart: in
the sum the picture says what is looked for, and the words what of it.

A query of parts q_1 … q_N without n_1 … n_M gives a frame f, of the time t_f, the scores

    s_i(f) = ⟨q_i, x_f⟩ − Σ_j max(⟨n_j, x_f⟩ − l_j, 0)

and a video that of

    several sentences   mean_i max_f s_i(f)
    a sequence          the largest mean_i s_i(f_i) of frames with 0 < t(f_{i+1}) − t(f_i) ≤ W

Cosines of sentences have levels of their own, which a mean only adds up, while a minimum would be
that of the sentence whose level is least. What is not wanted counts from its level l on. Both
scores are at most mean_i max_f ⟨q_i, x_f⟩: in its order videos are looked at, until no other can be
among the best, and so the result is exact.

From the level of a query on a frame may show what it says. Of a sentence alone it is so much above
its `centre` as captions have calibrated (`evaluation`). Without them, and of parts and pictures, it
is chosen: where the encoder has learned probabilities, a sentence's is the cosine whose probability
is `LEAST`. Of pictures and other encoders it lies `SPREADS` spreads above the median of the
archive's own cosines; a spread is their distance from the median down to the quantile 0.1587, as
far as a normal distribution's deviation.
What the archive lacks has about normal cosines, and what it shows now and then stands out above;
where most of its frames show it, this fails, and of fewer than `FEW` frames nothing is said.

A query may be limited to a folder, to tags, by a video's length, and by its date: that of its
recording where the file states one, else that of its last modification.
"""

import heapq
import io
import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax import files
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import SearchError
from hlformer_jax.retrieval.moments import Moment, find_moments
from hlformer_jax.search.index.database import Entry, tag_key
from hlformer_jax.search.index.storage import VideoArrays
from hlformer_jax.search.signals.rankers import Ranker, Untrained
from hlformer_jax.search.times import When, date_span
from hlformer_jax.text import legible, suggestion

LEAST = 0.01
"""Probability from which on a frame may show what a sentence says; chosen, see docs/search.md."""

SPREADS = 4.0
"""Spreads above the median of an archive's cosines, from which on a frame may show it; chosen."""

FEW = 1000
"""Frames below which the distribution of an archive's cosines is unknown."""

Found = tuple[Float[np.ndarray, " F"], list[Moment]]
"""Scores of a video's frames, and its best moments."""


def level(
    ranker: Untrained, vector: Float[np.ndarray, " d"], probability: Callable[[Any], Any]
) -> float:
    """The cosine from which on a frame may show what a vector says; see the module.

    `probability` is that of cosines, or None where they have none.
    """
    grid = np.linspace(-1, 1, 20_001)
    if (learned := probability(grid)) is not None:
        return float(grid[min(int(np.searchsorted(learned, LEAST)), len(grid) - 1)])
    lower, median = np.quantile(ranker.sample(vector[None])[0], [0.1587, 0.5])
    return float(median + SPREADS * (median - lower))


def centre(ranker: Ranker, vector: Float[np.ndarray, " d"], encoder: Encoder) -> float:
    """What scores of a sentence are compared from: the median of the archive's products with it.

    0 where the encoder has learned probabilities, so that cosines of all sentences compare, and
    for a trained model or a store.
    """
    if not isinstance(ranker, Untrained) or encoder.probability(0.0) is not None:
        return 0.0
    return float(np.median(ranker.sample(vector[None])[0]))


class Single(NamedTuple):
    """A query of one vector, or of a trained model."""

    ranker: Ranker
    vector: Float[np.ndarray, " H"]

    def best(self, count: int, among: Bool[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
        """Scores of contents; see `Ranker.best`."""
        return self.ranker.best(self.vector, count, among)

    def found(self, content: int, arrays: VideoArrays, period: float, count: int) -> Found:
        """Scores of the frames of a content, and its best moments."""
        curve = self.ranker.over_time(content, arrays, self.vector)
        return curve, find_moments(arrays.times, curve, period, count)


AT_ONCE = 16
"""Videos that are looked at together."""


class Composed(NamedTuple):
    """A query of several parts; see the module."""

    ranker: Untrained  # of frames
    times: Callable[[int], np.ndarray]  # of the frames of a content
    wanted: Float[np.ndarray, "N d"]
    unwanted: Float[np.ndarray, "M d"]
    levels: Float[np.ndarray, " M"]  # of what is not wanted
    within: float | None  # seconds from one part to the next; None: in any order

    def best(self, count: int, among: Bool[np.ndarray, " V"]) -> Float[np.ndarray, " V"]:
        """Scores of contents; see `Ranker.best`."""
        bounds = self.ranker.bounds(self.wanted).mean(0)
        scores = np.full(len(among), -np.inf, np.float32)
        largest: list[float] = []
        order = [one for one in np.argsort(-bounds, kind="stable").tolist() if among[one]]
        with ThreadPoolExecutor() as threads:  # which read the times of frames
            for start in range(0, len(order), AT_ONCE):
                part = order[start : start + AT_ONCE]
                if len(largest) == count and bounds[part[0]] < largest[0]:
                    break
                scores[part] = list(threads.map(self._score, part))
                largest = heapq.nlargest(count, [*largest, *scores[part].tolist()])[::-1]
        return scores

    def _score(self, content: int) -> float:
        parts = self._parts(content)
        if self.within is None:
            return float(parts.max(-1).mean())
        return float(chain(parts, self.times(content), self.within)[0].max())

    def found(self, content: int, arrays: VideoArrays, period: float, count: int) -> Found:
        """Scores of the frames of a content, and its best moments.

        Of parts in order a frame has the best score of a sequence that it begins, which is a moment
        to its end; of several sentences the mean of its own, and moments are those of each.
        """
        parts = self._parts(content)
        if self.within is None:
            each = [find_moments(arrays.times, part, period, count) for part in parts]
            ranked = [best[i] for i in range(count) for best in each if i < len(best)]
            return parts.mean(0), ranked
        curve, ends = chain(parts, arrays.times, self.within)
        # Below every sequence: a frame that begins none is no part of the best one's moment.
        curve = np.where(np.isfinite(curve), curve, parts.min())
        best = []
        for one in find_moments(arrays.times, curve, period, count):
            last = arrays.times[ends[np.searchsorted(arrays.times, one.peak)]]
            best.append(one._replace(end=max(one.end, float(last) + period)))
        return curve, best

    def _parts(self, content: int) -> Float[np.ndarray, "N F"]:
        """Scores s_i of the frames of a content."""
        count = len(self.wanted)
        products = self.ranker.products(content, np.concatenate([self.wanted, self.unwanted]))
        beyond = np.maximum(products[count:] - self.levels[:, None], 0).sum(0)
        parts: np.ndarray = products[:count] - beyond[None].astype(np.float32)
        return parts


def chain(
    parts: Float[np.ndarray, "N F"], times: Float[np.ndarray, " F"], within: float
) -> tuple[Float[np.ndarray, " F"], Int[np.ndarray, " F"]]:
    """The best mean of a sequence of the parts that begins at each frame, and its last frame.

    -inf where none begins. Each part is at a later frame than the one before, by `within` seconds
    at most.
    """
    first = np.searchsorted(times, times, side="right")
    end = np.searchsorted(times, times + within, side="right")
    total, ends = parts[-1].astype(np.float64), np.arange(len(times))
    for part in parts[-2::-1]:
        best = _argmax_between(total, first, end)
        there = best >= 0
        total = np.where(there, part + total[best], -np.inf)
        ends = np.where(there, ends[best], -1)
    return (total / len(parts)).astype(np.float32), ends


def _argmax_between(
    values: Float[np.ndarray, " F"], first: Int[np.ndarray, " F"], end: Int[np.ndarray, " F"]
) -> Int[np.ndarray, " F"]:
    """The place of the largest of values[first:end], the earliest; -1 where there is none.

    By the largest of all runs of 1, 2, 4 … values, of which two cover a range.
    """
    count = len(values)
    runs = [np.arange(count)]
    while (length := 2 ** len(runs)) <= count:
        here, there = runs[-1], runs[-1][length // 2 :]
        better = values[there] > values[here[: len(there)]]
        runs.append(np.where(better, there, here[: len(there)]))
    table = np.stack([np.pad(run, (0, count - len(run))) for run in runs])
    lengths = np.maximum(end - first, 1)
    power = np.frexp(lengths)[1] - 1
    left = table[power, np.minimum(first, count - 1)]
    right = table[power, np.maximum(end - 2**power, 0)]
    best = np.where(values[right] > values[left], right, left)
    return np.where((end > first) & np.isfinite(values[best]), best, -1)


PICTURE_FORMATS = "JPEG", "PNG", "WEBP", "GIF", "AVIF", "TIFF", "BMP"
"""Formats of pictures that a person may ask by; no other reader of Pillow sees their bytes."""


def picture(encoder: Encoder, image: Path | bytes) -> Float[np.ndarray, " d"]:
    """The vector of an image, upright, of a file or of a file's content.

    Raises:
      SearchError: when it is no image that Pillow reads, or one of absurdly many pixels.
      OSError: when it cannot be read.
    """
    # Imported here, as it comes with the extra that brings encoders.
    from PIL import Image, ImageOps, UnidentifiedImageError

    name = f"--image={image}" if isinstance(image, Path) else "the picture"
    content = io.BytesIO(files.read_bytes(image) if isinstance(image, Path) else image)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            Image.init()  # loads the readers; AVIF is not in every build
            known = [name for name in PICTURE_FORMATS if name in Image.OPEN]
            with Image.open(content, formats=known) as opened:
                pixels = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    except UnidentifiedImageError:
        formats = ", ".join(PICTURE_FORMATS)
        raise SearchError(f"{name} is no image: give one of {formats}") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise SearchError(f"{name} has too many pixels: give a smaller one") from None
    except (OSError, ValueError, SyntaxError) as error:  # Pillow's, of damaged files
        raise SearchError(f"{name} is damaged ({error}): give another") from None
    vector: np.ndarray = np.asarray(encoder.encode_images(encoder.preprocess(pixels)[None])[0])
    return vector.astype(np.float32)


# Filters


def mask(
    entries: Sequence[Entry],
    folder: str | None = None,
    since: When = None,
    until: When = None,
    longer: float | None = None,
    shorter: float | None = None,
    tags: Sequence[str] = (),
) -> Bool[np.ndarray, " V"]:
    """Which videos a search may return; see `Library.query`.

    Raises:
      SearchError: when one is no date, or there is no such folder or tag.
    """
    kept = np.ones(len(entries), bool)
    of = [{tag_key(own) for own in entry.tags} for entry in entries] if tags else []
    for tag in tags:
        tagged = np.asarray([tag_key(tag) in own for own in of], bool)
        kept &= tagged
        if not tagged.any():
            near = suggestion(tag, {own for entry in entries for own in entry.tags})
            raise SearchError(f"no video of the index has the tag {tag!r}{near}")
    lengths = np.asarray([entry.duration for entry in entries], np.float64)
    kept &= (lengths >= (longer or 0)) & (lengths <= (math.inf if shorter is None else shorter))
    folder = legible(folder or "")  # as it is shown: bytes that are no text are typed by nobody
    wanted = PurePosixPath(folder.strip("/").casefold()).parts
    if wanted:
        folders = [PurePosixPath(legible(one.folder).casefold()).parts for one in entries]
        within = np.asarray([parts[: len(wanted)] == wanted for parts in folders], bool)
        kept &= within
        if not within.any():
            near = suggestion(folder, {legible(entry.folder) for entry in entries})
            raise SearchError(f"the index has no videos in a folder {folder!r}{near}")
    dates = np.asarray([entry.date for entry in entries], np.float64)
    if since is not None:
        kept &= dates >= date_span(since)[0]
    if until is not None:
        kept &= dates < date_span(until)[1]
    return kept
