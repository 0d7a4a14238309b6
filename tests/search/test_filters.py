"""Filters of a search: folders and dates."""

import numpy as np
import pytest

from hlformer_jax import search
from hlformer_jax.search import filters


def test_filters_agree_with_a_loop_over_random_entries():
    rng = np.random.default_rng(0)
    folders = ["", "a", "a/b", "ab", "a/b/c"]
    entries = [
        search.Entry("", "", str(rng.choice(folders)), None, 0, float(t), 1.0, 1, "indexed", "")
        for t in rng.uniform(0, 100, 50)
    ]
    for folder in (None, *folders):
        since, until = sorted(rng.uniform(0, 100, 2))
        found = filters.mask(entries, folder, since, until)
        for entry, kept in zip(entries, found, strict=True):
            within = not folder or entry.folder == folder or entry.folder.startswith(folder + "/")
            assert kept == (within and since <= entry.modified <= until)


def test_a_folder_that_the_index_lacks_is_refused():
    entries = [search.Entry("", "", "trips/sea", None, 0, 0.0, 1.0, 1, "indexed", "")]
    assert filters.mask(entries, "trips", None, None).all()
    with pytest.raises(search.SearchError, match="did you mean 'trips/sea'"):
        filters.mask(entries, "trips/see", None, None)
