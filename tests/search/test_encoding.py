"""Encoders by name: where one is loaded from, where it is found again, and vectors of frames."""

import sys
from pathlib import Path
from types import SimpleNamespace

import archive
import numpy as np
import pytest

from hlformer_jax.search import encoding, extract
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.extract import Frames
from hlformer_jax.search.storage import EncoderFacts

HUB = "google/siglip-base-patch16-224"


@pytest.fixture
def loaded(monkeypatch):
    """The names by which encoders were loaded."""
    names = []
    load = lambda name, tell: names.append(name) or archive.Encoder()
    monkeypatch.setattr(encoding, "extra", {"encoders": SimpleNamespace(load=load)}.__getitem__)
    return names


def test_a_folder_is_found_again_from_anywhere_and_a_hub_id_by_itself(
    loaded, tmp_path, monkeypatch
):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert encoding.load("mine")[1] == (str(tmp_path / "mine"),)
    assert encoding.load(Path("mine"))[1] == (str(tmp_path / "mine"),)
    assert encoding.load(HUB)[1] == (HUB,)
    assert loaded == ["mine", "mine", HUB]


def test_the_first_place_that_is_there_is_taken_unless_another_is_named(loaded, tmp_path):
    gone, here = tmp_path / "gone", tmp_path / "here"
    here.mkdir()
    facts = lambda *places: EncoderFacts.of(archive.Encoder(), tuple(map(str, places)))
    for known, given, expected in (
        (facts(gone, here, HUB), None, str(here)),
        (facts(gone, HUB), None, HUB),
        (facts(), None, "colours"),
        (facts(gone), here, str(here)),
    ):
        encoding.reload(known, given)
        assert loaded.pop() == expected and not loaded
    with pytest.raises(SearchError, match=f"'colours', is not at {gone} any more: .*--encoder=PA"):
        encoding.reload(facts(gone))


class Raw:
    """An encoder whose vectors have lengths of their own, the second frame's being none."""

    def images(self, pixels):
        return np.asarray([[3.0, 4.0], [0.0, 0.0]], np.float32)


def test_vectors_of_frames_have_unit_length_in_half_precision():
    frames = Frames(Path("a.mp4"), np.asarray([0.0, 1.0]), np.zeros((2, 4, 4, 3), np.uint8))
    found = extract.encode(Raw(), frames)
    assert found.path == frames.path and found.times is frames.times
    assert found.vectors.dtype == np.float16
    expected = np.asarray([[0.6, 0.8], [0, 0]], np.float16)
    np.testing.assert_array_equal(found.vectors, expected)


def test_without_the_extra_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "hlformer_jax.encoders", None)

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="safetensors")

    monkeypatch.setattr(encoding.importlib, "import_module", missing)
    with pytest.raises(SearchError, match=r'pip install "hlformer-jax\[search\]" .*no safetensors'):
        encoding.extra("encoders")
