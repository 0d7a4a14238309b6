"""The published models and data sets: their configurations, files, and what stands for none."""

import pytest
from processes import ROOT

from hlformer_jax.config import (
    DATA_SETS,
    DEFINITIONS,
    ConfigError,
    check,
    debug,
    load,
    of_model,
    parts_of,
)


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
