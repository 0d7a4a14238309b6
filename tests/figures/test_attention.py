"""Windows, weights and heatmaps show the numbers of the model."""

import numpy as np
import pytest

from hlformer_jax.data.transforms import unit
from hlformer_jax.figures import attention, corpus, geometry
from hlformer_jax.figures.corpus import NotApplicable
from hlformer_jax.ops.windows import attention_windows
from hlformer_jax.retrieval import moments


@pytest.mark.slow  # it takes seconds
def test_the_table_has_the_middle_row_of_every_block(subject, options):
    drawn = attention.windows([subject], options)
    table = {name: np.asarray(column) for name, column in drawn.table.items()}
    for branch, length in (("clips", 4), ("frames", 8)):
        for block, width in (("E1", 2.0), ("L1", 4.0)):
            chosen = (table["branch"] == branch) & (table["block"] == block)
            want = attention_windows((width,), length)[0][length // 2]
            np.testing.assert_allclose(table["window"][chosen], want, atol=1e-6)
            assert (table["width"][chosen] == width).all()
            assert table["offset"][chosen].tolist() == list(range(-length // 2, length // 2))
    lines = drawn.figure.axes[1].get_lines()
    assert [line.get_label() for line in lines] == ["2: E1", "4: L1"]


@pytest.mark.slow  # it takes seconds
def test_trees_and_plain_blocks_have_no_windows(trees, taught, options):
    for other in (trees, taught):
        with pytest.raises(NotApplicable, match=other.label):
            attention.windows([other], options)


@pytest.mark.slow  # it compiles for seconds
def test_fusion_weights_of_a_position_sum_to_one(subject, options):
    split = subject.split(options)
    found = attention.mean_weights(subject, options)
    for branch, length in (("clips", 4), ("frames", 8)):
        assert found[branch].shape == (2, length)
    np.testing.assert_allclose(found["clips"].sum(axis=0), 1, atol=1e-6)
    longest = split.frames_per_video.max()
    np.testing.assert_allclose(found["frames"].sum(axis=0)[:longest], 1, atol=1e-6)
    each = [next(subject.encoder.batches(split, [index])) for index in range(len(split))]
    one = lambda branch: np.stack(
        [x.intermediates[branch]["fusion"]["weights"][0][:, 0] for x in each]
    )
    np.testing.assert_allclose(found["clips"], one("clip_branch").mean(axis=0), atol=1e-5)
    have = split.frames_per_video > 5
    want = one("frame_branch")[have, :, 5].mean(axis=0)
    np.testing.assert_allclose(found["frames"][:, 5], want, atol=1e-5)
    table = attention.weights([subject], options).table
    np.testing.assert_allclose(table["weight"][:4], found["clips"][0])


@pytest.mark.slow  # it takes seconds
def test_strips_and_moments_are_those_of_the_model(subject, options):
    split = subject.split(options)
    [video] = corpus.select_videos(subject, options, 1)
    drawn = attention.heatmap([subject], options)
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    ids = np.split(split.caption_ids(), np.cumsum(split.captions_per_video)[:-1])[video]
    spans = corpus.spans_by_video(split)[video]
    encoded = subject.encoder.videos(split, [video])
    [queries] = subject.encoder.captions(split, [video])
    assert set(table["video"]) == {split.video_ids[video]}
    for k in corpus.select_disjoint(spans)[: attention.MAX_CAPTIONS]:
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


@pytest.mark.slow  # it takes seconds
def test_the_heatmap_has_a_scale_of_colours_for_each_branch(subject, options):
    drawn = attention.heatmap([subject], options)
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    scales = {axes.get_ylabel(): axes.get_ylim() for axes in drawn.figure.axes}
    for name in ("clips", "frames"):
        drawn_cosines = table["cosine"][table["kind"] == name].astype(float)
        want = drawn_cosines.min(), drawn_cosines.max()
        assert scales[f"cosine with {name}"] == pytest.approx(want, abs=1e-6)


@pytest.mark.slow  # it compiles for seconds
def test_first_moments_are_those_that_localisation_measures(subject, options):
    run, split = subject.run, subject.split(options)
    want = run.family.test(run.params).metrics
    assert run.family.test_scores(run.params)[0].metrics == want
    spans = corpus.spans_by_video(split)
    queries = subject.encoder.captions(split, range(len(split)))
    scores = lambda video: attention.scores_over_time(subject, split, video, queries[video])
    found = [moments.overlaps(scores(video), own) for video, own in enumerate(spans)]
    got = moments.metrics(np.concatenate(found))
    assert got == pytest.approx({name: want[name] for name in got}, abs=1e-3)


@pytest.mark.slow  # it takes seconds
def test_without_times_the_first_captions_are_shown_over_shares(subject, options, monkeypatch):
    split = subject.split(options)
    monkeypatch.setattr(split, "spans", None)
    drawn = attention.heatmap([subject], options)
    assert "share of the video" in [axes.get_xlabel() for axes in drawn.figure.axes]
    assert "annotated moment" not in drawn.table["kind"]
    assert max(drawn.table["end"]) == pytest.approx(1.0)


@pytest.mark.slow  # it takes seconds
def test_frames_that_no_caption_is_compared_with_have_no_strip(subject, options, monkeypatch):
    module = subject.run.family.model.module
    monkeypatch.setattr(type(module), "guides_frames", True)  # as those of MS-SL
    kinds = set(attention.heatmap([subject], options).table["kind"])
    assert kinds == {"clips", "first moment", "annotated moment"}


@pytest.mark.slow  # it compiles for seconds
def test_frame_only_model_has_one_strip(taught, options):
    drawn = attention.heatmap([taught], options)
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    assert {"frames", "first moment", "annotated moment"} == set(table["kind"])
    for other in (geometry.positioning, corpus.queries):
        with pytest.raises(NotApplicable, match="DL-DKD"):
            other([taught], options)


@pytest.mark.slow  # it compiles for seconds
def test_models_that_read_other_lengths_are_drawn_in_any_order(taught, subject, options):
    lines = {}
    for order in ([taught, subject], [subject, taught]):
        table = attention.heatmap(order, options).table
        rows = zip(*table.values(), strict=True)
        lines[order[0].label] = sorted([str(value) for value in row] for row in rows)
    assert lines["DL-DKD"] == lines["HLFormer"]


@pytest.mark.slow  # it takes seconds
def test_a_model_that_keeps_one_vector_a_video_is_left_out(subject, plain, options, monkeypatch):
    monkeypatch.setattr(plain.encoder, "_video_level", True)
    monkeypatch.setattr(plain.encoder, "_reads_clips", False)
    drawn = attention.heatmap([plain, subject], options)
    assert set(drawn.table["run"]) == {"HLFormer"}
    assert "Left out: GMMFormer has one embedding per video" in drawn.shows
