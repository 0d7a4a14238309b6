"""The directory of a demo: its videos, captions, encoder and index."""

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from hlformer_jax import command, files
from hlformer_jax.errors import UserError
from hlformer_jax.search.demo.drawing import frames_for_training, write_video
from hlformer_jax.search.demo.kinds import kinds, subtitles, times_of
from hlformer_jax.search.demo.scenes import Story, stories
from hlformer_jax.search.encoder import load_encoder
from hlformer_jax.search.index import storage
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.ingest.extract import index_folder

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
                lines += json.dumps({**said, **times_of(scene), **more}) + "\n"
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
