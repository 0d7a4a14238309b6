"""Options that several commands have: times as people write them."""

import pytest

from hlformer_jax.search.commands import options as shared
from hlformer_jax.search.errors import SearchError


def test_times_are_written_and_read():
    assert [shared.clock(t) for t in (0, 59.9, 60, 3599, 3600, -1)] == [
        "0:00", "0:59", "1:00", "59:59", "1:00:00", "0:00",
    ]  # fmt: skip
    assert [shared.seconds(t) for t in ("5", "1:02.5", "1:00:03")] == [5, 62.5, 3603]
    for wrong in ("", "-1", "1:", ":3", "1:2:3:4", "nan", "1e3"):
        with pytest.raises(SearchError, match="is no time"):
            shared.seconds(wrong)
