"""Recalls of a library on captions, of which some have times."""

import archive
import pytest

from hlformer_jax import search
from hlformer_jax.search.captions import Caption, evaluate
from hlformer_jax.search.errors import SearchError


@pytest.fixture
def library(index):
    return search.open(index.directory, ranker="best_frame", encoder=archive.Encoder())


def test_captions_with_times_alone_count_for_the_moments(library):
    asked = [Caption("a.film", "red", 5.0, 8.0), Caption("b.film", "green")]
    metrics = evaluate(library, asked)
    assert metrics["R@1"] == 100 and metrics["IoU 0.7"] == 100
    asked[0] = Caption("a.film", "red", 0.0, 5.0)
    missed = evaluate(library, asked)
    assert missed["R@1"] == 100 and missed["IoU 0.3"] == missed["mIoU"] == 0
    assert not any("IoU" in name for name in evaluate(library, asked[1:]))


def test_a_video_that_is_not_indexed_is_named(library):
    with pytest.raises(SearchError, match="name 'd.film', which the index lacks"):
        evaluate(library, [Caption("d.film", "red")])
