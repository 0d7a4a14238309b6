"""Search in a store, in this process: the ranking is that without; uploads; filters; refusals."""

import os
import socket
import sys

import archive
import httpx
import numpy as np
import page_library
import pytest

from hlformer_jax import search
from hlformer_jax.search import encoding
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.store import MEMORY, Store, Uploaded, points

qdrant = pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")

SENTENCES = ("red", "blue", "green white", "yellow", "black red")


@pytest.fixture
def films(tmp_path):
    films = archive.folder(tmp_path / "films")
    for i in range(12):
        archive.random_film(films / f"f{i % 3}" / f"{i}.film", 8 + 5 * i, seed=i)
    # As good as others to the last bit.
    for name in ("0.film", "z.film", "f1/y.film"):
        (films / name).write_bytes((films / "b.film").read_bytes())
    for i, path in enumerate(sorted(films.rglob("*.film"))):
        os.utime(path, (1e9 + 86400 * i + 0.25, 1e9 + 86400 * i + 0.25))
    return films


@pytest.fixture
def index(tmp_path, films):
    return archive.indexed(tmp_path / "index", films)


def opened(index, store, **options):
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


@pytest.mark.parametrize("most", [2**20, 100], ids=["whole", "in parts"])
@pytest.mark.parametrize("ranker", ["segments", "best_frame"])
def test_the_ranking_is_that_without_a_store(index, monkeypatch, ranker, most):
    monkeypatch.setattr(points, "MOST", most)
    store = Store(MEMORY)
    stored = opened(index, store, ranker=ranker)
    assert stored.upload() == Uploaded(sent=18)
    if most == 100:
        assert len(store.payloads()) > 18 and {one["parts"] for one in store.payloads().values()}
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
    days = [entry.modified for entry in plain.videos()]
    for filters in (
        {"folder": "trips"}, {"folder": "trips/"}, {"folder": "trip"}, {"folder": "f1"},
        {"folder": ""}, {"folder": "f0", "since": days[3]}, {"until": days[3]},
        {"since": days[3], "until": days[3]}, {"since": "2001-09-12", "until": "2001-09-14"},
    ):  # fmt: skip
        agree(stored.query("red", k=20, **filters), plain.query("red", k=20, **filters))
    with pytest.raises(SearchError, match="'soon' is no date"):
        stored.query("red", since="soon")


def test_an_upload_sends_what_is_new_and_deletes_what_is_gone(index, films):
    store = Store(MEMORY)
    stored = opened(index, store)
    assert stored.upload() == Uploaded(sent=18)
    assert stored.upload() == Uploaded(kept=18)
    (films / "a.film").rename(films / "trips" / "moved.film")
    os.utime(films / "b.film", (5, 5))
    (films / "z.film").unlink()
    archive.film(films / "f0" / "0.film", ["white"] * 9)
    archive.film(films / "new.film", ["yellow"] * 4)
    archive.fill(Index.open(index.directory))
    # Until the upload: what is still there is found, by what was known.
    assert {hit.video for hit in stored.query("red", k=50)} >= {"trips/moved.film", "b.film"}
    assert "new.film" not in {hit.video for hit in stored.query("yellow", k=50)}
    assert stored.upload() == Uploaded(sent=2, renamed=2, kept=14, removed=2)
    plain = opened(index, None)
    for options in ({}, {"folder": "trips"}, {"until": 100}):
        agree(stored.query("red", k=50, **options), plain.query("red", k=50, **options))
    assert stored.upload() == Uploaded(kept=18)


def test_an_upload_that_was_ended_goes_on_where_it_was(index, monkeypatch):
    monkeypatch.setattr(points, "MOST", 300)
    store = Store(MEMORY)
    stored = opened(index, store)
    put, calls = Store.put, []

    def ended(self, made):
        calls.append(len(made))
        if len(calls) == 4:
            put(self, made[:1])  # of several parts the first, say
            raise KeyboardInterrupt
        put(self, made)

    monkeypatch.setattr(Store, "put", ended)
    with pytest.raises(KeyboardInterrupt):
        stored.upload()
    monkeypatch.setattr(Store, "put", put)
    there = len({one["id"] for one in store.payloads().values()})
    again = stored.upload()
    assert 0 < there <= again.kept + 1 < 18 and again.sent + again.kept == 18
    agree(stored.query("red", k=50), opened(index, None).query("red", k=50))


def test_the_payload_tells_video_folder_date_and_times(index):
    store = Store(MEMORY)
    opened(index, store).upload()
    found, _ = store._qdrant.scroll(store._name, limit=100)
    [payload] = [one.payload for one in found if one.payload["video"] == "trips/c.film"]
    entry = next(one for one in index.entries() if one.video == "trips/c.film")
    arrays = index.read(payload["content"])
    assert payload == {
        "id": entry.id, "content": index.manifest.videos["trips/c.film"].content,
        "video": "trips/c.film", "folder": "trips", "folders": ["trips"],
        "modified": 1e9 + 86400 * 16 + 0.25, "date": "2001-09-25T01:46:40Z", "duration": 18.0,
        "part": 0, "parts": 1, "times": arrays.spans.tolist(),
    }  # fmt: skip


def test_names_that_are_no_text_and_times_of_any_year_are_uploaded(index, films):
    path = archive.film(films / os.fsdecode(b"no \xff") / "x.film", ["red"] * 3)
    os.utime(path, (-1e11, -1e11))
    archive.fill(index)
    stored = opened(index, Store(MEMORY))
    stored.upload()
    [hit] = stored.query("red", folder=os.fsdecode(b"no \xff"))
    assert hit.path == path


def test_a_collection_of_another_encoder_rate_ranker_or_archive_is_refused(
    index, films, tmp_path, monkeypatch
):
    store = Store(MEMORY)
    with pytest.raises(SearchError, match="has no collection 'hlformer': make it by python -m"):
        opened(index, store).query("red")
    opened(index, store).upload()
    with pytest.raises(SearchError, match="is for the ranker 'segments', and 'best_frame' is"):
        opened(index, store, ranker="best_frame").query("red")
    faster = archive.create(tmp_path / "faster", films, fps=2)
    archive.fill(faster)
    for act in (lambda one: one.upload(), lambda one: one.query("red")):
        with pytest.raises(SearchError, match="another number of frames a second .1.0, the index"):
            act(opened(faster, store))
    other = archive.indexed(tmp_path / "other", archive.folder(tmp_path / "other films"))
    with pytest.raises(SearchError, match="holds the videos of .*, which an upload of .* would"):
        opened(other, store).upload()
    monkeypatch.setattr(archive.Encoder, "name", "other")
    monkeypatch.setattr(archive.Encoder, "preprocessing", "another")
    renamed = archive.indexed(tmp_path / "renamed", films)
    with pytest.raises(SearchError, match="another encoder .colours, the index other.: name anot"):
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


@pytest.mark.filterwarnings("ignore:Local mode performs exact", "ignore:Payload indexes have no")
def test_the_commands_upload_and_ask(index, monkeypatch, capsys):
    server = qdrant.QdrantClient(MEMORY)  # for what is sent to a real one as well
    monkeypatch.setattr(qdrant, "QdrantClient", lambda **options: server)
    monkeypatch.setattr(encoding, "reload", lambda facts, given: archive.Encoder())

    def call(*arguments):
        assert main([*arguments, f"--index={index.directory}"]) == 0
        return capsys.readouterr().out

    store = "--store=http://localhost:6333/films"
    assert call("upload", store) == "http://localhost:6333/films: 18 uploaded\n"
    assert call("upload", store) == "http://localhost:6333/films: 18 there already\n"
    for flags in (["--k=4"], ["--folder=f1", "--since=2001-09-12"]):
        assert call("query", "red", store, *flags) == call("query", "red", *flags)


def test_without_the_client_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(SearchError, match=r'pip install "hlformer-jax\[qdrant\]"'):
        Store(MEMORY)


def test_a_library_without_a_store_has_nowhere_to_upload_to(index):
    with pytest.raises(SearchError, match="there is no store to upload to"):
        opened(index, None).upload()
