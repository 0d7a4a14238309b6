"""Rankers' scores as MaxSim: rows and queries give what the ranker gives; what has no such form."""

import archive
import numpy as np
import pytest

from hlformer_jax.search import maxsim, rankers
from hlformer_jax.search.errors import SearchError


def score(form, rows, query):
    """Σ over queries of the best row, in float64."""
    products = form.queries(query).astype(np.float64) @ rows.astype(np.float64).T
    return products.max(axis=-1).sum() - form.offset


@pytest.mark.parametrize("name", ["best_frame", "segments"])
def test_a_ranker_without_training_is_its_own_rows_and_one_query(index, name):
    records = sorted(index.manifest.videos.values(), key=lambda one: one.content)
    query = archive.Encoder().sentences(["red blue"])[0]
    expected = rankers.Untrained(name, index, records).scores(query)
    _, form = maxsim.of(index, name, None, records)
    for i, record in enumerate(records):
        arrays = index.read(record.content)
        rows = form.rows(i, arrays)
        assert rows.shape == (len(form.times(arrays)), form.width) and rows.dtype == np.float32
        assert score(form, rows, query) == pytest.approx(expected[i], abs=1e-6)
    assert form.identity == name and form.divisible
    with pytest.raises(SearchError, match="top_3_frames"):
        maxsim.of(index, "top_3_frames", None, records)


class Model:
    """What `Branches` asks of a trained ranker: vectors of two branches, and their weights."""

    width = 5

    def __init__(self, branches):
        rng = np.random.default_rng(0)
        self.branches = branches
        self.stored = [
            {name: self.unit(rng.normal(size=(n, 5))) for name, n in (("clips", 4), ("frames", 6))}
            for _ in range(8)
        ]

    @staticmethod
    def unit(rows):
        return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)

    def vectors(self, content):
        return self.stored[content]

    def rounded(self, query):
        return dict.fromkeys(self.branches, query)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "branches", [{"clips": 0.7, "frames": 0.3}, {"frames": 1.0}, {"clips": 0.01, "frames": 5.0}]
)
def test_the_best_of_each_branch_is_added_and_no_branch_takes_the_other_s_row(branches):
    model = Model(branches)
    form = maxsim.Branches(model, "x")
    rng = np.random.default_rng(1)
    # The opposite of a branch's rows too, whose best cosine is far below those of the other branch.
    queries = [*Model.unit(rng.normal(size=(20, 5))), *(-model.stored[0]["clips"])]
    for content, own in enumerate(model.stored):
        rows = form.rows(content, None)
        for query in queries:
            expected = sum(w * (own[name] @ query).max() for name, w in branches.items())
            # Numbers up to 3 Σ w are rounded to float32.
            tolerance = 1e-6 * sum(branches.values())
            assert score(form, rows, query) == pytest.approx(expected, abs=tolerance)
        back = form.vectors(rows)
        assert list(back) == list(branches)
        for name in branches:
            np.testing.assert_array_equal(back[name], own[name])


def test_a_score_that_is_no_sum_of_maxima_is_refused():
    with pytest.raises(SearchError, match="ms_sl"):
        maxsim.Branches(Model(None), "x")


def test_parts_hold_all_rows_and_each_fewer_numbers_than_a_point_may():
    for rows, width, most in ((1, 5, 6), (10, 3, 10), (7, 2, 3), (1366, 768, 2**20), (5, 9, 3)):
        parts = maxsim.parts(rows, width, most)
        assert [i for part in parts for i in range(rows)[part]] == list(range(rows))
        assert all((p.stop - p.start) * width < most or p.stop - p.start == 1 for p in parts)
    assert len(maxsim.parts(1365, 768, 2**20)) == 1 and len(maxsim.parts(1366, 768, 2**20)) == 2
