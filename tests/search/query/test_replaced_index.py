"""A library whose index is deleted and made again at the same path while it is open."""

import shutil

import archive
import pytest

from hlformer_jax import search
from hlformer_jax.errors import QueryError
from hlformer_jax.search.index import Index, ReplacedIndexError
from hlformer_jax.search.query import library as library_module
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.query.search import Search
from hlformer_jax.search.serve import schemas


class SwappedEncoder(archive.Encoder):
    """An encoder of the same width for which red is blue and blue is red."""

    name = "swapped"

    def __init__(self):
        super().__init__("e" * 64)

    def _colours(self, text):
        swap = {"red": "blue", "blue": "red"}
        return super()._colours(" ".join(swap.get(word, word) for word in text.split()))


@pytest.fixture
def rebuild(index, films):
    """Make the index again at its path with an encoder."""

    def rebuild(encoder):
        shutil.rmtree(index.directory)
        new = Index.create(index.directory, films, encoder)
        archive.fill(new, encoder)
        return new

    return rebuild


@pytest.fixture
def loaded_names(monkeypatch):
    """Replace the loading of encoders; return the names of the loaded encoders."""
    names = []

    def load(facts, encoder):
        names.append(facts.name)
        return SwappedEncoder() if facts.name == SwappedEncoder.name else archive.Encoder()

    monkeypatch.setattr(library_module, "reload_encoder", load)
    return names


def test_encoder_of_the_new_index_is_loaded(index, rebuild, loaded_names):
    library = search.open(index.directory)
    assert library.query("red", k=1)[0].video == "a.film"
    rebuild(SwappedEncoder())
    assert library.query("red", k=1)[0].video == "trips/c.film"
    assert library.encoder.name == library.encoder_name == "swapped"
    rebuild(archive.Encoder())
    assert library.encoder_name == "colours"  # before the next query
    assert library.query("red", k=1)[0].video == "a.film"
    assert loaded_names == ["colours", "swapped", "colours"]


def test_encoder_of_the_old_index_is_refused(index, rebuild):
    library = archive.opened(index)
    library.query("red")
    rebuild(SwappedEncoder())
    for _ in range(2):
        with pytest.raises(QueryError, match="was made by the encoder 'swapped'"):
            library.query("red")
    assert schemas.status(library, False, Query("newest"))["encoder"] == "swapped"
    rebuild(archive.Encoder())
    assert library.query("red", k=1)[0].video == "a.film"


def test_encoder_is_kept_for_an_equal_index(index, rebuild, loaded_names):
    library = search.open(index.directory)
    library.query("red")
    library.tag("a.film", ["x"])
    for _ in range(3):  # the inode of a deleted file may be used again
        rebuild(archive.Encoder())
        assert not library.query("red", k=1)[0].tags
        assert not library.entry(library.query("red", k=1)[0].id).tags
        library.tag("a.film", ["x"])
    assert loaded_names == ["colours"]


def test_default_model_of_the_old_index_is_dropped(index, rebuild, loaded_names, tmp_path):
    with index.writing() as writer:
        writer.set_checkpoint(tmp_path / "run")
    library = search.open(index.directory)
    assert library.ranker_name == str(tmp_path / "run")
    rebuild(SwappedEncoder())
    assert library.ranker_name == "best_frame"
    assert library.query("red", k=1)[0].video == "trips/c.film"


def test_open_index_refuses_to_write_into_another(index, rebuild):
    new = rebuild(SwappedEncoder())
    before = archive.everything(new.directory)
    actions = [lambda: archive.fill(index), lambda: index.remove(["a.film"]), index.summary]
    for act in actions:
        with pytest.raises(ReplacedIndexError, match="was replaced by one with another encoder"):
            act()
    assert archive.everything(new.directory) == before


def test_index_that_is_replaced_during_a_query_is_queried_again(
    index, rebuild, loaded_names, monkeypatch
):
    library = search.open(index.directory)
    rank = Search.rank
    replacements = [SwappedEncoder()]

    def replace_once(*arguments):
        if replacements:
            rebuild(replacements.pop())
        return rank(*arguments)

    monkeypatch.setattr(Search, "rank", replace_once)
    assert library.query("red", k=1)[0].video == "trips/c.film"
