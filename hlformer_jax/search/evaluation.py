"""Rankers on captions of one's own videos, of which the answer is known.

A file of captions has a JSON object a line:

    {"video": "a.mp4", "sentence": "a person opens the fridge", "start": 12.0, "end": 17.5}

`video` is a path relative to the indexed folder, or "" where no video has what the sentence says.
`start` and `end`, in seconds, may both be missing. `split`, where it is there, is train, val or
test. Further fields may be left out:

    "kind": "a name"      captions of a kind have a row of their own (`by_kind`)
    "also": ["b.mp4"]     further videos that are right, near-duplicates say
    "said": true          it is said, not seen
    "then": ["…"], "within": 10, "not": ["…"]    as `query` has them

`evaluate` asks every caption that is seen and of one sentence over all indexed videos: its rank is
that of the best of its videos, as `retrieval.ranking` counts, and first moments of its own video
are held against its times (`retrieval.localisation`). `by_kind` asks all of them as a person would.

How far scores tell what an archive has from what it lacks is known of the same captions: with
s(q, v) the scores of q, own(q) its videos, and c(q) the median of the archive's products with q, or
0 where the encoder has learned probabilities, so that its cosines have a level of their own,

    present   t(q) = max {s(q, v) : v in own(q)} − c(q)
    absent    u(q) = max {s(q, v) : v not in own(q)} − c(q)

as u is what q would have found without its videos. The AUC is the probability that t is above u,
of any two captions. A level for a rate α of false alarms is the least number above the
⌈(n + 1)(1 − α)⌉-th smallest u of n captions (split conformal prediction): of sentences on absent
things as like these as they are like each other, it calls α at most good, on average. What it does
to sentences that it was not made of is measured by leaving out each video's captions in turn.

`write_features` makes a data set of an index and captions, on which a
model of the family is trained (`configs/own.py`) that can rank the index afterwards.
"""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax import command, files
from hlformer_jax.data import extracted, source
from hlformer_jax.errors import DamagedError, SearchError, suggestion
from hlformer_jax.search.index.database import Entry, Index
from hlformer_jax.search.index.storage import Level
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals import rankers

SPLITS = ("train", "val", "test")


class Caption(NamedTuple):
    """A sentence on a video; see the module. `split` is "" where that is not said."""

    video: str
    sentence: str
    start: float | None = None
    end: float | None = None
    split: str = ""
    kind: str = ""
    also: tuple[str, ...] = ()
    said: bool = False
    then: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    within: float = 60.0

    @property
    def single(self) -> bool:
        """Whether it is one sentence on what is seen, in a video or in none."""
        return not (self.said or self.then or self.without)


def read(path: Path, split: str | None = None) -> list[Caption]:
    """The captions of a file in their order, at least one; of one split where that is named.

    Raises:
      SearchError: when a line is wrong; names it, and says what is.
      OSError: when the file cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise SearchError(f"{path} is no text in UTF-8") from None
    listed = [_caption(line, f"{path}:{i}") for i, line in enumerate(lines, 1) if line.strip()]
    listed = [caption for caption in listed if not split or caption.split == split]
    if not listed:
        raise SearchError(f"{path} has no caption" + (f" of {split}" if split else ""))
    return listed


def _caption(line: str, where: str) -> Caption:
    try:
        fields: Any = files.parse_json(line)
    except ValueError as error:
        raise SearchError(f"{where}: this is no JSON ({error})") from None
    if not isinstance(fields, dict):
        raise SearchError(f"{where}: a caption is a JSON object")
    for name in ("video", "sentence"):
        absent = name == "video" and fields.get(name) == ""
        if not isinstance(fields.get(name), str) or not (fields[name].strip() or absent):
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
    lists = {name: fields.get(name) or [] for name in ("also", "then", "not")}
    for name, texts in lists.items():
        if not isinstance(texts, list) or not all(isinstance(x, str) and x.strip() for x in texts):
            raise SearchError(f'{where}: "{name}" is {texts!r}: write a list of texts')
    kind, said, within = fields.get("kind", ""), fields.get("said", False), fields.get("within", 60)
    if not (isinstance(kind, str) and isinstance(said, bool) and _is_number(within) and within > 0):
        raise SearchError(
            f'{where}: "kind" is {kind!r}, "said" {said!r} and "within" {within!r}: a text, true or'
            " false, and seconds above 0"
        )
    if not fields["video"] and (lists["also"] or start is not None):
        raise SearchError(f'{where}: "video" is empty, of what no video has: leave out the rest')
    also, then, without = map(tuple, lists.values())
    return Caption(
        fields["video"], fields["sentence"], start, end, split, kind, also, said, then, without,
        float(within),
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    """Whether a field is a number of seconds, and not one that no float holds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**40


class Separation(NamedTuple):
    """What tells captions' own videos from the others, for each of n captions; see the module."""

    present: Float[np.ndarray, " n"]  # t
    absent: Float[np.ndarray, " n"]  # u
    videos: tuple[str, ...]  # of the captions
    lacking: dict[str, Float[np.ndarray, " m"]]  # u of m captions that no video has, by kind


def auc(present: Float[np.ndarray, " n"], absent: Float[np.ndarray, " m"]) -> float:
    """The probability, in percent, that one of n numbers is above one of m; ties count half."""
    ordered = np.sort(absent)
    left, right = (np.searchsorted(ordered, present, side) for side in ("left", "right"))
    return float(50 * (left + right).mean() / len(absent))


def evaluate(
    library: Library, captions: Sequence[Caption], progress: Callable[[], object] = lambda: None
) -> tuple[dict[str, float], Separation]:
    """Asks every caption that is single, one at least of a video; `progress` is called after each.

    Returns:
      R@1, R@5, R@10, R@100 and SumR of the videos, the metrics of localisation where a caption has
      times, and the AUC, all in percent; and what the last is made of. The AUC of a kind that no
      video has is that of what captions of videos find, anywhere. Where a caption is right for
      every video, what is absent is not known, and there is no AUC.

    Raises:
      SearchError: when a caption is of a video that is not indexed.
    """
    from hlformer_jax.retrieval import localisation, ranking

    entries, examine = library.examiner()
    columns = _columns(entries, captions)
    contents = np.asarray([entry.content for entry in entries])
    best, others, centres, scores, overlaps = [], [], [], [], []
    lacking: dict[str, list[float]] = {}
    for caption in (one for one in captions if one.single):
        every, centre, result = examine(caption.sentence, columns.get(caption.video, 0))
        if caption.video:
            own = contents[[columns[video] for video in (caption.video, *caption.also)]]
            other = ~np.isin(contents, own)  # a copy of the same bytes is as right
            scores.append(every)
            others.append(other)
            centres.append(centre)
            best.append(every[~other].max())
            if caption.start is not None and caption.end is not None:
                of_own = result.moments[0], caption.start, caption.end
                overlaps.append(localisation.intersection_over_union(*of_own))
        else:
            lacking.setdefault(caption.kind, []).append(float(every.max()) - centre)
        progress()
    every, other, own = np.stack(scores), np.stack(others), np.stack(best)
    metrics = ranking.metrics(np.asarray(ranking.rank_among(every, own[:, None], other)))
    metrics |= localisation.metrics(np.asarray(overlaps, np.float32))
    present = own - np.asarray(centres)
    absent = np.where(other, every, -np.inf).max(-1) - np.asarray(centres)
    videos = tuple(one.video for one in captions if one.single and one.video)
    of_kinds = {kind: np.asarray(found) for kind, found in lacking.items()}
    if np.isfinite(absent).all():
        metrics["AUC"] = auc(present, absent)
    anywhere = np.maximum(present, absent)
    metrics |= {f"AUC {kind}": auc(anywhere, found) for kind, found in of_kinds.items()}
    return metrics, Separation(present, absent, videos, of_kinds)


def _columns(entries: Sequence[Entry], captions: Sequence[Caption]) -> dict[str, int]:
    """The places of the videos that are ranked; refuses captions of others."""
    columns = {entry.video: i for i, entry in enumerate(entries)}
    for video in (video for one in captions for video in (one.video, *one.also) if video):
        if video not in columns:
            raise SearchError(
                f"the captions name {video!r}, which the index lacks"
                f"{suggestion(video, columns)}: index the folder of the captions' videos"
            )
    return columns


RATES = (0.05, 0.1, 0.2)
"""Rates of false alarms that are reported."""

_RESAMPLED, _INTERVAL = 1000, (0.025, 0.975)
"""How often the videos are drawn again, and the quantiles of that which make an interval."""


def level(absent: Float[np.ndarray, " n"], rate: float) -> float | None:
    """The level for a rate of false alarms, as the module says.

    None of too few captions, or where one is right for every video, so that its u is not finite.
    """
    place = math.ceil((len(absent) + 1) * (1 - rate) - 1e-9)
    if not 0 < place <= len(absent) or not np.isfinite(absent).all():
        return None
    return float(np.nextafter(np.sort(absent.astype(np.float64))[place - 1], np.inf))


def trade_off(apart: Separation, rate: float) -> dict[str, Any] | None:
    """What the level for a rate does to captions of videos that it was not made of.

    Returns:
      "level"; in percent "false alarms" among the n captions, and "kept", the share of them that is
      called good for its own video, both with the 2.5 and 97.5 % quantiles of drawing the videos
      again; and "absent", the false alarms of each kind that no video has, which had no part in the
      level. None where there is no level, or none without the captions of a video.
    """
    names, inverse = np.unique(apart.videos, return_inverse=True)
    folds = [inverse == i for i in range(len(names))]
    whole, *bounds = (level(apart.absent[~own], rate) for own in (inverse < 0, *folds))
    if whole is None or None in bounds:
        return None
    good = np.stack([apart.absent, apart.present], -1) >= np.asarray(bounds)[inverse, None]
    counts = np.stack([[own.sum(), *good[own].sum(0)] for own in folds])
    drawn = np.random.default_rng(0).integers(len(names), size=(_RESAMPLED, len(names)))
    share = lambda some: 100 * some[..., 1:].sum(-2) / some[..., :1].sum(-2)
    quantiles = np.quantile(share(counts[drawn]), _INTERVAL, axis=0)
    alarms, kept = np.concatenate([share(counts)[None], quantiles]).T.tolist()
    lacking = {kind: 100 * float((own >= whole).mean()) for kind, own in apart.lacking.items()}
    return {"level": whole, "false alarms": alarms, "kept": kept, "absent": lacking}


WAYS = {"sight": "visual", "words": "transcript", "both": None}
"""Names of the ways in which a caption is asked, and their `signals` of `Library.query`."""


def by_kind(
    library: Library, captions: Sequence[Caption], progress: Callable[[], object] = lambda: None
) -> dict[str, dict[str, dict[str, float]]]:
    """Asks every caption as `Library.query` does, by sight alone and where it can by words.

    By words alone, and by both, it is asked of an index with subtitles and as a single sentence.

    Returns:
      By kind, and by the way of asking (`WAYS`): "queries", how many; in percent "R@1" and "R@5",
      whether one of its videos is the first, or among the first five; "mIoU", of the times with the
      first moment of the first of its videos among them, 0 where none is; and "good", how many have
      a result that is called a good match: of what no video has, the false alarms, and there is
      nothing else of it.
    """
    from hlformer_jax.retrieval import localisation

    _columns(library.ranked(), captions)
    spoken = library.passage_count > 0
    kinds: dict[str, dict[str, list[dict[str, float]]]] = {}
    for caption in captions:
        alone = not (caption.then or caption.without)
        for way, signals in WAYS.items() if spoken and alone else [("sight", "visual")]:
            results = library.query(
                caption.sentence, k=5, moments=1, then=caption.then, without=caption.without,
                within=caption.within, signals=signals if alone else None,
            )  # fmt: skip
            row: dict[str, float] = {"queries": 1, "good": results.good}
            right = {caption.video, *caption.also}
            found = [i for i, one in enumerate(results) if right & {one.video, *one.copies}]
            if caption.video:
                row |= {"R@1": found[:1] == [0], "R@5": bool(found)}
            if caption.start is not None and caption.end is not None:
                times = caption.start, caption.end
                row["mIoU"] = bool(found) and localisation.intersection_over_union(
                    results[found[0]].moments[0], *times
                )
            kinds.setdefault(caption.kind, {}).setdefault(way, []).append(row)
        progress()
    return {kind: {way: _means(rows) for way, rows in of.items()} for kind, of in kinds.items()}


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means in percent, each of the rows that have the figure; the sum of "queries"."""
    names = dict.fromkeys(name for row in rows for name in row)
    of = {name: [float(row[name]) for row in rows if name in row] for name in names}
    means = {name: 100 * float(np.mean(values)) for name, values in of.items()}
    return means | {"queries": float(len(rows))}


def report(
    library: Library,
    done: Mapping[str, tuple[dict[str, float], Separation]],
    captions: Sequence[Caption],
    progress: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """All figures on captions, as `evaluate --json` writes them.

    `done` has what `evaluate` gives of each ranker, by its name; the library is asked by kind.
    """
    return {
        "captions": sum(one.single and bool(one.video) for one in captions),
        "videos": len(library.ranked()),
        "rankers": {name: metrics for name, (metrics, _) in done.items()},
        "levels": {
            name: {f"{rate}": trade_off(apart, rate) for rate in RATES}
            for name, (_, apart) in done.items()
        },
        "kinds": by_kind(library, captions, progress),
    }


def calibrate(index: Index, separations: Mapping[str, Separation], percent: float) -> None:
    """Keeps the levels for a rate of false alarms in an index, of its rankers without training.

    With a rate of 0 they are forgotten.

    Raises:
      SearchError: when the captions are too few for that rate, or another process writes.
    """
    frames, known = sum(one.frames for one in index.records().values()), {}
    for name in [name for name in rankers.LABELS if name in separations] if percent else ():
        absent = separations[name].absent
        if not np.isfinite(absent).all():
            raise SearchError("a caption is right for every video: what is absent is not known")
        above = level(absent, percent / 100)
        if above is None:
            raise SearchError(
                f"{len(absent)} captions do not tell what {percent:g} % are: give"
                f" {math.ceil(100 / percent) - 1} on what is seen, or a larger rate"
            )
        known[name] = Level(above, percent, len(absent), frames)
    if percent and not known:
        raise SearchError("no caption is one sentence on what is seen in a video")
    with index.writing():
        index.manifest.levels = index.manifest.levels | known if percent else {}


def print_report(figures: Mapping[str, Any]) -> None:
    """Prints the tables of a report."""
    from hlformer_jax.retrieval import ranking

    table = figures["rankers"]
    shown = next((name for name in table if name in rankers.LABELS), rankers.DEFAULT)
    if table:
        title = f"{figures['captions']} captions, {figures['videos']} videos; percent"
        ranking.print_table(title, dict(zip(told_apart(list(table)), table.values(), strict=True)))
    span = lambda share, low, high: f"{share:.1f} ({low:.0f} to {high:.0f})"
    levels = {rate: own for rate, own in figures["levels"].get(shown, {}).items() if own}
    lines = [
        [f"{100 * float(rate):g} % false alarms", f"{own['level']:.4f}",
         span(*own["false alarms"]), span(*own["kept"]),
         *(f"{share:.1f}" for share in own["absent"].values())]
        for rate, own in levels.items()
    ]  # fmt: skip
    if levels:
        absent = next(iter(levels.values()))["absent"]
        head = ["level for", "score", "false alarms", "kept", *absent]
        command.print_table(head, lines, f"good matches, {shown}; percent", width=200)
    columns = "R@1", "R@5", "mIoU", "good"
    lines = [
        [kind or "captions", way, f"{own['queries']:.0f}"]
        + [f"{own[one]:.1f}" if one in own else "" for one in columns]
        for kind, of in figures["kinds"].items()
        for way, own in of.items()
    ]
    head = ["kind", "by", "queries", *columns]
    command.print_table(head, lines, f"by kind, {shown}; percent", ["by"], 200)


def told_apart(names: Sequence[str]) -> list[str]:
    """Names of rankers for a table; runs by what tells them apart, below the folder they share."""
    runs = [os.path.abspath(name) for name in names if name not in rankers.LABELS]
    shared = os.path.commonpath([os.path.dirname(run) for run in runs]) if runs else ""
    return [name if name in rankers.LABELS else os.path.relpath(name, shared) for name in names]


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
    contents = {name: one.content for name, one in index.manifest.videos.items() if one.indexed}
    captions = [caption for caption in captions if caption.single and caption.video]
    asked = {caption.video for caption in captions}
    if missing := sorted(asked - contents.keys()):
        report(
            f"{len(missing)} of the captions' videos are not in the index and are left out,"
            f" first {missing[0]!r}"
        )
    try:
        index.check(contents[name] for name in sorted(asked & contents.keys()))
    except DamagedError as error:
        for line in error.contents.values():
            report(f"{line}; left out")
        contents = {name: one for name, one in contents.items() if one not in error.contents}
    kept = [caption for caption in captions if caption.video in contents]
    splits = divide(kept, seed)
    every = [one for of in splits.values() for own in of.values() for one in own]
    sentences = {one.caption_id: one.sentence for one in every}
    parents = extracted.parents_of(splits)
    for texts in parents.values():
        sentences |= texts
    videos = sorted({caption.video for caption in kept})
    facts = index.manifest.encoder
    slug = re.sub(r"[^0-9A-Za-z._-]+", "-", facts.name).strip(".-") or "encoder"
    about = {**dataclasses.asdict(facts), "fps": index.manifest.fps}
    vectors = ((video, index.read(contents[video]).vectors) for video in videos)
    words = tokens(encoder, sentences)
    name = f"{slug}-{facts.fingerprint[:12]}"
    extracted.write(out, name, about, splits, vectors, words, overwrite, parents)
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
