"""Features of one's own videos: what is written is what a model is trained on."""

import json
import logging
import os

import numpy as np
import pytest

from hlformer_jax.config import ConfigError, default, load
from hlformer_jax.data import extracted
from hlformer_jax.data.dataset import open_data, open_trees
from hlformer_jax.data.extracted import ExtractedReader, ExtractedSource, TimedReader
from hlformer_jax.data.source import SPLITS, Caption, DataError

D, E = 6, 4
CAPTIONED = {
    split: {
        f"{split}/{k}.mp4": [Caption(f"{split}#{k}", "a circle", 1.0, 2.5 + k)] for k in range(2)
    }
    for split in SPLITS
}
VIDEOS = [video for split in CAPTIONED.values() for video in split]
CAPTIONS = [own[0].caption_id for split in CAPTIONED.values() for own in split.values()]


def frames(video):
    length = 4 + VIDEOS.index(video) if video in VIDEOS else 20
    return np.random.default_rng(list(video.encode())).normal(size=(length, D)).astype(np.float16)


def words(caption):
    return np.random.default_rng(list(caption.encode())).normal(size=(3, E)).astype(np.float32)


def write(folder, splits=CAPTIONED, overwrite=False, **facts):
    names = [one.caption_id for of in splits.values() for own in of.values() for one in own]
    extracted.write(
        folder,
        "tiny-0123",
        {"name": "tiny", "fingerprint": "0123"} | facts,
        splits,
        ((video, frames(video)) for of in splits.values() for video in of),
        ((name, words(name)) for name in names),
        overwrite,
    )
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "features", fps=2.0)


def timed(folder, times, fps):
    """A folder with a video of 20 frames a split, captioned at these times."""
    splits = {
        split: {f"{split}.mp4": [Caption(f"{split}#{k}", f"thing {k}", *time)
                                 for k, time in enumerate(times)]}
        for split in SPLITS
    }  # fmt: skip
    return write(folder, splits, fps=fps)


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


def test_the_configuration_of_a_folder_opens_it_with_the_times_of_its_captions(folder, tmp_path):
    config = load("configs/own.py", f"{folder},gmmformer_v2")
    assert config.model.name == "gmmformer_v2"
    assert (config.data.visual_dim, config.data.text_dim, config.data.max_words) == (D, E, 3)
    config.data.data_dir = str(tmp_path / "prepared")
    data = open_data(config)
    assert data.train.video_ids == tuple(CAPTIONED["train"])
    assert data.test[1].words[0].shape == (3, E)
    want = frames(data.test.video_ids[1]).astype(np.float32)
    want /= np.linalg.norm(want, axis=-1, keepdims=True)
    np.testing.assert_allclose(data.test[1].frames, want, atol=1e-3)
    for name, split in zip(SPLITS, data[:3], strict=True):
        assert split.spans == {
            f"{name}#{k}": (1.0, 2.5 + k, len(frames(f"{name}/{k}.mp4")) / 2.0) for k in range(2)
        }


@pytest.mark.parametrize("model", ["hlformer", "ms_sl"])
def test_own_features_are_another_source_of_the_configurations_on_clip(folder, model):
    own = load("configs/own.py", f"{folder},{model},tvr")
    clip = load("configs/clip.py", f"{model}-tvr")
    for part in ("model", "loss", "optim", "train"):
        assert own[part].to_dict() == clip[part].to_dict()
    assert (own.data.manual_dir, own.data.visual_dim) == (str(folder), D)


def test_captions_without_times_are_known_to_have_none(tmp_path):
    folder = timed(tmp_path / "own", ((None, None),), None)
    assert ExtractedReader(folder).annotations("test") == {"spans": {}}


def test_another_content_is_another_data_set(folder):
    source = ExtractedSource(str(folder), "tiny-0123", D, E)
    before = source.fingerprint()
    write(folder, {**CAPTIONED, "val": {"val/0.mp4": CAPTIONED["val"]["val/0.mp4"]}}, True)
    assert source.fingerprint() != before
    with pytest.raises(DataError, match="tiny-0123"):
        ExtractedSource(str(folder), "other", D, E).fingerprint()


def test_what_is_missing_or_damaged_is_one_line(folder, tmp_path):
    with pytest.raises(ConfigError, match="say which"):
        load("configs/own.py")
    with pytest.raises(ConfigError, match="features.json"):
        load("configs/own.py", str(tmp_path))
    whole = (folder / "frames.npy").read_bytes()
    for damage in (whole[:200], b"", whole.replace(b"NUMPY", b"NUMPX")):
        (folder / "frames.npy").write_bytes(damage)
        with pytest.raises(DataError, match="frames.npy"):
            ExtractedReader(folder)
    nothing = {"format": 1, "digest": "x", "feature": "tiny-0123", "frames": {}, "words": 3}
    numbers = ['{"format": NaN}', '{"format": ' + "9" * 5000 + "}"]
    contents = [json.dumps(content) for content in ({"format": 1}, {"format": 99}, nothing)]
    for damage in ("{", "[]", "[" * 10**5, *numbers, *contents):
        (folder / "features.json").write_text(damage)
        with pytest.raises(DataError, match="make the features again"):
            ExtractedReader(folder)


def test_what_is_there_is_not_replaced_unless_it_is_features_that_may_be(folder, tmp_path):
    theirs, draft = tmp_path / "theirs", tmp_path / ".new.draft"
    theirs.mkdir()
    (theirs / "frames.npy").write_bytes(b"theirs")
    (theirs / "features.json").write_text('{"mine": 1}')
    (tmp_path / "link").symlink_to(theirs)
    draft.mkdir()
    (draft / "holiday.mp4").write_bytes(b"theirs")
    for place, overwrite in (
        (theirs, False), (theirs, True), (tmp_path / "link", True), (folder, False),
        (tmp_path / "new", False),
    ):  # fmt: skip
        with pytest.raises(OSError):
            write(place, overwrite=overwrite)
    assert (theirs / "frames.npy").read_bytes() == (draft / "holiday.mp4").read_bytes() == b"theirs"
    write(folder, overwrite=True)
    assert ExtractedReader(folder).splits


def test_a_write_that_is_cut_short_is_no_source_and_is_done_again(folder, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    for last in (extracted.FRAMES, extracted.CONTENTS):
        replace = lambda path, to, last=last: killed() if to.name == last else os.replace(path, to)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("pathlib.Path.replace", replace)
            write(folder, overwrite=True)
        if last == extracted.FRAMES:
            with pytest.raises(DataError):
                extracted.contents(folder)
        write(folder, overwrite=True)
        assert ExtractedReader(folder).splits


# Captions with times


def test_own_captions_with_times_are_trees_and_those_without_are_left_out(tmp_path, caplog):
    folder = timed(tmp_path / "own", ((4.0, 9.0), (0.0, 4.0), (None, 3.0)), 2.0)
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


def test_captions_with_times_are_another_data_set_than_all_captions(folder):
    features = ExtractedSource(str(folder), "tiny-0123", D, E)
    source = ExtractedSource(str(folder), "tiny-0123", D, E, timed=True)
    assert source.name == f"{features.name}_moments"
    assert source.fingerprint() != features.fingerprint()


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
        TimedReader(timed(tmp_path / "own", times, fps)).annotations("train")
