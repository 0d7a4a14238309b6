"""Directory of a demo: its videos, captions, encoder and index."""

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from hlformer_jax import cli, files, terminal
from hlformer_jax.errors import UserError
from hlformer_jax.search.demo.drawing import frames_for_training, write_video
from hlformer_jax.search.demo.scenes import Story, stories
from hlformer_jax.search.encoder import DEMO_NOTE, load_encoder
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.directory import has_index_files
from hlformer_jax.search.ingest.extract import index_folder

MADE_BY = "hlformer_jax.search demo"
"""Name of this program in the note of a demo's directory."""

VIDEOS = 24  # default number of videos of the demo, at most 40
TRAINING_GROUPS, GROUP_SIZE = 5, 40  # number and size of the groups of `render_training`
TRAINING_FRAMES, STEPS, LEARNING_RATE = 6000, 1200, 1.5e-3  # for training the encoder
IMAGE_SIZE, PATCH_SIZE, MAX_TOKENS = 48, 12, 12  # sizes of the encoder; a sentence has eight words
DAY_SECONDS = 86_400
FIRST_DAY = 1_767_600_000  # seconds since the epoch, in January 2026: the date of the first video


class DemoError(UserError, ValueError):
    """Error for a directory in which no demo can be made."""


def make(
    out: str | Path,
    seed: int = 0,
    report: Callable[[str], None] = terminal.show,
    videos: int = VIDEOS,
) -> None:
    """Make a demo: DIR/videos, DIR/captions.jsonl, DIR/encoder and DIR/index.

    Steps whose results exist are skipped. Only captions of an earlier call are replaced.

    Args:
      out: DIR, a new or empty directory, or the directory of a demo with the same seed and number
        of videos.
      seed: seed of the videos.
      report: takes a line for each step.
      videos: number of videos, at most 40.

    Raises:
      DemoError: if the directory has other files, or a demo with another seed or number of videos.
    """
    out = Path(out)
    demo_stories = stories(seed, videos)
    _claim(out, {"seed": seed, "videos": videos})
    render(demo_stories, out / "videos", report)
    files.write_bytes(out / "captions.jsonl", captions(demo_stories).encode(), files.Replace.OWN)
    if not (out / "encoder" / "config.json").exists():
        _train(out / "encoder", seed, report)
    index_videos(out, report, out / "encoder")


def render_training(
    out: str | Path, seed: int = 0, report: Callable[[str], None] = terminal.show
) -> None:
    """Render captioned videos to train a model on: DIR/training/{videos,captions.jsonl}.

    Five groups of 40 videos are the training split, and one group is the validation split. The
    videos of the demo itself are the test split.

    Args:
      out: DIR, the directory of a demo.
      seed: seed of the videos.
      report: takes a line for each step.

    Raises:
      DemoError: if the directory has no demo.
    """
    out = Path(out)
    folder, demo_stories = out / "training", stories(seed, _read_note(out)["videos"])
    files.check_directory(folder / "videos")
    for story in demo_stories:
        copy = folder / "videos" / "demo" / story.name
        if not copy.exists():
            with files.atomic_write(copy, files.Replace.NOTHING) as draft:
                shutil.copy2(out / "videos" / story.name, draft)
    lines = captions(demo_stories, "demo/", split="test")
    seeds = {"val": seed + 200} | {f"train{i}": seed + 100 + i for i in range(TRAINING_GROUPS)}
    for group, group_seed in seeds.items():
        group_stories = stories(group_seed, GROUP_SIZE)
        render(group_stories, folder / "videos" / group, report)
        lines += captions(group_stories, f"{group}/", split=group.rstrip("0123456789"))
    files.write_bytes(folder / "captions.jsonl", lines.encode(), files.Replace.OWN)


def captions(stories: Sequence[Story], folder: str = "", **fields: str) -> str:
    """Return the captions of all scenes as JSON lines.

    Args:
      stories: the videos.
      folder: text before the names of the videos.
      **fields: further fields of each caption.
    """
    lines = ""
    for story in stories:
        for scene in story.scenes:
            if scene.sentence is not None:
                caption = {
                    "video": f"{folder}{story.name}", "sentence": scene.sentence,
                    "start": scene.start, "end": scene.end, **fields,
                }  # fmt: skip
                lines += json.dumps(caption) + "\n"
    return lines


def _claim(out: Path, settings: dict[str, int]) -> None:
    """Mark a directory as that of a demo.

    Raises:
      DemoError: if it has other files, or a demo with other settings.
    """
    files.check_directory(out)
    note = out / DEMO_NOTE
    if not out.exists() or not any(out.iterdir()):
        files.write_json(note, {"made_by": MADE_BY, **settings})
        return
    recorded = _read_note(out)
    if recorded != settings:
        raise DemoError(
            f"{str(out)!r} contains a demo with seed {recorded['seed']} and"
            f" {recorded['videos']} videos: choose another directory"
        )
    for name in ("videos", "training", "encoder", "index"):
        files.check_directory(out / name)


def _read_note(out: Path) -> dict[str, int]:
    """Return the seed and the number of videos of a demo."""
    try:
        note = files.parse_json((out / DEMO_NOTE).read_bytes())
        if note["made_by"] == MADE_BY:
            return {name: int(note[name]) for name in ("seed", "videos")}
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        pass  # any other error, such as a note without read permission, ends the command
    raise DemoError(f"{str(out)!r} contains other files: choose a new directory")


def render(stories: Sequence[Story], folder: Path, report: Callable[[str], None]) -> None:
    """Render the missing videos of a folder, with a process for each core."""
    started = time.monotonic()
    missing = [story for story in stories if not (folder / story.name).exists()]
    if not missing:
        return
    workers = min(cli.cores(), len(missing))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context) as pool:
        rendered = pool.map(write_video, missing, [folder / story.name for story in missing])
        for _ in zip(terminal.track(missing, "video"), rendered, strict=False):
            pass
    for number, story in enumerate(stories):
        date = FIRST_DAY + number * DAY_SECONDS  # a video a day, for filters by date
        os.utime(folder / story.name, (date, date))
    minutes = sum(story.duration for story in missing) / 60
    elapsed = time.monotonic() - started
    report(f"{folder}: rendered {len(missing)} videos, {minutes:.0f} minutes, in {elapsed:.0f} s")


def _train(folder: Path, seed: int, report: Callable[[str], None]) -> None:
    """Train the encoder on scenes that are not in the videos, and save it."""
    # Imported here, because processes that render videos need no JAX.
    from hlformer_jax import encoders
    from hlformer_jax.encoders import train

    started = time.monotonic()
    images, sentences = frames_for_training(seed, TRAINING_FRAMES, IMAGE_SIZE)
    encoder = train.train(
        images, sentences, size=train.Size(patch=PATCH_SIZE, tokens=MAX_TOKENS), steps=STEPS,
        learning_rate=LEARNING_RATE, seed=seed, name="demo", report=report,
    )  # fmt: skip
    encoders.save(encoder, folder)
    elapsed = time.monotonic() - started
    report(f"trained an encoder on {TRAINING_FRAMES} frames in {elapsed:.0f} s")


def index_videos(out: Path, report: Callable[[str], None], encoder_folder: Path) -> None:
    """Update DIR/index, the index of DIR/videos."""
    encoder, places = load_encoder(encoder_folder)
    directory = out / "index"
    if has_index_files(directory):
        index = Index.open(directory)
    else:
        index = Index.create(directory, out / "videos", encoder, places=places)
    index_folder(index, encoder, report=report)
