"""Families of models: which one a configuration is of."""

import pytest
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError, check, default, family_of, of_model
from hlformer_jax.config.published import DEFINITIONS


def test_a_configuration_is_of_the_family_whose_model_it_names():
    assert family_of(default("hover")) == "hover"
    for name in DEFINITIONS:
        assert family_of(of_model(name)) == "prvr"
    assert family_of(ConfigDict({"model": {"name": "unknown"}})) == "prvr"
    with pytest.raises(ConfigError, match="no family of models 'hovr': .* did you mean 'hover'"):
        default("hovr")


def test_a_name_of_another_family_alone_makes_no_configuration_of_it():
    config = default()
    config.model.name = "hover"
    with pytest.raises(ConfigError, match="there is no such field"):
        check(config)
