"""The two videos are the nearest, and each caption is joined with the clip it matches."""

import numpy as np
import pytest

from hlformer_jax.figures import positioning, queries
from hlformer_jax.figures.drawing import NotApplicable


def test_the_nearest_pair_is_that_of_all_distances(monkeypatch):
    monkeypatch.setattr(queries, "BLOCK", 7)
    points = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    apart = np.linalg.norm(points[:, None] - points[None], axis=-1) + 1e9 * np.tri(30)
    want = np.unravel_index(np.argmin(apart), apart.shape)
    assert queries.nearest_pair(points) == want


@pytest.mark.slow  # it compiles for seconds
def test_a_line_joins_each_caption_and_its_clip(subject, options):
    split = subject.split(options)
    pair = tuple(split.video_ids[:2])
    drawn = queries.draw([subject], options._replace(videos=pair))
    table = {name: np.asarray(column, object) for name, column in drawn.table.items()}
    place = np.stack([table["x"], table["y"]], axis=1).astype(float)
    lines = [
        line.get_xydata()
        for line in drawn.figure.axes[0].get_lines()
        if len(line.get_xydata()) == 2
    ]
    captions = np.flatnonzero(table["kind"] == "caption")
    assert len(captions) == split.captions_per_video[:2].sum()
    for index, video in enumerate(pair):
        asked = [row for row in captions if table["video"][row] == video]
        clips = np.flatnonzero((table["kind"] == "clip") & (table["video"] == video))
        encoded = subject.encoder.videos(split, [index]).clips[0]
        [embedded] = subject.encoder.captions(split, [index])
        for row, clip in zip(asked, positioning.matches(embedded, encoded), strict=True):
            assert table["matched clip"][row] == clip
            ends = np.stack([place[row], place[clips[clip]]])
            assert any(np.allclose(ends, line) for line in lines)


def test_one_video_is_no_pair(subject, options):
    one = (subject.split(options).video_ids[0],)
    with pytest.raises(NotApplicable, match="shows two videos"):
        queries.draw([subject], options._replace(videos=one))
