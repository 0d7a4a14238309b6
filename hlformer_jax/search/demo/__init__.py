"""A demo that needs no video and no download: it makes its own, and an encoder that knows them.

    scenes    what happens: coloured shapes that move, grow, shrink and meet, and sentences
    render    frames and videos of scenes; single frames to train on

`make` renders short videos, writes what happens in them, trains a tiny SigLIP on frames of other
scenes and indexes the videos. The encoder is read like any other, and its meaning is real though
small: colours, shapes and what they do.

`render_training` renders ten times as many, to train models of the family on. The table in the
docstring of `hlformer_jax.search` was made by

    python -m hlformer_jax.search demo --out=DEMO --training
    python -m hlformer_jax.search features DEMO/training/videos --out=FEATURES
        --captions=DEMO/training/captions.jsonl --encoder=DEMO/encoder
    python -m hlformer_jax.main --config=configs/own.py:FEATURES,gmmformer_v2 --workdir=RUN
        --config.seed=0 --config.train.epochs=60 --config.loss.hard_negative_epoch=6
        --config.data.max_frames=40 --config.data.max_clips=20 --config.model.hidden_size=64
        --config.model.dropout=0.1 --config.model.input_dropout=0.1
    python -m hlformer_jax.search evaluate --index=DEMO/index --captions=DEMO/captions.jsonl
        --checkpoint=RUN

with seeds 0 to 2, the runs of both models given to one `evaluate`; for HLFormer also
`--config.model.lorentz_dim=31`. A run took 2 to 6 minutes on one slow core.
"""

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.errors import UserError
from hlformer_jax.search import encoding, manifest
from hlformer_jax.search.demo import render
from hlformer_jax.search.demo.scenes import Story, stories
from hlformer_jax.search.extract import index_folder
from hlformer_jax.search.index import Index

NOTE, MADE_BY = "demo.json", "hlformer_jax.search demo"
"""The file that makes a directory a demo's, and what stands in it."""

VIDEOS = 24
FRAMES, STEPS, RATE = 6000, 1200, 1.5e-3
"""Frames that the encoder is trained on, steps of its training, and its learning rate."""

TRAINING_GROUPS, GROUP = 5, 40
"""Groups of videos that `render_training` adds to train on, and the videos of a group."""

PIXELS, PATCH, TOKENS = 48, 12, 12
"""Of the encoder: small, since a shape fills half of a frame and a sentence has eight words."""

_DAY = 86_400
_FIRST_DAY = 1_767_600_000
"""Seconds since the epoch, in January 2026: the day of the first video."""


class DemoError(UserError, ValueError):
    """A directory in which no demo can be made."""


def make(
    out: str | Path, seed: int = 0, tell: Callable[[str], None] = print, videos: int = VIDEOS
) -> None:
    """Makes a demo: DIR/videos, DIR/captions.jsonl, DIR/encoder and DIR/index.

    A step whose result is there is not done again. Nothing is replaced or removed but the
    captions that this wrote itself.

    Args:
      out: the directory DIR: a new or an empty one, or that of a demo of the same seed.
      seed: equal seeds give equal videos.
      tell: called with a line on each step.
      videos: their number, at most 40.

    Raises:
      DemoError: when the directory holds something else, or a demo of another seed.
      UserError: when another step cannot be done.
      OSError: when a file cannot be written.
      ValueError: when the number of videos is not from 1 to 40.
    """
    out = Path(out)
    told = stories(seed, videos)
    _claim(out, {"seed": seed, "videos": videos})
    started = time.monotonic()
    _render(told, out / "videos")
    files.write_bytes(out / "captions.jsonl", captions(told).encode(), "own")
    length = sum(story.duration for story in told)
    taken = time.monotonic() - started
    tell(f"rendered {videos} videos, {length / 60:.0f} minutes in all, in {taken:.0f} s")
    if not (out / "encoder" / "config.json").exists():
        _train(out / "encoder", seed, tell)
    _index(out, tell)


def render_training(out: str | Path, seed: int = 0, tell: Callable[[str], None] = print) -> None:
    """Renders captioned videos to train a model on: DIR/training/{videos,captions.jsonl}.

    Five groups of 40 are for training, one for validation; the demo's own videos are for testing.
    Sentences are those that the demo has, of other videos.

    Args:
      out: the directory DIR of a demo.
      seed: the demo's.
      tell: called with a line at the end.

    Raises:
      OSError: when a file cannot be written.
    """
    out, started = Path(out), time.monotonic()
    folder = out / "training"
    own = int(_settings(out)["videos"])
    files.check_directory(folder / "videos")
    for story in stories(seed, own):
        copy = folder / "videos" / "demo" / story.name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(out / "videos" / story.name, copy)
    lines = captions(stories(seed, own), "demo/", split="test")
    seeds = {"val": seed + 200} | {f"train{i}": seed + 100 + i for i in range(TRAINING_GROUPS)}
    for group, drawn in seeds.items():
        told = stories(drawn, GROUP)
        _render(told, folder / "videos" / group)
        lines += captions(told, f"{group}/", split=group.rstrip("0123456789"))
    files.write_bytes(folder / "captions.jsonl", lines.encode(), "own")
    taken = time.monotonic() - started
    tell(f"rendered {GROUP * len(seeds)} videos to train a model on, in {taken:.0f} s")


def captions(told: Sequence[Story], folder: str = "", **more: str) -> str:
    """The sentences of all scenes: lines of JSON with video, sentence, start and end in seconds.

    Args:
      told: the videos.
      folder: stands before their names.
      more: further fields of every line.
    """
    lines = [
        {
            "video": f"{folder}{story.name}",
            "sentence": scene.sentence,
            "start": scene.start,
            "end": scene.end,
            **more,
        }
        for story in told
        for scene in story.scenes
        if scene.sentence is not None
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def _claim(out: Path, settings: dict[str, int]) -> None:
    """Notes in a directory that it is a demo's; refuses one that is not."""
    files.check_directory(out)
    note = out / NOTE
    if not out.exists() or not any(out.iterdir()):
        files.write_json(note, {"made_by": MADE_BY, **settings})
        return
    before = _settings(out)
    if before != settings:
        raise DemoError(
            f"{str(out)!r} holds a demo of --seed={before['seed']} and {before['videos']} videos:"
            " give --out another directory"
        )
    for folder in (out / "videos", out / "training", out / "encoder", out / "index"):
        files.check_directory(folder)


def _settings(out: Path) -> dict[str, int]:
    """What a demo is made of.

    Raises:
      DemoError: when the directory has no note that it is a demo's.
    """
    try:
        note = files.parse_json((out / NOTE).read_bytes())
        if note["made_by"] == MADE_BY:
            return {name: int(note[name]) for name in ("seed", "videos")}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise DemoError(f"{str(out)!r} holds other things: give --out a new directory")


def _render(told: Sequence[Story], folder: Path) -> None:
    """Renders the videos that are missing, in processes, one for each core."""
    todo = [story for story in told if not (folder / story.name).exists()]
    if not todo:
        return
    workers = min(len(os.sched_getaffinity(0)), len(todo))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        for _ in pool.map(render.write, todo, [folder / story.name for story in todo]):
            pass
    for number, story in enumerate(told):
        # A video a day, so that there is something to filter by date.
        day = _FIRST_DAY + number * _DAY
        os.utime(folder / story.name, (day, day))


def _train(folder: Path, seed: int, tell: Callable[[str], None]) -> None:
    """Trains the encoder on scenes that no video shows, and saves it."""
    # Not by the processes that render: they need no JAX.
    from hlformer_jax import encoders
    from hlformer_jax.encoders import train

    started = time.monotonic()
    images, sentences = render.frames_for_training(seed, FRAMES, PIXELS)
    encoder = train.train(
        images,
        sentences,
        size=train.Size(patch=PATCH, tokens=TOKENS),
        steps=STEPS,
        learning_rate=RATE,
        seed=seed,
        name="demo",
        tell=tell,
    )
    encoders.save(encoder, folder)
    tell(f"trained an encoder on {FRAMES} frames in {time.monotonic() - started:.0f} s")


def _index(out: Path, tell: Callable[[str], None]) -> None:
    """Brings DIR/index up to date."""
    encoder, places = encoding.load(out / "encoder")
    directory = out / "index"
    if (directory / manifest.NAME).exists():
        index = Index.open(directory)
    else:
        index = Index.create(directory, out / "videos", encoder, places=places)
    index_folder(index, encoder, tell=tell)
