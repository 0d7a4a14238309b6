"""Features of one's own videos: what is written is what a model is trained on."""

import json
import logging
import os

import numpy as np
import pytest

from hlformer_jax.config import ConfigError, load
from hlformer_jax.data import extracted
from hlformer_jax.data.dataset import open_data
from hlformer_jax.data.extracted import ExtractedReader, ExtractedSource, TimedReader
from hlformer_jax.data.source import SPLITS, Caption, DataError

CAPTIONED = {
    split: {
        f"{split}/{k}.mp4": [Caption(f"{split}#{k}", "a circle", 1.0, 2.5 + k)] for k in range(2)
    }
    for split in ("train", "val", "test")
}
VIDEOS = [video for split in CAPTIONED.values() for video in split]
CAPTIONS = [own[0].caption_id for split in CAPTIONED.values() for own in split.values()]


def frames(video):
    rng = np.random.default_rng(len(video) + VIDEOS.index(video))
    return rng.normal(size=(4 + VIDEOS.index(video), 6)).astype(np.float16)


def words(caption):
    return np.random.default_rng(CAPTIONS.index(caption)).normal(size=(3, 4)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    of = lambda names, features: ((name, features(name)) for name in names)
    extracted.write(
        tmp_path / "features",
        "tiny-0123",
        {"name": "tiny", "fingerprint": "0123", "fps": 2.0},
        CAPTIONED,
        of(VIDEOS, frames),
        of(CAPTIONS, words),
    )
    return tmp_path / "features"


def test_what_is_read_is_what_was_written(folder):
    reader = ExtractedReader(folder)
    assert reader.splits == {
        split: {video: tuple(own) for video, own in of.items()} for split, of in CAPTIONED.items()
    }
    for video in VIDEOS:
        np.testing.assert_array_equal(reader.read_frames(video), frames(video))
        assert reader.num_frames(video) == len(frames(video))
    for caption in CAPTIONS:
        np.testing.assert_array_equal(reader.read_words(caption), words(caption))
        assert reader.num_words(caption) == 3
    assert sorted(path.name for path in folder.parent.iterdir()) == ["features"]


def test_the_configuration_of_a_folder_opens_it(folder, tmp_path):
    config = load("configs/own.py", f"{folder},gmmformer_v2")
    assert config.model.name == "gmmformer_v2"
    assert (config.data.visual_dim, config.data.text_dim, config.data.max_words) == (6, 4, 3)
    config.data.data_dir = str(tmp_path / "prepared")
    train, _, test, _ = open_data(config)
    assert train.video_ids == tuple(CAPTIONED["train"])
    assert test[1].words[0].shape == (3, 4)
    want = frames(test.video_ids[1]).astype(np.float32)
    want /= np.linalg.norm(want, axis=-1, keepdims=True)
    np.testing.assert_allclose(test[1].frames, want, atol=1e-3)


def test_times_of_captions_are_those_that_were_written(folder, tmp_path):
    config = load("configs/own.py", str(folder))
    config.data.data_dir = str(tmp_path / "prepared")
    data = open_data(config)
    for name, split in zip(("train", "val", "test"), data[:3], strict=True):
        assert split.spans == {
            f"{name}#{k}": (1.0, 2.5 + k, len(frames(f"{name}/{k}.mp4")) / 2.0) for k in range(2)
        }


def test_captions_without_times_are_known_to_have_none(folder):
    untimed = {
        split: {video: [Caption(own[0].caption_id, "x")] for video, own in of.items()}
        for split, of in CAPTIONED.items()
    }
    of = lambda names, features: ((name, features(name)) for name in names)
    extracted.write(folder, "tiny-0123", {}, untimed, of(VIDEOS, frames), of(CAPTIONS, words), True)
    assert ExtractedReader(folder).annotations("test") == {"spans": {}}


def test_another_content_is_another_data_set(folder):
    source = extracted.ExtractedSource(str(folder), "tiny-0123", 6, 4)
    before = source.fingerprint()
    other = {**CAPTIONED, "val": {"val/0.mp4": CAPTIONED["val"]["val/0.mp4"]}}
    of = lambda names, features: ((name, features(name)) for name in names)
    extracted.write(folder, "tiny-0123", {}, other, of(VIDEOS, frames), of(CAPTIONS, words), True)
    assert source.fingerprint() != before
    with pytest.raises(DataError, match="has features of tiny-0123.*own.py"):
        extracted.ExtractedSource(str(folder), "other", 6, 4).fingerprint()


def test_what_is_missing_or_damaged_is_one_line(folder, tmp_path):
    with pytest.raises(ConfigError, match="say which features"):
        load("configs/own.py")
    with pytest.raises(ConfigError, match="features.json is missing.*hlformer_jax.search features"):
        load("configs/own.py", str(tmp_path))
    whole = (folder / "frames.npy").read_bytes()
    for damage in (whole[:200], b"", whole.replace(b"NUMPY", b"NUMPX")):
        (folder / "frames.npy").write_bytes(damage)
        with pytest.raises(DataError, match="frames.npy.*make the features again"):
            ExtractedReader(folder)
    nothing = {"format": 1, "digest": "x", "feature": "tiny-0123", "frames": {}, "words": 3}
    numbers = ['{"format": NaN}', '{"format": ' + "9" * 5000 + "}"]
    contents = [json.dumps(content) for content in ({"format": 1}, {"format": 99}, nothing)]
    for damage in ("{", "[]", "[" * 10**5, *numbers, *contents):
        (folder / "features.json").write_text(damage)
        with pytest.raises(DataError, match="make the features again"):
            ExtractedReader(folder)


def test_what_is_there_is_not_replaced_unless_it_is_features_that_may_be(folder, tmp_path):
    of = lambda names, features: ((name, features(name)) for name in names)
    write = lambda place, overwrite: extracted.write(
        place, "tiny-0123", {}, CAPTIONED, of(VIDEOS, frames), of(CAPTIONS, words), overwrite
    )
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "frames.npy").write_bytes(b"theirs")
    (theirs / "features.json").write_text('{"mine": 1}')
    link = tmp_path / "link"
    link.symlink_to(theirs)
    draft = tmp_path / ".new.draft"
    draft.mkdir()
    (draft / "holiday.mp4").write_bytes(b"theirs")
    refused = [
        (theirs, False),
        (theirs, True),
        (link, True),
        (folder, False),
        (tmp_path / "new", False),
    ]
    for place, overwrite in refused:
        with pytest.raises(OSError):
            write(place, overwrite)
    assert (theirs / "frames.npy").read_bytes() == (draft / "holiday.mp4").read_bytes() == b"theirs"
    write(folder, True)
    assert ExtractedReader(folder).splits


def test_a_write_that_is_cut_short_is_no_source_and_is_done_again(folder, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    of = lambda names, features: ((name, features(name)) for name in names)
    arguments = (folder, "tiny-0123", {}, CAPTIONED)
    for last in (extracted.FRAMES, extracted.CONTENTS):
        replace = lambda path, to, last=last: killed() if to.name == last else os.replace(path, to)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("pathlib.Path.replace", replace)
            extracted.write(*arguments, of(VIDEOS, frames), of(CAPTIONS, words), True)
        if last == extracted.FRAMES:
            with pytest.raises(DataError):
                extracted.contents(folder)
        extracted.write(*arguments, of(VIDEOS, frames), of(CAPTIONS, words), True)
        assert ExtractedReader(folder).splits


# Captions with times


D, E = 6, 4


def own(folder, times, fps=2.0):
    """A folder of one's own features: a video of 20 frames a split, captions at these times."""
    splits = {
        split: {
            f"{split}.mp4": [
                Caption(f"{split}#{k}", f"thing {k}", *time) for k, time in enumerate(times)
            ]
        }
        for split in SPLITS
    }
    names = [one.caption_id for videos in splits.values() for own in videos.values() for one in own]
    extracted.write(
        folder,
        "tiny-0123",
        {"name": "tiny", "fps": fps},
        splits,
        ((video, np.ones((20, D))) for videos in splits.values() for video in videos),
        ((name, np.ones((2, E))) for name in names),
    )
    return folder


def test_own_captions_are_moments_by_their_start_and_last_as_long_as_their_frames(tmp_path, caplog):
    folder = own(tmp_path / "own", ((4.0, 9.0), (0.0, 4.0), (None, 3.0)), fps=4.0)
    with caplog.at_level(logging.WARNING):
        reader = TimedReader(folder)
    assert "3 captions have no times and are left out" in caplog.text  # one of each split
    kept = reader.annotations("test")
    assert kept["words"] == [[2, 2]]
    [video] = kept["videos"]
    assert (video["video"], video["duration"]) == ("test.mp4", 20 / 4)
    assert [(one["id"], one["start"], one["end"]) for one in video["moments"]] == [
        ("test#1", 0.0, 4.0),
        ("test#0", 4.0, 9.0),
    ]


def test_an_own_source_is_its_folder_told_apart_from_captions_without_times(tmp_path):
    folder = own(tmp_path / "own", ((0.0, 4.0),))
    features = ExtractedSource(str(folder), "tiny-0123", D, E)
    source = ExtractedSource(str(folder), "tiny-0123", D, E, timed=True)
    assert source.name == f"{features.name}_moments" and source.feature == "tiny-0123"
    assert (source.visual_dim, source.text_dim) == (D, E)
    assert source.fingerprint() != features.fingerprint()
    with source.open() as reader:
        assert json.dumps(reader.annotations("val"))


@pytest.mark.parametrize(
    ("times", "fps", "complaint"),
    [
        (((None, None),), 2.0, "no caption of train has a time"),
        (((0.0, 4.0),), None, "encoder.json: does not say how many frames a second"),
        (((0.0, 4.0),), 0, "encoder.json: says 0.0 frames a second"),
    ],
)
def test_own_captions_without_times_are_refused(tmp_path, times, fps, complaint):
    with pytest.raises(DataError, match=complaint):
        TimedReader(own(tmp_path / "own", times, fps)).annotations("train")
