"""Every field: its default, its rule, and the choices that other modules make of it."""

import math

import numpy as np
import pytest

from hlformer_jax.config import WEIGHTS, check, default, fields, leaves, of_model
from hlformer_jax.config.fields import FIELDS

LEAVES = dict(leaves())


@pytest.mark.parametrize("family", FIELDS)
def test_every_field_has_a_rule_that_its_default_follows(family):
    config, known = default(family), dict(leaves(family))
    assert set(config) == set(FIELDS[family])
    flat = {}
    for name, value in config.items():
        inner = value.items() if hasattr(value, "items") else ()
        flat |= {f"{name}.{key}": x for key, x in inner} or {name: value}
    assert set(flat) == set(known)
    for name, field in known.items():
        assert field.rule.holds(flat[name]), name
        assert field.rule.meaning and "\n" not in field.rule.meaning


def test_a_list_of_choices_is_the_list_of_the_module_that_makes_them():
    from hlformer_jax import models
    from hlformer_jax.nn import blocks, fusion
    from hlformer_jax.ops import windows
    from hlformer_jax.retrieval import scoring

    for name, known in {
        "model.name": models.MODELS,
        "model.fusion": fusion.FUSIONS,
        "model.window": windows.KINDS,
        "model.lorentz_window": blocks.LORENTZ_WINDOWS,
        "model.head_merge": blocks.HEAD_MERGES,
        "eval.corpus": scoring.DTYPES,
    }.items():
        assert sorted(LEAVES[name].rule.choices) == sorted(known), name


def test_the_default_is_accepted_and_has_a_weight_for_every_term():
    check(default())
    assert all(isinstance(default().loss[name], float) for name in WEIGHTS)
    assert default().to_dict() == of_model("hlformer").to_dict()


# Rules.

ALL = [(family, name) for family in FIELDS for name, _ in leaves(family)]

OF_NO_FIELD = (None, object(), math.nan, math.inf, -math.inf, -1e300, 1e300, {}, "\n", b"")
"""What no field may be."""


@pytest.mark.parametrize(("family", "name"), ALL)
def test_no_rule_accepts_what_no_run_could_mean(family, name):
    rule = dict(leaves(family))[name].rule
    for value in OF_NO_FIELD:
        assert not rule.holds(value), value


def test_bounds_are_part_of_a_rule_or_are_not_as_its_words_say():
    nearly_one = math.nextafter(1, 0)
    for rule, inside, outside in (
        (fields.whole(1, 8), (1, 8, np.int32(3)), (0, 9, 3.0)),
        (fields.real(0, 2), (0, 2, 0.5), (-1e-300, math.nextafter(2, 3))),
        (fields.positive(2), (1e-300, 2), (0, 0.0, math.nextafter(2, 3))),
        (fields.SHARE, (0, nearly_one), (1, 1.0, -1e-300)),
        (fields.WIDTHS, ((), [0, 1e6], (0.5,)), ((1e6 + 1,), 0.5)),
        (fields.split_sizes(9), ((0, 0, 0), [1, 9, 1]), ((0, 1, 1), (1, 1), (1, 1, 10))),
        (fields.wholes(1, 9), ((), (1, 9), [2]), ((0,), (10,), (2.0,), ("2",), 2, "2", (True,))),
        (fields.FOLDER, ("i3d", "a b", "ü"), (".i3d", "~i3d", "a/", "a\\b")),
        (fields.PATH, ("", "~/a/../b"), ("a\tb", None)),
    ):
        for value in inside:
            assert rule.holds(value), (rule.meaning, value)
        for value in outside:
            assert not rule.holds(value), (rule.meaning, value)
