"""What happens in the demo's videos: coloured shapes that move, grow, shrink and meet.

Pure data, made from a seed. A shape trails outlines of where it was during the last second, so that
a single frame tells which way it moves; that is drawn in `render`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal, get_args

import numpy as np

COLOURS = {
    "red": (230, 40, 40),
    "green": (40, 190, 70),
    "blue": (50, 90, 240),
    "yellow": (245, 220, 50),
    "purple": (160, 60, 200),
    "white": (245, 245, 245),
}
"""RGB of each colour's name."""

Shape = Literal["circle", "square", "triangle", "star"]
SHAPES: tuple[Shape, ...] = get_args(Shape)

Action = Literal["left", "right", "up", "down", "grows", "shrinks", "meets"]
ACTIONS: tuple[Action, ...] = get_args(Action)

SCENE_SECONDS = (3, 7)
"""Whole seconds of a scene, from and up to."""

VIDEO_SECONDS = (20, 40)
"""Seconds of a video, from and up to."""

FOLDERS = ("morning", "noon", "evening")

_QUIET = 0.3
"""Probability that after a scene with a shape there is one without, and so without a sentence."""

_PAIRS = 120
"""Meetings among the events that the demo's videos draw from."""

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
    """A few seconds of a video in which one thing happens, or nothing.

    Attributes:
      start: second of the video.
      end: second of the video.
      action: what happens; None: nothing, and no shape is there.
      things: the shapes: two that meet, else one.
      lane: where the shape is across its way, from 0 to 1; where it is, when it grows.
      size: half of its width in a picture of height 1.
    """

    start: float
    end: float
    action: Action | None = None
    things: tuple[Thing, ...] = ()
    lane: tuple[float, float] = (0.5, 0.5)
    size: float = 0.24

    @property
    def sentence(self) -> str | None:
        """Returns what a caption says of it; None where nothing happens."""
        return None if self.action is None else sentences(self.action, self.things)[0]


@dataclass(frozen=True)
class Story:
    """A video that is to be rendered.

    Attributes:
      name: its path below the folder of videos.
      scenes: one after the other, without gaps.
      seed: seed of what the background looks like.
    """

    name: str
    scenes: tuple[Scene, ...]
    seed: int

    @property
    def duration(self) -> float:
        """Returns the length in seconds."""
        return self.scenes[-1].end


def sentences(action: Action, things: tuple[Thing, ...]) -> list[str]:
    """Every way to say what happens; the first is the one of captions."""
    rest = "".join(f" {thing}" for thing in things[1:])
    return [f"{things[0]} {words}{rest}" for words in _WORDS[action]]


def stories(seed: int, count: int) -> list[Story]:
    """The demo's videos.

    No sentence is true of two scenes, but parts of every sentence are true of many: a search has to
    tell colour, shape and action together.

    Args:
      seed: equal seeds give equal videos.
      count: number of videos, at most 40.

    Raises:
      ValueError: when so many videos cannot be told apart.
    """
    if not 1 <= count <= 40:
        raise ValueError(f"the demo has 1 to 40 videos, not {count}")
    rng = np.random.default_rng((seed, 0))
    events = _events(rng)
    found = []
    for number in range(count):
        length = int(rng.integers(VIDEO_SECONDS[0], VIDEO_SECONDS[1] + 1))
        scenes = tuple(_scenes(rng, events, length))
        folder = FOLDERS[number % len(FOLDERS)]
        found.append(Story(f"{folder}/{number + 1:02}.mp4", scenes, int(rng.integers(2**31))))
    return found


def moments(seed: int, count: int) -> list[tuple[Scene, str]]:
    """Scenes of all kinds, each with one way to say what happens, to train an encoder on.

    Args:
      seed: drawn from apart from `stories`.
      count: number of scenes.
    """
    rng = np.random.default_rng((seed, 1))
    found = []
    for _ in range(count):
        action = ACTIONS[rng.integers(len(ACTIONS))]
        first, second = (THINGS[index] for index in rng.choice(len(THINGS), 2, replace=False))
        scene = _scene(rng, 0, 5, action, (first, second) if action == "meets" else (first,))
        ways = sentences(action, scene.things)
        found.append((scene, ways[rng.integers(len(ways))]))
    return found


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
