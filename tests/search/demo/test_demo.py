"""The demo: its stories, drawings and directories, and the search in it."""

import hashlib
import itertools
import json
import os
import shutil

import kinds
import numpy as np
import page_library
import pytest

from hlformer_jax import files, search, video
from hlformer_jax.retrieval.moments import intersection_over_union
from hlformer_jax.search import demo
from hlformer_jax.search.demo import drawing, making, scenes
from hlformer_jax.search.demo.scenes import Scene, Thing
from hlformer_jax.search.encoder import is_demo_encoder
from hlformer_jax.search.evaluate import captions, metrics, threshold
from hlformer_jax.search.evaluate.metrics import evaluate
from hlformer_jax.search.index import EncoderFacts

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
GREY = np.full((drawing.HEIGHT, drawing.WIDTH, 3), 60, np.uint8)


def silent(line):
    """Ignore a line about a step."""


# ---- stories


def test_scenes_fill_each_video_without_gaps():
    stories = scenes.stories(0, 40)
    for story in stories:
        assert story.scenes[0].start == 0 and 20 <= story.duration <= 40
        assert all(a.end == b.start for a, b in itertools.pairwise(story.scenes))
        assert all(3 <= scene.end - scene.start <= 9 for scene in story.scenes)
    all_scenes = [scene for story in stories for scene in story.scenes]
    empty = [scene for scene in all_scenes if scene.sentence is None]
    assert 0.1 < len(empty) / len(all_scenes) < 0.4 and not any(scene.things for scene in empty)
    assert scenes.stories(3, 5) == scenes.stories(3, 5) != scenes.stories(4, 5)
    assert len(making.captions(stories).splitlines()) == len(all_scenes) - len(empty)
    for count in (0, 41):
        with pytest.raises(ValueError):
            scenes.stories(0, count)


def test_captions_are_unique_and_share_every_attribute():
    all_scenes = [scene for story in scenes.stories(0, 40) for scene in story.scenes]
    events = [(scene.action, frozenset(scene.things)) for scene in all_scenes if scene.sentence]
    assert len(set(events)) == len(events) > 100
    stories = scenes.stories(0, 24)

    def count_stories(word):
        return sum(any(word in (x.sentence or "") for x in story.scenes) for story in stories)

    for word in [*scenes.COLOURS, *scenes.SHAPES, "left", "grows", "meets"]:
        assert count_stories(word) > 5, word
    pairs = [f"{colour} {shape}" for colour in scenes.COLOURS for shape in scenes.SHAPES]
    assert sum(count_stories(pair) for pair in pairs) / len(pairs) > 2


def test_training_sentences_have_all_words_of_captions():
    red, blue = Thing("red", "circle"), Thing("blue", "star")
    assert scenes.sentences("left", (red,))[0] == "a red circle moves to the left"
    assert scenes.sentences("meets", (red, blue))[0] == "a red circle meets a blue star"
    assert Scene(0, 3, "shrinks", (blue,)).sentence == "a blue star shrinks"

    def words(sentences):
        return {word for sentence in sentences for word in sentence.split()}

    captioned = [scene.sentence for story in scenes.stories(0, 40) for scene in story.scenes]
    training = [text for _, text in scenes.training_moments(5, 500)]
    assert words(filter(None, captioned)) <= words(training)


def test_demo_captions_match_the_documented_digest():
    text = making.captions(scenes.stories(0, 24))
    digest = "1724d666c45c2ada486d6994bd9b70fcdf19c33309742704de3da72550be7eac"
    assert hashlib.sha256(text.encode()).hexdigest() == digest


# ---- drawing


def in_colour(picture, colour, within=8):
    return (abs(picture.astype(int) - scenes.COLOURS[colour]) < within).all(-1)


def coloured_pixels(action, time, colour="red", shape="circle"):
    """Return the rows and columns of the pixels in full colour."""
    scene = Scene(2, 6, action, (Thing(colour, shape),))
    return np.nonzero(in_colour(drawing.draw(scene, time, GREY), colour))


@pytest.mark.parametrize(
    ("action", "axis", "sign"), [("left", 1, -1), ("right", 1, 1), ("up", 0, -1), ("down", 0, 1)]
)
def test_moving_shape_leaves_a_trail_behind_it(action, axis, sign):
    centres = [np.mean(coloured_pixels(action, time)[axis]) for time in (2, 3, 4, 5, 5.9)]
    assert (sign * np.diff(centres) > 5).all()
    picture = drawing.draw(Scene(2, 6, action, (Thing("red", "square"),)), 4, GREY)
    changed = np.nonzero((picture != GREY).any(-1))[axis]
    middle = np.mean(coloured_pixels(action, 4, shape="square")[axis])
    behind, ahead = np.max(-sign * (changed - middle)), np.max(sign * (changed - middle))
    assert behind > 1.5 * ahead


@pytest.mark.parametrize(("action", "sign"), [("grows", 1), ("shrinks", -1)])
def test_shape_grows_or_shrinks_like_its_sentence(action, sign):
    widths = [np.ptp(coloured_pixels(action, time)[1]) for time in (2, 3, 4, 5, 5.9)]
    assert (sign * np.diff(widths) > 0).all()


def test_meeting_shapes_touch_only_at_the_end():
    scene = Scene(0, 6, "meets", (Thing("red", "square"), Thing("blue", "square")))
    pictures = [drawing.draw(scene, time, GREY) for time in (0, 2, 5)]

    def columns(picture, colour):
        return np.nonzero(in_colour(picture, colour))[1]

    gaps = [columns(picture, "blue").min() - columns(picture, "red").max() for picture in pictures]
    assert gaps[0] > gaps[1] > gaps[2] and abs(gaps[2]) < 8


def test_shapes_stand_out_from_backgrounds():
    masks = []
    for shape in scenes.SHAPES:
        mask = np.zeros(GREY.shape[:2], bool)
        mask[coloured_pixels("grows", 3.9, shape=shape)] = True
        masks.append(mask)
    for first, second in itertools.combinations(masks, 2):
        assert (first & second).sum() / (first | second).sum() < 0.85
    np.testing.assert_array_equal(drawing.draw(Scene(0, 3), 1, GREY), GREY)
    first, second = (drawing.Background(seed).at(3.0) for seed in (1, 2))
    assert (first == drawing.Background(1).at(3.0)).all() and (first != second).mean() > 0.5
    assert first.max() < 130


def test_rendered_video_shows_each_scene_in_time(tmp_path):
    shown_scenes = (
        Scene(0, 3, "grows", (Thing("red", "circle"),)),
        Scene(3, 6),
        Scene(6, 9, "left", (Thing("blue", "square"),)),
    )
    path = tmp_path / "below" / "a.mp4"
    drawing.write_video(scenes.Story("a.mp4", shown_scenes, 5), path)
    assert video.probe(path)[:5] == (9, 192, 144, 12, "h264")
    for frame in video.sample(path, 2):
        assert (in_colour(frame.image, "red", 60).sum() > 300) == (frame.time < 3)
        assert (in_colour(frame.image, "blue", 60).sum() > 300) == (frame.time >= 6)
    assert [file.name for file in path.parent.iterdir()] == ["a.mp4"]


def test_training_frames_show_their_sentences():
    images, sentences = drawing.frames_for_training(7, 60, 32)
    assert images.shape == (60, 32, 32, 3) and images.dtype == np.uint8 and len(sentences) == 60
    same_images, same_sentences = drawing.frames_for_training(7, 60, 32)
    assert (images == same_images).all() and sentences == same_sentences
    assert sentences != drawing.frames_for_training(8, 60, 32)[1]
    for image, sentence in zip(images, sentences, strict=True):
        for colour in (word for word in sentence.split() if word in scenes.COLOURS):
            assert in_colour(image, colour, 40).sum() >= 8


# ---- the directory, without training and indexing


@pytest.fixture
def calls(monkeypatch):
    """Replaces training and indexing, and records their calls."""
    noted = []

    def train(folder, seed, report):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        noted.append("train")

    monkeypatch.setattr(making, "_train", train)
    monkeypatch.setattr(making, "index_videos", lambda out, report, encoder: noted.append("index"))
    return noted


@pytest.mark.slow  # it takes seconds
def test_second_call_renders_only_missing_videos(tmp_path, calls):
    out, report = tmp_path / "demo", []
    demo.make(out, 1, report.append, videos=2)
    paths = video.find(out / "videos")
    names = ["morning/01.mp4", "noon/02.mp4"]
    assert [path.relative_to(out / "videos").as_posix() for path in paths] == names
    lines = [json.loads(line) for line in (out / "captions.jsonl").read_text().splitlines()]
    assert {line["video"] for line in lines} == set(names)
    for line in lines:
        assert list(line) == ["video", "sentence", "start", "end"]
        length = video.probe(out / "videos" / line["video"]).duration
        assert 0 <= line["start"] < line["end"] <= length
    assert calls == ["train", "index"] and "rendered 2 videos" in report[0]
    before = [path.stat().st_ino for path in paths]
    (paths[1]).unlink()
    demo.make(out, 1, report.append, videos=2)
    after = [path.stat().st_ino for path in video.find(out / "videos")]
    assert after[0] == before[0] and len(after) == 2
    assert calls == ["train", "index", "index"]


def test_another_seed_is_refused(tmp_path, calls, monkeypatch):
    monkeypatch.setattr(making, "render", lambda stories, folder, report: None)
    demo.make(tmp_path / "demo", 1, silent)
    with pytest.raises(demo.DemoError, match="seed 1"):
        demo.make(tmp_path / "demo", 2, silent)
    assert calls == ["train", "index"]


def test_encoder_of_a_demo_is_recognised_by_its_place(tmp_path):
    def facts(*places):
        return EncoderFacts("encoder", "0", "0", 8, places)

    making._claim(tmp_path / "demo", {"seed": 0, "videos": 2})
    assert is_demo_encoder(facts("google/siglip", str(tmp_path / "demo" / "encoder")))
    assert not is_demo_encoder(facts("google/siglip", str(tmp_path / "encoder")))


@pytest.mark.parametrize("note", [None, "", "{}", '{"seed": 0, "videos": 24}', "[" * 100_000])
def test_directory_with_other_files_is_not_changed(tmp_path, calls, note):

    def contents():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "holiday.mp4").write_bytes(b"x")
    if note is not None:
        (tmp_path / "demo.json").write_text(note)
    before = contents()
    with pytest.raises(demo.DemoError):
        demo.make(tmp_path, 0, silent)
    assert contents() == before and not calls


@pytest.mark.slow  # it takes seconds
def test_foreign_files_in_a_demo_directory_are_kept(tmp_path, calls):
    out = tmp_path / "demo"
    demo.make(out, 1, silent, videos=2)
    foreign = out / "videos" / "holiday.mp4", out / "videos" / "noon" / "02.mp4", out / "notes.txt"
    for path in foreign:
        path.write_bytes(b"theirs")
    demo.make(out, 1, silent, videos=2)
    (out / "captions.jsonl").write_text("theirs")
    link = tmp_path / "link"
    link.symlink_to(out)
    for place in (out, link):
        with pytest.raises(files.OutputError):
            demo.make(place, 1, silent, videos=2)
    assert {path.read_text() for path in (*foreign, out / "captions.jsonl")} == {"theirs"}


def test_training_videos_differ_from_the_demo_videos(tmp_path, calls, monkeypatch):
    rendered = {}

    def render(stories, folder, report):
        for story in stories:
            (folder / story.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / story.name).touch()
        rendered[folder.relative_to(tmp_path).as_posix()] = stories

    monkeypatch.setattr(making, "render", render)
    out = tmp_path / "demo"
    demo.make(out, 1, silent)
    demo.render_training(out, 1, silent)
    demo_stories = rendered.pop("demo/videos")
    assert len(rendered) == 6
    training_stories = [story for stories in rendered.values() for story in stories]
    assert len(training_stories) == 240
    assert len({story.seed for story in [*training_stories, *demo_stories]}) == 264
    lines = captions.read(out / "training" / "captions.jsonl")
    videos = {
        split: {line.video for line in lines if line.split == split} for split in captions.SPLITS
    }
    counts = {split: len(names) for split, names in videos.items()}
    assert counts == {"train": 200, "val": 40, "test": 24}
    assert videos["test"] == {f"demo/{story.name}" for story in demo_stories}
    for folder, stories in rendered.items():
        place = folder.removeprefix("demo/training/videos/")
        assert {f"{place}/{story.name}" for story in stories} <= videos["train"] | videos["val"]


def test_interrupted_copy_of_a_video_is_made_again(tmp_path, calls, monkeypatch):
    def interrupt(source, copy):
        copy.write_bytes(b"half of a video")
        raise KeyboardInterrupt

    out = tmp_path / "demo"
    monkeypatch.setattr(making, "render", lambda *_: None)
    monkeypatch.setattr(making.shutil, "copy2", interrupt)
    demo.make(out, 1, silent)
    with pytest.raises(KeyboardInterrupt):
        demo.render_training(out, 1, silent)
    assert not [path for path in (out / "training").rglob("*") if path.is_file()]


# ---- the finished demo, as its first user sees it


@pytest.fixture(scope="module")
def demo_folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "demo"
    demo.make(out, report=silent)
    return out


@pytest.mark.slow
def test_captions_find_their_video_and_moment(demo_folder):
    demo_captions = captions.read(demo_folder / "captions.jsonl")
    videos = {
        path.relative_to(demo_folder / "videos").as_posix() for path in demo_folder.rglob("*.mp4")
    }
    assert {caption.video for caption in demo_captions} <= videos
    metrics, _ = evaluate(search.open(demo_folder / "index", ranker="best_frame"), demo_captions)
    assert metrics["R@1"] > 40 and metrics["R@5"] > 80  # chance is 4 and 21
    assert metrics["IoU 0.5"] > 60  # a moment is a sixth of its video


@pytest.mark.slow
def test_each_kind_is_retrieved_and_threshold_keeps_its_rate(demo_folder):
    kinds.make(demo_folder / "kinds", demo_folder / "encoder", report=silent)
    kind_captions = captions.read(demo_folder / "kinds" / "captions.jsonl")
    library = search.open(demo_folder / "kinds" / "index")
    evaluations = {library.ranker_name: evaluate(library, kind_captions)}
    separations = {name: separation for name, (_, separation) in evaluations.items()}
    threshold.calibrate(library._index, separations, 10.0)
    figures = metrics.report(library, evaluations, kind_captions)
    by_kind = {kind: signals["visual"] for kind, signals in figures["kinds"].items()}
    assert by_kind["visual"]["R@1"] > 25 and by_kind["copied"]["R@5"] > 80  # chance is 3 and 30
    assert by_kind["A then B"]["R@1"] > 75  # without the order, half
    assert by_kind["spoken"]["R@1"] < 25 and figures["kinds"]["spoken"]["transcript"]["R@1"] > 75
    # At most a tenth of 60 and of 54 on average, plus three standard deviations.
    assert by_kind["absent combination"]["matches"] < 22
    assert by_kind["absent colour or shape"]["matches"] < 23
    assert figures["rankers"]["best_frame"]["AUC"] > 23

    def vectors(name):
        record = library._index.videos[name]
        return library._index.read(record.content).vectors.astype(np.float32)

    copied = {x.video: x for x in kind_captions if x.kind == "copied"}
    for caption in copied.values():
        original, copy = vectors(caption.video), vectors(caption.duplicates[0])
        assert np.median((original * copy).sum(-1)) > 0.6


@pytest.mark.slow
def test_second_call_changes_no_file(demo_folder):
    parts = ("videos", "encoder")

    def times():
        paths = [
            path for part in parts for path in (demo_folder / part).rglob("*") if path.is_file()
        ]
        return {path: path.stat().st_mtime_ns for path in paths}

    before = times()
    demo.make(demo_folder, report=silent)
    assert times() == before


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists(CHROMIUM), reason="needs chromium")
def test_page_plays_the_moment_of_the_query(demo_folder, tmp_path):
    import page_browser
    from playwright.sync_api import expect, sync_playwright

    library = search.open(demo_folder / "index", ranker="best_frame")
    caption, moment = next(
        (caption, hit.moments[0])
        for caption in captions.read(demo_folder / "captions.jsonl")
        if (hit := library.query(caption.sentence, k=1)[0]).video == caption.video
        and intersection_over_union(hit.moments[0], caption.start, caption.end) > 0.7
    )
    pictures = os.environ.get("HLFORMER_SCREENSHOTS", tmp_path)
    faults = []
    with page_library.running(library) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860}, locale="en-GB")
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(url)
        expect(page.get_by_role("note")).to_contain_text("the demo’s encoder")
        page.locator("#q").fill(caption.sentence)
        first = page.locator("#results .open").first
        expect(first).to_contain_text(caption.video.split("/")[-1], timeout=30_000)
        page.keyboard.press("Enter")
        for _ in range(100):
            page.wait_for_timeout(100)
            if (played := page_browser.time_of(page)) > moment.start:
                break
        assert 0 < played - moment.start < 3  # playback continues meanwhile
        page.wait_for_timeout(500)
        page.screenshot(path=f"{pictures}/demo.png")
        browser.close()
    assert faults == []
