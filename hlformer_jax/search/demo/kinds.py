"""A second archive of the demo, with queries of several kinds whose truth is known.

The kinds: what is seen, said, or both, near-duplicates, sequences, and what no video shows. No
video has the colour and the shape of `UNSEEN`, which the encoder knows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from hlformer_jax.search.demo.drawing import CHANGES
from hlformer_jax.search.demo.scenes import (
    THINGS,
    Action,
    Event,
    Scene,
    Story,
    Thing,
    sample_events,
    sample_scene,
    sample_story,
    sentences,
    single_events,
)

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
    events = sample_events(rng, SEEN, 60)
    told = [
        sample_story(rng, events, f"scenes/{i:02}.mp4") for i in range(COPIED + NARRATED + PLAIN)
    ]
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
            own = {"video": story.name, "sentence": scene.sentence, **times_of(scene), **also}
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
    absent = [*single_events(SEEN), *(("meets", pair) for pair in combinations(SEEN, 2))]
    absent = [event for event in absent if (event[0], frozenset(event[1])) not in shown]
    absent = [absent[i] for i in sorted(rng.choice(len(absent), _ABSENT, replace=False))]
    unseen = single_events([thing for thing in THINGS if thing not in SEEN])
    for kind, lines in (("combination", absent), ("colour or shape", unseen)):
        of: dict[str, Any] = {"kind": f"absent {kind}", "video": ""}
        asked += [of | {"sentence": sentences(*event)[0]} for event in lines]
    of = {"kind": "never said", "video": "", "said": True}
    asked += [of | {"sentence": line} for line in NEVER_SAID]
    return every, said, asked


def _scenes_of(story: Story) -> list[Scene]:
    """Those in which something happens."""
    return [scene for scene in story.scenes if scene.action]


def times_of(scene: Scene) -> dict[str, float]:
    """Return the times of a scene as fields of a caption."""
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
            scenes.append(sample_scene(rng, start, start + 3, *drawn[place]))
        pair.append(Story(f"{name}{letter}.mp4", tuple(scenes), int(rng.integers(2**31))))
    return pair


def subtitles(cues: Sequence[Cue]) -> str:
    """The text of a file of subtitles, SubRip's."""
    clock = lambda x: f"00:{int(x) // 60:02}:{int(x) % 60:02},{round(x % 1 * 1000):03}"
    return "\n".join(
        f"{i}\n{clock(start)} --> {clock(end)}\n{text}\n"
        for i, (start, end, text) in enumerate(cues, 1)
    )
