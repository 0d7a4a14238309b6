"""Trees are drawn with their own nodes, edges and distances."""

import numpy as np
import pytest

from hlformer_jax.figures import ball
from hlformer_jax.figures.drawing import NotApplicable
from hlformer_jax.models.hover import Points


@pytest.mark.slow  # it compiles for seconds
def test_nodes_and_edges_are_those_of_the_trees(trees, options):
    split = trees.split(options)
    pool = split.pool
    chosen = tuple(pool.videos[:2])
    drawn = ball.draw([trees], options._replace(videos=chosen))
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    nodes = np.flatnonzero(pool.tree < 2)
    for kind in Points._fields:
        rows = table["kind"] == kind
        assert table["node"][rows].tolist() == nodes.tolist()
        assert table["level"][rows].tolist() == pool.level[nodes].tolist()
    parents = {int(child): int(above) for above, child in pool.edges}
    assert table["parent"].tolist() == [parents.get(node) for node in table["node"]]
    family, run = trees.run.family, trees.run
    feed = family.evaluator.feed(split)
    points = family.evaluator.encode(run.params, feed)
    feed.close()
    norms = family.model.options.space.norm(points.text, "distance")
    want = np.asarray(norms)[nodes] * np.sqrt(run.config.model.curvature)
    got = table["distance"][table["kind"] == "text"].astype(float)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    edges = sum(int(pool.tree[child]) == 0 for _, child in pool.edges)
    lines = [line for line in drawn.figure.axes[0].get_lines() if len(line.get_xdata()) == 2]
    assert len(lines) == 2 * edges


def test_videos_and_captions_are_no_trees_and_a_tree_that_is_not_there_is_named(
    plain, trees, options
):
    with pytest.raises(NotApplicable, match="GMMFormer embeds videos and captions"):
        ball.draw([plain], options)
    with pytest.raises(NotApplicable, match="--video=nowhere: the split test has no such tree"):
        ball.draw([trees], options._replace(videos=("nowhere",)))
