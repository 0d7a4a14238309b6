"""Videos as points: payloads, ids, and what a filter asks of them."""

import os

import archive
import pytest
from stored import opened

from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.store import MEMORY, Store, points

pytest.importorskip("qdrant_client", reason="the extra qdrant is not installed")


def test_the_payload_tells_video_folder_date_and_times(index):
    store = Store(MEMORY)
    opened(index, store).upload()
    found, _ = store._qdrant.scroll(store._name, limit=100)
    [payload] = [one.payload for one in found if one.payload["video"] == "trips/c.film"]
    entry = next(one for one in index.entries() if one.video == "trips/c.film")
    arrays = index.read(payload["content"])
    assert payload == {
        "id": entry.id, "content": index.manifest.videos["trips/c.film"].content,
        "video": "trips/c.film", "folder": "trips", "folders": ["trips"],
        "date": 1e9 + 86400 * 16 + 0.25, "date_of": "file", "duration": 18.0,
        "part": 0, "parts": 1, "times": arrays.spans.tolist(),
    }  # fmt: skip


def test_names_that_are_no_text_and_times_of_any_year_are_uploaded(index, films):
    path = archive.film(films / os.fsdecode(b"no \xff") / "x.film", ["red"] * 3)
    os.utime(path, (-1e11, -1e11))
    archive.fill(index)
    stored = opened(index, Store(MEMORY))
    stored.upload()
    [hit] = stored.query("red", folder=os.fsdecode(b"no \xff"))
    assert hit.path == path


def test_a_video_is_there_with_all_its_parts_of_its_content_or_not_at_all():
    names = [points.identity("a", part) for part in range(3)]
    assert len({*names, points.identity("b", 0)}) == 4
    there = {name: {"parts": 3, "content": "x"} for name in names}
    assert points.known(there, "a", "x") == names
    assert points.known(there, "b", "x") == points.known({}, "a", "x") == []
    for wrong in ({**there, names[2]: {"parts": 3, "content": "y"}}, dict(list(there.items())[:2])):
        assert points.known(wrong, "a", "x") == []


def test_filters_become_conditions_and_those_that_filter_nothing_none():
    assert points.conditions(None, None, None) == points.conditions("/", None, None) == []
    assert points.conditions("/trips/lake/", "1970-01-01T00:00:05Z", "1970-01-01T00:01Z") == [
        {"key": "folders", "match": {"value": "trips/lake"}},
        {"key": "date", "range": {"gte": 5.0}},
        {"key": "date", "range": {"lt": 120.0}},
    ]
    with pytest.raises(SearchError, match="'soon' is no date"):
        points.conditions(None, None, "soon")
