"""Filters of a search: folders and dates."""

import datetime
import os

import numpy as np
import pytest

from hlformer_jax import search
from hlformer_jax.search import filters
from hlformer_jax.search.errors import SearchError


def entry(folder, modified=0.0, recorded=0.0):
    return search.Entry("", "", folder, None, 0, modified, 1.0, 1, "indexed", "", recorded=recorded)


def test_filters_agree_with_a_loop_over_random_entries():
    rng = np.random.default_rng(0)
    folders = ["", "a", "a/b", "ab", "a/b/c"]
    day = datetime.date(2026, 1, 1)
    start, *_ = filters.span(day)
    entries = [
        entry(str(rng.choice(folders)), start + 86400 * t, rng.choice([0.0, start + 86400 * u]))
        for t, u in rng.uniform(0, 100, (50, 2))
    ]
    for folder in (None, *folders):
        first, last = sorted(int(one) for one in rng.integers(0, 100, 2))
        since, until = (day + datetime.timedelta(days=n) for n in (first, last))
        found = filters.mask(entries, folder, since, until.isoformat())
        for one, kept in zip(entries, found, strict=True):
            within = not folder or one.folder == folder or one.folder.startswith(folder + "/")
            date = one.recorded or one.modified
            days = (datetime.datetime.fromtimestamp(date).date() - day).days
            assert kept == (within and first <= days <= last)


def test_a_folder_whose_name_is_no_text_is_chosen_as_it_is_shown():
    entries = [entry(os.fsdecode(b"caf\xe9/x")), entry("caf")]
    assert filters.mask(entries, "caf\ufffd", None, None).tolist() == [True, False]


def test_a_folder_that_the_index_lacks_is_refused():
    entries = [entry("trips/sea")]
    assert filters.mask(entries, "trips", None, None).all()
    with pytest.raises(SearchError, match="'trips/sea'"):
        filters.mask(entries, "trips/see", None, None)


@pytest.mark.parametrize(
    ("text", "first", "after"),
    [
        ("2026", (2026, 1, 1), (2027, 1, 1)),
        ("2026-01", (2026, 1, 1), (2026, 2, 1)),
        ("2026-12", (2026, 12, 1), (2027, 1, 1)),
        ("2024-02-29", (2024, 2, 29), (2024, 3, 1)),
        ("20260110", (2026, 1, 10), (2026, 1, 11)),
        ("2026-01-10T18", (2026, 1, 10, 18), (2026, 1, 10, 19)),
        ("2026-01-10 18:30", (2026, 1, 10, 18, 30), (2026, 1, 10, 18, 31)),
        ("20260110T183015", (2026, 1, 10, 18, 30, 15), (2026, 1, 10, 18, 30, 16)),
        (" 2026-01-10T23:59:59.5 ", (2026, 1, 10, 23, 59, 59, 500_000),
         (2026, 1, 10, 23, 59, 59, 500_001)),
        (datetime.date(2026, 1, 10), (2026, 1, 10), (2026, 1, 11)),
        (datetime.datetime(2026, 1, 10, 5), (2026, 1, 10, 5), (2026, 1, 10, 5, 0, 0, 1)),
    ],
)  # fmt: skip
def test_a_date_is_the_whole_span_that_it_names(text, first, after):
    expected = [datetime.datetime(*one).timestamp() for one in (first, after)]
    assert list(filters.span(text)) == expected


def test_a_time_may_name_its_zone():
    for text in ("2026-01-10T18:30Z", "2026-01-10T19:30+01:00", "20260110T1130-0700"):
        assert filters.span(text) == (1768069800, 1768069860)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "text",
    [
        "", " ", "nan", "inf", "0", "1", "26", "0001", "0001-01-01", "9999", "202601", "1767225600",
        "1767225600.5", "2026-13", "2026-00", "2026-02-30", "20260230", "2026-1", "2026-1-1",
        "2026/01/10", "10.01.2026", "2026-01T10:00", "2026T10", "2026-01-10T", "2026-01-10T25",
        "2026-01-10T10:60", "2026-01-10T10:00+99", "2026-W02", "2026-010", "-2026", "+2026",
        "yesterday", "\uff12\uff10\uff12\uff16", "2026\n2027", "\udcff", 2026, 1.5, True, None,
        float("nan"),
        datetime.datetime(1, 1, 1), datetime.date(9999, 12, 31),
    ],
)  # fmt: skip
def test_what_is_no_date_is_one_line(text):
    with pytest.raises(SearchError) as refused:
        filters.span(text)
    assert "2026-01" in str(refused.value) and "\n" not in str(refused.value)


def test_dates_are_written_of_every_year():
    assert filters.iso(1768069800.25)[:10] in ("2026-01-10", "2026-01-11")
    assert filters.span(filters.iso(1768069800))[0] == 1768069800
    assert filters.iso(-1e11).startswith("-") and filters.iso(9e9 * 100)[-1] == "Z"
