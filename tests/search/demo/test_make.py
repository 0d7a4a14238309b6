"""The directory of a demo, but for its training and index, which have tests of their own."""

import json

import pytest

from hlformer_jax import files, video
from hlformer_jax.search import captions, demo
from hlformer_jax.search.demo.scenes import stories


@pytest.fixture
def calls(monkeypatch):
    """Stands in for training and indexing, and notes them."""
    noted = []

    def train(folder, seed, tell):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        noted.append("train")

    monkeypatch.setattr(demo, "_train", train)
    monkeypatch.setattr(demo, "_index", lambda out, tell: noted.append("index"))
    return noted


def test_videos_and_captions_agree_and_a_second_call_renders_nothing(tmp_path, calls):
    out, told = tmp_path / "demo", []
    demo.make(out, 1, told.append, videos=2)
    paths = video.find(out / "videos")
    assert [str(path.relative_to(out / "videos")) for path in paths] == [
        "morning/01.mp4", "noon/02.mp4",
    ]  # fmt: skip
    lines = [json.loads(line) for line in (out / "captions.jsonl").read_text().splitlines()]
    assert {line["video"] for line in lines} == {"morning/01.mp4", "noon/02.mp4"}
    for line in lines:
        assert list(line) == ["video", "sentence", "start", "end"]
        length = video.probe(out / "videos" / line["video"]).duration
        assert 0 <= line["start"] < line["end"] <= length
    assert calls == ["train", "index"] and "rendered 2 videos" in told[0]

    before = [path.stat().st_ino for path in paths]
    (paths[1]).unlink()
    demo.make(out, 1, told.append, videos=2)
    after = [path.stat().st_ino for path in video.find(out / "videos")]
    assert after[0] == before[0] and len(after) == 2
    assert calls == ["train", "index", "index"]


def test_another_seed_is_refused_and_replaces_nothing(tmp_path, calls, monkeypatch):
    monkeypatch.setattr(demo, "_render", lambda told, folder: None)
    demo.make(tmp_path / "demo", 1, lambda line: None)
    with pytest.raises(demo.DemoError, match="--seed=1"):
        demo.make(tmp_path / "demo", 2, lambda line: None)
    assert calls == ["train", "index"]


@pytest.mark.parametrize("note", [None, "", "{}", '{"seed": 0, "videos": 24}', "[" * 100_000])
def test_a_directory_with_other_things_is_left_alone(tmp_path, calls, note):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "holiday.mp4").write_bytes(b"x")
    if note is not None:
        (tmp_path / "demo.json").write_text(note)
    before = contents(tmp_path)
    with pytest.raises(demo.DemoError, match="holds other things"):
        demo.make(tmp_path, 0, lambda line: None)
    assert contents(tmp_path) == before and not calls


def test_what_others_put_into_a_demo_stays(tmp_path, calls):
    out, said = tmp_path / "demo", lambda line: None
    demo.make(out, 1, said, videos=2)
    theirs = out / "videos" / "holiday.mp4", out / "videos" / "noon" / "02.mp4", out / "notes.txt"
    for path in theirs:
        path.write_bytes(b"theirs")
    demo.make(out, 1, said, videos=2)
    (out / "captions.jsonl").write_text("theirs")
    with pytest.raises(files.OutputError):
        demo.make(out, 1, said, videos=2)
    assert {path.read_text() for path in (*theirs, out / "captions.jsonl")} == {"theirs"}
    link = tmp_path / "link"
    link.symlink_to(out)
    with pytest.raises(files.OutputError):
        demo.make(link, 1, said, videos=2)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_captions_are_lines_of_json_for_every_scene_with_a_sentence():
    told = stories(0, 4)
    lines = demo.captions(told).splitlines()
    assert len(lines) == sum(scene.sentence is not None for s in told for scene in s.scenes)


def test_videos_to_train_on_are_others_than_the_demo_s(tmp_path, calls, monkeypatch):
    rendered = {}

    def render(told, folder):
        for story in told:
            (folder / story.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / story.name).touch()
        rendered[folder.relative_to(tmp_path).as_posix()] = told

    monkeypatch.setattr(demo, "_render", render)
    out = tmp_path / "demo"
    demo.make(out, 1, lambda line: None)
    demo.render_training(out, 1, lambda line: None)
    own = rendered.pop("demo/videos")
    assert len(rendered) == 6
    every = [story for told in rendered.values() for story in told]
    assert len(every) == 240 and len({story.seed for story in [*every, *own]}) == 264
    lines = captions.read(out / "training" / "captions.jsonl")
    videos = {
        split: {line.video for line in lines if line.split == split} for split in captions.SPLITS
    }
    assert {split: len(of) for split, of in videos.items()} == {"train": 200, "val": 40, "test": 24}
    assert videos["test"] == {f"demo/{story.name}" for story in own}
    for folder, told in rendered.items():
        place = folder.removeprefix("demo/training/videos/")
        assert {f"{place}/{story.name}" for story in told} <= videos["train"] | videos["val"]
