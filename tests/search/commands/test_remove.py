"""`remove VIDEO`: what is taken out stays out."""

from hlformer_jax.search.index import Index


def test_what_is_removed_stays_out_until_it_is_added(search, films, index):
    identity = Index.open(index).entries()[1].id
    assert search("remove", identity, films / "a.film", f"--index={index}").status == 0
    assert (films / "a.film").exists()
    assert [entry.video for entry in Index.open(index).entries()] == ["trips/c.film"]
    assert len(list((index / "videos").iterdir())) == 1
    search("index", films, f"--index={index}", "--workers=0")
    assert len(Index.open(index).entries()) == 1
    assert "removed   2" in search("status", f"--index={index}").out
    assert search("add", films / "a.film", f"--index={index}", "--workers=0").status == 0
    assert len(Index.open(index).entries()) == 2
    search("add", films, f"--index={index}", "--workers=0")
    assert len(Index.open(index).entries()) == 3
