"""A collection of a store: addresses, and the refusal of one that is another's or not there."""

import socket
import sys

import archive
import pytest
from stored import opened

from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.store import MEMORY, Store

qdrant = pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")


def test_a_collection_of_another_encoder_rate_ranker_or_archive_is_refused(
    index, films, tmp_path, monkeypatch
):
    store = Store(MEMORY)
    with pytest.raises(SearchError, match="has no collection 'hlformer': make it by .*python -m"):
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


def test_without_the_client_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(SearchError, match=r'pip install "hlformer-jax\[qdrant\]"'):
        Store(MEMORY)
