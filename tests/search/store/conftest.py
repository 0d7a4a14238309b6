"""An archive whose order, dates and equal videos a store has to keep."""

import pytest
import stored


@pytest.fixture
def films(tmp_path):
    return stored.folder(tmp_path / "films")
