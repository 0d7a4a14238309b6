"""Rankers on sentences of which the answer is known: captions of one's own, or simulated archives.

A file of captions has a JSON object a line:

    {"video": "a.mp4", "sentence": "a person opens the fridge", "start": 12.0, "end": 17.5}

`video` is a path relative to the indexed folder. `start` and `end`, in seconds, may both be
missing. `split`, where it is there, is train, val or test.

`evaluate` asks every caption over all indexed videos: its rank is that of its video, as
`retrieval.ranking` counts, and first moments of its own video are held against its times
(`retrieval.localisation`). `write_features` makes a data set of an index and captions, on which a
model of the family is trained (`configs/own.py`) that can rank the index afterwards.

A simulated video has scenes one after the other. With g, z, c and ε normal vectors of length about
1, g of the archive, z of a video (its topic), c of a scene and ε of a frame or sentence alone, and
h normal numbers, a frame of a scene and a sentence about it are

    x = unit((1 + h_v / 2) g + topic · z_v + c_s + noise · ε)
    q = unit(g + asked · z_v + c_s + doubt · ε)

All share g, as the vectors of real encoders lie in a cone, and videos more or less of it: some are
near to every sentence. A sentence is asked of all videos, and one of them has its scene. For NNN's
bank stand sentences of the same kind about scenes of no video, which is more than a fixed bank of
sentences knows of a real archive. The numbers of the `REGIMES` are chosen, not fitted to real
archives: a ranker that wins here need not win on another archive.
"""

import dataclasses
import hashlib
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.data import extracted, source
from hlformer_jax.data.transforms import unit
from hlformer_jax.errors import DamagedError, SearchError, suggestion
from hlformer_jax.retrieval.localisation import segments
from hlformer_jax.search import rankers
from hlformer_jax.search.index import Index
from hlformer_jax.search.library import Library
from hlformer_jax.search.rankers import Untrained
from hlformer_jax.search.storage import Stamp, VideoArrays

SPLITS = ("train", "val", "test")


class Caption(NamedTuple):
    """A sentence on a video; see the module. `split` is "" where that is not said."""

    video: str
    sentence: str
    start: float | None = None
    end: float | None = None
    split: str = ""


def read(path: Path) -> list[Caption]:
    """The captions of a file in their order, at least one.

    Raises:
      SearchError: when a line is wrong; names it, and says what is.
      OSError: when the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise SearchError(f"{path} is no text in UTF-8") from None
    listed = [_caption(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    if not listed:
        raise SearchError(f"{path} has no caption")
    return listed


def _caption(line: str, where: str) -> Caption:
    try:
        fields: Any = files.parse_json(line)
    except ValueError as error:
        raise SearchError(f"{where}: this is no JSON ({error})") from None
    if not isinstance(fields, dict):
        raise SearchError(f"{where}: a caption is a JSON object")
    for name in ("video", "sentence"):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            raise SearchError(f'{where}: "{name}" is missing or no text')
    start: Any = fields.get("start")
    end: Any = fields.get("end")
    if (start, end) != (None, None):
        if not (_is_number(start) and _is_number(end)) or not 0 <= start < end:
            raise SearchError(
                f'{where}: "start" and "end" are {start} and {end}: seconds, the end after the'
                " start, or neither"
            )
        start, end = float(start), float(end)
    split = fields.get("split") or ""
    if split and split not in SPLITS:
        raise SearchError(f'{where}: "split" is {split!r}: write train, val or test')
    return Caption(fields["video"], fields["sentence"], start, end, split)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def evaluate(
    library: Library,
    captions: Sequence[Caption],
    progress: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Asks every caption; `progress` is called after each.

    Returns:
      R@1, R@5, R@10, R@100 and SumR of the videos, and the metrics of localisation, all in percent;
      without the latter where no caption has times.

    Raises:
      SearchError: when a caption is of a video that is not indexed.
    """
    from hlformer_jax.retrieval import localisation, ranking

    columns = {entry.video: i for i, entry in enumerate(library.ranked())}
    for caption in captions:
        if caption.video not in columns:
            raise SearchError(
                f"the captions name {caption.video!r}, which the index lacks"
                f"{suggestion(caption.video, columns)}: index the folder of the captions' videos"
            )
    scores, overlaps = [], []
    for caption in captions:
        every, hit = library.examine(caption.sentence, columns[caption.video])
        scores.append(every)
        if caption.start is not None and caption.end is not None:
            of_own = hit.moments[0], caption.start, caption.end
            overlaps.append(localisation.intersection_over_union(*of_own))
        progress()
    own = np.asarray([columns[caption.video] for caption in captions], np.int32)
    metrics = ranking.metrics(np.asarray(ranking.ranks(np.stack(scores), own)))
    return metrics | localisation.metrics(np.asarray(overlaps, np.float32))


SHARES = (0.8, 0.1)
"""Shares of the videos in train and val where the captions name no split; test has the rest."""

_SENTENCES_AT_ONCE = 256


def write_features(
    index: Index,
    encoder: Any,
    captions: Sequence[Caption],
    out: Path,
    seed: int = 0,
    report: Callable[[str], None] = print,
    overwrite: bool = False,
) -> dict[str, int]:
    """Writes a folder of features that `configs/own.py` trains on.

    The seed is that of the splits, where the captions name none; `report` takes lines about what is
    left out. Returns the number of captions of each split.

    Raises:
      SearchError: when no video of the captions is indexed, or a split would be empty.
      OSError: when the folder cannot be written.
    """
    known = {name for name, record in index.manifest.videos.items() if record.indexed}
    missing = sorted({caption.video for caption in captions} - known)
    if missing:
        report(
            f"{len(missing)} of the captions' videos are not in the index and are left out,"
            f" first {missing[0]!r}"
        )
    asked = sorted({caption.video for caption in captions} & known)
    try:
        index.check(index.manifest.videos[name].content for name in asked)
    except DamagedError as error:
        for line in error.contents.values():
            report(f"{line}; left out")
        known -= {one for one in asked if index.manifest.videos[one].content in error.contents}
    kept = [caption for caption in captions if caption.video in known]
    splits = divide(kept, seed)
    every = [one for of in splits.values() for own in of.values() for one in own]
    sentences = {one.caption_id: one.sentence for one in every}
    videos = sorted({video for of in splits.values() for video in of})
    facts = index.manifest.encoder
    slug = re.sub(r"[^0-9A-Za-z._-]+", "-", facts.name).strip(".-") or "encoder"
    extracted.write(
        out,
        f"{slug}-{facts.fingerprint[:12]}",
        {**dataclasses.asdict(facts), "fps": index.manifest.fps},
        splits,
        ((video, index.read(index.manifest.videos[video].content).vectors) for video in videos),
        tokens(encoder, sentences),
        overwrite,
    )
    return {split: sum(map(len, of.values())) for split, of in splits.items()}


def divide(
    captions: Sequence[Caption], seed: int
) -> dict[str, dict[str, tuple[source.Caption, ...]]]:
    """Divides captions into train, val and test: as they say, or else by video at random.

    Returns the captions of every video of every split.
    """
    named = [caption for caption in captions if caption.split]
    videos = sorted({caption.video for caption in captions})
    if named and len(named) < len(captions):
        other = next(caption for caption in captions if not caption.split)
        raise SearchError(
            f'{len(named)} captions name a "split" and others do not, {other.sentence!r} of'
            f" {other.video!r} among them: give it to all, or to none"
        )
    if not named and len(videos) < 3:
        raise SearchError(
            f"the captions are on {len(videos)} indexed videos: training, validation and test need"
            ' at least one each (or give each caption a "split")'
        )
    order = np.random.default_rng(seed).permutation(len(videos))
    train, val = (max(1, round(share * len(videos))) for share in SHARES)
    train = min(train, len(videos) - val - 1)
    drawn = {
        videos[row]: SPLITS[0 if rank < train else 1 if rank < train + val else 2]
        for rank, row in enumerate(order)
    }
    splits: dict[str, dict[str, tuple[source.Caption, ...]]] = {split: {} for split in SPLITS}
    for count, caption in enumerate(captions):
        own = splits[caption.split or drawn[caption.video]]
        timed = source.Caption(f"{count}", caption.sentence, caption.start, caption.end)
        own[caption.video] = (*own.get(caption.video, ()), timed)
    for split, of in splits.items():
        if not of:
            raise SearchError(f'no caption on an indexed video has the "split" {split!r}')
    return splits


def tokens(
    encoder: Any, sentences: dict[str, str], progress: Callable[[int], object] = lambda count: None
) -> Iterator[tuple[str, np.ndarray]]:
    """The features of the tokens of sentences, with their names; tells how many are done."""
    names = list(sentences)
    for start in range(0, len(names), _SENTENCES_AT_ONCE):
        some = names[start : start + _SENTENCES_AT_ONCE]
        yield from zip(some, encoder.tokens([sentences[name] for name in some]), strict=True)
        progress(len(some))


# Simulated archives


WIDTH, FRAMES, SENTENCES = 128, 120, 2
"""Numbers of a vector, frames of a video, and sentences about it, on different scenes."""


class Regime(NamedTuple):
    """What tells archives apart; see the module."""

    shortest: int  # frames of a scene
    longest: int
    noise: float
    topic: float = 0.5
    asked: float = 0.0
    doubt: float = 3.0


REGIMES = {
    "scenes of 5 to 15 frames": Regime(5, 15, 1.5),
    "long noisy scenes": Regime(20, 40, 4.0),
    "topic in frames and sentences": Regime(5, 15, 1.5, topic=1.0, asked=1.0),
    "short scenes": Regime(1, 3, 1.5),
}


class _Drawn:
    """An archive and its sentences; stands for an encoder whose sentences are their numbers."""

    name = preprocessing = "simulated"
    fingerprint, width = "0" * 64, WIDTH

    def __init__(self, regime: Regime, videos: int, seed: int) -> None:
        self._regime, self._random = regime, np.random.default_rng(seed)
        self._common = self._normal()
        self.videos, queries = [], []
        for _ in range(videos):
            frames, asked = self._video()
            self.videos.append(frames)
            queries += asked
        self.queries = np.stack(queries)

    def sentences(self, texts: list[str]) -> Float[np.ndarray, "Q d"]:
        """Those of no video, for NNN's bank."""
        return np.stack([self._sentence(self._normal(), self._normal()) for _ in texts])

    def _normal(self, *count: int) -> np.ndarray:
        return self._random.standard_normal((*count, WIDTH)) / np.sqrt(WIDTH)

    def _video(self) -> tuple[Float[np.ndarray, "F d"], list[np.ndarray]]:
        own, random, frames = self._regime, self._random, np.empty((0, WIDTH))
        topic, scenes = self._normal(), []
        base = (1 + random.standard_normal() / 2) * self._common + own.topic * topic
        while len(frames) < FRAMES:
            length = int(random.integers(own.shortest, own.longest + 1))
            scenes.append(self._normal())
            scene = base + scenes[-1] + own.noise * self._normal(length)
            frames = np.concatenate([frames, scene])
        # Of a scene that the end cuts short, nobody asks.
        chosen = random.choice(len(scenes) - 1, SENTENCES, replace=False)
        asked = [self._sentence(topic, scenes[i]) for i in chosen]
        return unit(frames[:FRAMES]), asked

    def _sentence(self, topic: np.ndarray, scene: np.ndarray) -> np.ndarray:
        whole = self._common + self._regime.asked * topic + scene
        return unit(whole + self._regime.doubt * self._normal()).astype(np.float32)


def recalls(regime: Regime, videos: int, seed: int) -> dict[str, dict[str, float]]:
    """R@1, R@5, R@10, R@100 and SumR of each ranker, in percent."""
    from hlformer_jax.retrieval import ranking

    drawn, times = _Drawn(regime, videos, seed), np.arange(float(FRAMES))
    own, table = np.arange(videos, dtype=np.int32).repeat(SENTENCES), {}
    with tempfile.TemporaryDirectory(prefix="regime-") as folder:
        index = Index.create(Path(folder, "index"), Path(folder), drawn)
        contents = [hashlib.sha256(b"%d" % video).hexdigest() for video in range(videos)]
        with index.writing():
            for content, vectors in zip(contents, drawn.videos, strict=True):
                kept = vectors.astype(np.float16)
                arrays = VideoArrays(times, kept, *segments(kept, times), np.asarray(float(FRAMES)))
                index.keep(content, arrays, {content: Stamp(0, 1, 1)})
        records = [index.manifest.videos[content] for content in contents]
        for name in rankers.ROWS:
            ranker = Untrained(name, index, records, drawn)
            scores = np.stack([ranker.scores(query) for query in drawn.queries])
            table[name] = ranking.metrics(np.asarray(ranking.ranks(scores, own)))
    return table
