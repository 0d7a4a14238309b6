"""Sources of moments: what they keep of a split beside its features, and when it is another."""

import json
import logging

import numpy as np
import pytest

from hlformer_jax.data import extracted
from hlformer_jax.data.extracted import ExtractedSource, TimedCaption
from hlformer_jax.data.source import SPLITS, DataError
from hlformer_jax.data.trees import files
from hlformer_jax.data.trees.moment import AnnotatedMoment, TimedVideo
from hlformer_jax.data.trees.rule import build
from hlformer_jax.data.trees.sources import MomentLayout, MomentSource, OwnReader, OwnSource

D, E = 6, 5


def moments(video, count):
    spans = ((10.0 * k, 10.0 * k + 10) for k in range(count))
    return tuple(
        AnnotatedMoment(f"{video}#enc#{k}", *span, f"Thing {k}.") for k, span in enumerate(spans)
    )


@pytest.fixture
def layout(tiny, write):
    """Released features, and moments of the captions that each video has."""
    collection = write(tiny)
    layout = MomentLayout(collection.manual_dir, "tiny", "feat", D, E)
    for split, captions in tiny.captions.items():
        names = [caption.partition("#")[0] for caption, _ in captions]
        counts = {name: names.count(name) for name in names}
        videos = [TimedVideo(name, 30.0, moments(name, count)) for name, count in counts.items()]
        files.write_moments(layout.captions(split), videos)
    return layout


def test_the_moments_of_a_split_are_kept_with_the_numbers_of_their_words(layout, tiny):
    with MomentSource(layout).open() as reader:
        for split in SPLITS:
            kept = reader.annotations(split)
            videos = [video for video, _ in files.read_moments(layout.captions(split))]
            assert kept["collection"] == "tiny" and "trees" not in kept
            assert kept["videos"] == [files.as_json(video) for video in videos]
            assert kept["words"] == [
                [len(tiny.words[one.moment_id]) for one in video.moments] for video in videos
            ]


def test_trees_that_are_given_are_kept_as_they_are(layout):
    [(video, _)] = [
        read for read in files.read_moments(layout.captions("train")) if len(read[0].moments) == 3
    ]
    tree = build(video, "balanced")
    files.write_trees(layout.trees("train"), [(tree, video)])
    with MomentSource(layout).open() as reader:
        assert reader.annotations("train")["trees"] == [files.tree_as_json(tree, video)]
        assert "trees" not in reader.annotations("test")


def test_files_of_trees_are_part_of_the_fingerprint(layout):
    before = MomentSource(layout).fingerprint()
    assert before == MomentSource(layout).fingerprint()
    layout.trees("val").write_text("{}")
    assert MomentSource(layout).fingerprint() != before


def test_a_source_is_told_apart_from_its_captions(layout):
    source = MomentSource(layout)
    assert (source.name, source.feature) == ("tiny_moments", "feat")
    assert (source.visual_dim, source.text_dim) == (D, E)


def own(folder, times, fps=2.0):
    """A folder of one's own features: a video of 20 frames a split, captions at these times."""
    splits = {
        split: {
            f"{split}.mp4": [
                TimedCaption(f"{split}#{k}", f"thing {k}", *time) for k, time in enumerate(times)
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
        reader = OwnReader(folder)
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
    source = OwnSource(features)
    assert source.name == f"{features.name}_moments" and source.feature == "tiny-0123"
    assert (source.visual_dim, source.text_dim) == (D, E)
    assert source.fingerprint() != features.fingerprint()
    with source.open() as reader:
        assert json.dumps(reader.annotations("val"))


def test_own_captions_without_any_time_are_refused(tmp_path):
    with pytest.raises(DataError, match="no caption of train has a time"):
        OwnReader(own(tmp_path / "own", ((None, None),)))
