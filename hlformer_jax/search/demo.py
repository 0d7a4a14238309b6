"""A demo that needs no video and no download: it makes its own, and an encoder that knows them.

`make` renders short videos of coloured shapes that move, grow, shrink and meet, writes what happens
in them, trains a tiny SigLIP on frames of other scenes and indexes the videos. The encoder is read
like any other, and its meaning is real though small: colours, shapes and what they do.

A shape trails paler copies of itself where it was; one that grows holds smaller outlines of itself,
and one that shrinks has paler larger ones behind it. So a single frame tells what happens.
"""

import json
import math
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Literal, get_args

import av
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from hlformer_jax import command, files
from hlformer_jax.errors import UserError
from hlformer_jax.search import storage
from hlformer_jax.search.extract import index_folder
from hlformer_jax.search.index import Index, load_encoder

# Scenes: pure data, made from a seed

COLOURS = {
    "red": (230, 40, 40),
    "green": (40, 190, 70),
    "blue": (50, 90, 240),
    "yellow": (245, 220, 50),
    "purple": (160, 60, 200),
    "white": (245, 245, 245),
}

Shape = Literal["circle", "square", "triangle", "star"]
SHAPES: tuple[Shape, ...] = get_args(Shape)

Action = Literal["left", "right", "up", "down", "grows", "shrinks", "meets"]
ACTIONS: tuple[Action, ...] = get_args(Action)

SCENE_SECONDS = (3, 7)  # whole seconds, from and up to
VIDEO_SECONDS = (20, 40)
FOLDERS = ("morning", "noon", "evening")
_QUIET = 0.3  # probability that after a scene with a shape there is one without, and no sentence
_PAIRS = 120  # meetings among the events that the demo's videos draw from

_WORDS: dict[Action, tuple[str, ...]] = {
    "left": ("moves to the left", "moves left"),
    "right": ("moves to the right", "moves right"),
    "up": ("moves up", "rises"),
    "down": ("moves down", "falls"),
    "grows": ("grows", "gets bigger"),
    "shrinks": ("shrinks", "gets smaller"),
    "meets": ("meets", "touches"),
}
"""Ways to say each action; the captions have the first."""


@dataclass(frozen=True)
class Thing:
    """A coloured shape."""

    colour: str
    shape: Shape

    def __str__(self) -> str:
        """Returns its name with an article."""
        return f"a {self.colour} {self.shape}"


THINGS = tuple(Thing(colour, shape) for colour, shape in product(COLOURS, SHAPES))

Event = tuple[Action, tuple[Thing, ...]]
"""What happens, and to which things."""


@dataclass(frozen=True)
class Scene:
    """A few seconds of a video in which one thing happens, or nothing."""

    start: float
    end: float
    action: Action | None = None  # None: nothing happens, and no shape is there
    things: tuple[Thing, ...] = ()  # two that meet, else one
    lane: tuple[float, float] = (0.5, 0.5)  # where it is across its way; or, when it grows, where
    size: float = 0.24  # half of its width in a picture of height 1

    @property
    def sentence(self) -> str | None:
        """Returns what a caption says of it; None where nothing happens."""
        return None if self.action is None else sentences(self.action, self.things)[0]


@dataclass(frozen=True)
class Story:
    """A video that is to be rendered."""

    name: str  # path below the folder of videos
    scenes: tuple[Scene, ...]  # one after the other, without gaps
    seed: int  # of the background

    @property
    def duration(self) -> float:
        """Returns the length in seconds."""
        return self.scenes[-1].end


def sentences(action: Action, things: tuple[Thing, ...]) -> list[str]:
    """Every way to say what happens; captions have the first."""
    rest = "".join(f" {thing}" for thing in things[1:])
    return [f"{things[0]} {words}{rest}" for words in _WORDS[action]]


def stories(seed: int, count: int) -> list[Story]:
    """The demo's videos, at most 40, equal for equal seeds.

    No sentence is true of two scenes, but parts of every sentence are true of many: a search has to
    tell colour, shape and action together.
    """
    if not 1 <= count <= 40:
        raise ValueError(f"the demo has 1 to 40 videos, not {count}")
    rng = np.random.default_rng((seed, 0))
    events = _events(rng)
    drawn = []
    for number in range(count):
        length = int(rng.integers(VIDEO_SECONDS[0], VIDEO_SECONDS[1] + 1))
        scenes = tuple(_scenes(rng, events, length))
        folder = FOLDERS[number % len(FOLDERS)]
        drawn.append(Story(f"{folder}/{number + 1:02}.mp4", scenes, int(rng.integers(2**31))))
    return drawn


def training_moments(seed: int, count: int) -> list[tuple[Scene, str]]:
    """Scenes of all kinds, each with one way to say what happens; drawn apart from `stories`."""
    rng = np.random.default_rng((seed, 1))
    drawn = []
    for _ in range(count):
        action = ACTIONS[rng.integers(len(ACTIONS))]
        first, second = (THINGS[index] for index in rng.choice(len(THINGS), 2, replace=False))
        scene = _scene(rng, 0, 5, action, (first, second) if action == "meets" else (first,))
        ways = sentences(action, scene.things)
        drawn.append((scene, ways[rng.integers(len(ways))]))
    return drawn


def _events(rng: np.random.Generator) -> Iterator[Event]:
    """Things and what they do, in any order, none twice."""
    alone: list[Event] = [
        (action, (thing,)) for action in ACTIONS if action != "meets" for thing in THINGS
    ]
    pairs: list[Event] = [("meets", pair) for pair in combinations(THINGS, 2)]
    chosen = rng.choice(len(pairs), _PAIRS, replace=False)
    every = [*alone, *(pairs[index] for index in chosen)]
    for index in rng.permutation(len(every)):
        yield every[index]


def _scenes(rng: np.random.Generator, events: Iterator[Event], length: int) -> Iterator[Scene]:
    """Scenes that fill a video; the last takes what is left."""
    start, quiet = 0, True
    while start < length:
        end = start + int(rng.integers(SCENE_SECONDS[0], SCENE_SECONDS[1] + 1))
        end = length if length - end < SCENE_SECONDS[0] else end
        quiet = not quiet and rng.random() < _QUIET
        event = None if quiet else next(events, None)
        yield Scene(start, end) if event is None else _scene(rng, start, end, *event)
        start = end


def _scene(
    rng: np.random.Generator, start: float, end: float, action: Action, things: tuple[Thing, ...]
) -> Scene:
    lane = (float(rng.uniform(0.44, 0.56)), float(rng.uniform(0.44, 0.56)))
    return Scene(start, end, action, things, lane, float(rng.uniform(0.22, 0.26)))


# Drawing

WIDTH, HEIGHT, RATE = 192, 144, 12  # pixels of a frame, and frames a second
_FINER = 2  # shapes are drawn so many times as large and scaled down, for smooth edges
_ECHOES = 4
_ECHO_STEP = 0.1  # between two echoes of a shape that moves, in heights of the picture ...
_ECHO_SCALE = 0.14  # ... and in sizes of a shape that grows or shrinks
_TRAVEL = 0.2  # half of the way of a shape that moves, as a share of the picture
_DARKEST, _LIGHTEST = 25, 60  # of backgrounds, so that every shape stands out

Picture = UInt8[np.ndarray, "144 192 3"]


class Background:
    """A dull pattern that drifts, with noise: never the same in two videos."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        coarse = rng.uniform(_DARKEST, _LIGHTEST, (4, 8, 1)) + rng.uniform(-8, 8, (4, 8, 3))
        coarse = np.concatenate([coarse, coarse[:, :1]], axis=1)  # so that it drifts without a seam
        size = (2 * WIDTH, HEIGHT)
        image = Image.fromarray(coarse.clip(0, 255).astype(np.uint8)).resize(
            size, Image.Resampling.BICUBIC
        )
        self._pattern = np.asarray(image, np.int16)
        self._noise = rng.integers(-4, 5, (6, HEIGHT, WIDTH, 1), np.int16)
        self._speed = float(rng.uniform(-12, 12))

    def at(self, time: float) -> Picture:
        """The background at a second."""
        drifted = np.roll(self._pattern, round(self._speed * time), axis=1)[:, :WIDTH]
        noise = self._noise[round(time * RATE) % len(self._noise)]
        return (drifted + noise).clip(0, 255).astype(np.uint8)


def draw(scene: Scene, time: float, background: Picture) -> Picture:
    """The frame of a scene at a second of the video."""
    if scene.action is None:
        return background
    height, width = HEIGHT * _FINER, WIDTH * _FINER
    image = Image.fromarray(background.repeat(_FINER, 0).repeat(_FINER, 1))
    pencil = ImageDraw.Draw(image)
    behind = tuple(int(x) for x in background.mean((0, 1)))
    share = (time - scene.start) / (scene.end - scene.start)
    for index, thing in enumerate(scene.things):
        colour = COLOURS[thing.colour]
        x, y, size = _place(scene, index, share)
        way = _way(scene.action, index)
        left, top, radius = x * width, y * height, size * height
        if scene.action == "grows":
            pencil.polygon(outline(thing.shape, left, top, radius), fill=colour)
            for echo in range(1, _ECHOES + 1):
                smaller = outline(thing.shape, left, top, radius * (1 - _ECHO_SCALE * echo))
                pencil.polygon(smaller, outline=(0, 0, 0), width=_FINER)
            continue
        for echo in range(_ECHOES, -1, -1):
            paler = _mixed(colour, behind, 0 if echo == 0 else 0.35 + 0.12 * echo)
            step = -echo * _ECHO_STEP * height
            larger = 1 + _ECHO_SCALE * echo * (scene.action == "shrinks")
            place = (left + way[0] * step, top + way[1] * step)
            pencil.polygon(outline(thing.shape, *place, radius * larger), fill=paler)
    return np.asarray(image.reduce(_FINER))


def outline(shape: Shape, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    """Corners of a shape around a point, in pixels, y downwards; twice `radius` wide, about."""
    if shape == "circle":
        polar = [(0.95, 10.0 * k) for k in range(36)]
    elif shape == "square":
        polar = [(1.2, 45.0 + 90 * k) for k in range(4)]
    elif shape == "triangle":
        polar = [(1.2, 120.0 * k) for k in range(3)]
    else:
        polar = [(0.5 if k % 2 else 1.25, 36.0 * k) for k in range(10)]
    at = lambda length, angle: (x + length * math.sin(angle), y - length * math.cos(angle))
    return [at(radius * length, math.radians(angle)) for length, angle in polar]


def write_video(story: Story, path: Path) -> None:
    """Renders a video as H.264 in MP4, whole or not at all."""
    background = Background(story.seed)
    options = {"preset": "veryfast", "crf": "26", "threads": "1"}
    with (
        files.whole(path, "none") as draft,
        av.open(str(draft), "w", format="mp4") as container,
    ):
        stream = container.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.gop_size = 4 * RATE
        for scene in story.scenes:
            for number in range(round(scene.start * RATE), round(scene.end * RATE)):
                picture = draw(scene, number / RATE, background.at(number / RATE))
                frame = av.VideoFrame.from_ndarray(picture, "rgb24")
                frame.pts, frame.time_base = number, Fraction(1, RATE)
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def frames_for_training(
    seed: int, count: int, size: int = 64
) -> tuple[UInt8[np.ndarray, "count size size 3"], list[str]]:
    """Single frames of scenes that are in none of the demo's videos, and a sentence of each.

    The picture is squeezed into a square of `size` pixels, as SigLIP's preprocessing does; the
    sentences say what happens in all the ways that the demo knows.
    """
    rng = np.random.default_rng((seed, 2))
    images, said = np.empty((count, size, size, 3), np.uint8), []
    background = Background(int(rng.integers(2**31)))
    for index, (scene, sentence) in enumerate(training_moments(seed, count)):
        if index % 8 == 0:
            background = Background(int(rng.integers(2**31)))
        time = float(rng.uniform(scene.start, scene.end))
        picture = Image.fromarray(draw(scene, time, background.at(100 * time)))
        images[index] = np.asarray(picture.resize((size, size), Image.Resampling.BICUBIC))
        said.append(sentence)
    return images, said


def _place(scene: Scene, index: int, share: float) -> tuple[float, float, float]:
    """Where a shape is: x and y as shares of the picture, and its size."""
    x, y = scene.lane
    if scene.action == "meets":
        # They touch after two thirds, and stay.
        size = 0.8 * scene.size
        apart = 0.3 - min(share / 0.67, 1) * (0.3 - 0.95 * size * HEIGHT / WIDTH)
        return 0.5 + (apart if index else -apart), y, size
    if scene.action in ("grows", "shrinks"):
        grown = share if scene.action == "grows" else 1 - share
        return x, y, scene.size * (0.75 + 0.5 * grown)
    across, down = _way(scene.action, index)
    far = _TRAVEL * (2 * share - 1)
    return (0.5 + across * far if across else x), (0.5 + down * far if down else y), scene.size


def _way(action: Action | None, index: int) -> tuple[int, int]:
    """Which way a shape moves: to the right and down."""
    if action == "meets":
        return (-1 if index else 1), 0
    ways = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
    return ways.get(action or "", (0, 0))


def _mixed(colour: tuple[int, ...], other: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple(round((1 - share) * a + share * b) for a, b in zip(colour, other, strict=True))


# Making

NOTE, MADE_BY = "demo.json", "hlformer_jax.search demo"
"""The file that makes a directory a demo's, and what stands in it."""

VIDEOS = 24  # of the demo, at most 40
TRAINING_GROUPS, GROUP = 5, 40  # of videos that `render_training` adds, and videos of a group
FRAMES, STEPS, LEARNING_RATE = 6000, 1200, 1.5e-3  # of the encoder's training
PIXELS, PATCH, TOKENS = 48, 12, 12  # a shape fills half of a frame; a sentence has eight words
_DAY = 86_400
_FIRST_DAY = 1_767_600_000  # seconds since the epoch, in January 2026: the day of the first video


class DemoError(UserError, ValueError):
    """A directory in which no demo can be made."""


def make(
    out: str | Path, seed: int = 0, report: Callable[[str], None] = print, videos: int = VIDEOS
) -> None:
    """Makes a demo: DIR/videos, DIR/captions.jsonl, DIR/encoder and DIR/index.

    DIR, `out`, is a new or empty directory, or that of a demo of the same seed. A step whose result
    is there is not done again. Nothing is replaced or removed but the captions that this wrote
    itself.

    Raises:
      DemoError: when the directory holds something else, or a demo of another seed.
    """
    out = Path(out)
    told = stories(seed, videos)
    _claim(out, {"seed": seed, "videos": videos})
    started = time.monotonic()
    _render(told, out / "videos")
    files.write_bytes(out / "captions.jsonl", captions(told).encode(), "own")
    length = sum(story.duration for story in told)
    taken = time.monotonic() - started
    report(f"rendered {videos} videos, {length / 60:.0f} minutes in all, in {taken:.0f} s")
    if not (out / "encoder" / "config.json").exists():
        _train(out / "encoder", seed, report)
    _index(out, report)


def render_training(out: str | Path, seed: int = 0, report: Callable[[str], None] = print) -> None:
    """Renders captioned videos to train a model on: DIR/training/{videos,captions.jsonl}.

    Five groups of 40 are for training, one for validation; the demo's own videos are for testing.
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
    report(f"rendered {GROUP * len(seeds)} videos to train a model on, in {taken:.0f} s")


def captions(told: Sequence[Story], folder: str = "", **more: str) -> str:
    """The sentences of all scenes: lines of JSON with video, sentence, times, and fields `more`."""
    lines = ""
    for story in told:
        for scene in story.scenes:
            if scene.sentence is not None:
                times = {"start": scene.start, "end": scene.end}
                said = {"video": f"{folder}{story.name}", "sentence": scene.sentence}
                lines += json.dumps({**said, **times, **more}) + "\n"
    return lines


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
    """What the note of a demo says of it."""
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
    workers = min(command.cores(), len(todo))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        for _ in pool.map(write_video, todo, [folder / story.name for story in todo]):
            pass
    for number, story in enumerate(told):
        # A video a day, so that there is something to filter by date.
        day = _FIRST_DAY + number * _DAY
        os.utime(folder / story.name, (day, day))


def _train(folder: Path, seed: int, report: Callable[[str], None]) -> None:
    """Trains the encoder on scenes that no video shows, and saves it."""
    # Not by the processes that render: they need no JAX.
    from hlformer_jax import encoders
    from hlformer_jax.encoders import train

    started = time.monotonic()
    images, sentences = frames_for_training(seed, FRAMES, PIXELS)
    encoder = train.train(
        images,
        sentences,
        size=train.Size(patch=PATCH, tokens=TOKENS),
        steps=STEPS,
        learning_rate=LEARNING_RATE,
        seed=seed,
        name="demo",
        report=report,
    )
    encoders.save(encoder, folder)
    report(f"trained an encoder on {FRAMES} frames in {time.monotonic() - started:.0f} s")


def _index(out: Path, report: Callable[[str], None]) -> None:
    """Brings DIR/index up to date."""
    encoder, places = load_encoder(out / "encoder")
    directory = out / "index"
    if (directory / storage.MANIFEST).exists():
        index = Index.open(directory)
    else:
        index = Index.create(directory, out / "videos", encoder, places=places)
    index_folder(index, encoder, report=report)
