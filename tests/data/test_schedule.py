"""The order of the data: a function of seed and epoch, in groups that hold every step once."""

import numpy as np
import pytest

from hlformer_jax.data.schedule import Schedule


def test_the_order_is_a_permutation_that_depends_on_seed_and_epoch_alone():
    schedule = Schedule(50, 8, seed=3)
    orders = [schedule.order(epoch) for epoch in (0, 1, 0)]
    np.testing.assert_array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], Schedule(50, 8, seed=4).order(0))
    np.testing.assert_array_equal(np.sort(orders[1]), np.arange(50))


@pytest.mark.parametrize("longest", [1, 2, 5, 100])
def test_groups_hold_every_step_once_and_end_where_records_are_due(longest):
    schedule = Schedule(11, 4, seed=0)
    groups = schedule.groups(4, longest)
    assert [group.first for group in groups[1:]] == [group.end for group in groups[:-1]]
    assert (groups[0].first, groups[-1].end) == (0, 12)
    ends = {end for end in range(1, 13) if end % longest == 0 or end % 3 == 0}
    assert {group.end for group in groups} == ends
    videos = np.concatenate([np.concatenate(group.steps) for group in groups])
    for epoch in range(4):
        np.testing.assert_array_equal(videos[11 * epoch : 11 * epoch + 11], schedule.order(epoch))
