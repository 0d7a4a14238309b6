"""Captions over time: cosines as they are, moments as evaluation finds them."""

import numpy as np
import pytest

from hlformer_jax.data.transforms import unit
from hlformer_jax.figures import annotated, heatmap, positioning, queries
from hlformer_jax.figures.drawing import NotApplicable
from hlformer_jax.retrieval import localisation


def test_strips_and_moments_are_those_of_the_model(subject, options):
    split = subject.split(options)
    [video] = annotated.chosen(subject, options, 1)
    drawn = heatmap.draw([subject], options)
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    ids = np.split(split.caption_ids(), np.cumsum(split.captions_per_video)[:-1])[video]
    spans = annotated.spans_by_video(split)[video]
    encoded = subject.encoder.videos(split, [video])
    [queries] = subject.encoder.captions(split, [video])
    assert set(table["video"]) == {split.video_ids[video]}
    for k in annotated.apart(spans)[: heatmap.MOST_CAPTIONS]:
        rows = {
            kind: (table["caption"] == ids[k]) & (table["kind"] == kind)
            for kind in set(table["kind"])
        }
        count = encoded.num_frames[0]
        for name, positions in (("clips", encoded.clips[0]), ("frames", encoded.frames[0, :count])):
            want = unit(positions) @ unit(queries[k])
            np.testing.assert_allclose(table["cosine"][rows[name]].astype(float), want, atol=1e-6)
        assert table["end"][rows["frames"]][-1] == pytest.approx(spans[k].duration)
        assert [table[x][rows["annotated moment"]][0] for x in ("start", "end")] == list(
            spans[k][:2]
        )


@pytest.mark.slow  # it compiles for seconds
def test_first_moments_are_those_that_localisation_measures(subject, options):
    run, split = subject.run, subject.split(options)
    want = run.family.test(run.params).metrics
    assert run.family.test_scores(run.params)[0].metrics == want
    spans = annotated.spans_by_video(split)
    queries = subject.encoder.captions(split, range(len(split)))
    found = [
        localisation.overlaps(heatmap.scores_over_time(subject, split, video, queries[video]), own)
        for video, own in enumerate(spans)
    ]
    got = localisation.metrics(np.concatenate(found))
    assert got == pytest.approx({name: want[name] for name in got}, abs=1e-3)


def test_without_times_the_first_captions_are_shown_over_shares(subject, options, monkeypatch):
    split = subject.split(options)
    monkeypatch.setattr(split, "spans", None)
    drawn = heatmap.draw([subject], options)
    assert drawn.figure.axes[-1].get_xlabel() == "share of the video"
    assert "annotated moment" not in drawn.table["kind"]
    assert max(drawn.table["end"]) == pytest.approx(1.0)


def test_frames_that_no_caption_is_compared_with_have_no_strip(subject, options, monkeypatch):
    module = subject.run.family.model.module
    monkeypatch.setattr(type(module), "guides_frames", True)  # as those of MS-SL
    kinds = set(heatmap.draw([subject], options).table["kind"])
    assert kinds == {"clips", "first moment", "annotated moment"}


@pytest.mark.slow  # it compiles for seconds
def test_a_model_that_reads_frames_alone_has_one_strip_by_its_own_part_of_the_query(
    taught, options
):
    drawn = heatmap.draw([taught], options)
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    assert {"frames", "first moment", "annotated moment"} == set(table["kind"])
    for other in (positioning, queries):
        with pytest.raises(NotApplicable, match="DL-DKD reads no clips"):
            other.draw([taught], options)


@pytest.mark.slow  # it compiles for seconds
def test_models_that_read_other_lengths_are_drawn_in_any_order(taught, subject, options):
    lines = {}
    for order in ([taught, subject], [subject, taught]):
        table = heatmap.draw(order, options).table
        rows = zip(*table.values(), strict=True)
        lines[order[0].label] = sorted([str(value) for value in row] for row in rows)
    assert lines["DL-DKD"] == lines["HLFormer"]


def test_a_model_that_keeps_one_vector_a_video_is_left_out(subject, plain, options, monkeypatch):
    monkeypatch.setattr(plain.encoder, "_video_level", True)
    monkeypatch.setattr(plain.encoder, "_reads_clips", False)
    drawn = heatmap.draw([plain, subject], options)
    assert set(drawn.table["run"]) == {"HLFormer"}
    assert "Left out: GMMFormer keeps one vector a video" in drawn.shows
