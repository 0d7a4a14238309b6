"""Runs to draw, the videos and captions of their splits, and figures of them.

    frames     UMAP of one video's frames, coloured by the annotated moment that contains them
               (HLFormer, Figure 4)
    queries    t-SNE of the captions and clips of the two videos nearest in meaning
               (GMMFormer v2, appendix C, Figure 6)
    retrieved  the first results of some captions (GMMFormer v2, appendix E, Figure 9)
    leaves     number of action trees by their number of leaves (HOVER, Figure 1b)

A run is a `Subject`. Its `RunEncoder` returns the encoded clips and frames of the model's branches.
"""

import contextlib
import dataclasses
import functools
import itertools
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from hlformer_jax import models
from hlformer_jax.config import MODEL_TITLES, describe_data
from hlformer_jax.data.split import Split
from hlformer_jax.data.transforms import pad, unit
from hlformer_jax.errors import UserError
from hlformer_jax.figures import drawing
from hlformer_jax.figures.drawing import COLOURS, Columns, Drawing, Figure
from hlformer_jax.lazy import optional
from hlformer_jax.models.two_branch import TwoBranch
from hlformer_jax.retrieval import hierarchy, ranking
from hlformer_jax.text import suggestion
from hlformer_jax.training import run_directory
from hlformer_jax.training.loaded_run import LoadedRun
from hlformer_jax.typing import Captions, Videos

CAPTIONS_AT_ONCE = 256
"""Number of captions that are encoded together."""

MIN_FRAMES = 6
"""Smallest number of frames of a video in the figure `frames`."""

MAX_MOMENTS = len(drawing.COLOURS)
"""Largest number of coloured moments in the figure `frames`."""

EXAMPLES, RESULTS = 4, 3
"""Number of captions in the figure `retrieved`, and of results for each."""


class NotApplicable(UserError, ValueError):
    """A figure does not apply to a run; the message gives the reason."""


class Options(NamedTuple):
    """Options of a figure.

    Attributes:
      videos: ids of the videos to show; empty lets the figure choose.
      split: split of the videos: "train", "val" or "test".
      seed: seed of samples and projections.
    """

    videos: tuple[str, ...] = ()
    split: str = "test"
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Subject:
    """A run to draw.

    Attributes:
      label: name of the model, with the directory if several runs have the same model.
      run: the run.
    """

    label: str
    run: LoadedRun

    @functools.cached_property
    def encoder(self) -> "RunEncoder":
        """The encoder of videos and captions.

        Raises:
          NotApplicable: for HOVER, which does not encode videos and captions.
        """
        if self.run.config.model.name == "hover":
            raise NotApplicable(
                f"{self.label} embeds nodes of action trees, not videos and captions"
            )
        return RunEncoder(self.run)

    def split(self, options: Options) -> Any:
        """Return the split that the options select."""
        return getattr(self.run.family.data, options.split)


def subjects(runs: Sequence[LoadedRun]) -> list[Subject]:
    """Return the runs with their labels, which differ unless a run is given twice."""
    names = [MODEL_TITLES[run.config.model.name] for run in runs]
    places = [run.directory.resolve().parts for run in runs]
    labels = []
    for name, place in zip(names, places, strict=True):
        namesakes = {x for label, x in zip(names, places, strict=True) if label == name}
        # The innermost folders, as many as distinguish the run from all other runs of the model.
        depth = next(
            depth
            for depth in range(1, len(place) + 1)
            if all(x == place or x[-depth:] != place[-depth:] for x in namesakes)
        )
        alone = names.count(name) == 1
        labels.append(name if alone else f"{name} ({'/'.join(place[-depth:])})")
    return [Subject(label, run) for label, run in zip(labels, runs, strict=True)]


def data_lines(subjects: Sequence[Subject]) -> list[str]:
    """Return a line for each data set of the runs; with several, the line names its runs.

    If runs that name the same data were trained on different files or lists of training trees, or
    measured by different times of moments, their lines have the first digits of the recorded
    fingerprints.
    """
    inputs = [run_directory.recorded_inputs(subject.run.directory) for subject in subjects]
    names = [repr(describe_data(subject.run.config)) for subject in subjects]
    lines: dict[str, list[str]] = {}
    for subject, name, recorded in zip(subjects, names, inputs, strict=True):
        of_same_data = [x for x, data in zip(inputs, names, strict=True) if data == name]
        line = drawing.data_line(subject.run.config)
        kinds = "files", "times of moments", "training trees"
        for what, fingerprint, fingerprints in zip(
            kinds, recorded, zip(*of_same_data, strict=True), strict=True
        ):
            if fingerprint and len({x for x in fingerprints if x}) > 1:
                line += f"; {what} {fingerprint[:8]}"
        labels = lines.setdefault(line, [])
        labels += [subject.label] if subject.label not in labels else []
    if len(lines) == 1:
        return list(lines)
    return [f"{', '.join(labels)}: {line}" for line, labels in lines.items()]


def applicable(
    subjects: Sequence[Subject], measure: Callable[[Subject], Any]
) -> tuple[list[tuple[Subject, Any]], str]:
    """Measure the runs to which a figure applies.

    Args:
      subjects: the runs.
      measure: returns the data of a figure for a run, or raises `NotApplicable`.

    Returns:
      The runs to which the figure applies, with their data; and a sentence about the others, or "".

    Raises:
      NotApplicable: if the figure applies to no run.
    """
    measured, reasons = [], []
    for subject in subjects:
        try:
            measured.append((subject, measure(subject)))
        except NotApplicable as reason:
            reasons.append(str(reason))
    left_out = "; ".join(dict.fromkeys(reasons))
    if not measured:
        raise NotApplicable(left_out)
    return measured, f" Left out: {left_out}." if reasons else ""


def on_one_split(subjects: Sequence[Subject], options: Options) -> tuple[list[Subject], str]:
    """Return the runs whose models encode videos and captions, and a sentence on the others.

    Raises:
      NotApplicable: if there is no such run, or if the runs have different videos in the split.
    """
    measured, left_out = applicable(subjects, lambda subject: subject.encoder)
    encoding = [subject for subject, _ in measured]
    ids = [tuple(subject.split(options).video_ids) for subject in encoding]
    for subject, video_ids in zip(encoding, ids, strict=True):
        if video_ids != ids[0]:
            raise NotApplicable(
                f"{subject.run.directory} was trained on another data set than"
                f" {encoding[0].run.directory}: draw them separately"
            )
    return encoding, left_out


class EncodedVideos(NamedTuple):
    """Encoded videos of a split.

    Attributes:
      indices: indices of the videos in the split.
      clips: float32 vectors of the clips; None for a model that reads no clips (DL-DKD) or has no
        clip branch.
      frames: float32 vectors of the frames; None for a model without a frame branch or with one
        vector per video.
      num_frames: number of real frames of each video.
      intermediates: values that the model's modules recorded by `Module.sow`, for the padded batch;
        the videos come first.
    """

    indices: Int[np.ndarray, " V"]
    clips: Float[np.ndarray, "V C H"] | None
    frames: Float[np.ndarray, "V F H"] | None
    num_frames: Int[np.ndarray, " V"]
    intermediates: Any = None


class RunEncoder:
    """The model of a run, and compiled programs that encode with it."""

    def __init__(self, run: LoadedRun) -> None:
        self._run = run
        model = run.family.model
        self._video_level = run.config.model.video_level
        self._reads_clips = not model.module.query_per_branch

        @jax.jit
        def encode_positions(params: Any, videos: Videos) -> Any:
            inputs, mutable = (videos, model.hyperparameters), ["intermediates"]
            return model.apply(params, *inputs, method=TwoBranch.encode_video, mutable=mutable)

        self._encode_positions = encode_positions
        self._encode_captions = jax.jit(functools.partial(models.encode_query, model))
        self._encode_ranked = jax.jit(functools.partial(models.encode_video, model))

    def videos(
        self, split: Split, indices: Sequence[int] | np.ndarray, params: Any = None
    ) -> EncodedVideos:
        """Encode videos of a split; like `batches`, joined and without intermediates."""
        parts: Any = zip(
            *(batch[:4] for batch in self.batches(split, indices, params)), strict=True
        )
        arrays: Any = (None if part[0] is None else np.concatenate(part) for part in parts)
        return EncodedVideos(*arrays)

    def batches(
        self, split: Split, indices: Sequence[int] | np.ndarray, params: Any = None
    ) -> Iterator[EncodedVideos]:
        """Encode videos of a split, batch by batch.

        Args:
          split: the split.
          indices: indices of the videos.
          params: parameters of the model; None for the parameters of the best epoch.
        """
        params = self._run.params if params is None else params
        size = min(self._run.config.eval.video_batch, len(indices))
        for start in range(0, len(indices), size):
            batch_indices = np.asarray(indices[start : start + size])
            batch = collate_videos(split, batch_indices, size)
            (clips, frames), noted = self._encode_positions(params, batch)
            count = len(batch_indices)
            clips, frames = (
                None if x is None else np.asarray(x, np.float32)[:count] for x in (clips, frames)
            )
            yield EncodedVideos(
                batch_indices,
                clips if self._reads_clips else None,
                None if self._video_level else frames,
                split.frames_per_video[batch_indices],
                jax.device_get(noted.get("intermediates", {})),
            )

    def ranked(self, split: Split, index: int) -> Any:
        """Encode one video for the ranking score: a `VideoEncoding`, or the model's own type."""
        return self._encode_ranked(self._run.params, collate_videos(split, [index], 1))

    def captions(
        self, split: Split, indices: Sequence[int] | np.ndarray, params: Any = None
    ) -> list[Float[np.ndarray, "captions H"]]:
        """Return float32 embeddings of the captions of each video; arguments as for `batches`."""
        params = self._run.params if params is None else params
        words = [list(split[index].words) for index in indices]
        sentences = [sentence for captions in words for sentence in captions]
        size = min(CAPTIONS_AT_ONCE, len(sentences))
        encodings = []
        for start in range(0, len(sentences), size):
            batch_words = sentences[start : start + size]
            encoded = self._encode_captions(params, collate_captions(split, batch_words, size))
            encodings.append(np.asarray(encoded, np.float32)[: len(batch_words)])
        ends = np.cumsum(list(map(len, words)))[:-1]
        return np.split(np.concatenate(encodings), ends)


def collate_videos(split: Split, indices: Sequence[int] | np.ndarray, size: int) -> Videos:
    """Return a batch of videos for a model.

    Args:
      split: the split.
      indices: indices of the videos in the split.
      size: number of videos of the batch, padded with zeros.
    """
    examples, width = [split[index] for index in indices], split.widths[0]
    clips, _ = pad(
        [example.clips for example in examples], (size, split.max_clips, width), split.dtype
    )
    rows, shape = [example.frames for example in examples], (size, split.max_frames, width)
    frames, mask = pad(rows, shape, split.dtype)
    return Videos(clips, frames, mask, mask[:, 0])


def collate_captions(split: Split, words: Sequence[np.ndarray], size: int) -> Captions:
    """Return a batch of captions for a model.

    Args:
      split: the split, for the sizes.
      words: features of the words of each caption.
      size: number of captions of the batch, padded with zeros.
    """
    padded, mask = pad(words, (size, split.max_words, split.widths[1]), split.dtype)
    return Captions(padded, mask, np.zeros(size, np.int32), mask[:, 0])


def spans_by_video(split: Any) -> list[list[Any]]:
    """Return the annotated moments (`Span` or None) of the captions of each video.

    Raises:
      NotApplicable: if the split has no times of moments.
    """
    if not split.spans:
        raise NotApplicable("no times of moments: give `moments`=FILE (see docs/data.md)")
    spans = iter(split.caption_spans())
    return [list(itertools.islice(spans, count)) for count in split.captions_per_video.tolist()]


def select_disjoint(spans: Sequence[Any]) -> list[int]:
    """Return a largest set of captions whose moments (`Span` or None) do not overlap, by time.

    Among overlapping moments, the one that ends first is selected.
    """
    timed = [k for k, span in enumerate(spans) if span is not None and span.end > span.start]
    selected: list[int] = []
    for k in sorted(timed, key=lambda k: (spans[k].end, spans[k].start)):
        if not selected or spans[k].start >= spans[selected[-1]].end:
            selected.append(k)
    return selected


def most_apart(spans: Sequence[Sequence[Any]], count: int) -> list[int]:
    """Return at most `count` videos with most captions whose moments do not overlap."""
    sizes = [len(select_disjoint(moments)) for moments in spans]
    order = sorted(range(len(spans)), key=lambda video: -sizes[video])
    return [video for video in order[:count] if sizes[video]]


def select_videos(subject: Subject, options: Options, count: int) -> list[int]:
    """Return the requested videos, or `count` videos with most disjoint moments.

    If the split has no times of moments, the videos with most captions are returned.

    Raises:
      NotApplicable: if the split does not contain a requested video.
    """
    split = subject.split(options)
    if options.videos:
        place = {video: index for index, video in enumerate(split.video_ids)}
        for video in options.videos:
            if video not in place:
                raise NotApplicable(
                    f"`video`={video}: the split {options.split} has no such video"
                    f"{suggestion(video, place)}"
                )
        return [place[video] for video in options.videos]
    if not split.spans:
        order = np.argsort(-split.captions_per_video, kind="stable")
        return [int(index) for index in order[:count]]
    return most_apart(spans_by_video(split), count)


def frames(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw frames in the plane, by UMAP of their cosine distance; a row for each video.

    Among overlapping moments, the one that ends first is coloured; other frames are grey. The
    silhouette in a title is computed for the coloured frames in the model's space, not in the
    plane.
    """
    subjects, left_out = on_one_split(subjects, options)
    split = subjects[0].split(options)
    spans = spans_by_video(split)
    videos = _long_videos(subjects[0], options)
    measured, without = applicable(subjects, lambda subject: _unit_frames(subject, options, videos))
    table = Columns("run", "video", "frame", "moment", "x", "y")
    size = (3.1 * len(measured) + 2.9, 3.1 * len(videos) + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(videos), len(measured), squeeze=False)
    for column, (subject, encoded) in enumerate(measured):
        for row, (video, points) in enumerate(zip(videos, encoded, strict=True)):
            axes = grid[row, column]
            shown = select_disjoint(spans[video])[:MAX_MOMENTS]
            moment = moment_of_frames(spans[video], shown, len(points))
            plane = umap(points, options.seed)
            axes.plot(*plane[moment < 0].T, ".", color="#B8B8B8", markersize=5, label="none")
            for place, caption in enumerate(shown):
                curve, span = plane[moment == place].T, spans[video][caption]
                if curve.size:  # empty if a moment lies between the middles of two frames
                    marker, colour = drawing.MARKERS[place], drawing.COLOURS[place]
                    label = f"{span.start:.1f} to {span.end:.1f} s"
                    axes.plot(*curve, marker, linestyle="", color=colour, label=label)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.margins(0.06)
            axes.set_title(subject.label + _silhouette(points, moment), loc="left")
            table.add(
                subject.label, split.video_ids[video], np.arange(len(points)),
                [None if k < 0 else shown[k] for k in moment], *plane.T,
            )  # fmt: skip
    for axes in grid[-1]:
        axes.set_xlabel("UMAP, first coordinate")
    for row, video in enumerate(videos):
        grid[row, 0].set_ylabel(f"{split.video_ids[video]}\nUMAP, second coordinate")
        grid[row, -1].legend(loc="center left", bbox_to_anchor=(1, 0.5), title="moment")
    shows = (
        "The encoded frames of one video, projected to the plane by UMAP, one point each."
        " Frames of one annotated moment share a colour; frames outside all moments are"
        " grey. The silhouette measures how well the moments are separated in the model's"
        " own space (1: perfectly; 0: not at all)."
    )
    return Drawing(figure, table.columns, shows + left_out + without)


def _long_videos(subject: Subject, options: Options) -> list[int]:
    """Return the requested videos, or the two with most disjoint moments.

    Only videos with at least `MIN_FRAMES` frames are returned.
    """
    enough = subject.split(options).frames_per_video >= MIN_FRAMES
    if options.videos:
        videos = select_videos(subject, options, 2)
    else:
        spans = spans_by_video(subject.split(options))
        videos = most_apart([x if enough[k] else [] for k, x in enumerate(spans)], 2)
    videos = [video for video in videos if enough[video]]
    if not videos:
        which = f"of the split {options.split} with times"
        which = "that was asked for" if options.videos else which
        raise NotApplicable(f"no video {which} has {MIN_FRAMES} frames")
    return videos


def _unit_frames(subject: Subject, options: Options, videos: Sequence[int]) -> list[np.ndarray]:
    encoded = subject.encoder.videos(subject.split(options), videos)
    if encoded.frames is None:
        raise NotApplicable(f"{subject.label} does not encode single frames")
    pairs = zip(encoded.frames, encoded.num_frames, strict=True)
    return [unit(frames[: int(count)]) for frames, count in pairs]


def _silhouette(points: np.ndarray, moment: np.ndarray) -> str:
    """Return the silhouette of moments, for a title; "" if they cannot be compared."""
    coloured = moment >= 0
    if not 1 < len(set(moment[coloured])) < coloured.sum():
        return ""
    return f", silhouette {silhouette(points[coloured], moment[coloured]):.2f}"


def moment_of_frames(
    spans: Sequence[Any], shown: Sequence[int], num_frames: int
) -> Int[np.ndarray, " F"]:
    """Return the moment of each frame: the index in `shown` of its caption, or -1.

    A frame belongs to a moment that contains the middle of its time. All frames have the same
    share of the video's duration.

    Args:
      spans: annotated moments of the captions of a video.
      shown: indices of captions whose moments do not overlap.
      num_frames: number F of frames.
    """
    moments = np.full(num_frames, -1)
    for place, caption in enumerate(shown):
        span = spans[caption]
        middle = (np.arange(num_frames) + 0.5) / num_frames * span.duration
        moments[(middle >= span.start) & (middle < span.end)] = place
    return moments


def queries(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw captions and clips of two videos, by t-SNE; a line joins a caption and its best clip.

    By default these are the two videos whose means of unit caption embeddings are nearest to each
    other in the first run. All runs show the same videos.
    """
    subjects, left_out = on_one_split(subjects, options)
    split = subjects[0].split(options)
    pair = _pair(subjects[0], options)
    encoded, without = applicable(subjects, lambda subject: _clips(subject, options, pair))
    table = Columns("run", "video", "kind", "number", "x", "y", "matched clip")
    figure = Figure(figsize=(4.1 * len(encoded) + 0.6, 4.4), layout="constrained")
    panels = figure.subplots(1, len(encoded), squeeze=False)[0]
    for axes, (subject, clips) in zip(panels, encoded, strict=True):
        captions = subject.encoder.captions(subject.split(options), pair)
        rows = [*clips, *captions]
        plane = t_sne(unit(np.concatenate(rows)), options.seed)
        parts = np.split(plane, np.cumsum(list(map(len, rows)))[:-1])
        for k, index in enumerate(pair):
            at, texts = parts[k], parts[2 + k]
            matched = matches(captions[k], clips[k])
            colour, video = drawing.COLOURS[k], split.video_ids[index]
            for point, clip in zip(texts, matched, strict=True):
                axes.plot(*np.stack([point, at[clip]]).T, color=colour, linewidth=0.8, zorder=1)
            axes.plot(*at.T, "o", color=colour, markersize=4, alpha=0.6, label=f"clips of {video}")
            axes.plot(
                *texts.T, "*", color=colour, markersize=12, markeredgecolor="black",
                markeredgewidth=0.6, label=f"captions of {video}", zorder=3,
            )  # fmt: skip
            table.add(subject.label, video, "clip", np.arange(len(at)), *at.T, None)
            table.add(subject.label, video, "caption", np.arange(len(texts)), *texts.T, matched)
        axes.set_title(subject.label, loc="left")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_xlabel("t-SNE, first coordinate")
    panels[0].set_ylabel("t-SNE, second coordinate")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    shows = (
        "Captions (stars) and clips (dots) of two videos whose captions mean nearly the"
        " same, projected to the plane by t-SNE. A line joins each caption to the clip it"
        " matches. Where several lines end in one clip, different captions match the same"
        " moment."
    )
    return Drawing(figure, table.columns, shows + left_out + without)


def retrieved(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw the first results of some captions with scores; a row per caption, a column per run.

    The captions are the first caption of each requested video, or else drawn at random by the seed.
    """
    subjects, left_out = on_one_split(subjects, options)
    split = subjects[0].split(options)
    if options.videos:
        videos = select_videos(subjects[0], options, EXAMPLES)
        captions = np.searchsorted(split.caption_video, videos)
    else:
        drawn = np.random.default_rng(options.seed).permutation(len(split.caption_video))
        captions = np.sort(drawn[:EXAMPLES])
    table = Columns("run", "caption", "place", "video", "score", "own", "rank of its own")
    size = 3.7 * len(subjects) + 0.5, 0.5 + 1.15 * len(captions)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(captions), len(subjects), squeeze=False, sharex="col")
    ids, sentences = split.caption_ids(), split.caption_sentences()
    for column, subject in enumerate(subjects):
        scores, relevant = _scores(subject, options, captions), split.caption_video[captions]
        ranks = np.asarray(ranking.ranks(scores, relevant))
        for row, (caption, axes) in enumerate(zip(captions, grid[:, column], strict=True)):
            best = np.argsort(-scores[row], kind="stable")[:RESULTS]
            is_relevant = (best == relevant[row]).tolist()
            colours = [COLOURS[2] if right else COLOURS[1] for right in is_relevant]
            bars = axes.barh(np.arange(len(best)), scores[row, best], 0.7, color=colours)
            names = [split.video_ids[video] for video in best]
            marked = zip(names, is_relevant, strict=True)
            labels = [f"✓ {name}" if right else name for name, right in marked]
            axes.bar_label(bars, labels, padding=3)
            axes.set_yticks(np.arange(len(best)), [f"{k + 1}" for k in range(len(best))])
            axes.set_ylim(len(best) - 0.4, -0.6)
            axes.grid(visible=False, axis="y")
            label = f"{subject.label}: its video has rank {ranks[row]}"
            if column == 0:
                lines = textwrap.wrap(sentences[caption], 58 * len(subjects))
                label = "\n".join([*lines, label])
            axes.set_title(label, loc="left", fontsize=9)
            table.add(
                subject.label, ids[caption], np.arange(1, len(best) + 1), names, scores[row, best],
                is_relevant, int(ranks[row]),
            )  # fmt: skip
        ends = axes.get_xlim()
        axes.set_xlim(ends[0], ends[1] + 0.6 * (ends[1] - ends[0]))  # room for the names
        axes.set_xlabel("score")
    shows = (
        f"The first {RESULTS} videos of the {options.split} split for some captions, with"
        " their scores. The caption's own video is green with a tick, others are orange."
    )
    return Drawing(figure, table.columns, shows + left_out)


def _scores(
    subject: Subject, options: Options, captions: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "n V"]:
    """Return the ranking scores of some captions and all videos of the split."""
    evaluator, split = subject.run.family.evaluator, subject.split(options)
    with contextlib.closing(evaluator.feed(split)) as feed:
        stored, queries = evaluator.encode(subject.run.params, feed)
    captioned = queries._replace(vectors=queries.vectors[captions])
    scores: np.ndarray = evaluator.score(stored, captioned, split)
    return scores


def leaves(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draw the number of trees of each split by their leaves, a panel for each run."""
    del options
    measured, left_out = applicable(subjects, tree_data)
    table = Columns("run", "split", "leaves", "trees", "nodes")
    figure = Figure(figsize=(4.6 * len(measured) + 0.4, 3.4), layout="constrained")
    panels = figure.subplots(1, len(measured), squeeze=False)[0]
    orders = np.arange(1, ranking.MAX_LEAVES + 1)
    for axes, (subject, data) in zip(panels, measured, strict=True):
        for k, name in enumerate(("train", "val", "test")):
            pool = getattr(data, name).pool
            groups = hierarchy.leaf_groups(pool)
            _, first = np.unique(pool.tree, return_index=True)
            trees, nodes = (
                np.bincount(x, minlength=len(orders) + 1)[1:] for x in (groups[first], groups)
            )
            bars = axes.bar(orders + 0.27 * (k - 1), trees, 0.25, color=COLOURS[k], label=name)
            axes.bar_label(bars, fontsize=6)
            table.add(subject.label, name, orders, trees, nodes)
        axes.set_xticks(orders, [*map(str, orders[:-1]), f"≥ {orders[-1]}"])
        axes.set_xlabel("leaves of a tree")
        axes.set_title(subject.label, loc="left")
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("trees")
    panels[-1].legend(title="split")
    shows = "Action trees of each split by the number of annotated moments that they consist of."
    return Drawing(figure, table.columns, shows + left_out)


def tree_data(subject: Subject) -> Any:
    """Return the splits of a run of HOVER.

    Raises:
      NotApplicable: for a run of another family.
    """
    if subject.run.config.model.name != "hover":
        raise NotApplicable(f"{subject.label} embeds videos and captions, not action trees")
    return subject.run.family.data


def _clips(subject: Subject, options: Options, pair: Sequence[int]) -> Float[np.ndarray, "2 C H"]:
    clips = subject.encoder.videos(subject.split(options), pair).clips
    if clips is None:
        raise NotApplicable(f"{subject.label} has no clips")
    return clips


def _pair(subject: Subject, options: Options) -> list[int]:
    """Return the two videos of the figure `queries`."""
    if options.videos:
        pair = select_videos(subject, options, 2)
        if len(pair) != 2:
            raise NotApplicable(
                "the figure queries shows two videos: give `video` twice, or leave it out"
            )
        return pair
    split = subject.split(options)
    several = np.flatnonzero(split.captions_per_video >= 2)
    if len(several) < 2:
        raise NotApplicable(
            f"the split {options.split} does not have two videos with two captions each"
        )
    embedded = subject.encoder.captions(split, several)
    means = np.stack([unit(captions).mean(axis=0) for captions in embedded])
    return [int(several[k]) for k in nearest_pair(means)]


def nearest_pair(points: Float[np.ndarray, "V H"]) -> tuple[int, int]:
    """Return the indices of the two points that are nearest to each other."""
    neighbours_of = _extra("sklearn.neighbors").NearestNeighbors(n_neighbors=1).fit(points)
    distances, neighbours = neighbours_of.kneighbors()  # of each point without itself
    first = int(np.argmin(distances[:, 0]))
    return first, int(neighbours[first, 0])


def matches(
    queries: Float[np.ndarray, "captions H"], clips: Float[np.ndarray, "C H"]
) -> np.ndarray:
    """Return the clip that each caption matches, with the largest cosine."""
    return np.argmax(unit(queries) @ unit(clips).T, axis=-1)


def t_sne(points: Float[np.ndarray, "N H"], seed: int) -> Float[np.ndarray, "N 2"]:
    """Reduce at least four points to the plane, by t-SNE of their cosine distance.

    The result depends only on the points and the seed.
    """
    reduction = _extra("sklearn.manifold").TSNE(
        perplexity=min(30.0, (len(points) - 1) / 3), metric="cosine", init="pca",
        random_state=seed, n_jobs=1,
    )  # fmt: skip
    plane: np.ndarray = reduction.fit_transform(points.astype(np.float32))
    return plane


def umap(points: Float[np.ndarray, "N H"], seed: int) -> Float[np.ndarray, "N 2"]:
    """Reduce at least four points to the plane, by UMAP of their cosine distance.

    It uses at most 15 neighbours. The result depends only on the points and the seed.
    """
    reduction = _extra("umap").UMAP(
        n_neighbors=min(15, len(points) - 1), metric="cosine", init="pca", random_state=seed,
        n_jobs=1,
    )  # fmt: skip
    plane: np.ndarray = reduction.fit_transform(points.astype(np.float32))
    return plane


def silhouette(points: Float[np.ndarray, "N H"], groups: np.ndarray) -> float:
    """Return the mean silhouette of groups by the cosine distance; 1 for well separated groups."""
    return float(_extra("sklearn.metrics").silhouette_score(points, groups, metric="cosine"))


def _extra(module: str) -> Any:
    with warnings.catch_warnings(action="ignore"):  # umap-learn warns about other packages
        return optional(module, "figures")
