"""The command line in this process, on films and an encoder that need no package of the extra."""

from types import SimpleNamespace

import archive
import pytest

from hlformer_jax.search import encoding
from hlformer_jax.search.__main__ import main


@pytest.fixture
def films(tmp_path):
    return archive.folder(tmp_path / "my films")


@pytest.fixture
def calls(monkeypatch):
    """The fakes in the place of the packages that the extra brings; what they were asked."""
    seen = SimpleNamespace(encoder=archive.Encoder(), loaded=[], cuts=[], served=[])

    def load(name, tell):
        seen.loaded.append(name)
        return seen.encoder

    modules = {
        "encoders": SimpleNamespace(load=load),
        "video": SimpleNamespace(
            **archive.VIDEO._asdict(), cut=lambda *a, replace: seen.cuts.append((a, replace))
        ),
        "search.page.server": SimpleNamespace(serve=lambda *a, **b: seen.served.append((a, b))),
    }
    monkeypatch.setattr(encoding, "extra", modules.__getitem__)
    return seen


@pytest.fixture
def search(calls, capsys):
    """Calls a command; returns its status, its output and the lines of its complaint."""

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
