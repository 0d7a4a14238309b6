"""Fixtures of the command line, which runs in this process on films that need no FFmpeg."""

import sys
from types import SimpleNamespace

import archive
import pytest

import hlformer_jax.search.serve.schemas  # noqa: F401 (it needs the video package that `calls` replaces)
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.ingest import extract
from hlformer_jax.video import read, subtitles


@pytest.fixture
def films(tmp_path):
    return archive.folder(tmp_path / "my films")


@pytest.fixture
def calls(monkeypatch):
    """Fakes of the packages of the extra, which record their calls."""
    recorded = SimpleNamespace(encoder=archive.Encoder(), loaded=[], cuts=[], served=[])

    def load(name, report):
        recorded.loaded.append(name)
        return recorded.encoder

    modules = {
        "encoders.hub": SimpleNamespace(load=load),
        "video": SimpleNamespace(
            find=archive.find,
            probe=archive.probe,
            sample=archive.sample,
            cut=lambda *a, replace: recorded.cuts.append((a, replace)),
            copy=lambda *a, replace: recorded.cuts.append((a, replace)) or (2.5, 9.75),
        ),
        "video.read": read,
        "video.subtitles": subtitles,
        "search.serve.server": SimpleNamespace(
            serve=lambda *a, **b: recorded.served.append((a, b))
        ),
    }
    monkeypatch.setattr(subtitles, "read_tracks", lambda path: [])
    monkeypatch.setattr(extract, "default_workers", lambda: 0)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, f"hlformer_jax.{name}", module)
    return recorded


@pytest.fixture
def search(calls, capsys):
    """Calls a command; returns its status, its output and the lines of its error."""

    def call(*arguments):
        try:
            status = main([*map(str, arguments)])
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return SimpleNamespace(status=status, out=out, errors=err.splitlines())

    return call


@pytest.fixture
def index(search, films, tmp_path):
    directory = tmp_path / "index"
    done = search("index", films, f"--index={directory}", "--workers=0")
    assert done.status == 0, done
    return directory


@pytest.fixture
def ask(search, index):
    """Calls a command with the index."""
    return lambda name, *flags: search(name, *flags, f"--index={index}")
