"""Scenes of the demo's videos: data, drawn from a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal, get_args

import numpy as np

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
    events = sample_events(rng, THINGS, _PAIRS)
    names = (f"{FOLDERS[number % len(FOLDERS)]}/{number + 1:02}.mp4" for number in range(count))
    return [sample_story(rng, events, name) for name in names]


def training_moments(seed: int, count: int) -> list[tuple[Scene, str]]:
    """Scenes of all kinds, each with one way to say what happens; drawn apart from `stories`."""
    rng = np.random.default_rng((seed, 1))
    drawn = []
    for _ in range(count):
        action = ACTIONS[rng.integers(len(ACTIONS))]
        first, second = (THINGS[index] for index in rng.choice(len(THINGS), 2, replace=False))
        scene = sample_scene(rng, 0, 5, action, (first, second) if action == "meets" else (first,))
        ways = sentences(action, scene.things)
        drawn.append((scene, ways[rng.integers(len(ways))]))
    return drawn


def sample_events(
    rng: np.random.Generator, things: Sequence[Thing], meetings: int
) -> Iterator[Event]:
    """Yield things and what they do, in any order, none twice; so many meetings among them."""
    pairs: list[Event] = [("meets", pair) for pair in combinations(things, 2)]
    chosen = rng.choice(len(pairs), meetings, replace=False)
    every = [*single_events(things), *(pairs[index] for index in chosen)]
    for index in rng.permutation(len(every)):
        yield every[index]


def single_events(things: Sequence[Thing]) -> list[Event]:
    """List what a single thing can do."""
    return [(action, (thing,)) for action in ACTIONS if action != "meets" for thing in things]


def sample_story(rng: np.random.Generator, events: Iterator[Event], name: str) -> Story:
    """Draw a video of the next events."""
    length = int(rng.integers(VIDEO_SECONDS[0], VIDEO_SECONDS[1] + 1))
    return Story(name, tuple(_sample_scenes(rng, events, length)), int(rng.integers(2**31)))


def _sample_scenes(
    rng: np.random.Generator, events: Iterator[Event], length: int
) -> Iterator[Scene]:
    """Scenes that fill a video; the last takes what is left."""
    start, quiet = 0, True
    while start < length:
        end = start + int(rng.integers(SCENE_SECONDS[0], SCENE_SECONDS[1] + 1))
        end = length if length - end < SCENE_SECONDS[0] else end
        quiet = not quiet and rng.random() < _QUIET
        event = None if quiet else next(events, None)
        yield Scene(start, end) if event is None else sample_scene(rng, start, end, *event)
        start = end


def sample_scene(
    rng: np.random.Generator, start: float, end: float, action: Action, things: tuple[Thing, ...]
) -> Scene:
    """Draw where and how large the things of a scene are."""
    lane = (float(rng.uniform(0.44, 0.56)), float(rng.uniform(0.44, 0.56)))
    return Scene(start, end, action, things, lane, float(rng.uniform(0.22, 0.26)))
