"""Configurations: fields and rules, models and data sets, checks, and files."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
from ml_collections import ConfigDict
from processes import ROOT

from hlformer_jax import config as package
from hlformer_jax import models
from hlformer_jax.config import (
    DATA_SETS,
    DEFINITIONS,
    FIELDS,
    MODEL_TITLES,
    ConfigError,
    check,
    debug,
    default,
    family_of,
    leaves,
    load,
    of_model,
    parts_of,
    rules,
)
from hlformer_jax.config.rules import WEIGHT
from hlformer_jax.nn import blocks
from hlformer_jax.ops import windows
from hlformer_jax.retrieval import scoring
from hlformer_jax.training import hover, optim, prvr

LEAVES = dict(leaves())

# Fields and rules.


@pytest.mark.parametrize("family", FIELDS)
def test_every_field_has_a_rule_that_its_default_follows(family):
    values, fields = package.flat(default(family)), dict(leaves(family))
    assert set(values) == set(fields)
    for name, field in fields.items():
        assert field.rule.holds(values[name]), name
        assert field.rule.meaning and "\n" not in field.rule.meaning


@pytest.mark.parametrize("family", FIELDS)
def test_no_rule_accepts_meaningless_values(family):
    meaningless = (None, object(), math.nan, math.inf, -math.inf, -1e300, 1e300, {}, "\n", b"")
    for name, field in leaves(family):
        for value in meaningless:
            assert not field.rule.holds(value), (name, value)


def test_rules_hold_at_the_bounds_that_they_state():
    below_one = math.nextafter(1, 0)
    for rule, allowed, refused in (
        (rules.integer(1, 8), (1, 8, np.int32(3)), (0, 9, 3.0, True, 10**5000)),
        (rules.number(0, 2), (0, 2, 0.5), (-1e-300, math.nextafter(2, 3), "1")),
        (rules.positive(2), (1e-300, 2), (0, 0.0, math.nextafter(2, 3))),
        (rules.choice("a", "b"), ("a", "b"), ("c", "", 0)),
        (rules.FLAG, (True, False), (1, 0, "True")),
        (rules.SHARE, (0, below_one), (1, 1.0, -1e-300)),
        (rules.LINE, ("SumR",), ("", " ", 1, "a\nb")),
        (rules.WINDOW_WIDTHS, ((), [0, 1e6], (0.5,)), ((1e6 + 1,), 0.5, ("wide",), (True,))),
        (rules.split_sizes(9), ((0, 0, 0), [1, 9, 1]), ((0, 1, 1), (1, 1), (1, 1, 10), ("a",) * 3)),
        (rules.integers(1, 9), ((), (1, 9), [2]), ((0,), (10,), (2.0,), ("2",), 2, "2", (True,))),
        (rules.FOLDER, ("i3d", "a b", "ü"), (".i3d", "..", "~i3d", "a/", "a\\b", "", "a\0b")),
        (rules.PATH, ("", "~/a/../b"), ("a\tb", "a\0b", None)),
    ):
        for value in allowed:
            assert rule.holds(value), (rule.meaning, value)
        for value in refused:
            assert not rule.holds(value), (rule.meaning, value)


def test_choices_match_the_modules_that_read_them():
    for name, choices in {
        "model.name": models.MODELS,
        "model.fusion": blocks.FUSIONS,
        "model.window": windows.KINDS,
        "model.lorentz_window": blocks.LORENTZ_WINDOWS,
        "model.head_merge": blocks.HEAD_MERGES,
        "eval.corpus": scoring.DTYPES,
    }.items():
        assert sorted(LEAVES[name].rule.choices) == sorted(choices), name
    assert set(MODEL_TITLES) == {*models.MODELS, "hover"}


@pytest.mark.parametrize("name", ["model.euclidean_blocks", "model.lorentz_blocks"])
def test_number_of_blocks_is_limited_by_the_optimiser(name):
    holds = LEAVES[name].rule.holds
    assert holds(optim.MAX_SLICES) and not holds(optim.MAX_SLICES + 1)


def test_weights_of_losses_are_those_of_the_terms():
    check(default())
    for family, terms in (("prvr", prvr.TERMS), ("hover", hover.TERMS)):
        weights = {name for name, field in FIELDS[family]["loss"].items() if field.rule is WEIGHT}
        assert weights == {*terms}
    assert default().to_dict() == of_model("hlformer").to_dict()


def test_family_follows_from_the_model():
    assert family_of(default("hover")) == "hover"
    assert family_of(ConfigDict({"model": {"name": "unknown"}})) == "prvr"
    with pytest.raises(ConfigError, match="'hover'"):
        default("hovr")


# Checks.


def test_wrong_value_is_refused_with_field_and_rule():
    content = default().to_dict()  # an assignment would convert some values
    content["data"]["visual_dim"] = 10**5000
    with pytest.raises(ConfigError) as caught:
        check(ConfigDict(content))
    message = str(caught.value)
    assert message.startswith("config.data.visual_dim is ") and "it must be" in message
    assert "\n" not in message and len(message) < 300


def test_similar_choice_is_suggested():
    config = default()
    config.model.fusion = "consolidaton"
    with pytest.raises(ConfigError, match="'consolidation'"):
        check(config)


def test_unknown_and_missing_fields_are_named():
    config = default().unlock()
    config.model.hiden_size = 3
    with pytest.raises(ConfigError, match="'model.hidden_size'"):
        check(config)
    config = default().unlock()
    del config.eval.select
    with pytest.raises(ConfigError, match="config.eval.select"):
        check(config)


CONTRADICTIONS = [
    ({"data.max_clips": 200}, "data.max_frames"),
    ({"model.gaze": False, "model.glance": False}, "model.gaze"),
    ({"model.video_level": True, "model.gaze": False}, "model.video_level"),
    (tiny.EUCLIDEAN | {"model.name": "ms_sl", "model.video_level": True}, "model.video_level"),
    ({"model.euclidean_blocks": 0, "model.lorentz_blocks": 0}, "model.euclidean_blocks"),
    ({"model.euclidean_widths": (1.0, 2.0, 3.0)}, "model.euclidean_widths"),
    ({"model.block_curvature": "shared", "model.lorentz_blocks": 0}, "model.block_curvature"),
    ({"model.lorentz_dim": 8}, "model.lorentz_dim"),
    ({"model.hidden_size": 9}, "model.hidden_size"),
    ({"model.clip_weight": 0.0, "model.frame_weight": 0.0}, "model.clip_weight"),
    ({"loss.diversity_form": "captions", "loss.diversity_gamma": 2.0}, "loss.diversity_gamma"),
]


@pytest.mark.parametrize(("fields", "name"), CONTRADICTIONS)
def test_contradiction_names_the_field(fields, name):
    with pytest.raises(ConfigError, match=f"config.{name} is"):
        check(tiny.config(**fields))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model.metric": "cosine"}, "model.metric"),
        ({f"loss.{x}": 0.0 for x in ("align", "tree", "chain", "order")}, "loss.order"),
        ({"loss.form": "printed", "loss.chain_form": "cone"}, "loss.chain_form"),
        ({"model.text_encoder": "attention", "model.num_heads": 3}, "model.hidden_size"),
        ({"eval.test_collection": "charades"}, "eval.test_feature"),
    ],
)
def test_contradiction_of_hover_names_the_field(fields, name):
    config = default("hover")
    config.update_from_flattened_dict(fields)
    with pytest.raises(ConfigError, match=f"config.{name} is"):
        check(config)


def test_wrong_configuration_builds_no_model():
    with pytest.raises(ConfigError, match="config.model.hidden_size"):
        models.build(tiny.config(**{"model.hidden_size": 9}))


def test_name_of_another_family_is_refused():
    config = default()
    config.model.name = "hover"
    with pytest.raises(ConfigError, match="there is no such field"):
        check(config)


@pytest.mark.parametrize("section", [{}, {"epochs": 3}])
def test_section_without_its_fields_is_refused(section):
    config = default()
    with config.unlocked():
        config.train = section
    with pytest.raises(ConfigError, match="config.train.baseline is missing: .*set single fields"):
        check(config)


# Models and data sets.


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definition_of_a_model_builds_it(name):
    config = of_model(name)
    check(config)
    assert family_of(config) == "prvr" and models.build(config)
    check(debug(config))


@pytest.mark.parametrize("shrink", [debug, lambda config: config])
def test_name_alone_does_not_change_the_model(shrink):
    config = shrink(of_model("gmmformer_v2"))
    config.model.name = "hlformer"
    with pytest.raises(ConfigError, match="configs/anet.py"):
        check(config)
    config.model.fusion = "weighted"  # a combination that somebody chose
    check(config)
    config = shrink(of_model("ms_sl"))  # one plain block is an ablation of any model
    config.model.name = "hlformer"
    check(config)


def test_unknown_model_is_refused():
    with pytest.raises(ConfigError, match="'gmmformer'"):
        of_model("gmmformer2")


def test_variant_behind_the_colon_is_data_set_and_size():
    assert parts_of("", ("tvr", "anet")) == ("tvr", "")
    assert parts_of("debug") == ("anet", "debug")
    assert parts_of("tvr-debug") == ("tvr", "debug")
    for name in ("fast", "tvr-fast", "debug-tvr", "-debug", "tvr-", "activitynet"):
        with pytest.raises(ConfigError, match="anet-debug"):
            parts_of(name)


@pytest.mark.parametrize("stem", ["gmmformer_v2", "gmmformer", "ms_sl"])
def test_data_set_behind_the_colon_chooses_its_features(stem):
    for data_set, fields in DATA_SETS.items():
        for config in (load(stem, data_set), load(stem, f"{data_set}-debug")):
            check(config)
            assert config.model.name == stem
            assert {key: config.data[key] for key in fields} == fields
    assert load(stem) == load(stem, "anet")
    assert load(stem, "debug") == load(stem, "anet-debug")


@pytest.mark.parametrize("data_set", ["synthetic", "activitynet", "charades", "tvr"])
def test_forms_of_hover_are_chosen_behind_the_colon(data_set):
    for form in ("", "-released", "-printed"):
        config = load("hover", data_set + form)
        check(config)
        assert config.loss.form == (form[1:] or "corrected")
        small = load("hover", f"{data_set}{form}-debug")
        check(small)
        assert small.train.epochs == 2 and small.loss == config.loss


def test_debug_size_keeps_losses_and_stays_locked():
    for name in ("anet", "tvr", "charades", "synthetic"):
        config, small = load(name), load(name, "debug")
        assert small.train.epochs == 2 < config.train.epochs
        assert small.loss.partial_order == config.loss.partial_order
        with pytest.raises(AttributeError):
            small.data.new_field = 1


# Files.


LOCKED = "from hlformer_jax.config import default\n\ndefault().model.{}"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.py", None, "no such configuration file"),
        ("config.txt", "", "must end in .py"),
        ("other.py", "x = 1", "must define the function get_config"),
        ("alone.py", "get_config = lambda: {}", "no variant 'debug'"),
        ("syntax.py", "\ndef get_config(:", "syntax.py:2: SyntaxError"),
        ("fails.py", "\n\nx = undefined", "fails.py:3: x = undefined: name 'undefined' is not"),
        ("lacks.py", "import lacking", r"No module named 'lacking' \(ModuleNotFoundError\)"),
        ("locked.py", LOCKED.format("drpout = 1"), r': Key "drpout" .* is locked. \(Attr'),
        ("missing.py", LOCKED.format("drpout"), r": 'drpout' Did you mean \"dropout\" .*\? \(Attr"),
    ],
)
def test_broken_configuration_file_is_named(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path / name, "debug")
    assert name in str(caught.value)


@pytest.mark.parametrize("parameters", ["", "name", "name=''"])
def test_configuration_file_may_take_a_name(tmp_path, parameters):
    (tmp_path / "config.py").write_text(
        f"import ml_collections as m\nget_config = lambda {parameters}: m.ConfigDict({{'seed': 3}})"
    )
    assert load(tmp_path / "config.py").to_dict() == {"seed": 3}


def test_configurations_load_without_jax():
    code = (
        "import sys, hlformer_jax.config, hlformer_jax.sweep, hlformer_jax.main;"
        f"hlformer_jax.config.load({str(ROOT / 'configs/sweeps/hlformer_table2.py')!r});"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    "name", ["anet", "configs/anet.py", "sweeps/robust", "configs/sweeps/robust"]
)
def test_packaged_configuration_is_found_from_any_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert load(name).to_dict() == load(package.locate(name)).to_dict()
    assert package.locate(name).is_relative_to(package.CONFIGS)
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("def get_config(): return {}")
    assert package.locate(name) == Path(name)


def test_home_of_an_unknown_user_is_a_missing_path():
    assert package.locate("~no-such-user/run.py") == Path("~no-such-user/run.py")


def test_similar_configuration_file_is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="'charades'"):
        load("charade")
