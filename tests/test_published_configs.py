"""The resolved value of every field of every file in configs/, compared with recorded values.

    python tests/test_published_configs.py    # records them again, after a deliberate change

golden/configurations.json has, for each file and each name behind its colon, the fields that differ
from the default of the family, and for a sweep a digest of the same fields of its runs.
"""

import hashlib
import json
import re
from pathlib import Path

import pytest

from hlformer_jax.config import DATA_SETS, DEFINITIONS, FIELDS, default, family_of, flat, load
from hlformer_jax.sweep import expand

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden" / "configurations.json"

CLIP = ("tvr", "anet", "charades", "tvr_b32", "anet_b32")
NAMES = {
    **dict.fromkeys(("anet", "tvr", "charades", "synthetic"), ("",)),
    **dict.fromkeys(("gmmformer", "gmmformer_v2", "ms_sl"), tuple(DATA_SETS)),
    "dl_dkd": ("anet", "tvr", "synthetic"),
    "clip": (
        *(
            f"{model}-{data}"
            for model in ("hlformer", "gmmformer_v2", "gmmformer", "ms_sl")
            for data in (*CLIP, "qv", "qv_clips")
        ),
        *(f"clip4clip_{model}-{data}" for model in ("meanp", "seqtransf") for data in CLIP),
    ),
    "hover": (
        *("", "released", "printed"),
        *(
            f"{data}{form}"
            for data in ("activitynet", "charades", "tvr")
            for form in ("", "-released")
        ),
        "activitynet-printed",
    ),
}
"""The names behind the colon of each file; each has "-debug" too."""

SWEEPS = {
    **dict.fromkeys(("hlformer_table2", "main_comparison"), ("", "tvr", "charades")),
    "clip_features": ("", "anet", "charades", "qv"),
    "hover_geometry": ("", "activitynet", "charades", "tvr"),
}
"""The names behind the colon of the sweeps that have several; each has "-debug" too."""

FOLDERS = ("own", "hover_own", "run")
"""Files that read a folder, whose content decides about their fields."""


def resolved() -> dict[str, object]:
    """Return the content of the golden file, resolved anew."""
    record: dict[str, object] = {
        f"default {family}": _plain(flat(default(family))) for family in FIELDS
    }
    for path in sorted((ROOT / "configs").glob("*.py")):
        for name in NAMES.get(path.stem, ()):
            for argument in _with_debug(name):
                record[f"{path.stem}:{argument}".strip(":")] = _changes(load(path, argument))
    for path in sorted((ROOT / "configs" / "sweeps").glob("*.py")):
        for name in SWEEPS.get(path.stem, ("",)):
            for argument in _with_debug(name):
                runs = {
                    str(run.directory): _changes(run.config) for run in expand(load(path, argument))
                }
                text = json.dumps(runs, sort_keys=True)
                digest = hashlib.sha256(text.encode()).hexdigest()[:16]
                record[f"sweeps/{path.stem}:{argument}".strip(":")] = f"{len(runs)} runs, {digest}"
    return record


def _with_debug(name):
    return name, f"{name}-debug".strip("-")


def _changes(config):
    """Return the fields that differ from the default."""
    defaults = flat(default(family_of(config)))
    return _plain({k: v for k, v in flat(config).items() if v != defaults[k]})


def _plain(fields):
    return json.loads(json.dumps(fields))


@pytest.mark.slow  # it takes seconds
def test_resolved_configurations_match_the_record():
    recorded, present = json.loads(GOLDEN.read_text()), resolved()
    assert sorted(present) == sorted(recorded)
    for name, fields in recorded.items():
        if name.startswith("default "):  # a new field changes no older configuration
            assert fields.items() <= present[name].items(), name
        else:
            assert present[name] == fields, name


def test_every_configuration_file_is_recorded():
    stems = {path.stem for path in (ROOT / "configs").glob("*.py")}
    assert stems == {*NAMES, *FOLDERS}, "enter it in NAMES, and run this file"
    models = {
        fields["model.name"]
        for fields in json.loads(GOLDEN.read_text()).values()
        if "model.name" in fields
    }
    assert models == {*DEFINITIONS, "hover"}, "run this file"


SHARED = {
    *("seed", "data.max_frames", "data.max_clips", "data.max_words", "model.hidden_size"),
    *("model.num_heads", "model.euclidean_blocks", "model.lorentz_blocks", "model.fusion"),
    *("model.input_dropout", "model.dropout", "model.frame_weight", "model.clip_weight"),
    *("loss.clip_triplet", "loss.frame_triplet", "loss.clip_nce", "loss.frame_nce", "loss.margin"),
    *("loss.hard_negative_epoch", "loss.hard_pool_size", "loss.query_diversity"),
    *("loss.partial_order", "loss.optimal_matching", "train.epochs", "train.batch_size"),
    *("train.patience", "eval.select"),
    *(f"optim.{name}" for name in FIELDS["prvr"]["optim"]),
}
"""Hyper-parameters of every model."""

DIVERSITY = {"loss.diversity_form", "loss.diversity_margin", "loss.diversity_scale"}
OF_HLFORMER = {"model.lorentz_dim", "model.temperature", "model.curvature", "loss.min_radius"}
STATED = {
    **dict.fromkeys(
        ("anet", "tvr", "charades"), SHARED - {"loss.optimal_matching"} | DIVERSITY | OF_HLFORMER
    ),
    "gmmformer_v2": SHARED | DIVERSITY | {"model.euclidean_widths", "model.temperature"},
    "gmmformer": SHARED | DIVERSITY | {"model.euclidean_widths", "model.video_level"},
    "ms_sl": SHARED,
    "dl_dkd": SHARED | {f"loss.distillation{end}" for end in ("", "_temperature", "_rate")},
    "hover": {f"{part}.{name}" for part in ("loss", "optim") for name in FIELDS["hover"][part]}
    - {"loss.min_radius"},
}


@pytest.mark.parametrize("stem", STATED)
def test_configuration_states_its_hyper_parameters(stem):
    text = (ROOT / "configs" / f"{stem}.py").read_text()
    stated = set(re.findall(r"^ +config\.([a-z_0-9.]+) = ", text, re.MULTILINE))
    assert STATED[stem] <= stated


if __name__ == "__main__":
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in resolved().items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
