"""An archive of the demo's videos with queries of several kinds whose correct videos are known.

The kinds: visual, spoken or both, near-duplicates, sequences, and things that no video shows. No
video has the colour or the shape of `UNSEEN`, which the demo's encoder knows.
"""

import json
from itertools import combinations
from pathlib import Path

import av
import numpy as np
from PIL import Image

from hlformer_jax.search.demo import drawing, making, scenes
from hlformer_jax.search.demo.scenes import Scene, Story, Thing

UNSEEN = Thing("purple", "star")
SEEN = tuple(
    thing
    for thing in scenes.THINGS
    if thing.colour != UNSEEN.colour and thing.shape != UNSEEN.shape
)

COPIED, NARRATED, PLAIN = 6, 6, 6  # videos with a near-duplicate, with subtitles, with neither
PAIRS, WITHIN = 4, 10.0  # pairs of videos with sequences; longest gap in seconds
ABSENT = 60  # combinations that no video shows
OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up"}

SPOKEN = (
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
"""Spoken lines about things that are not visible, and queries for them."""

NEVER_SPOKEN = (
    "the price of a used bicycle", "how to repair a roof", "a song about the harbour",
    "an accident on the motorway", "the birthday of a cousin", "exams at the university",
    "a letter from the bank", "the opening of a museum", "how cheese is made",
    "a broken window", "the rules of chess", "a holiday in Norway",
)  # fmt: skip


def make(folder, encoder, seed=0, report=print):
    """Make the archive: folder/{videos,captions.jsonl,index}."""
    stories, cues, queries, copies = archive(seed)
    making.render(stories, folder / "videos", report)
    for name, lines in cues.items():
        (folder / "videos" / name).with_suffix(".srt").write_text(subtitles(lines))
    for number, (original, copy) in enumerate(copies.items()):
        write_near_duplicate(folder / "videos" / original, folder / "videos" / copy, number % 3)
    lines = "".join(json.dumps(query) + "\n" for query in queries)
    (folder / "captions.jsonl").write_text(lines)
    making.index_videos(folder, report, encoder)


def archive(seed):
    """Return the videos, the cues of subtitles, the queries, and the near-duplicates' names.

    In narrated videos each scene is spoken in other words than it is searched for; each video ends
    by announcing the first scene of the next one; lines of `SPOKEN` stand between.
    """
    rng = np.random.default_rng((seed, 3))
    events = scenes.sample_events(rng, SEEN, 60)
    stories = [
        scenes.sample_story(rng, events, f"scenes/{i:02}.mp4")
        for i in range(COPIED + NARRATED + PLAIN)
    ]
    copies = {story.name: f"copies/{i:02}.mp4" for i, story in enumerate(stories[:COPIED])}
    narrated = stories[COPIED : COPIED + NARRATED]
    cues, queries = {}, []
    for i, story in enumerate(narrated):
        following = active_scenes(narrated[(i + 1) % len(narrated)])[0]
        lines = cues[story.name] = [
            (scene.start, scene.start + 1.5,
             f"now {scenes.sentences(scene.action, scene.things)[-1]}")
            for scene in active_scenes(story)
        ]  # fmt: skip
        lines.append((story.duration - 1, story.duration, f"next {following.sentence}"))
        spoken = SPOKEN[2 * i : 2 * i + 2]
        for scene, (line, query) in zip(active_scenes(story), spoken, strict=False):
            span = {"start": scene.start + 1.6, "end": scene.start + 2.9}
            lines.append((*span.values(), line))
            target = {"video": story.name, "sentence": query, "transcript": True}
            queries.append({"kind": "spoken", **target, **span})
        lines.sort()
    for i, story in enumerate(stories):
        kind = ("copied", "visual and spoken", "visual")[(i >= COPIED) + (i >= COPIED + NARRATED)]
        duplicates = {"also": [copies[story.name]]} if story.name in copies else {}
        for scene in active_scenes(story):
            span = {"start": scene.start, "end": scene.end}
            target = {"video": story.name, "sentence": scene.sentence, **span, **duplicates}
            queries.append({"kind": kind, **target})
            if scene.action in OPPOSITE:
                opposite = scenes.sentences(OPPOSITE[scene.action], scene.things)[0]
                queries.append({"kind": "A but not B", **target, "not": [opposite]})
    ordered = [story for i in range(PAIRS) for story in sequences(rng, events, f"orders/{i:02}")]
    for story in ordered:
        for first, second in zip(*[iter(active_scenes(story))] * 2, strict=True):
            target = {"video": story.name, "sentence": first.sentence, "then": [second.sentence]}
            span = {"start": first.start, "end": second.end, "within": WITHIN}
            queries.append({"kind": "A then B", **target, **span})
    stories += ordered
    shown = {
        (scene.action, frozenset(scene.things))
        for story in stories
        for scene in active_scenes(story)
    }
    absent = [
        *scenes.single_events(SEEN), *(("meets", pair) for pair in combinations(SEEN, 2))
    ]  # fmt: skip
    absent = [event for event in absent if (event[0], frozenset(event[1])) not in shown]
    absent = [absent[i] for i in sorted(rng.choice(len(absent), ABSENT, replace=False))]
    unseen = scenes.single_events([thing for thing in scenes.THINGS if thing not in SEEN])
    for kind, group in (("combination", absent), ("colour or shape", unseen)):
        target = {"kind": f"absent {kind}", "video": ""}
        queries += [target | {"sentence": scenes.sentences(*event)[0]} for event in group]
    target = {"kind": "never spoken", "video": "", "transcript": True}
    queries += [target | {"sentence": line} for line in NEVER_SPOKEN]
    return stories, cues, queries, copies


def active_scenes(story):
    """Return the scenes in which something happens."""
    return [scene for scene in story.scenes if scene.action]


def sequences(rng, events, name):
    """Return two videos: A, B, a pause, C, D, a pause, E, F; and B, A and so on."""
    sampled = [next(events) for _ in range(6)]
    pair = []
    for letter, order in (("a", (0, 1, 2, 3, 4, 5)), ("b", (1, 0, 3, 2, 5, 4))):
        video = []
        for i, place in enumerate(order):
            start = video[-1].end if video else 0
            if i in (2, 4):
                video.append(Scene(start, start + 3))
                start += 3
            video.append(scenes.sample_scene(rng, start, start + 3, *sampled[place]))
        pair.append(Story(f"{name}{letter}.mp4", tuple(video), int(rng.integers(2**31))))
    return pair


def subtitles(cues):
    """Return cues as a SubRip file."""

    def clock(x):
        return f"00:{int(x) // 60:02}:{int(x) % 60:02},{round(x % 1 * 1000):03}"

    return "\n".join(
        f"{i}\n{clock(start)} --> {clock(end)}\n{text}\n"
        for i, (start, end, text) in enumerate(cues, 1)
    )


def write_near_duplicate(source: Path, target: Path, change: int) -> None:
    """Encode a video again: brighter (0), cropped (1) or in coarser pixels (2)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(source)) as original, av.open(str(target), "w", format="mp4") as copy:
        stream = copy.add_stream("libx264", rate=drawing.RATE, options={"crf": "26"})
        stream.width, stream.height, stream.pix_fmt = drawing.WIDTH, drawing.HEIGHT, "yuv420p"
        for frame in original.decode(video=0):
            picture = frame.to_ndarray(format="rgb24")
            if change == 0:
                picture = (1.15 * picture + 8).clip(0, 255).astype(np.uint8)
            elif change == 1:
                inner = Image.fromarray(picture[9:-9, 12:-12])
                picture = np.asarray(inner.resize((drawing.WIDTH, drawing.HEIGHT)))
            else:
                picture = picture[::2, ::2].repeat(2, 0).repeat(2, 1)
            copy.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        copy.mux(stream.encode(None))
