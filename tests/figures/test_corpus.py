"""Selection and encoding of videos for figures, and pictures of frames and queries."""

import contextlib
import itertools
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import jax
import numpy as np
import pytest

from hlformer_jax.data.annotations.spans import Span
from hlformer_jax.data.transforms import unit
from hlformer_jax.errors import MissingExtra
from hlformer_jax.figures import corpus, drawing, report
from hlformer_jax.figures.corpus import NotApplicable
from hlformer_jax.training import loaded_run


def test_select_disjoint_keeps_as_many_moments_as_possible():
    rng = np.random.default_rng(0)
    for _ in range(20):
        ends = np.sort(rng.integers(0, 12, (6, 2)), axis=1)
        spans = [None, *(Span(float(a), float(b), 12.0) for a, b in ends)]

        def are_disjoint(subset, spans=spans):
            return all(
                spans[a].end <= spans[b].start or spans[b].end <= spans[a].start
                for a, b in itertools.combinations(subset, 2)
            )

        selected = corpus.select_disjoint(spans)
        proper = [k for k, span in enumerate(spans) if span is not None and span.end > span.start]
        subsets = itertools.chain.from_iterable(
            itertools.combinations(proper, size) for size in range(len(proper) + 1)
        )
        assert are_disjoint(selected)
        assert len(selected) == max(len(subset) for subset in subsets if are_disjoint(subset))


def test_videos_with_most_disjoint_moments_come_first():
    span = Span(0.0, 1.0, 9.0)
    spans_by_video = [[None], [span], [span, Span(2.0, 3.0, 9.0)], [span, Span(0.5, 2.0, 9.0)]]
    assert corpus.most_apart(spans_by_video, 3) == [2, 1, 3]
    assert corpus.most_apart(spans_by_video, 9) == [2, 1, 3]


@pytest.mark.slow  # it takes seconds
def test_unknown_video_is_named(subject, options):
    video_ids = subject.split(options).video_ids
    assert corpus.select_videos(subject, options._replace(videos=(video_ids[3],)), 1) == [3]
    wrong = options._replace(videos=(video_ids[3] + "x",))
    with pytest.raises(NotApplicable, match=f"{video_ids[3]}x: .*'{video_ids[3]}'"):
        corpus.select_videos(subject, wrong, 1)


@pytest.mark.slow  # it takes seconds
def test_runs_on_other_data_are_refused(subject, gmmformer, trees, options, monkeypatch):
    subjects, note = corpus.on_one_split([subject, trees, gmmformer], options)
    assert subjects == [subject, gmmformer]
    assert note == " Left out: HOVER embeds nodes of action trees, not videos and captions."
    monkeypatch.setattr(gmmformer.split(options), "video_ids", ("another",))
    with pytest.raises(NotApplicable, match="data set"):
        corpus.on_one_split([subject, gmmformer], options)


@pytest.mark.slow  # it takes seconds
def test_encodings_agree_with_the_evaluation(subject, options):
    run, split = subject.run, subject.split(options)
    with contextlib.closing(run.family.evaluator.feed(split)) as feed:
        stored, queries = run.family.evaluator.encode(run.params, feed, "float32")
    encoded = subject.encoder.videos(split, np.arange(len(split)))
    for name in ("clips", "frames"):
        expected = np.asarray(stored.stored[name].values)
        expected = expected.reshape(-1, *expected.shape[2:])[: len(split)]
        np.testing.assert_allclose(unit(getattr(encoded, name)), expected, atol=2e-6)
    captions = subject.encoder.captions(split, np.arange(len(split)))
    assert [len(embeddings) for embeddings in captions] == split.captions_per_video.tolist()
    np.testing.assert_allclose(unit(np.concatenate(captions)), queries.vectors, atol=2e-6)


@pytest.mark.slow  # it takes seconds
def test_video_encoding_ignores_its_batch(subject, options):
    split = subject.split(options)
    batch = subject.encoder.videos(split, [0, 1, 2, 3])
    single = subject.encoder.videos(split, [3])
    np.testing.assert_allclose(single.clips[0], batch.clips[3], atol=1e-5)
    assert single.num_frames[0] == split.frames_per_video[3]
    params = jax.tree.map(lambda x: x, subject.run.params)
    params["frame_branch"]["position"] = jax.tree.map(
        np.zeros_like, params["frame_branch"]["position"]
    )
    changed = subject.encoder.videos(split, [3], params)
    np.testing.assert_array_equal(changed.clips, single.clips)
    assert np.abs(changed.frames - single.frames).max() > 1e-3


def test_frame_belongs_to_the_moment_of_its_middle():
    spans = [Span(6.0, 8.0, 8.0), None, Span(1.0, 4.1, 8.0)]
    moments = corpus.moment_of_frames(spans, [2, 0], 8)
    assert moments.tolist() == [-1, 0, 0, 0, -1, -1, 1, 1]
    assert corpus.moment_of_frames(spans, [], 2).tolist() == [-1, -1]


@pytest.mark.slow  # UMAP compiles for ten seconds
def test_frames_colours_the_video_with_most_moments(subject, options, tmp_path):
    split = subject.split(options)
    [video] = corpus.select_videos(subject, options, 1)
    video_options = options._replace(videos=(split.video_ids[video],))
    drawn = report.draw("frames", [subject], video_options)
    count = int(split.frames_per_video[video])
    assert drawn.table["frame"] == list(range(count))
    spans = corpus.spans_by_video(split)[video]
    selected = corpus.select_disjoint(spans)
    moment = corpus.moment_of_frames(spans, selected, count)
    assert drawn.table["moment"] == [None if k < 0 else selected[k] for k in moment]
    assert np.ptp(drawn.table["x"]) > 0
    assert report.draw("frames", [subject], video_options).table["x"] == drawn.table["x"]
    drawing.write(drawn.figure, tmp_path / "frames", drawn.table)
    assert ElementTree.parse(tmp_path / "frames.svg").getroot().tag.endswith("svg")


@pytest.mark.slow  # it takes seconds
def test_frames_without_times_are_refused(subject, options, monkeypatch):
    monkeypatch.setattr(subject.split(options), "spans", None)
    with pytest.raises(NotApplicable, match="`moments`"):
        corpus.frames([subject], options)


@pytest.mark.slow  # it takes seconds
def test_frames_leaves_out_models_without_frames(subject, gmmformer, options, monkeypatch):
    monkeypatch.setattr(gmmformer.encoder, "_video_level", True)
    monkeypatch.setattr(corpus, "umap", lambda points, seed: points[:, :2])
    split = subject.split(options)
    counts = np.asarray(split.frames_per_video)
    long_videos = corpus._long_videos(subject, options)
    # All but the video with least moments are too short.
    last = corpus.most_apart(corpus.spans_by_video(split), len(split))[-1]
    assert long_videos != [last]
    monkeypatch.setattr(
        split, "frames_per_video", np.where(np.arange(len(split)) == last, counts, 1)
    )
    monkeypatch.setattr(corpus, "MIN_FRAMES", 2)
    drawn = corpus.frames([subject, gmmformer], options)
    assert set(drawn.table["run"]) == {"HLFormer"}
    assert set(drawn.table["video"]) == {split.video_ids[last]}
    assert "Left out: GMMFormer does not encode single frames" in drawn.shows


@pytest.mark.slow  # it takes seconds
def test_nearest_pair_has_the_smallest_distance():
    pytest.importorskip("sklearn")
    points = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1) + 1e9 * np.tri(30)
    expected = np.unravel_index(np.argmin(distances), distances.shape)
    assert corpus.nearest_pair(points) == expected


@pytest.mark.slow  # it compiles for seconds
def test_line_joins_each_caption_and_its_clip(subject, options):
    split = subject.split(options)
    pair = tuple(split.video_ids[:2])
    drawn = corpus.queries([subject], options._replace(videos=pair))
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    positions = np.stack([table["x"], table["y"]], axis=1).astype(float)
    lines = [
        line.get_xydata()
        for line in drawn.figure.axes[0].get_lines()
        if len(line.get_xydata()) == 2
    ]
    captions = np.flatnonzero(table["kind"] == "caption")
    assert len(captions) == split.captions_per_video[:2].sum()
    for index, video in enumerate(pair):
        caption_rows = [row for row in captions if table["video"][row] == video]
        clips = np.flatnonzero((table["kind"] == "clip") & (table["video"] == video))
        encoded = subject.encoder.videos(split, [index]).clips[0]
        [embedded] = subject.encoder.captions(split, [index])
        for row, clip in zip(caption_rows, corpus.matches(embedded, encoded), strict=True):
            assert table["matched clip"][row] == clip
            ends = np.stack([positions[row], positions[clips[clip]]])
            assert any(np.allclose(ends, line) for line in lines)


@pytest.mark.slow  # it compiles for seconds
def test_first_results_have_the_highest_scores(subject, gmmformer, options):
    split = subject.split(options)
    drawn = corpus.retrieved([subject, gmmformer], options._replace(videos=split.video_ids[1:3]))
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    subjects = {"HLFormer": subject, "GMMFormer": gmmformer}
    starts = np.cumsum(split.captions_per_video) - split.captions_per_video
    for run, run_subject in subjects.items():
        _, arrays = run_subject.run.family.test_scores(run_subject.run.params)
        for video in (1, 2):
            scores, name = arrays["scores"][starts[video]], arrays["queries"][starts[video]]
            rows = (table["run"] == run) & (table["caption"] == name)
            order = np.argsort(-scores)[:3]
            assert table["video"][rows].tolist() == [split.video_ids[k] for k in order]
            np.testing.assert_allclose(table["score"][rows].astype(float), scores[order], atol=1e-6)
            assert table["own"][rows].tolist() == (order == video).tolist()
            rank = 1 + np.sum(scores > scores[video])
            assert set(table["rank of its own"][rows]) == {rank}
    # By default captions are drawn at random, equally for equal seeds.
    drawn = corpus.retrieved([gmmformer], options)
    assert len(set(drawn.table["caption"])) == corpus.EXAMPLES
    assert drawn.table == corpus.retrieved([gmmformer], options).table


def test_trees_are_counted_by_their_leaves(trees, gmmformer, options):
    drawn = corpus.leaves([trees, gmmformer], options)
    assert "Left out: GMMFormer embeds videos and captions" in drawn.shows
    pool = trees.split(options).pool
    rows = [k for k, name in enumerate(drawn.table["split"]) if name == "test"]
    counts = dict.fromkeys(range(1, 6), 0)
    for tree in range(len(pool.videos)):
        counts[min(int(pool.leaves[pool.tree == tree][0]), 5)] += 1
    assert {drawn.table["leaves"][k]: drawn.table["trees"][k] for k in rows} == counts
    assert sum(drawn.table["nodes"][k] for k in rows) == len(pool.tree)


def test_queries_need_two_videos(subject, options):
    videos = (subject.split(options).video_ids[0],)
    with pytest.raises(NotApplicable, match="`video`"):
        corpus.queries([subject], options._replace(videos=videos))


def _points():
    rng = np.random.default_rng(0)
    middles = 5 * np.repeat(np.eye(4)[:2], 12, axis=0)
    return middles + 0.3 * rng.normal(size=(24, 4))


@pytest.mark.slow  # they compile for ten seconds
@pytest.mark.parametrize("project", [corpus.t_sne, corpus.umap])
def test_projection_separates_groups_reproducibly(project):
    plane = project(_points(), 0)
    np.testing.assert_array_equal(plane, project(_points(), 0))
    first_middle, second_middle = plane[:12].mean(axis=0), plane[12:].mean(axis=0)
    radius = np.linalg.norm(plane[:12] - first_middle, axis=1).max()
    assert np.linalg.norm(first_middle - second_middle) > radius


@pytest.mark.slow  # it loads scikit-learn
def test_silhouette_of_distant_groups_is_near_one():
    assert corpus.silhouette(_points(), np.repeat([0, 1], 12)) > 0.9


@pytest.mark.parametrize(
    ("module", "call"), [("umap", corpus.umap), ("sklearn.manifold", corpus.t_sne)]
)
def test_missing_package_names_the_extra(monkeypatch, module, call):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"needs more packages: .*\[figures\]") as raised:
        call(_points(), 0)
    assert "\n" not in str(raised.value)


def test_runs_of_one_model_are_labelled_by_directory(subject, gmmformer, trees):

    def placed(run, path):
        return run._replace(directory=Path(path))

    sweep = [placed(subject.run, f"/sweep/{x}/seed0") for x in ("a", "b")]
    subjects = corpus.subjects([*sweep, gmmformer.run, trees.run, placed(subject.run, "/c/seed1")])
    assert [subject.label for subject in subjects] == [
        "HLFormer (a/seed0)", "HLFormer (b/seed0)", "GMMFormer", "HOVER", "HLFormer (seed1)"
    ]  # fmt: skip
    with pytest.raises(NotApplicable, match="HOVER"):
        _ = subjects[3].encoder


@pytest.mark.slow  # it takes seconds
def test_data_lines_name_the_runs_of_each_data_set(
    subject, gmmformer, trees, options, tmp_path, monkeypatch
):
    [line] = corpus.data_lines([subject, gmmformer])
    assert line.startswith("Data: synthetic captioned videos")
    lines = corpus.data_lines([subject, gmmformer, trees])
    assert [text.partition(": Data: synthetic ")[0] for text in lines] == [
        "HLFormer, GMMFormer", "HOVER",
    ]  # fmt: skip

    def replaced(original, label, **fingerprints):
        directory = tmp_path / label
        directory.mkdir()
        recorded = json.loads((original.run.directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(recorded | fingerprints))
        return corpus.Subject(label, original.run._replace(directory=directory))

    pair = [
        replaced(subject, name, data_fingerprint=fingerprint, moments_fingerprint="m" * 64)
        for name, fingerprint in (("A", "0" * 64), ("B", "1" * 64))
    ]
    ends = [text.partition("seed 0")[::2] for text in corpus.data_lines([*pair, trees])]
    assert [(start.partition(":")[0], end) for start, end in ends] == [
        ("A", "; files 00000000"), ("B", "; files 11111111"), ("HOVER", ""),
    ]  # fmt: skip
    monkeypatch.setattr(report, "FIGURES", {})
    page = report.write(pair, options, tmp_path / "page", lambda line: None).read_text()
    assert page.count('<p class="source">A: Data: synthetic') == 1
    assert page.count('<p class="source">B: Data: synthetic') == 1


def test_run_that_is_passed_twice_has_one_label(subject, monkeypatch):
    monkeypatch.chdir(subject.run.directory)
    run_here = subject.run._replace(directory=Path())
    labels = {labelled.label for labelled in corpus.subjects([subject.run, run_here])}
    assert labels == {f"HLFormer ({subject.run.directory.name})"}


def test_fields_that_trees_lack_are_ignored(trees):
    moved = {"eval.moments": "moments.json", "data.data_dir": trees.run.config.data.data_dir}
    assert loaded_run.load(trees.run.directory, moved).config == trees.run.config
