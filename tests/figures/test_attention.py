"""Figures of windows, fusion weights and heatmaps show the numbers of the model."""

import numpy as np
import pytest

from hlformer_jax.data.transforms import unit
from hlformer_jax.figures import attention, corpus, geometry
from hlformer_jax.figures.corpus import NotApplicable
from hlformer_jax.ops.windows import attention_windows
from hlformer_jax.retrieval import moments


@pytest.mark.slow  # it takes seconds
def test_table_has_the_middle_row_of_every_block(subject, options):
    drawn = attention.windows([subject], options)
    table = {name: np.asarray(column) for name, column in drawn.table.items()}
    for branch, length in (("clips", 4), ("frames", 8)):
        for block, width in (("E1", 2.0), ("L1", 4.0)):
            is_block = (table["branch"] == branch) & (table["block"] == block)
            expected = attention_windows((width,), length)[0][length // 2]
            np.testing.assert_allclose(table["window"][is_block], expected, atol=1e-6)
            assert (table["width"][is_block] == width).all()
            assert table["offset"][is_block].tolist() == list(range(-length // 2, length // 2))
    lines = drawn.figure.axes[1].get_lines()
    assert [line.get_label() for line in lines] == ["2: E1", "4: L1"]


@pytest.mark.slow  # it takes seconds
def test_trees_and_plain_blocks_have_no_windows(trees, dl_dkd, options):
    for subject in (trees, dl_dkd):
        with pytest.raises(NotApplicable, match=subject.label):
            attention.windows([subject], options)


@pytest.mark.slow  # it compiles for seconds
def test_fusion_weights_of_a_position_sum_to_one(subject, options):
    split = subject.split(options)
    weights = attention.mean_weights(subject, options)
    for branch, length in (("clips", 4), ("frames", 8)):
        assert weights[branch].shape == (2, length)
    np.testing.assert_allclose(weights["clips"].sum(axis=0), 1, atol=1e-6)
    longest = split.frames_per_video.max()
    np.testing.assert_allclose(weights["frames"].sum(axis=0)[:longest], 1, atol=1e-6)
    batches = [next(subject.encoder.batches(split, [index])) for index in range(len(split))]

    def weights_by_video(branch):
        return np.stack([x.intermediates[branch]["fusion"]["weights"][0][:, 0] for x in batches])

    expected = weights_by_video("clip_branch").mean(axis=0)
    np.testing.assert_allclose(weights["clips"], expected, atol=1e-5)
    has_frame = split.frames_per_video > 5
    expected = weights_by_video("frame_branch")[has_frame, :, 5].mean(axis=0)
    np.testing.assert_allclose(weights["frames"][:, 5], expected, atol=1e-5)
    table = attention.weights([subject], options).table
    np.testing.assert_allclose(table["weight"][:4], weights["clips"][0])


@pytest.mark.slow  # it takes seconds
def test_heatmap_shows_the_cosines_and_moments_of_the_model(subject, options):
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
            expected = unit(positions) @ unit(queries[k])
            np.testing.assert_allclose(
                table["cosine"][rows[name]].astype(float), expected, atol=1e-6
            )
        assert table["end"][rows["frames"]][-1] == pytest.approx(spans[k].duration)
        assert [table[x][rows["annotated moment"]][0] for x in ("start", "end")] == list(
            spans[k][:2]
        )


@pytest.mark.slow  # it takes seconds
def test_heatmap_has_a_colour_scale_for_each_branch(subject, options):
    drawn = attention.heatmap([subject], options)
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    scales = {axes.get_ylabel(): axes.get_ylim() for axes in drawn.figure.axes}
    for name in ("clips", "frames"):
        drawn_cosines = table["cosine"][table["kind"] == name].astype(float)
        expected = drawn_cosines.min(), drawn_cosines.max()
        assert scales[f"cosine with {name}"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow  # it compiles for seconds
def test_first_moments_agree_with_localisation_metrics(subject, options):
    run, split = subject.run, subject.split(options)
    expected = run.family.test(run.params).metrics
    assert run.family.test_scores(run.params)[0].metrics == expected
    spans = corpus.spans_by_video(split)
    queries = subject.encoder.captions(split, range(len(split)))

    def scores(video):
        return attention.scores_over_time(subject, split, video, queries[video])

    overlaps = [moments.overlaps(scores(k), video_spans) for k, video_spans in enumerate(spans)]
    metrics = moments.metrics(np.concatenate(overlaps))
    assert metrics == pytest.approx({name: expected[name] for name in metrics}, abs=1e-3)


@pytest.mark.slow  # it takes seconds
def test_heatmap_without_times_has_shares_of_the_video(subject, options, monkeypatch):
    split = subject.split(options)
    monkeypatch.setattr(split, "spans", None)
    drawn = attention.heatmap([subject], options)
    assert "share of the video" in [axes.get_xlabel() for axes in drawn.figure.axes]
    assert "annotated moment" not in drawn.table["kind"]
    assert max(drawn.table["end"]) == pytest.approx(1.0)


@pytest.mark.slow  # it takes seconds
def test_guided_frames_have_no_strip(subject, options, monkeypatch):
    module = subject.run.family.model.module
    monkeypatch.setattr(type(module), "guides_frames", True)  # like MS-SL
    kinds = set(attention.heatmap([subject], options).table["kind"])
    assert kinds == {"clips", "first moment", "annotated moment"}


@pytest.mark.slow  # it compiles for seconds
def test_frame_only_model_has_one_strip(dl_dkd, options):
    drawn = attention.heatmap([dl_dkd], options)
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    assert {"frames", "first moment", "annotated moment"} == set(table["kind"])
    for draw in (geometry.positioning, corpus.queries):
        with pytest.raises(NotApplicable, match="DL-DKD"):
            draw([dl_dkd], options)


@pytest.mark.slow  # it compiles for seconds
def test_order_of_models_does_not_change_the_heatmap(dl_dkd, subject, options):
    lines = {}
    for order in ([dl_dkd, subject], [subject, dl_dkd]):
        table = attention.heatmap(order, options).table
        rows = zip(*table.values(), strict=True)
        lines[order[0].label] = sorted([str(value) for value in row] for row in rows)
    assert lines["DL-DKD"] == lines["HLFormer"]


@pytest.mark.slow  # it takes seconds
def test_model_with_one_embedding_per_video_is_left_out(subject, gmmformer, options, monkeypatch):
    monkeypatch.setattr(gmmformer.encoder, "_video_level", True)
    monkeypatch.setattr(gmmformer.encoder, "_reads_clips", False)
    drawn = attention.heatmap([gmmformer, subject], options)
    assert set(drawn.table["run"]) == {"HLFormer"}
    assert "Left out: GMMFormer has one embedding per video" in drawn.shows
