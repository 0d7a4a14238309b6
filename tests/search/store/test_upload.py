"""Uploads: what is new is sent, what is gone deleted, what was interrupted gone on with."""

import os

import archive
import pytest
from stored import agree, opened

from hlformer_jax.search.index import Index
from hlformer_jax.search.store import MEMORY, Store, Uploaded, points

pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")


def test_an_upload_sends_what_is_new_and_deletes_what_is_gone(index, films):
    store = Store(MEMORY)
    stored = opened(index, store)
    assert stored.upload() == Uploaded(sent=18)
    assert stored.upload() == Uploaded(kept=18)
    (films / "a.film").rename(films / "trips" / "moved.film")
    os.utime(films / "b.film", (5, 5))
    (films / "z.film").unlink()
    archive.film(films / "f0" / "0.film", ["white"] * 9)
    archive.film(films / "new.film", ["yellow"] * 4)
    archive.fill(Index.open(index.directory))
    # Until the upload: what is still there is found, by what was known.
    assert {hit.video for hit in stored.query("red", k=50)} >= {"trips/moved.film", "b.film"}
    assert "new.film" not in {hit.video for hit in stored.query("yellow", k=50)}
    assert stored.upload() == Uploaded(sent=2, renamed=2, kept=15, removed=1)
    plain = opened(index, None)
    for options in ({}, {"folder": "trips"}, {"until": "1970"}):
        agree(stored.query("red", k=50, **options), plain.query("red", k=50, **options))
    assert stored.upload() == Uploaded(kept=19)  # one is offline


def test_an_upload_that_was_ended_goes_on_where_it_was(index, monkeypatch):
    monkeypatch.setattr(points, "MOST", 300)
    store = Store(MEMORY)
    stored = opened(index, store)
    put, calls = Store.put, []

    def ended(self, made):
        calls.append(len(made))
        if len(calls) == 4:
            put(self, made[:1])  # of several parts the first, say
            raise KeyboardInterrupt
        put(self, made)

    monkeypatch.setattr(Store, "put", ended)
    with pytest.raises(KeyboardInterrupt):
        stored.upload()
    monkeypatch.setattr(Store, "put", put)
    there = len({one["id"] for one in store.payloads().values()})
    again = stored.upload()
    assert 0 < there <= again.kept + 1 < 18 and again.sent + again.kept == 18
    agree(stored.query("red", k=50), opened(index, None).query("red", k=50))
