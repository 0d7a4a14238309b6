"""The recorded encoders, each loaded once."""

import functools
import json
import pathlib
import shutil
import types

import numpy as np
import pytest

from hlformer_jax import encoders

GOLDEN = pathlib.Path(__file__).parent / "golden"


@functools.cache
def loaded(kind, dtype="float32"):
    return encoders.load(GOLDEN / kind, dtype=dtype)


@functools.cache
def recorded(kind):
    with np.load(GOLDEN / kind / "expected.npz") as file:
        return types.SimpleNamespace(**file)


@pytest.fixture(params=sorted(path.parent.name for path in GOLDEN.glob("*/*processor_config.json")))
def kind(request):
    return request.param


@pytest.fixture
def encoder(kind):
    return loaded(kind)


@pytest.fixture
def expected(kind):
    return recorded(kind)


@pytest.fixture(name="loaded")
def fixture_loaded():
    return loaded


@pytest.fixture(scope="session")
def golden():
    return GOLDEN


@pytest.fixture(scope="session")
def sentences():
    return json.loads((GOLDEN / "sentences.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def pictures():
    with np.load(GOLDEN / "pictures.npz") as file:
        return [file[name] for name in file.files]


@pytest.fixture
def copy(tmp_path):
    """A recorded folder that a test may damage."""

    def make(kind):
        return pathlib.Path(shutil.copytree(GOLDEN / kind, tmp_path / kind))

    return make
