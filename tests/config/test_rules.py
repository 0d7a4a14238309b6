"""Rules: which values they hold for, up to their bounds, and what no field may be."""

import math

import numpy as np
import pytest

from hlformer_jax.config import rules
from hlformer_jax.config.families import FAMILIES, leaves

LEAVES = [(family, name) for family in FAMILIES for name, _ in leaves(family)]

OF_NO_FIELD = (None, object(), math.nan, math.inf, -math.inf, -1e300, 1e300, {}, "\n", b"")
"""What no field may be."""


@pytest.mark.parametrize(("family", "name"), LEAVES)
def test_no_rule_accepts_what_no_run_could_mean(family, name):
    rule = dict(leaves(family))[name].rule
    for value in OF_NO_FIELD:
        assert not rule.holds(value), value


def test_bounds_are_part_of_a_rule_or_are_not_as_its_words_say():
    nearly_one = math.nextafter(1, 0)
    for rule, inside, outside in (
        (rules.whole(1, 8), (1, 8, np.int32(3)), (0, 9, 3.0)),
        (rules.real(0, 2), (0, 2, 0.5), (-1e-300, math.nextafter(2, 3))),
        (rules.positive(2), (1e-300, 2), (0, 0.0, math.nextafter(2, 3))),
        (rules.share(), (0, nearly_one), (1, 1.0, -1e-300)),
        (rules.widths(), ((), [0, 1e6], (0.5,)), ((1e6 + 1,), 0.5)),
        (rules.split_sizes(9), ((0, 0, 0), [1, 9, 1]), ((0, 1, 1), (1, 1), (1, 1, 10))),
        (rules.wholes(1, 9), ((), (1, 9), [2]), ((0,), (10,), (2.0,), ("2",), 2, "2", (True,))),
        (rules.folder(), ("i3d", "a b", "ü"), (".i3d", "~i3d", "a/", "a\\b")),
        (rules.path(), ("", "~/a/../b"), ("a\tb", None)),
    ):
        for value in inside:
            assert rule.holds(value), (rule.meaning, value)
        for value in outside:
            assert not rule.holds(value), (rule.meaning, value)
