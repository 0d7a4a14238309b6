"""The configuration of HOVER: its forms and data sets, and what contradicts itself."""

import pytest
from command_line import ROOT

from hlformer_jax.config import ConfigError, check, default, load


@pytest.mark.parametrize("data_set", ["synthetic", "activitynet", "charades", "tvr"])
@pytest.mark.parametrize("form", ["", "-released", "-printed"])
def test_the_forms_and_data_sets_of_hover_stand_behind_the_colon(data_set, form):
    config = load(ROOT / "configs" / "hover.py", data_set + form)
    check(config)
    assert config.loss.form == (form[1:] or "corrected")
    small = load(ROOT / "configs" / "hover.py", f"{data_set}{form}-debug")
    check(small)
    assert small.train.epochs == 2 and small.loss == config.loss


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model.metric": "cosine"}, "model.metric is 'cosine': it must be 'distance' where"),
        ({f"loss.{x}": 0.0 for x in ("align", "tree", "chain", "order")}, "loss.order is 0.0"),
        ({"loss.form": "released", "loss.tree_edges": "closure"}, "tree_edges is 'closure'"),
        ({"loss.form": "released", "loss.chain_edges": "single"}, "chain_edges is 'single'"),
        ({"loss.form": "printed", "loss.chain_form": "cone"}, "chain_form is 'cone': it must be"),
        ({"loss.chain_form": "cones"}, "chain_form is 'cones'"),
        ({"loss.min_radius": 0.0}, "min_radius is 0.0"),
        ({"model.text_encoder": "attention", "model.num_heads": 3}, "a multiple of"),
        ({"eval.test_collection": "charades"}, "eval.test_feature is ''"),
        ({"data.max_clips": 200}, "max_frames is 128"),
        ({"trees.train_leaves": (0,)}, "trees.train_leaves is"),
        ({"model.max_radius": 1.5}, "above 0 and at most 1"),
    ],
)
def test_fields_of_hover_that_contradict_each_other_are_refused(fields, message):
    config = default("hover")
    config.update_from_flattened_dict(fields)
    with pytest.raises(ConfigError, match=message):
        check(config)
