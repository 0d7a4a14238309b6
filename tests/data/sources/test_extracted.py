"""Features of users' videos: writing, reading, and configurations that train on them."""

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest

from hlformer_jax.config import ConfigError, default, describe_data, load
from hlformer_jax.data.dataset import open_data, open_trees
from hlformer_jax.data.sources import extracted
from hlformer_jax.data.sources.extracted import ExtractedReader, ExtractedSource, TimedReader
from hlformer_jax.data.sources.protocol import SPLITS, Caption, DataError, MissingSourceError
from hlformer_jax.sweep import expand

D, E = 6, 4
CAPTIONED = {
    split: {
        f"{split}/{k}.mp4": [Caption(f"{split}#{k}", "a circle", 1.0, 2.5 + k)] for k in range(2)
    }
    for split in SPLITS
}
VIDEOS = [video for split in CAPTIONED.values() for video in split]
CAPTIONS = [captions[0].caption_id for split in CAPTIONED.values() for captions in split.values()]


def frames(video):
    """Return the frame features of a video."""
    length = 4 + VIDEOS.index(video) if video in VIDEOS else 20
    return np.random.default_rng(list(video.encode())).normal(size=(length, D)).astype(np.float16)


def words(caption):
    """Return the word features of a caption."""
    return np.random.default_rng(list(caption.encode())).normal(size=(3, E)).astype(np.float32)


def write(folder, splits=CAPTIONED, overwrite=False, parents=None, **facts):
    """Write a folder of features of captioned videos and return it."""
    videos = [(video, captions) for split in splits.values() for video, captions in split.items()]
    names = [caption.caption_id for _, captions in videos for caption in captions]
    names += [name for texts in (parents or {}).values() for name in texts]
    extracted.write(
        folder,
        "tiny-0123",
        {"name": "tiny", "fingerprint": "0123"} | facts,
        splits,
        ((video, frames(video)) for video, _ in videos),
        ((name, words(name)) for name in names),
        overwrite,
        parents,
    )
    return folder


@pytest.fixture
def folder(tmp_path):
    return Path(write(str(tmp_path / "features"), fps=2.0))


def captioned(times):
    """Return splits of one video of 20 frames, captioned at these times."""
    return {
        split: {f"{split}.mp4": [Caption(f"{split}#{k}", f"thing {k}", *time)
                                 for k, time in enumerate(times)]}
        for split in SPLITS
    }  # fmt: skip


def write_timed(folder, times, fps):
    """Write a folder of features of videos that are captioned at these times."""
    return write(folder, captioned(times), fps=fps)


def test_features_are_read_as_written(folder):
    reader = ExtractedReader(folder)
    assert reader.splits == {
        split: {video: tuple(captions) for video, captions in videos.items()}
        for split, videos in CAPTIONED.items()
    }
    for video in VIDEOS:
        np.testing.assert_array_equal(reader.read_frames(video), frames(video))
        assert reader.num_frames(video) == len(frames(video))
    for caption in CAPTIONS:
        np.testing.assert_array_equal(reader.read_words(caption), words(caption))
        assert reader.num_words(caption) == 3
    assert sorted(path.name for path in folder.parent.iterdir()) == ["features"]


def test_own_config_opens_folder_with_caption_times(folder, tmp_path):
    config = load("configs/own.py", f"{folder},gmmformer_v2")
    assert config.model.name == "gmmformer_v2"
    assert (config.data.visual_dim, config.data.text_dim, config.data.max_words) == (D, E, 3)
    config.data.data_dir = str(tmp_path / "prepared")
    data = open_data(config)
    assert data.train.video_ids == tuple(CAPTIONED["train"])
    assert data.test[1].words[0].shape == (3, E)
    expected = frames(data.test.video_ids[1]).astype(np.float32)
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    np.testing.assert_allclose(data.test[1].frames, expected, atol=1e-3)
    for name, split in zip(SPLITS, data[:3], strict=True):
        assert split.spans == {
            f"{name}#{k}": (1.0, 2.5 + k, len(frames(f"{name}/{k}.mp4")) / 2.0) for k in range(2)
        }


@pytest.mark.parametrize("model", ["hlformer", "ms_sl"])
def test_clip_config_reads_own_features(folder, model):
    config = load("configs/own.py", f"{folder},{model},tvr")
    clip = load("configs/clip.py", f"{model}-tvr")
    for part in ("model", "loss", "optim", "train"):
        assert config[part].to_dict() == clip[part].to_dict()
    assert (config.data.manual_dir, config.data.visual_dim) == (str(folder), D)


def test_captions_without_times_have_no_spans(tmp_path):
    folder = write_timed(tmp_path / "own", ((None, None),), None)
    assert ExtractedReader(folder).annotations("test") == {"spans": {}}


def test_changed_content_is_another_data_set(folder):
    source = ExtractedSource(str(folder), "tiny-0123", D, E)
    before = source.fingerprint()
    write(folder, {**CAPTIONED, "val": {"val/0.mp4": CAPTIONED["val"]["val/0.mp4"]}}, True)
    assert source.fingerprint() != before
    with pytest.raises(DataError, match="tiny-0123"):
        ExtractedSource(str(folder), "other", D, E).fingerprint()


def test_edited_files_are_prepared_anew(folder, tmp_path):
    config = load("configs/own.py", str(folder))
    config.data.data_dir = str(tmp_path / "prepared")
    fingerprints = [open_data(config).fingerprint]
    assert open_data(config).fingerprint == fingerprints[0]
    table = json.loads((folder / "features.json").read_text())
    table["splits"]["test"]["test/0.mp4"][0][2:] = [0.5, 1.5]
    (folder / "features.json").write_text(json.dumps(table))
    data = open_data(config)
    assert data.test.spans["test#0"][:2] == (0.5, 1.5)
    fingerprints.append(data.fingerprint)
    rows = np.load(folder / "frames.npy")
    np.save(folder / "frames.npy", rows[::-1])
    data = open_data(config)
    expected = rows[-1].astype(np.float32) / np.linalg.norm(rows[-1].astype(np.float32))
    np.testing.assert_allclose(data.train[0].frames[0], expected, atol=1e-3)
    fingerprints.append(data.fingerprint)
    facts = json.loads((folder / "encoder.json").read_text())
    (folder / "encoder.json").write_text(json.dumps(facts | {"fps": 4.0}))
    data = open_data(config)
    assert data.test.spans["test#0"].duration == len(frames("test/0.mp4")) / 4.0
    fingerprints.append(data.fingerprint)
    assert len(set(fingerprints)) == 4
    (folder / "words.npy").unlink()
    with pytest.raises(DataError, match="words.npy: no such file"):
        open_data(config)


def test_missing_or_damaged_file_is_one_line(folder, tmp_path):
    with pytest.raises(ConfigError, match="name the folder"):
        load("configs/own.py")
    with pytest.raises(ConfigError, match="features.json"):
        load("configs/own.py", str(tmp_path))
    for file, option, suggestion in (
        ("own", "hlformr", "hlformer"),
        ("own", "debugg", "debug"),
        ("hover_own", "relased", "released"),
    ):
        with pytest.raises(ConfigError, match=f"'{option}': use .*; did you mean '{suggestion}'"):
            load(f"configs/{file}.py", f"{folder},{option}")
    content = (folder / "frames.npy").read_bytes()
    for damage in (content[:200], b"", content.replace(b"NUMPY", b"NUMPX"), b"a text"):
        (folder / "frames.npy").write_bytes(damage)
        with pytest.raises(DataError, match="frames.npy") as error:
            ExtractedReader(folder)
        assert "pickle" not in str(error.value)
    no_frames = {"format": 1, "digest": "x", "feature": "tiny-0123", "frames": {}, "words": 3}
    numbers = ['{"format": NaN}', '{"format": ' + "9" * 5000 + "}"]
    contents = [json.dumps(table) for table in ({"format": 1}, {"format": 99}, no_frames)]
    for damage in ("{", "[]", "[" * 10**5, *numbers, *contents):
        (folder / "features.json").write_text(damage)
        with pytest.raises(DataError, match="make the features again"):
            ExtractedReader(folder)


def test_write_replaces_only_features_if_asked(folder, tmp_path):
    foreign, draft = tmp_path / "foreign", tmp_path / ".new.draft"
    foreign.mkdir()
    (foreign / "frames.npy").write_bytes(b"foreign")
    (foreign / "features.json").write_text('{"mine": 1}')
    (tmp_path / "link").symlink_to(foreign)
    draft.mkdir()
    (draft / "holiday.mp4").write_bytes(b"foreign")
    for place, overwrite in (
        (foreign, False), (foreign, True), (tmp_path / "link", True), (folder, False),
        (tmp_path / "new", False),
    ):  # fmt: skip
        with pytest.raises(OSError):
            write(place, overwrite=overwrite)
    for path in (foreign / "frames.npy", draft / "holiday.mp4"):
        assert path.read_bytes() == b"foreign"
    write(folder, overwrite=True)
    assert ExtractedReader(folder).splits


def test_interrupted_write_is_refused_and_redone(folder, monkeypatch):
    def interrupt_at(last):
        def replace(path, target):
            if target.name == last:
                raise KeyboardInterrupt
            os.replace(path, target)

        return replace

    for last in (extracted.FRAMES, extracted.CONTENTS):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("pathlib.Path.replace", interrupt_at(last))
            write(folder, overwrite=True)
        if last == extracted.FRAMES:
            with pytest.raises(DataError):
                extracted.contents(folder)
        write(folder, overwrite=True)
        assert ExtractedReader(folder).splits


# Captions with times


def test_own_timed_captions_become_trees(tmp_path, caplog):
    folder = write_timed(tmp_path / "own", ((4.0, 9.0), (0.0, 4.0), (None, 3.0)), 2.0)
    config = default("hover")
    config.data.update(
        data_dir=str(tmp_path / "prepared"), visual_dim=D, text_dim=E, max_clips=1, max_words=8,
        collection="own", manual_dir=str(folder), feature="tiny-0123",
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        test = open_trees(config).test
    assert "3 captions have no times and are left out" in caplog.text  # one of each split
    assert test.pool.texts == ("thing 1", "thing 0", "thing 1 thing 0")
    # Twenty frames, two a second: ten seconds.
    assert test.rows.tolist() == [[0, 8], [8, 18], [0, 18]]
    assert test.words_per_video.tolist() == [6]


def test_own_times_in_milliseconds_are_refused(tmp_path):
    folder = write_timed(tmp_path / "own", ((0.0, 4000.0), (4000.0, 9000.0)), 2.0)
    for name, open_splits in (("own", open_data), ("hover_own", open_trees)):
        config = load(f"configs/{name}.py", f"{folder},debug")
        config.data.data_dir = str(tmp_path / "prepared")
        with pytest.raises(DataError, match="moment 'train#0' ends at 4000 s, .* ends at 10 s"):
            open_splits(config)


def test_own_times_after_the_video_are_counted(tmp_path, caplog):
    folder = write_timed(tmp_path / "own", ((4.0, 9.0), (9.0, 13.0)), 2.0)
    config = load("configs/hover_own.py", f"{folder},debug")
    config.data.data_dir = str(tmp_path / "prepared")
    assert open_trees(config).test.rows.max() == 19
    warning = "features.json: 1 of 2 moments end more than 1.5 s after their video"
    assert caplog.text.count(warning) == 3  # once for each split


def test_videos_of_both_training_and_test_are_reported(tmp_path, caplog):
    videos = {split: list(captions) for split, captions in CAPTIONED.items()}
    videos["test"].append("train/0.mp4")
    splits = {
        split: {
            video: [Caption(f"{video}#{k}", f"thing {k}", float(k), k + 1.0) for k in range(2)]
            for video in videos_of_split
        }
        for split, videos_of_split in videos.items()
    }
    config = load("configs/hover_own.py", f"{write(tmp_path / 'own', splits, fps=2.0)},debug")
    config.data.data_dir = str(tmp_path / "prepared")
    for _ in range(2):
        caplog.clear()
        open_trees(config)
        warning = "1 of 3 test videos are also training videos, such as 'train/0.mp4'"
        assert caplog.text.count(warning) == 1


def test_timed_captions_have_another_fingerprint(folder):
    features = ExtractedSource(str(folder), "tiny-0123", D, E)
    source = ExtractedSource(str(folder), "tiny-0123", D, E, timed=True)
    assert source.name == f"{features.name}_moments"
    assert source.fingerprint() != features.fingerprint()


@pytest.mark.parametrize(
    ("times", "fps", "complaint"),
    [
        (((None, None),), 2.0, "no caption of train has a time"),
        (((0.0, 4.0),), None, "encoder.json: does not give the number of frames"),
        (((0.0, 4.0),), 0, "encoder.json: gives 0.0 frames per second"),
    ],
)
def test_own_captions_without_times_are_refused(tmp_path, times, fps, complaint):
    with pytest.raises(DataError, match=complaint):
        TimedReader(write_timed(tmp_path / "own", times, fps)).annotations("train")


ADJACENT = ((0.0, 4.0), (4.0, 8.0), (8.0, 12.0))


@pytest.fixture
def with_parents(tmp_path):
    """A folder with three adjacent moments a video, and the texts of their parents."""
    splits = captioned(ADJACENT)
    parents = extracted.parents_of(splits)
    return write(tmp_path / "own", splits, parents=parents, fps=1.0), parents


def test_parents_have_texts_of_every_form_of_the_tree(with_parents):
    _, parents = with_parents
    assert list(parents) == [f"{split}.mp4" for split in SPLITS]
    # Released: 0 and 1, 1 and 2, and all with the middle twice. Shallow: all once. Balanced: 0 and
    # 1, and this parent with 2.
    assert set(parents["test.mp4"].values()) == {
        "thing 0 thing 1", "thing 1 thing 2", "thing 0 thing 1 thing 1 thing 2",
        "thing 0 thing 1 thing 2",
    }  # fmt: skip
    # A parent does not get an id that a caption has.
    splits = {"train": {"a.mp4": [
        Caption("a.mp4#parent#0", "one", 0.0, 4.0), Caption("b", "two", 4.0, 8.0),
    ]}}  # fmt: skip
    assert extracted.parents_of(splits) == {"a.mp4": {"a.mp4#parent#1": "one two"}}


@pytest.mark.parametrize("form", ["released", "shallow", "balanced"])
def test_parent_reads_the_words_of_its_own_text(with_parents, tmp_path, form):
    folder, parents = with_parents
    config = load("configs/hover_own.py", str(folder))
    config.data.data_dir = str(tmp_path / "prepared")
    config.trees.form = form
    test = open_trees(config).test
    ids = {text: name for name, text in parents["test.mp4"].items()}
    features = test.features[0]
    stored = np.concatenate([np.asarray(rows) for rows in features.words])
    assert len(test.pool.texts) > 3
    for text, level, rows in zip(test.pool.texts, test.pool.level, test.word_rows, strict=True):
        name = ids[text] if level else f"test#{text[-1]}"
        read = stored[rows[rows >= 0]].astype(np.float32)
        expected = words(name) / np.linalg.norm(words(name), axis=-1, keepdims=True)
        np.testing.assert_allclose(read, expected, atol=1e-3)  # stored as float16


def test_parents_without_features_read_the_words_of_leaves(tmp_path):
    folder = write_timed(tmp_path / "own", ADJACENT, 1.0)
    config = load("configs/hover_own.py", str(folder))
    config.data.data_dir = str(tmp_path / "prepared")
    test = open_trees(config).test
    assert [(rows >= 0).sum() for rows in test.word_rows][-1] == 9


def test_texts_of_parents_do_not_count_as_captions(with_parents):
    folder, _ = with_parents
    assert extracted.contents(folder)["max_words"] == 3
    assert ExtractedReader(folder).splits["test"]["test.mp4"][-1].caption_id == "test#2"


@pytest.mark.parametrize("table", ["hover_table1", "hover_table3", "hover_table4"])
def test_sweeps_of_hover_train_on_a_folder_of_features(with_parents, table):
    folder, _ = with_parents
    sweep = load(f"configs/sweeps/{table}.py", f"{folder},debug")
    for run in expand(sweep):
        assert run.config.data.manual_dir == str(folder)
        assert (run.config.data.collection, run.config.train.epochs) == ("own", 1)
    assert not describe_data(sweep.base)["synthetic"]
    assert load(f"configs/sweeps/{table}.py", str(folder)).base.train.epochs > 1


def _captions(*videos, split=""):
    """Return a caption of each video."""
    return [
        (video, split, Caption(f"{number}", f"sentence {number}"))
        for number, video in enumerate(videos)
    ]


def test_random_splits_divide_videos_by_seed():
    captions = _captions(*[f"{k}.mp4" for k in range(40)] * 2)
    first, repeated, reseeded = (extracted.split_captions(captions, seed) for seed in (0, 0, 1))
    assert first == repeated != reseeded
    assert [len(first[split]) for split in ("train", "val", "test")] == [32, 4, 4]
    assert len(set().union(*first.values())) == 40
    few = extracted.split_captions(_captions("a", "b", "c", "a"), 0)
    assert [len(few[split]) for split in ("train", "val", "test")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("captions", "name"),
    [
        (_captions("a", split="train") + _captions("b"), "'sentence 0' of 'b'"),
        (_captions("a", split="train"), "'val'"),
        (_captions("a", "b"), "2 indexed videos"),
    ],
)
def test_captions_without_complete_splits_are_refused(captions, name):
    with pytest.raises(DataError, match=name):
        extracted.split_captions(captions, 0)


def test_home_of_an_unknown_user_is_a_missing_folder():
    with pytest.raises(MissingSourceError, match="nobody-of-this/features"):
        extracted.contents("~nobody-of-this/features")
