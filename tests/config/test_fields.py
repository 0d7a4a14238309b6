"""Every field: its default, its rule, and the choices that other modules make of it."""

import pytest

from hlformer_jax.config import WEIGHTS, check, default, of_model
from hlformer_jax.config.families import FAMILIES
from hlformer_jax.config.families import leaves as leaves_of
from hlformer_jax.config.fields import leaves

LEAVES = dict(leaves())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_has_a_rule_that_its_default_follows(family):
    config, known = default(family), dict(leaves_of(family))
    assert set(config) == set(FAMILIES[family].fields)
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
    from hlformer_jax.models import options
    from hlformer_jax.nn import blocks, fusion
    from hlformer_jax.ops import windows
    from hlformer_jax.retrieval import scoring

    for name, known in {
        "model.name": models.MODELS,
        "model.fusion": fusion.FUSIONS,
        "model.window": windows.KINDS,
        "model.lorentz_window": blocks.LORENTZ_WINDOWS,
        "model.head_merge": blocks.HEAD_MERGES,
        "model.block_curvature": options.BLOCK_CURVATURES,
        "eval.corpus": scoring.DTYPES,
    }.items():
        assert sorted(LEAVES[name].rule.choices) == sorted(known), name


def test_the_default_is_accepted_and_has_a_weight_for_every_term():
    check(default())
    assert all(isinstance(default().loss[name], float) for name in WEIGHTS)
    assert default().to_dict() == of_model("hlformer").to_dict()
