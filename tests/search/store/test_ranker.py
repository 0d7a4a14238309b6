"""A ranker whose rows a store has: the ranking and the filters are those without it."""

import datetime

import archive
import httpx
import numpy as np
import page_library
import pytest
from stored import agree, opened

from hlformer_jax import search
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.store import MEMORY, Store, Uploaded, points

pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")


SENTENCES = ("red", "blue", "green white", "yellow", "black red")


@pytest.mark.parametrize("most", [2**20, 100], ids=["whole", "in parts"])
@pytest.mark.parametrize("ranker", ["segments", "best_frame"])
def test_the_ranking_is_that_without_a_store(index, monkeypatch, ranker, most):
    monkeypatch.setattr(points, "MOST", most)
    store = Store(MEMORY)
    stored = opened(index, store, ranker=ranker)
    assert stored.upload() == Uploaded(sent=18)
    if most == 100:
        payloads = store.payloads().values()
        assert len(payloads) > 18 and max(one["parts"] for one in payloads) > 1
    plain = search.open(index.directory, ranker=ranker, encoder=archive.Encoder())
    for sentence in SENTENCES:
        for k in (1, 2, 5, 100):
            agree(stored.query(sentence, k=k), plain.query(sentence, k=k))
    for position in (0, 7):
        found, expected = (one.examine("red", position) for one in (stored, plain))
        np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
        agree([found[1]], [expected[1]])
    assert [path.name for path in (index.directory / "packed").glob(f"{ranker}*")] != []


def test_the_page_serves_what_a_store_ranks(index):
    stored = opened(index, Store(MEMORY))
    stored.upload()
    with page_library.running(stored) as url, httpx.Client(base_url=url, timeout=20) as client:
        for sentence in SENTENCES:
            answer = client.get("/api/query", params={"q": sentence, "k": 5}).json()
            expected = stored.query(sentence, k=5)
            assert [hit["video"] for hit in answer["hits"]] == [hit.video for hit in expected]
            scores = [round(float(hit.score), 6) for hit in expected]
            assert [hit["score"] for hit in answer["hits"]] == scores
        assert client.get("/api/status").json()["videos"] == 18


def test_a_search_in_a_store_makes_no_matrix_of_all_vectors_here(index):
    stored = opened(index, Store(MEMORY))
    stored.upload()
    stored.query("red")
    assert not (index.directory / "packed").exists()


def test_filters_run_in_the_store_and_are_those_without(index):
    stored, plain = opened(index, Store(MEMORY)), opened(index, None)
    stored.upload()
    days = [datetime.datetime.fromtimestamp(entry.date) for entry in plain.videos()]
    for filters in (
        {"folder": "trips"}, {"folder": "trips/"}, {"folder": "f1"},
        {"folder": ""}, {"folder": "f0", "since": days[3]}, {"until": days[3]},
        {"since": days[3], "until": days[3]}, {"since": "2001-09-12", "until": "2001-09-14"},
    ):  # fmt: skip
        agree(stored.query("red", k=20, **filters), plain.query("red", k=20, **filters))
    with pytest.raises(SearchError, match="'soon' is no date"):
        stored.query("red", since="soon")
    with pytest.raises(SearchError, match="did you mean 'trips'"):
        stored.query("red", folder="trip")
