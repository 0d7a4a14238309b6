"""`upload`: counts of what was done, and the questions that are then asked of the store."""

import archive
import pytest
import stored

from hlformer_jax.search import encoding
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.store import MEMORY

qdrant = pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")


@pytest.fixture
def index(tmp_path):
    return archive.indexed(tmp_path / "index", stored.folder(tmp_path / "films"))


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


def test_without_the_address_of_a_server_nothing_is_uploaded(index, capsys):
    for store in ([], ["--store=:memory:"]):
        assert main(["upload", f"--index={index.directory}", *store]) == 1
        assert "give the server to upload to: --store=http" in capsys.readouterr().err
