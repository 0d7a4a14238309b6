"""The fields of a configuration as options of the model: each of them arrives."""

import dataclasses

import jax.numpy as jnp
import pytest
import tree_nodes

from hlformer_jax.models.hover.options import from_config

CHANGED = {
    "model.hidden_size": 8,
    "model.hyperbolic_dim": 2,
    "model.text_encoder": "mean",
    "model.num_heads": 1,
    "data.max_words": 9,
    "model.lift": "radius",
    "model.hyperbolic_init": "kaiming",
    "model.riemannian_factor": True,
    "model.scale": 3.0,
    "model.learned_scale": False,
    "loss.order_base": "released",
}
"""Fields that are options of their own names, each with a value that is not its default."""

OF_THE_SPACE = {
    "geometry": "lorentz",
    "metric": "cosine",
    "curvature": 0.5,
    "max_radius": 0.999,
}


@pytest.mark.parametrize("field", CHANGED)
def test_a_field_is_the_option_of_its_name_and_no_other(field):
    before, value = from_config(tree_nodes.config()), CHANGED[field]
    after = from_config(tree_nodes.config(**{field: value}))
    name = field.partition(".")[2]
    assert getattr(before, name) != value
    assert after == dataclasses.replace(before, **{name: value})


@pytest.mark.parametrize("field", OF_THE_SPACE)
def test_a_field_of_the_space_is_that_of_its_name_and_no_other(field):
    before, value = from_config(tree_nodes.config()).space, OF_THE_SPACE[field]
    after = from_config(tree_nodes.config(**{f"model.{field}": value})).space
    assert getattr(before, field) != value
    assert after == dataclasses.replace(before, **{field: value})


def test_every_option_is_set_by_a_field_and_equal_options_are_one_key():
    options = from_config(tree_nodes.config(dtype="bfloat16"))
    assert options.dtype == jnp.bfloat16
    names = {field.name for field in dataclasses.fields(options)}
    assert names == {field.partition(".")[2] for field in CHANGED} | {"space", "dtype"}
    assert {from_config(tree_nodes.config()): 1}[from_config(tree_nodes.config())] == 1
