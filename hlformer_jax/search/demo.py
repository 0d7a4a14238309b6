"""A demo that needs no video and no download: it makes its own, and an encoder that knows them.

`make` renders short videos of coloured shapes that move, grow, shrink and meet, writes what happens
in them, trains a tiny SigLIP on frames of other scenes and indexes the videos. The encoder is read
like any other, and its meaning is real though small: colours, shapes and what they do.

A shape trails paler copies of itself where it was; one that grows holds smaller outlines of itself,
and one that shrinks has paler larger ones behind it. So a single frame tells what happens.

`make_kinds` adds a second archive, of the same encoder and other videos, and queries of several
kinds whose truth is known: what is seen, said, or both, near-duplicates, sequences, and what no
video shows. No video of it has the colour and the shape of `UNSEEN`, which the encoder knows.
"""

import json
import math
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal, get_args

import av
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from hlformer_jax import command, files
from hlformer_jax.errors import UserError
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import Index, load_encoder
from hlformer_jax.search.ingest.extract import index_folder

# Scenes: pure data, made from a seed

COLOURS = {
    "red": (230, 40, 40), "green": (40, 190, 70), "blue": (50, 90, 240),
    "yellow": (245, 220, 50), "purple": (160, 60, 200), "white": (245, 245, 245),
}  # fmt: skip

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
    "left": ("moves to the left", "moves left"), "right": ("moves to the right", "moves right"),
    "up": ("moves up", "rises"), "down": ("moves down", "falls"),
    "grows": ("grows", "gets bigger"), "shrinks": ("shrinks", "gets smaller"),
    "meets": ("meets", "touches"),
}  # fmt: skip
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
    change: str = ""  # a key of `CHANGES`: what a near-duplicate differs by

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
    events = _events(rng, THINGS, _PAIRS)
    names = (f"{FOLDERS[number % len(FOLDERS)]}/{number + 1:02}.mp4" for number in range(count))
    return [_story(rng, events, name) for name in names]


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


def _events(rng: np.random.Generator, things: Sequence[Thing], meetings: int) -> Iterator[Event]:
    """Things and what they do, in any order, none twice; so many meetings among them."""
    pairs: list[Event] = [("meets", pair) for pair in combinations(things, 2)]
    chosen = rng.choice(len(pairs), meetings, replace=False)
    every = [*_alone(things), *(pairs[index] for index in chosen)]
    for index in rng.permutation(len(every)):
        yield every[index]


def _alone(things: Sequence[Thing]) -> list[Event]:
    """What one thing can do."""
    return [(action, (thing,)) for action in ACTIONS if action != "meets" for thing in things]


def _story(rng: np.random.Generator, events: Iterator[Event], name: str) -> Story:
    length = int(rng.integers(VIDEO_SECONDS[0], VIDEO_SECONDS[1] + 1))
    return Story(name, tuple(_scenes(rng, events, length)), int(rng.integers(2**31)))


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
        image = Image.fromarray(coarse.clip(0, 255).astype(np.uint8))
        self._pattern = _resized(image, 2 * WIDTH, HEIGHT).astype(np.int16)
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


def _cropped(picture: Picture) -> Picture:
    box = (WIDTH // 16, HEIGHT // 16, WIDTH - WIDTH // 16, HEIGHT - HEIGHT // 16)
    inner = Image.fromarray(picture).crop(box)
    return _resized(inner, WIDTH, HEIGHT)


def _resized(image: Image.Image, width: int, height: int) -> UInt8[np.ndarray, "h w 3"]:
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


CHANGES: dict[str, Callable[[Picture], Picture]] = {
    "": lambda picture: picture,
    "bright": lambda picture: (1.15 * picture + 8).clip(0, 255).astype(np.uint8),
    "cropped": _cropped,  # an eighth less high and wide
    "coarse": lambda picture: picture[::2, ::2].repeat(2, 0).repeat(2, 1),
}
"""What a near-duplicate does to every frame of its original."""


def write_video(story: Story, path: Path) -> None:
    """Renders a video as H.264 in MP4, whole or not at all."""
    background = Background(story.seed)
    options = {"preset": "veryfast", "crf": "26", "threads": "1"}
    with files.whole(path, "none") as draft, av.open(str(draft), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.gop_size = 4 * RATE
        for scene in story.scenes:
            for number in range(round(scene.start * RATE), round(scene.end * RATE)):
                picture = draw(scene, number / RATE, background.at(number / RATE))
                picture = CHANGES[story.change](picture)
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
        images[index] = _resized(picture, size, size)
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


# Queries of several kinds

UNSEEN = Thing("purple", "star")
"""No video of the archive of kinds has this colour or this shape."""

SEEN = tuple(x for x in THINGS if x.colour != UNSEEN.colour and x.shape != UNSEEN.shape)
"""The things of that archive."""

COPIED, NARRATED, PLAIN = 6, 6, 6  # of its videos: with a near-duplicate, with subtitles, neither
ORDERED, WITHIN = 4, 10.0  # pairs of videos with sequences; seconds within which the second begins
_OPPOSITE: dict[Action, Action] = {"left": "right", "right": "left", "up": "down", "down": "up"}
_ABSENT = 60  # combinations that no video shows

TOLD = (
    ("the recipe needs two spoons of salt", "two spoons of salt"),
    ("my grandmother learned to swim in a lake", "learning to swim"),
    ("the last train to Lisbon leaves at nine", "the train to Lisbon"),
    ("please water the tomatoes before you go", "water the tomatoes"),
    ("we lost the key of the old piano", "the key of the piano"),
    ("nobody expected snow in April", "snow in April"),
    ("the doctor told him to sleep more", "advice of a doctor to sleep"),
    ("this bridge was built by my uncle", "who built the bridge"),
    ("coffee is cheaper at the station", "cheap coffee at the station"),
    ("she wants to study law in Vienna", "studying law in Vienna"),
    ("the wedding was moved to September", "a wedding in September"),
    ("our neighbours sold their boat", "the boat of the neighbours"),
)
"""What is said in videos and not to be seen, and how it is asked for."""

NEVER_SAID = (
    "the price of a used bicycle", "how to repair a roof", "a song about the harbour",
    "an accident on the motorway", "the birthday of a cousin", "exams at the university",
    "a letter from the bank", "the opening of a museum", "how cheese is made",
    "a broken window", "the rules of chess", "a holiday in Norway",
)  # fmt: skip

Cue = tuple[float, float, str]
"""What is said from one second of a video to another."""


def kinds(seed: int) -> tuple[list[Story], dict[str, list[Cue]], list[dict[str, Any]]]:
    """The archive of kinds: its videos, their subtitles, and its queries with their truth.

    Scenes are drawn as for `stories`, none twice, of the things of `SEEN`. The first `COPIED`
    videos have a near-duplicate. In the next `NARRATED` every scene is told, in other words than it
    is asked for where there are others, and each ends by telling the first scene of the next of
    them; between, something of `TOLD` is said. Videos of sequences come in pairs: A, B in one are
    B, A in the other.

    A query is as a line of captions (`evaluation`), and has its kind.
    """
    rng = np.random.default_rng((seed, 3))
    events = _events(rng, SEEN, 60)
    told = [_story(rng, events, f"scenes/{i:02}.mp4") for i in range(COPIED + NARRATED + PLAIN)]
    changes = [change for change in CHANGES if change]
    copies = {
        one.name: replace(one, name=f"copies/{i:02}.mp4", change=changes[i % len(changes)])
        for i, one in enumerate(told[:COPIED])
    }
    narrated = told[COPIED : COPIED + NARRATED]
    said, asked = {}, []
    for i, story in enumerate(narrated):
        following = _scenes_of(narrated[(i + 1) % len(narrated)])[0]
        cues = said[story.name] = [
            (scene.start, scene.start + 1.5, f"now {sentences(scene.action, scene.things)[-1]}")
            for scene in _scenes_of(story)
            if scene.action
        ]
        cues.append((story.duration - 1, story.duration, f"next {following.sentence}"))
        spoken = TOLD[2 * i : 2 * i + 2]
        for scene, (line, question) in zip(_scenes_of(story), spoken, strict=False):
            start, end = scene.start + 1.6, scene.start + 2.9
            cues.append((start, end, line))
            own = {"video": story.name, "sentence": question, "start": start, "end": end}
            asked.append({"kind": "said", **own, "said": True})
        cues.sort()
    for i, story in enumerate(told):
        kind = ("copied", "seen and said", "seen")[(i >= COPIED) + (i >= COPIED + NARRATED)]
        also = {"also": [copies[story.name].name]} if story.name in copies else {}
        for scene in _scenes_of(story):
            own = {"video": story.name, "sentence": scene.sentence, **_times(scene), **also}
            asked.append({"kind": kind, **own})
            if scene.action in _OPPOSITE:
                other = sentences(_OPPOSITE[scene.action], scene.things)[0]
                asked.append({"kind": "A but not B", **own, "not": [other]})
    ordered = [story for i in range(ORDERED) for story in _ordered(rng, events, f"orders/{i:02}")]
    for story in ordered:
        for first, second in zip(*[iter(_scenes_of(story))] * 2, strict=True):
            own = {"video": story.name, "sentence": first.sentence, "then": [second.sentence]}
            span = {"start": first.start, "end": second.end, "within": WITHIN}
            asked.append({"kind": "A then B", **own, **span})
    every = [*told, *copies.values(), *ordered]
    shown = {(one.action, frozenset(one.things)) for story in every for one in _scenes_of(story)}
    absent = [*_alone(SEEN), *(("meets", pair) for pair in combinations(SEEN, 2))]
    absent = [event for event in absent if (event[0], frozenset(event[1])) not in shown]
    absent = [absent[i] for i in sorted(rng.choice(len(absent), _ABSENT, replace=False))]
    unseen = _alone([thing for thing in THINGS if thing not in SEEN])
    for kind, lines in (("combination", absent), ("colour or shape", unseen)):
        of: dict[str, Any] = {"kind": f"absent {kind}", "video": ""}
        asked += [of | {"sentence": sentences(*event)[0]} for event in lines]
    of = {"kind": "never said", "video": "", "said": True}
    asked += [of | {"sentence": line} for line in NEVER_SAID]
    return every, said, asked


def _scenes_of(story: Story) -> list[Scene]:
    """Those in which something happens."""
    return [scene for scene in story.scenes if scene.action]


def _times(scene: Scene) -> dict[str, float]:
    return {"start": scene.start, "end": scene.end}


def _ordered(rng: np.random.Generator, events: Iterator[Event], name: str) -> list[Story]:
    """Two videos of three sequences: A, B, a pause, C, D, a pause, E, F; and B, A, and so on."""
    drawn = [next(events) for _ in range(6)]
    pair = []
    for letter, order in (("a", (0, 1, 2, 3, 4, 5)), ("b", (1, 0, 3, 2, 5, 4))):
        scenes: list[Scene] = []
        for i, place in enumerate(order):
            start = scenes[-1].end if scenes else 0
            if i in (2, 4):
                scenes.append(Scene(start, start + 3))
                start += 3
            scenes.append(_scene(rng, start, start + 3, *drawn[place]))
        pair.append(Story(f"{name}{letter}.mp4", tuple(scenes), int(rng.integers(2**31))))
    return pair


def subtitles(cues: Sequence[Cue]) -> str:
    """The text of a file of subtitles, SubRip's."""
    clock = lambda x: f"00:{int(x) // 60:02}:{int(x) % 60:02},{round(x % 1 * 1000):03}"
    return "\n".join(
        f"{i}\n{clock(start)} --> {clock(end)}\n{text}\n"
        for i, (start, end, text) in enumerate(cues, 1)
    )


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
    _render(told, out / "videos", report)
    files.write_bytes(out / "captions.jsonl", captions(told).encode(), "own")
    if not (out / "encoder" / "config.json").exists():
        _train(out / "encoder", seed, report)
    _index(out, report, out / "encoder")


def render_training(out: str | Path, seed: int = 0, report: Callable[[str], None] = print) -> None:
    """Renders captioned videos to train a model on: DIR/training/{videos,captions.jsonl}.

    Five groups of 40 are for training, one for validation; the demo's own videos are for testing.
    """
    out = Path(out)
    folder, own = out / "training", stories(seed, _settings(out)["videos"])
    files.check_directory(folder / "videos")
    for story in own:
        copy = folder / "videos" / "demo" / story.name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(out / "videos" / story.name, copy)
    lines = captions(own, "demo/", split="test")
    seeds = {"val": seed + 200} | {f"train{i}": seed + 100 + i for i in range(TRAINING_GROUPS)}
    for group, drawn in seeds.items():
        told = stories(drawn, GROUP)
        _render(told, folder / "videos" / group, report)
        lines += captions(told, f"{group}/", split=group.rstrip("0123456789"))
    files.write_bytes(folder / "captions.jsonl", lines.encode(), "own")


def make_kinds(out: str | Path, seed: int = 0, report: Callable[[str], None] = print) -> None:
    """Makes the archive of kinds of a demo: DIR/kinds/{videos,captions.jsonl,index}.

    As `make`, it does nothing again whose result is there.
    """
    folder = Path(out) / "kinds"
    _settings(Path(out))
    files.check_directory(folder / "videos")
    told, said, asked = kinds(seed)
    for name, cues in said.items():
        path = (folder / "videos" / name).with_suffix(".srt")
        if not path.exists():
            files.write_bytes(path, subtitles(cues).encode(), "none")
    _render(told, folder / "videos", report)
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    files.write_bytes(folder / "captions.jsonl", lines.encode(), "own")
    _index(folder, report, Path(out) / "encoder")


def captions(told: Sequence[Story], folder: str = "", **more: str) -> str:
    """The sentences of all scenes: lines of JSON with video, sentence, times, and fields `more`."""
    lines = ""
    for story in told:
        for scene in story.scenes:
            if scene.sentence is not None:
                said = {"video": f"{folder}{story.name}", "sentence": scene.sentence}
                lines += json.dumps({**said, **_times(scene), **more}) + "\n"
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
    for name in ("videos", "training", "encoder", "index", "kinds"):
        files.check_directory(out / name)


def _settings(out: Path) -> dict[str, int]:
    """What the note of a demo says of it."""
    try:
        note = files.parse_json((out / NOTE).read_bytes())
        if note["made_by"] == MADE_BY:
            return {name: int(note[name]) for name in ("seed", "videos")}
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        pass  # one that cannot be read may be ours: its error ends the command
    raise DemoError(f"{str(out)!r} holds other things: give --out a new directory")


def _render(told: Sequence[Story], folder: Path, report: Callable[[str], None]) -> None:
    """Renders the videos that are missing, in processes, one for each core, and reports it."""
    started = time.monotonic()
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
    length = sum(story.duration for story in todo) / 60
    taken = time.monotonic() - started
    report(f"{folder}: rendered {len(todo)} videos, {length:.0f} minutes, in {taken:.0f} s")


def _train(folder: Path, seed: int, report: Callable[[str], None]) -> None:
    """Trains the encoder on scenes that no video shows, and saves it."""
    # Not by the processes that render: they need no JAX.
    from hlformer_jax import encoders
    from hlformer_jax.encoders import train

    started = time.monotonic()
    images, sentences = frames_for_training(seed, FRAMES, PIXELS)
    encoder = train.train(
        images, sentences, size=train.Size(patch=PATCH, tokens=TOKENS), steps=STEPS,
        learning_rate=LEARNING_RATE, seed=seed, name="demo", report=report,
    )  # fmt: skip
    encoders.save(encoder, folder)
    report(f"trained an encoder on {FRAMES} frames in {time.monotonic() - started:.0f} s")


def _index(out: Path, report: Callable[[str], None], encoder_folder: Path) -> None:
    """Brings the index of DIR/videos, DIR/index, up to date."""
    encoder, places = load_encoder(encoder_folder)
    directory = out / "index"
    if (directory / storage.MANIFEST).exists():
        index = Index.open(directory)
    else:
        index = Index.create(directory, out / "videos", encoder, places=places)
    index_folder(index, encoder, report=report)
