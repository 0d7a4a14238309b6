"""Frames have the colour of the moment that they are of."""

from xml.etree import ElementTree

import numpy as np
import pytest

from hlformer_jax.data.spans import Span
from hlformer_jax.figures import annotated, drawing, frames, registry
from hlformer_jax.figures.drawing import NotApplicable


def test_a_frame_is_of_the_moment_that_its_middle_lies_in():
    spans = [Span(6.0, 8.0, 8.0), None, Span(1.0, 4.1, 8.0)]
    found = frames.moment_of_frames(spans, [2, 0], 8)
    assert found.tolist() == [-1, 0, 0, 0, -1, -1, 1, 1]
    assert frames.moment_of_frames(spans, [], 2).tolist() == [-1, -1]


@pytest.mark.slow  # UMAP compiles for ten seconds
def test_the_figure_colours_the_frames_of_the_video_with_most_moments(subject, options, tmp_path):
    split = subject.split(options)
    [video] = annotated.chosen(subject, options, 1)
    one = options._replace(videos=(split.video_ids[video],))
    drawn = registry.draw("frames", [subject], one)
    count = int(split.frames_per_video[video])
    assert drawn.table["frame"] == list(range(count))
    spans = annotated.spans_by_video(split)[video]
    chosen = annotated.apart(spans)
    moment = frames.moment_of_frames(spans, chosen, count)
    assert drawn.table["moment"] == [None if k < 0 else chosen[k] for k in moment]
    assert np.ptp(drawn.table["x"]) > 0
    assert registry.draw("frames", [subject], one).table["x"] == drawn.table["x"]
    drawing.write(drawn, tmp_path / "frames")
    assert ElementTree.parse(tmp_path / "frames.svg").getroot().tag.endswith("svg")


def test_without_times_there_is_nothing_to_colour(subject, options, monkeypatch):
    monkeypatch.setattr(subject.split(options), "spans", None)
    with pytest.raises(NotApplicable, match="no times of moments are known: give --moments"):
        frames.draw([subject], options)


def test_a_model_without_frames_is_left_out_and_short_videos_are_passed_over(
    subject, plain, options, monkeypatch
):
    monkeypatch.setattr(plain.encoder, "_video_level", True)
    monkeypatch.setattr(frames.extras, "umap", lambda points, seed: points[:, :2])
    split = subject.split(options)
    counts = np.asarray(split.frames_per_video)
    usual = frames._videos(subject, options)
    # All but the video with least moments are too short.
    last = annotated.most_apart(annotated.spans_by_video(split), len(split))[-1]
    assert usual != [last]
    monkeypatch.setattr(
        split, "frames_per_video", np.where(np.arange(len(split)) == last, counts, 1)
    )
    monkeypatch.setattr(frames, "FEWEST", 2)
    drawn = frames.draw([subject, plain], options)
    assert set(drawn.table["run"]) == {"HLFormer"}
    assert set(drawn.table["video"]) == {split.video_ids[last]}
    assert "Left out: GMMFormer encodes no frames one by one" in drawn.shows
