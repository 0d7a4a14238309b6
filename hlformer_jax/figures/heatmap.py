"""Captions over the time of their video: cosines with its clips and frames, and the moments.

The darker, the larger the cosine of the caption with what stands there in time; the colours of a
strip run from its least to its largest. The dashed box is the annotated moment, the solid one the
first moment that the model finds: `retrieval.localisation` of its ranking score over time.

References:
  GMMFormer v2, appendix D.1, Figure 7.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from hlformer_jax.data.transforms import unit
from hlformer_jax.figures import annotated
from hlformer_jax.figures.drawing import (
    Columns,
    Drawing,
    NotApplicable,
    Options,
    Subject,
    applicable,
)
from hlformer_jax.plots import style
from hlformer_jax.retrieval import localisation
from hlformer_jax.typing import Array

MOST_CAPTIONS = 5


def draw(subjects: Sequence[Subject], options: Options) -> Drawing:
    """Draws some captions of one video, for each a strip of clips and one of frames a run."""
    subjects, left_out = annotated.on_one_split(subjects, options)
    split = subjects[0].split(options)
    [video] = annotated.chosen(subjects[0], options, 1)[:1] or [0]
    spans = _spans(split, video)
    shown = _captions(spans)
    known = next((span for span in spans if span is not None), None)
    duration = 1.0 if known is None else known.duration
    measured, without = applicable(
        subjects, lambda subject: _measure(subject, subject.split(options), video, duration)
    )
    sentences, first = split.sentences(video), int(split.captions_per_video[:video].sum())
    ids = split.caption_ids()[first : first + len(sentences)]
    table = Columns("run", "video", "caption", "kind", "position", "start", "end", "cosine")
    figure = style.Figure(
        figsize=(8.2, 0.5 + len(shown) * (0.42 + 0.62 * len(measured))), layout="constrained"
    )
    rows = figure.subplots(len(shown) * len(measured), 1, squeeze=False, sharex=True)[:, 0]
    for row, axes in enumerate(rows):
        place, run = divmod(row, len(measured))
        caption, (subject, (strips, moments)) = shown[place], measured[run]
        line = {name: cosines[caption] for name, cosines in strips.items()}
        note = subject.label, split.video_ids[video], ids[caption]
        _draw_strips(axes, line, duration)
        _add_strips(table, note, line, duration)
        axes.text(
            1.01, 0.5, subject.label + _mark(axes, table, note, moments[caption], spans[caption]),
            transform=axes.transAxes, va="center",
        )  # fmt: skip
        if axes is not rows[-1]:
            axes.tick_params(axis="x", length=0)
        if run == 0:
            axes.set_title("\n".join(textwrap.wrap(sentences[caption], 100)), loc="left")
    rows[-1].set_xlabel("time (s)" if known is not None else "share of the video")
    handles = [
        style.Line2D([], [], color="black", linestyle="--", label="annotated moment"),
        style.Line2D([], [], color=style.COLOURS[1], label="first moment of the model"),
    ]
    figure.legend(handles=handles[known is None :], loc="outside lower center", ncols=2)
    shows = (
        f"Captions of the video {split.video_ids[video]} over its time: the darker, the larger the"
        " cosine with the clip or frame that stands there. IoU is the intersection over union of"
        " the first moment that the model finds and the annotated one."
    )
    return Drawing(figure, table.columns, shows + left_out + without)


def _measure(
    subject: Subject, split: Any, video: int, duration: float
) -> tuple[dict[str, np.ndarray], Sequence[Any]]:
    """The strips of a run by branch, and the first moments that it finds, for each caption."""
    [queries] = subject.encoder.captions(split, [video])
    strips = _strips(subject, split, video, queries)
    scores = scores_over_time(subject, split, video, queries)
    return strips, localisation.first_moments(scores, duration)


def _draw_strips(axes: Any, strips: Mapping[str, np.ndarray], duration: float) -> None:
    """Draws the strips of a caption, the first on top, with room for boxes around them."""
    names = list(strips)[::-1]
    for level, name in enumerate(names):
        axes.imshow(
            strips[name][None], aspect="auto", cmap=style.MAP, interpolation="nearest",
            extent=(0, duration, level + 0.06, level + 0.94),
        )  # fmt: skip
    axes.set_xlim(-0.006 * duration, 1.006 * duration)
    axes.set_ylim(-0.16, len(names) + 0.16)
    axes.set_yticks(np.arange(len(names)) + 0.5, names)
    axes.grid(visible=False)
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _add_strips(
    table: Columns, note: Sequence[str], strips: Mapping[str, np.ndarray], duration: float
) -> None:
    for name, line in strips.items():
        edges = np.arange(len(line) + 1) / len(line) * duration
        table.add(*note, name, np.arange(len(line)), edges[:-1], edges[1:], line)


def _mark(axes: Any, table: Columns, note: Sequence[str], moment: Any, span: Any) -> str:
    """Draws the boxes of a caption's two moments; what is said of how well they agree."""
    height = len(axes.get_yticks())
    _box(axes, moment.start, moment.end, height, "-", style.COLOURS[1])
    table.add(*note, "first moment", None, moment.start, moment.end, None)
    if span is None:
        return ""
    _box(axes, span.start, span.end, height, "--", "black")
    table.add(*note, "annotated moment", None, span.start, span.end, None)
    return f"\nIoU {localisation.intersection_over_union(moment, span.start, span.end):.2f}"


def scores_over_time(
    subject: Subject, split: Any, video: int, queries: Float[np.ndarray, "captions H"]
) -> Float[np.ndarray, "captions F"]:
    """The ranking score of encoded captions at each frame of their video, as evaluation has it.

    Encodings are float32 here, whatever `config.eval.corpus` is.
    """
    scorer = subject.run.family.evaluator.scorer
    cosines = _cosines(scorer, subject.encoder.ranked(split, video), unit(queries))
    frames = int(split.source_frames_per_video[video])
    host = {name: np.asarray(rows) for name, rows in cosines.items()}
    scores: np.ndarray = scorer.over_time(host, frames, split.max_clips, split.max_frames)
    return scores


@jax.jit
def _cosines(scorer: Any, video: Any, queries: Float[Array, "captions H"]) -> dict[str, Array]:
    """What each position of a video says for some captions, as its scorer compares them."""
    stored = jax.tree.map(
        lambda x: jnp.repeat(x, len(queries), axis=0), scorer.store(video, "float32")
    )
    cosines: dict[str, Array] = scorer.position_cosines(queries, stored)
    return cosines


def _strips(
    subject: Subject, split: Any, video: int, queries: Float[np.ndarray, "captions H"]
) -> dict[str, np.ndarray]:
    """Cosines of encoded captions with the clips and the real frames of their video, by branch."""
    encoded = subject.encoder.videos(split, [video])
    strips = {}
    if encoded.clips is not None:
        strips["clips"] = unit(queries) @ unit(encoded.clips[0]).T
    # MS-SL compares captions with what frames answer its proposals, and not with frames.
    guided = subject.run.family.model.module.guides_frames and "clips" in strips
    if encoded.frames is not None and not guided:
        frames = encoded.frames[0, : encoded.num_frames[0]]
        own = subject.run.family.evaluator.scorer.of_branches(queries)["frames"]
        strips["frames"] = unit(np.asarray(own)) @ unit(frames).T
    if not strips:
        raise NotApplicable(f"{subject.label} keeps one vector a video: there is nothing over time")
    return strips


def _spans(split: Any, video: int) -> list[Any]:
    """The moments of a video's captions, None where a time is not known."""
    if not split.spans:
        return [None] * int(split.captions_per_video[video])
    return annotated.spans_by_video(split)[video]


def _captions(spans: Sequence[Any]) -> list[int]:
    """The captions that are shown: those whose moments do not overlap, else the first ones."""
    return (annotated.apart(spans) or list(range(len(spans))))[:MOST_CAPTIONS]


def _box(axes: Any, start: float, end: float, height: float, line: str, colour: str) -> None:
    x = [start, end, end, start, start]
    y = [-0.08, -0.08, height + 0.08, height + 0.08, -0.08]
    axes.plot(x, y, linestyle=line, color=colour, linewidth=1.4, clip_on=False, zorder=4)
