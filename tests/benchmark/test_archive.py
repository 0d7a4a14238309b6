"""Simulated archives: their vectors, and the index they are written as."""

import numpy as np

from hlformer_jax.benchmark.archive import BEST, INTERVAL, SCENE, SECONDS, Archive
from hlformer_jax.search.library import Library
from hlformer_jax.search.rankers import ROWS


class _Encoder:
    """What of an encoder a library asks, with sentences that are numbers of queries."""

    name = preprocessing = "simulated"
    fingerprint = "0" * 64
    width = 768

    def __init__(self, queries):
        self.queries = queries

    def sentences(self, texts):
        return self.queries[[int(text) for text in texts]]

    def probability(self, cosine):
        return None


def test_a_query_is_answered_by_its_scene_and_frames_are_numbered_by_rows(tmp_path):
    archive = Archive(1.0, _Encoder.width)
    queries = archive.queries(4)
    encoder = _Encoder(queries)
    index, truth = archive.write(tmp_path / "index", encoder, (), queries)
    every = np.concatenate([archive.vectors(video) for video in range(archive.videos)])
    assert every.shape == (archive.frames, _Encoder.width) == (3600, 768)
    np.testing.assert_allclose(np.linalg.norm(every, axis=1), 1, atol=1e-6)
    cosines = every @ every[:SCENE].T
    assert 0.3 < cosines[1:SCENE, 0].mean() < 0.7  # of a scene
    assert abs(cosines[SCENE:].mean()) < 0.02
    best = np.argsort(-(every @ queries.T), axis=0)[:BEST].T
    for found, wanted in zip(truth, best, strict=True):
        assert set(found) == set(wanted)
    for name in ROWS:
        library = Library(index.directory, ranker=name, encoder=encoder)
        # By width 96 noise has cosines of 0.1: the scene still wins, as 6 videos are few.
        for number in range(4):
            hit = library.query(str(number), 1)[0]
            wanted = best[number][0] // SECONDS
            assert hit.video == f"000/{wanted:06}.mp4"
            assert hit.duration == len(hit.times) == SECONDS
    assert sum(one.intervals for one in index.manifest.videos.values()) == 3600 / INTERVAL
