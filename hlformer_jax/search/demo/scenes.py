"""Descriptions of the scenes of the demo's videos, sampled from a seed."""

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

SCENE_SECONDS = (3, 7)  # shortest and longest scene
VIDEO_SECONDS = (20, 40)  # shortest and longest video
FOLDERS = ("morning", "noon", "evening")
_QUIET_PROBABILITY = 0.3  # probability of an empty scene after a scene with a shape
_MEETINGS = 120  # number of meetings among the events of the demo's videos

_WORDS: dict[Action, tuple[str, ...]] = {
    "left": ("moves to the left", "moves left"), "right": ("moves to the right", "moves right"),
    "up": ("moves up", "rises"), "down": ("moves down", "falls"),
    "grows": ("grows", "gets bigger"), "shrinks": ("shrinks", "gets smaller"),
    "meets": ("meets", "touches"),
}  # fmt: skip
"""Phrases for each action; captions use the first phrase."""


@dataclass(frozen=True)
class Thing:
    """A coloured shape."""

    colour: str
    shape: Shape

    def __str__(self) -> str:
        """Return the name with an article."""
        return f"a {self.colour} {self.shape}"


THINGS = tuple(Thing(colour, shape) for colour, shape in product(COLOURS, SHAPES))

Event = tuple[Action, tuple[Thing, ...]]
"""An action and its things."""


@dataclass(frozen=True)
class Scene:
    """A few seconds of a video with one action, or none."""

    start: float
    end: float
    action: Action | None = None  # None: an empty scene
    things: tuple[Thing, ...] = ()  # two things that meet, or one
    lane: tuple[float, float] = (0.5, 0.5)  # x and y; a moving shape replaces one of them
    size: float = 0.24  # half the width, in heights of the picture

    @property
    def sentence(self) -> str | None:
        """Caption of the scene; None for an empty scene."""
        return None if self.action is None else sentences(self.action, self.things)[0]


@dataclass(frozen=True)
class Story:
    """A video to render."""

    name: str  # path below the folder of videos
    scenes: tuple[Scene, ...]  # in order, without gaps
    seed: int  # seed of the background

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return self.scenes[-1].end


def sentences(action: Action, things: tuple[Thing, ...]) -> list[str]:
    """Return all phrasings of an event; captions use the first phrasing."""
    rest = "".join(f" {thing}" for thing in things[1:])
    return [f"{things[0]} {words}{rest}" for words in _WORDS[action]]


def stories(seed: int, count: int) -> list[Story]:
    """Sample the demo's videos.

    No caption describes two scenes, but each colour, shape and action occurs in many scenes, so a
    search must match all three.

    Args:
      seed: equal seeds give equal videos.
      count: number of videos, at most 40.
    """
    if not 1 <= count <= 40:
        raise ValueError(f"the demo has 1 to 40 videos, not {count}")
    rng = np.random.default_rng((seed, 0))
    events = sample_events(rng, THINGS, _MEETINGS)
    names = (f"{FOLDERS[number % len(FOLDERS)]}/{number + 1:02}.mp4" for number in range(count))
    return [sample_story(rng, events, name) for name in names]


def training_moments(seed: int, count: int) -> list[tuple[Scene, str]]:
    """Sample scenes with sentences for training, independent of `stories`."""
    rng = np.random.default_rng((seed, 1))
    moments = []
    for _ in range(count):
        action = ACTIONS[rng.integers(len(ACTIONS))]
        first, second = (THINGS[index] for index in rng.choice(len(THINGS), 2, replace=False))
        scene = sample_scene(rng, 0, 5, action, (first, second) if action == "meets" else (first,))
        phrasings = sentences(action, scene.things)
        moments.append((scene, phrasings[rng.integers(len(phrasings))]))
    return moments


def sample_events(
    rng: np.random.Generator, things: Sequence[Thing], meetings: int
) -> Iterator[Event]:
    """Yield all events of single things and some meetings, in random order.

    Args:
      rng: the random generator.
      things: the things.
      meetings: number of meetings of two things.
    """
    pairs: list[Event] = [("meets", pair) for pair in combinations(things, 2)]
    sampled = rng.choice(len(pairs), meetings, replace=False)
    events = [*single_events(things), *(pairs[index] for index in sampled)]
    for index in rng.permutation(len(events)):
        yield events[index]


def single_events(things: Sequence[Thing]) -> list[Event]:
    """Return all events of a single thing."""
    return [(action, (thing,)) for action in ACTIONS if action != "meets" for thing in things]


def sample_story(rng: np.random.Generator, events: Iterator[Event], name: str) -> Story:
    """Sample a video that shows the next events."""
    length = int(rng.integers(VIDEO_SECONDS[0], VIDEO_SECONDS[1] + 1))
    return Story(name, tuple(_sample_scenes(rng, events, length)), int(rng.integers(2**31)))


def _sample_scenes(
    rng: np.random.Generator, events: Iterator[Event], length: int
) -> Iterator[Scene]:
    """Yield scenes that fill a video.

    The last scene is extended to the end of the video if the rest is too short for a scene.
    """
    start, quiet = 0, True
    while start < length:
        end = start + int(rng.integers(SCENE_SECONDS[0], SCENE_SECONDS[1] + 1))
        end = length if length - end < SCENE_SECONDS[0] else end
        quiet = not quiet and rng.random() < _QUIET_PROBABILITY
        event = None if quiet else next(events, None)
        yield Scene(start, end) if event is None else sample_scene(rng, start, end, *event)
        start = end


def sample_scene(
    rng: np.random.Generator, start: float, end: float, action: Action, things: tuple[Thing, ...]
) -> Scene:
    """Sample the position and size of the things of a scene."""
    lane = (float(rng.uniform(0.44, 0.56)), float(rng.uniform(0.44, 0.56)))
    return Scene(start, end, action, things, lane, float(rng.uniform(0.22, 0.26)))
