"""An archive whose order, dates and equal videos a store has to keep."""

import archive
import pytest
import stored


@pytest.fixture
def films(tmp_path):
    return stored.folder(tmp_path / "films")


@pytest.fixture
def index(tmp_path, films):
    return archive.indexed(tmp_path / "index", films)
