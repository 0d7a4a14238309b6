"""Search in a store: the collection, its points, uploads; ranking and filters as without one."""

import datetime
import os
import socket
import sys

import archive
import numpy as np
import pytest

from hlformer_jax import search
from hlformer_jax.errors import MissingExtra
from hlformer_jax.search import store as module
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.store import MEMORY, Store, Uploaded


def opened(index, store, **options):
    """The library of an index, on a store or, with None, without one."""
    return search.open(index.directory, encoder=archive.Encoder(), store=store, **options)


def agree(found, expected, tolerance=1e-6):
    """The same videos in the same order, of the same scores and moments, up to rounding."""
    assert [hit.video for hit in found] == [hit.video for hit in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=tolerance)
        assert len(one.moments) == len(other.moments)
        np.testing.assert_allclose(one.scores, other.scores, atol=tolerance)
        for moment, same in zip(one.moments, other.moments, strict=True):
            assert moment == pytest.approx(same, abs=tolerance)


qdrant = pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")

SENTENCES = ("red", "blue", "green white", "yellow", "black red")


@pytest.fixture
def films(tmp_path):
    """Films whose order, dates and equal contents a store has to keep."""
    return archive.varied_folder(tmp_path / "films")


# ---- the collection


def test_a_collection_of_another_encoder_rate_ranker_or_archive_is_refused(
    index, films, tmp_path, monkeypatch
):
    store = Store(MEMORY)
    with pytest.raises(SearchError, match="has no collection 'hlformer': make it by .*python -m"):
        opened(index, store).query("red")
    opened(index, store).upload()
    with pytest.raises(SearchError, match="of another ranker .best_frame, and here segments"):
        opened(index, store, ranker="segments").query("red")
    faster = archive.create(tmp_path / "faster", films, fps=2)
    archive.fill(faster)
    for act in (lambda one: one.upload(), lambda one: one.query("red")):
        with pytest.raises(SearchError, match="number of frames a second .1.0, and here 2.0"):
            act(opened(faster, store))
    other = archive.indexed(tmp_path / "other", archive.folder(tmp_path / "other films"))
    with pytest.raises(SearchError, match="another folder, whose videos an upload would delete"):
        opened(other, store).upload()
    monkeypatch.setattr(archive.Encoder, "name", "other")
    monkeypatch.setattr(archive.Encoder, "preprocessing", "another")
    renamed = archive.indexed(tmp_path / "renamed", films)
    with pytest.raises(SearchError, match="another encoder .colours, and here other.: name anot"):
        opened(renamed, store).upload()
    foreign = Store(MEMORY)
    foreign._qdrant.create_collection(
        foreign._name, qdrant.models.VectorParams(size=12, distance="Dot")
    )
    with pytest.raises(SearchError, match="was not made by this program"):
        opened(index, foreign).upload()
    assert len(store.payloads()) == 18


@pytest.mark.parametrize(
    "address",
    ["folder/store", "/store", "file:///store", "localhost:6333", "http://", "http://h:x/"],
)
def test_a_path_is_refused_and_so_is_what_is_no_address(address):
    with pytest.raises(SearchError, match=f"--store={address} is no address of a Qdrant server"):
        Store(address)


def test_a_server_that_does_not_answer_is_a_line(index):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SearchError, match="Qdrant does not answer .*refused") as refused:
        opened(index, f"http://127.0.0.1:{port}/films").query("red")
    assert "\n" not in str(refused.value)


def test_an_address_names_server_and_collection(monkeypatch):
    made = []
    monkeypatch.setattr(qdrant, "QdrantClient", lambda **options: made.append(options))
    monkeypatch.setenv("QDRANT_API_KEY", "secret")
    stores = [Store("https://h.org:6333"), Store("http://h/behind/proxy/films/")]
    assert [one._name for one in stores] == ["hlformer", "films"]
    assert [(one["url"], one["prefix"]) for one in made] == [
        ("https://h.org:6333", None), ("http://h", "behind/proxy"),
    ]  # fmt: skip
    assert made[0]["api_key"] == "secret"


def test_without_the_client_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(MissingExtra, match=r'pip install "hlformer-jax\[qdrant\]"'):
        Store(MEMORY)


# ---- points


@pytest.mark.parametrize("ranker", ["best_frame", "segments"])
def test_the_payload_tells_video_folder_date_and_times(index, ranker):
    store = Store(MEMORY)
    opened(index, store, ranker=ranker).upload()
    found, _ = store._qdrant.scroll(store._name, limit=100)
    [payload] = [one.payload for one in found if one.payload["video"] == "trips/c.film"]
    entry = next(one for one in index.entries() if one.video == "trips/c.film")
    arrays = index.read(payload["content"])
    assert payload == {
        "id": entry.id, "content": index.manifest.videos["trips/c.film"].content,
        "video": "trips/c.film", "folder": "trips", "folders": ["trips"],
        "date": 1e9 + 86400 * 16 + 0.25, "date_of": "file", "duration": 18.0,
        "part": 0, "parts": 1,
        "times": (arrays.spans if ranker == "segments" else arrays.times).tolist(),
    }  # fmt: skip


def test_names_that_are_no_text_and_times_of_any_year_are_uploaded(index, films):
    path = archive.film(films / os.fsdecode(b"no \xff") / "x.film", ["red"] * 3)
    os.utime(path, (-1e11, -1e11))
    archive.fill(index)
    library = opened(index, Store(MEMORY))
    library.upload()
    [hit] = library.query("red", folder=os.fsdecode(b"no \xff"))
    assert hit.path == path


def test_a_video_is_there_with_all_its_parts_of_its_content_or_not_at_all():
    names = [module.point_id("a", part) for part in range(3)]
    assert len({*names, module.point_id("b", 0)}) == 4
    there = {name: {"parts": 3, "content": "x"} for name in names}
    assert module.complete_points(there, "a", "x") == names
    assert module.complete_points(there, "b", "x") == module.complete_points({}, "a", "x") == []
    for wrong in ({**there, names[2]: {"parts": 3, "content": "y"}}, dict(list(there.items())[:2])):
        assert module.complete_points(wrong, "a", "x") == []


def test_filters_become_conditions_and_those_that_filter_nothing_none():
    assert module.conditions(None, None, None) == module.conditions("/", None, None) == []
    assert module.conditions("/trips/lake/", "1970-01-01T00:00:05Z", "1970-01-01T00:01Z") == [
        {"key": "folders", "match": {"value": "trips/lake"}},
        {"key": "date", "range": {"gte": 5.0}},
        {"key": "date", "range": {"lt": 120.0}},
    ]
    with pytest.raises(SearchError, match="'soon' is no date"):
        module.conditions(None, None, "soon")


# ---- the ranker


@pytest.mark.parametrize("most", [2**20, 100], ids=["whole", "in parts"])
@pytest.mark.parametrize("ranker", ["segments", "best_frame"])
def test_the_ranking_is_that_without_a_store(index, monkeypatch, ranker, most):
    monkeypatch.setattr(module, "MAX_NUMBERS", most)
    store = Store(MEMORY)
    library = opened(index, store, ranker=ranker)
    assert library.upload() == Uploaded(sent=18)
    if most == 100:
        payloads = store.payloads().values()
        assert len(payloads) > 18 and max(one["parts"] for one in payloads) > 1
    plain = search.open(index.directory, ranker=ranker, encoder=archive.Encoder())
    for sentence in SENTENCES:
        for k in (1, 2, 5, 100):
            agree(library.query(sentence, k=k), plain.query(sentence, k=k))
    for position in (0, 7):
        found, expected = (one.examine("red", position) for one in (library, plain))
        np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
        agree([found[1]], [expected[1]])
    assert [path.name for path in (index.directory / "packed").glob(f"{ranker}*")] != []


def test_filters_run_in_the_store_and_are_those_without(index):
    library, plain = opened(index, Store(MEMORY)), opened(index, None)
    library.upload()
    library.query("red")
    assert not (index.directory / "packed").exists()  # no matrix of all vectors is made here
    days = [datetime.datetime.fromtimestamp(entry.date) for entry in plain.videos()]
    for filters in (
        {"folder": "trips"}, {"folder": "trips/"}, {"folder": "f1"},
        {"folder": ""}, {"folder": "f0", "since": days[3]}, {"until": days[3]},
        {"since": days[3], "until": days[3]}, {"since": "2001-09-12", "until": "2001-09-14"},
    ):  # fmt: skip
        agree(library.query("red", k=20, **filters), plain.query("red", k=20, **filters))
    with pytest.raises(SearchError, match="'soon' is no date"):
        library.query("red", since="soon")
    with pytest.raises(SearchError, match="did you mean 'trips'"):
        library.query("red", folder="trip")


# ---- uploads


def test_an_upload_sends_what_is_new_and_deletes_what_is_gone(index, films):
    store = Store(MEMORY)
    library = opened(index, store)
    assert library.upload() == Uploaded(sent=18)
    assert library.upload() == Uploaded(kept=18)
    (films / "a.film").rename(films / "trips" / "moved.film")
    os.utime(films / "b.film", (5, 5))
    (films / "z.film").unlink()
    archive.film(films / "f0" / "0.film", ["white"] * 9)
    archive.film(films / "new.film", ["yellow"] * 4)
    archive.fill(Index.open(index.directory))
    # Until the upload: what is still there is found, by what was known.
    assert {hit.video for hit in library.query("red", k=50)} >= {"trips/moved.film", "b.film"}
    assert "new.film" not in {hit.video for hit in library.query("yellow", k=50)}
    assert library.upload() == Uploaded(sent=2, renamed=2, kept=15, removed=1)
    plain = opened(index, None)
    for options in ({}, {"folder": "trips"}, {"until": "1970"}):
        agree(library.query("red", k=50, **options), plain.query("red", k=50, **options))
    assert library.upload() == Uploaded(kept=19)  # one is offline


def test_an_upload_that_was_ended_goes_on_where_it_was(index, monkeypatch):
    monkeypatch.setattr(module, "MAX_NUMBERS", 300)
    store = Store(MEMORY)
    library = opened(index, store)
    put, calls = Store.put, []

    def ended(self, made):
        calls.append(len(made))
        if len(calls) == 4:
            put(self, made[:1])  # of several parts the first, say
            raise KeyboardInterrupt
        put(self, made)

    monkeypatch.setattr(Store, "put", ended)
    with pytest.raises(KeyboardInterrupt):
        library.upload()
    monkeypatch.setattr(Store, "put", put)
    there = len({one["id"] for one in store.payloads().values()})
    again = library.upload()
    assert 0 < there <= again.kept + 1 < 18 and again.sent + again.kept == 18
    agree(library.query("red", k=50), opened(index, None).query("red", k=50))
