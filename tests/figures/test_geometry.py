"""Positions of points in discs, lifted embeddings, trees and orders of clips."""

import numpy as np
import pytest

from hlformer_jax import models
from hlformer_jax.figures import drawing, geometry
from hlformer_jax.figures.corpus import NotApplicable
from hlformer_jax.models import VideoEncoding
from hlformer_jax.models.hover import Points
from hlformer_jax.ops import lorentz, poincare


def test_two_dimensions_are_projected_exactly():
    c = 0.3
    tangent = np.array([[0.6, 0.8], [0.0, 0.0], [-3.0, 0.0]], np.float32)
    points = geometry.to_disc(np.asarray(lorentz.exp_map0(tangent, c)), c, 0)
    norm = np.linalg.norm(tangent, axis=1)
    np.testing.assert_allclose(np.hypot(*points.T), np.tanh(np.sqrt(c) * norm / 2), atol=1e-6)
    np.testing.assert_allclose(points[0], np.tanh(np.sqrt(c) / 2) * tangent[0], atol=1e-6)


@pytest.mark.parametrize(("radius", "limit"), [(0.9, 1.02), (0.01, 0.0112)])
def test_disc_is_cropped_to_its_points(radius, limit):
    axes = drawing.Figure().add_subplot()
    geometry.prepare_disc(axes, np.array([[radius, 0.0], [0.0, -radius / 2]]))
    assert axes.get_xlim() == pytest.approx((-limit, limit))
    labels = {text.get_text(): -text.get_position()[1] for text in axes.texts}
    assert 2 <= len(labels) <= 6
    for distance, place in labels.items():
        assert place == pytest.approx(np.tanh(float(distance) / 2), rel=0.05)


@pytest.mark.slow  # it compiles for seconds
def test_captions_are_lifted_as_the_loss_lifts_them(subject, options, monkeypatch):
    monkeypatch.setattr(geometry, "MAX_EMBEDDINGS", 30)
    drawn = geometry.hyperbolic([subject], options)
    run, split = subject.run, subject.split(options)
    table = {name: np.asarray(column) for name, column in drawn.table.items()}
    captions = np.concatenate(subject.encoder.captions(split, np.arange(len(split))))
    encoded = subject.encoder.videos(split, np.arange(len(split)))
    videos = VideoEncoding(encoded.clips, encoded.frames)
    lifted = models.lift(run.family.model, run.params, videos, captions)
    c = float(lifted.curvature)
    all_distances = np.arccosh(np.sqrt(c) * np.asarray(lifted.captions)[:, 0])
    drawn_distances = table["distance"][table["kind"] == "captions"]
    assert len(drawn_distances) == 10
    assert all(np.abs(all_distances - x).min() < 1e-3 * max(x, 1) for x in drawn_distances)
    # The projection to the disc never increases a distance from the origin.
    radius = 2 * np.arctanh(np.hypot(table["x"], table["y"]))
    assert (radius <= table["distance"] + 1e-3).all()
    assert {kind: int((table["kind"] == kind).sum()) for kind in geometry.KINDS} == dict.fromkeys(
        geometry.KINDS, 10
    )


def test_model_without_a_lift_is_left_out(gmmformer, trees, options):
    for subject in (gmmformer, trees):
        with pytest.raises(NotApplicable, match=subject.label):
            geometry.hyperbolic([subject], options)


@pytest.mark.slow  # it compiles for seconds
def test_ball_draws_the_nodes_and_edges_of_the_trees(trees, options):
    split = trees.split(options)
    pool = split.pool
    videos = tuple(pool.videos[:2])
    drawn = geometry.ball([trees], options._replace(videos=videos))
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    nodes = np.flatnonzero(pool.tree < 2)
    for kind in Points._fields:
        rows = table["kind"] == kind
        assert table["node"][rows].tolist() == nodes.tolist()
        assert table["level"][rows].tolist() == pool.level[nodes].tolist()
    parents = {int(child): int(parent) for parent, child in pool.edges}
    assert table["parent"].tolist() == [parents.get(node) for node in table["node"]]
    family, run = trees.run.family, trees.run
    feed = family.evaluator.feed(split)
    points = family.evaluator.encode(run.params, feed)
    feed.close()
    curvature = run.config.model.curvature
    expected = np.asarray(poincare.distance0(points.text, curvature))[nodes] * np.sqrt(curvature)
    distances = table["distance"][table["kind"] == "text"].astype(float)
    np.testing.assert_allclose(distances, expected, rtol=1e-4)
    edges = sum(int(pool.tree[child]) == 0 for _, child in pool.edges)
    lines = [line for line in drawn.figure.axes[0].get_lines() if len(line.get_xdata()) == 2]
    assert len(lines) == 2 * edges


def test_ball_refuses_captions_and_names_missing_trees(gmmformer, trees, options):
    with pytest.raises(NotApplicable, match="GMMFormer"):
        geometry.ball([gmmformer], options)
    with pytest.raises(NotApplicable, match="`video`=nowhere"):
        geometry.ball([trees], options._replace(videos=("nowhere",)))


@pytest.mark.slow  # it takes seconds
def test_variances_cover_videos_with_several_captions(subject, options):
    split = subject.split(options)
    variances = geometry.variances(subject, options)
    for index in range(len(split)):
        [queries] = subject.encoder.captions(split, [index])
        clips = subject.encoder.videos(split, [index]).clips[0]
        cosines = [[q @ c / np.linalg.norm(q) / np.linalg.norm(c) for c in clips] for q in queries]
        places = [int(np.argmax(row)) for row in cosines]
        if len(places) > 1:
            assert variances[index] == pytest.approx(np.mean((places - np.mean(places)) ** 2))
        else:
            assert np.isnan(variances[index])


@pytest.mark.slow  # it compiles for seconds
def test_positioning_compares_before_and_after_training(subject, options):
    drawn = geometry.positioning([subject], options)
    several = int((subject.split(options).captions_per_video > 1).sum())
    assert drawn.table["parameters"] == ["before training"] * several + ["after"] * several
    heights = [sum(bar.get_height() for bar in bars) for bars in drawn.figure.axes[0].containers]
    assert heights == pytest.approx([100, 100])
