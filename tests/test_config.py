"""A configuration: made, loaded, checked, refused by its field; the published ones."""

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
    ConfigError,
    check,
    debug,
    default,
    family_of,
    leaves,
    load,
    of_model,
    parts_of,
)
from hlformer_jax.training import prvr


def test_a_configuration_is_of_the_family_whose_model_it_names():
    assert family_of(default("hover")) == "hover"
    for name in DEFINITIONS:
        assert family_of(of_model(name)) == "prvr"
    assert family_of(ConfigDict({"model": {"name": "unknown"}})) == "prvr"
    with pytest.raises(ConfigError, match="'hover'"):
        default("hovr")


def test_a_name_of_another_family_alone_makes_no_configuration_of_it():
    config = default()
    config.model.name = "hover"
    with pytest.raises(ConfigError, match="there is no such field"):
        check(config)


REFUSED = {
    "a flag": (("model.gaze", "compile_fast"), (1, 0, 1.0, "True")),
    "a size": (("data.visual_dim", "data.max_frames"), (0, -1, 10**8, 1.0, True, "64")),
    "a number of blocks": (("model.lorentz_blocks",), (-1, 100_000, 2.0, True)),
    "a number that is large": (("seed",), (-1, 2**31, 10**5000, False)),
    "a weight": (("loss.clip_triplet", "loss.distillation"), (-1e-9, True, "1")),
    "a share": (("model.dropout", "optim.beta1", "optim.beta2", "optim.warmup"), (-0.1, 1.0, 2)),
    "a positive number": (("optim.epsilon", "optim.learning_rate", "model.temperature"), (0, -1.0)),
    "the scale": (("loss.diversity_scale",), (-32.0, 0.0)),
    "the radius": (("loss.min_radius",), (10.0, 0.0, 1e-30)),
    "a curvature": (("model.curvature",), (1e30, 1e-30, 0, -1.0)),
    "the cache": (("data.cache_gib",), (-1.0, 1e300)),
    "a folder": (
        ("data.collection", "data.feature"),
        ("../../x", "..", ".", "a/b", "a\\b", "~x", "", " ", "a\nb", "a\0b", 3),
    ),
    "a path": (("data.manual_dir", "data.data_dir"), ("a\nb", "a\0b", 3)),
    "a choice": (("dtype", "model.window", "loss.diversity_form"), ("words", "", 0)),
    "a metric": (("eval.select",), ("", " ", 1)),
    "widths": (("model.euclidean_widths",), ((-1.0,), ("wide",), (math.nan,), (True,), 3.0, "12")),
    "sizes of splits": (
        ("data.synthetic_videos",),
        ((1, 0, 1), (1.5, 2.5, 3.5), ("a", "b", "c"), (1, 2), 3, (1, 2, 10**9), (-1, 1, 1)),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_value_that_means_nothing_is_refused_by_name(what):
    names, values = REFUSED[what]
    for name in names:
        for value in values:
            # Made anew, as a file could: assigned, some values would change their type.
            content = default().to_dict()
            section, _, key = name.rpartition(".")
            (content[section] if section else content)[key] = value
            with pytest.raises(ConfigError) as caught:
                check(ConfigDict(content))
            message = str(caught.value)
            assert message.startswith(f"config.{name} is ") and "it must be" in message
            assert "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model.clip_weight": 0.0, "model.frame_weight": 0.0}, "clip_weight is 0.0"),
        ({"loss.diversity_form": "captions", "loss.diversity_gamma": 2.0}, "no focal factor"),
        ({"data.max_clips": 200}, "max_frames is 128"),
        ({"loss.distillation_rate": 2.0}, "distillation_rate is 2.0"),
    ],
)
def test_values_that_contradict_each_other_are_refused(fields, message):
    config = default()
    config.update_from_flattened_dict(fields)
    with pytest.raises(ConfigError, match=message):
        check(config)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"model.video_level": True, "model.gaze": False}, "video_level"),
        (tiny.EUCLIDEAN | {"model.name": "ms_sl", "model.video_level": True}, "video_level"),
        (tiny.EUCLIDEAN | {"model.name": "dl_dkd", "model.video_level": True}, "video_level"),
        ({"model.block_curvature": "shared", "model.lorentz_blocks": 0}, "block_curvature"),
        ({"model.block_curvature": "x"}, "block_curvature"),
        ({"model.lorentz_window": "corrected", "model.lorentz_blocks": 0}, "lorentz_window"),
        ({"model.head_merge": "hyperboloid", "model.lorentz_blocks": 0}, "head_merge"),
        ({"model.name": "clip"}, "name"),
        ({"model.gaze": False, "model.glance": False}, "gaze"),
        ({"model.euclidean_blocks": 0, "model.lorentz_blocks": 0}, "euclidean_blocks"),
        ({"model.hidden_size": 9}, "hidden_size"),
        ({"model.lorentz_dim": 8}, "lorentz_dim"),
        ({"model.lorentz_dim": 1}, "lorentz_dim"),
        ({"model.window": "hann"}, "window"),
        ({"model.fusion": "x"}, "fusion"),
        ({"model.euclidean_widths": (1.0, 2.0, 3.0)}, "euclidean_widths"),
    ],
)
def test_a_model_that_makes_no_sense_is_not_built(options, field):
    with pytest.raises(ConfigError, match=f"config.model.{field} ") as caught:
        models.build(tiny.config(**options))
    assert "\n" not in str(caught.value)


def test_a_choice_that_is_nearly_one_is_suggested():
    config = default()
    config.model.fusion = "consolidaton"
    with pytest.raises(ConfigError, match="'consolidation'"):
        check(config)


def test_a_field_that_is_missing_or_unknown_is_named():
    config = default().unlock()
    config.model.hiden_size = 3
    with pytest.raises(ConfigError, match="'model.hidden_size'"):
        check(config)
    config = default().unlock()
    del config.eval.select
    with pytest.raises(ConfigError, match="config.eval.select"):
        check(config)


# HOVER.


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


# Files.


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nowhere.py", None, "no such configuration file"),
        ("config.txt", "", "a .py file"),
        ("other.py", "x = 1", "does not define get_config"),
        ("alone.py", "get_config = lambda: {}", "no variant 'debug'"),
        ("syntax.py", "\ndef get_config(:", "syntax.py:2: SyntaxError"),
        ("fails.py", "\n\nx = undefined", "fails.py:3: x = undefined: name 'undefined' is not"),
        (
            "empty.py",
            "def get_config(name):\n  raise OSError",
            "empty.py:2: raise OSError: OSError",
        ),
    ],
)
def test_what_is_no_configuration_file_is_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path / name, "debug")
    assert name in str(caught.value)


@pytest.mark.parametrize("takes", ["", "name", "name=''"])
def test_a_configuration_file_may_take_a_name(tmp_path, takes):
    content = (
        f"import ml_collections as m\nget_config = lambda {takes}: m.ConfigDict({{'seed': 3}})"
    )
    (tmp_path / "config.py").write_text(content)
    assert load(tmp_path / "config.py").to_dict() == {"seed": 3}


def test_neither_a_configuration_nor_a_sweep_nor_a_command_loads_jax():
    code = (
        "import sys, hlformer_jax.config, hlformer_jax.sweep, hlformer_jax.main;"
        f"hlformer_jax.config.load({str(ROOT / 'configs/sweeps/hlformer_table2.py')!r});"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    "name", ["anet", "configs/anet.py", "sweeps/robust", "configs/sweeps/robust"]
)
def test_a_configuration_of_the_package_is_known_by_name_from_anywhere(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert load(name).to_dict() == load(package.locate(name)).to_dict()
    assert package.locate(name).is_relative_to(package.CONFIGS)
    own = tmp_path / name
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("def get_config(): return {'own': True}")
    assert package.locate(name) == Path(name)


def test_a_name_that_is_nearly_a_configuration_is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="'charades'"):
        load("charade")


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
    from hlformer_jax.nn import blocks
    from hlformer_jax.ops import windows
    from hlformer_jax.retrieval import scoring

    for name, known in {
        "model.name": models.MODELS,
        "model.fusion": blocks.FUSIONS,
        "model.window": windows.KINDS,
        "model.lorentz_window": blocks.LORENTZ_WINDOWS,
        "model.head_merge": blocks.HEAD_MERGES,
        "eval.corpus": scoring.DTYPES,
    }.items():
        assert sorted(LEAVES[name].rule.choices) == sorted(known), name


def test_the_default_is_accepted_and_has_a_weight_for_every_term():
    check(default())
    assert all(isinstance(default().loss[name], float) for name in prvr.TERMS)
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
        (package.whole(1, 8), (1, 8, np.int32(3)), (0, 9, 3.0)),
        (package.real(0, 2), (0, 2, 0.5), (-1e-300, math.nextafter(2, 3))),
        (package.positive(2), (1e-300, 2), (0, 0.0, math.nextafter(2, 3))),
        (package.SHARE, (0, nearly_one), (1, 1.0, -1e-300)),
        (package.WIDTHS, ((), [0, 1e6], (0.5,)), ((1e6 + 1,), 0.5)),
        (package.split_sizes(9), ((0, 0, 0), [1, 9, 1]), ((0, 1, 1), (1, 1), (1, 1, 10))),
        (package.wholes(1, 9), ((), (1, 9), [2]), ((0,), (10,), (2.0,), ("2",), 2, "2", (True,))),
        (package.FOLDER, ("i3d", "a b", "ü"), (".i3d", "~i3d", "a/", "a\\b")),
        (package.PATH, ("", "~/a/../b"), ("a\tb", None)),
    ):
        for value in inside:
            assert rule.holds(value), (rule.meaning, value)
        for value in outside:
            assert not rule.holds(value), (rule.meaning, value)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_model_of_its_own_definition_is_accepted_and_built(name):
    from hlformer_jax import models

    config = of_model(name)
    check(config)
    assert type(models.build(config).module) is models.MODELS[name]
    check(debug(config))


@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("other", DEFINITIONS)
@pytest.mark.parametrize("shrink", [debug, lambda config: config])
def test_a_name_alone_does_not_make_the_model(name, other, shrink):
    config = shrink(of_model(other))
    config.model.name = name
    one_vector = {model for model in DEFINITIONS if "clip4clip" in model}
    if (name in one_vector) > (other in one_vector) or (
        other in one_vector and name in ("ms_sl", "dl_dkd")
    ):
        # CLIP4Clip has no clips, and what scores every frame none of its pooled ones.
        with pytest.raises(ConfigError, match=r"configs/clip\.py|glance|video_level"):
            check(config)
        return None
    if name == other or DEFINITIONS[other]["model"]["euclidean_blocks"] == 1:
        return check(config)  # one plain block is an ablation of any model
    file = "anet" if name == "hlformer" else name
    with pytest.raises(ConfigError, match=f"configs/{file}.py"):
        check(config)
    # A combination that somebody chose: every part plugs into every model.
    config.model.update(fusion="weighted", video_level=False)
    check(config)


def test_a_model_that_is_unknown_is_refused():
    with pytest.raises(ConfigError, match="'gmmformer'"):
        of_model("gmmformer2")


@pytest.mark.parametrize("stem", ["gmmformer_v2", "gmmformer", "ms_sl"])
def test_the_data_set_stands_behind_the_colon(stem):
    file = ROOT / "configs" / f"{stem}.py"
    assert load(file) == load(file, "anet")
    assert load(file, "debug") == load(file, "anet-debug")
    for data_set, fields in DATA_SETS.items():
        config, small = load(file, data_set), load(file, f"{data_set}-debug")
        check(config)
        check(small)
        for one in (config, small):
            assert one.model.name == stem
            assert {key: one.data[key] for key in fields} == fields
        assert small.train.epochs == 2 < config.train.epochs


def test_dl_dkd_has_two_data_sets_with_a_teacher_and_the_synthetic_corpus():
    file = ROOT / "configs" / "dl_dkd.py"
    assert load(file) == load(file, "anet")
    for name, margin in (("anet", 0.2), ("tvr", 0.1), ("synthetic", 0.2)):
        config, small = load(file, name), load(file, f"{name}-debug")
        for one in (config, small):
            check(one)
            assert one.model.name == "dl_dkd"
            assert one.data.teacher_dim == (32 if name == "synthetic" else 512)
            assert (one.loss.margin, one.loss.distillation) == (margin, 0.1)
        assert config.loss.hard_negative_epoch == 0
        assert (config.loss.clip_nce, config.loss.frame_nce) == (0.04, 0.04)
        if name != "synthetic":
            assert {key: config.data[key] for key in DATA_SETS[name]} == DATA_SETS[name]
            assert config.optim.learning_rate == 2.5e-4
    with pytest.raises(ConfigError, match="'charades'"):
        load(file, "charades")


def test_a_variant_that_is_unknown_is_refused_with_those_that_are_known():
    assert parts_of("", ("tvr", "anet")) == ("tvr", "")
    for name in ("fast", "tvr-fast", "debug-tvr", "-debug", "tvr-", "activitynet"):
        with pytest.raises(ConfigError, match="anet-debug"):
            parts_of(name)


def test_the_configurations_hold_the_released_hyper_parameters():
    configs = {}
    for name in ("anet", "tvr", "charades", "synthetic"):
        file = ROOT / "configs" / f"{name}.py"
        configs[name], small = load(file), load(file, "debug")
        assert small.train.epochs <= 2
        assert small.loss.partial_order == configs[name].loss.partial_order
        with pytest.raises(AttributeError):
            configs[name].data.new_field = 1
    # Table 4 of the paper: rate, delta, m, tau, lambda_c, lambda_f, lambda_1, lambda_2.
    table = {
        "anet": (2.5e-4, 0.2, 0.2, 0.6, 2e-2, 4e-2, 3e-3, 1e-3),
        "tvr": (3e-4, 0.15, 0.1, 9e-2, 5e-2, 4e-2, 8e-5, 1e-3),
        "charades": (2e-4, 0.2, 0.2, 0.6, 2e-2, 4e-2, 3e-3, 1e-3),
    }
    for name, values in table.items():
        config = configs[name]
        assert values == (
            config.optim.learning_rate,
            config.loss.diversity_margin,
            config.loss.margin,
            config.model.temperature,
            config.loss.clip_nce,
            config.loss.frame_nce,
            config.loss.query_diversity,
            config.loss.partial_order,
        )
        assert (config.model.clip_weight, config.model.frame_weight) == (0.7, 0.3)
        assert config.loss.diversity_scale == 32
        assert (config.train.epochs, config.train.batch_size) == (100, 128)
    # Table 7 of GMMFormer v2's paper has the same numbers, and lambda_o.
    matching = {"anet": 0.11, "tvr": 0.09, "charades": 0.1}
    for name, weight in matching.items():
        config, base = load(ROOT / "configs" / "gmmformer_v2.py", name), configs[name]
        assert config.loss.optimal_matching == weight
        assert config.optim == base.optim
        assert config.data == base.data
        same = ("margin", "diversity_margin", "clip_nce", "frame_nce", "query_diversity")
        assert all(config.loss[field] == base.loss[field] for field in same)
        same = ("temperature", "dropout", "input_dropout", "hidden_size", "num_heads")
        assert all(config.model[field] == base.model[field] for field in same)
    widths = {name: (c.data.visual_dim, c.data.text_dim) for name, c in configs.items()}
    assert widths["anet"] == widths["charades"] == (1024, 1024)
    assert widths["tvr"] == (3072, 768)
    assert [configs[name].model.dropout for name in table] == [0.31, 0.2, 0.25]


@pytest.mark.parametrize("model", ["hlformer", "gmmformer_v2", "gmmformer", "ms_sl"])
@pytest.mark.parametrize(
    ("data_set", "values"),
    [
        ("tvr", (3e-4, 0.2, 0.1, 0.09, 0.15, 0.05)),
        ("anet", (2.5e-4, 0.31, 0.2, 0.6, 0.2, 0.02)),
        ("charades", (2e-4, 0.25, 0.2, 0.6, 0.2, 0.02)),
        ("tvr_b32", (3e-4, 0.2, 0.1, 0.09, 0.15, 0.05)),
        ("anet_b32", (2.5e-4, 0.31, 0.2, 0.6, 0.2, 0.02)),
        ("qv", (2.5e-4, 0.31, 0.2, 0.6, 0.2, 0.02)),
        ("qv_clips", (2.5e-4, 0.31, 0.2, 0.6, 0.2, 0.02)),
    ],
)
def test_on_clip_features_all_models_have_the_hyper_parameters_of_msc(model, data_set, values):
    file = ROOT / "configs" / "clip.py"
    config, small = load(file, f"{model}-{data_set}"), load(file, f"{model}-{data_set}-debug")
    check(config)
    check(small)
    assert values == (
        config.optim.learning_rate,
        config.model.dropout,
        config.loss.margin,
        config.model.temperature,
        config.loss.diversity_margin,
        config.loss.clip_nce,
    )
    assert (config.model.clip_weight, config.model.frame_weight) == (0.4, 0.6)
    layouts = {"": ("clip_L14", 768, 768, 77), "b32": ("clip_B32", 512, 512, 1)}
    layouts["clips"] = layouts["qv"] = ("slowfast_clip", 2304 + 512, 512, 32)
    data, name = config.data, data_set.partition("_")
    expected = layouts["qv" if data_set == "qv" else name[2]]
    assert (data.feature, data.visual_dim, data.text_dim, data.max_words) == expected
    collections = {"qv": "qvhighlights_youtube", "qv_clips": "qvhighlights"}
    assert data.collection == (collections.get(data_set) or DATA_SETS[name[0]]["collection"])
    assert small.data.feature == data.feature and small.train.epochs == 2 < config.train.epochs
    assert load(file) == load(file, "hlformer-tvr")
