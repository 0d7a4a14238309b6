"""The command line: what is wrong is one line on standard error, and the exit status is 1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hlformer_jax.config import load

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--config is missing"),
        (("--config=configs/nowhere.py",), "nowhere.py"),
        (("--config=configs/anet.py", "--config.model.hiden_size=3"), 'mean "hidden_size"'),
        (("--config=configs/anet.py", "--processes=2", "--coordinator=here"), "give HOST:PORT"),
        (("--config=misspelt.py",), 'misspelt.py:6: Key "hiden_size" does not exist'),
        (("--config=configs/anet.py", "--config.train.epochs=many"), "train.epochs"),
        (("--config=configs/anet.py", "--mode=test"), "mode"),
        (("--config=configs/anet.py:fast",), "no variant 'fast'"),
        (("--config=configs/anet.py", "--config.dtype=float8"), "config.dtype is 'float8'"),
        (("--config=configs/anet.py", "--config.train.batch_size=0"), "config.train.batch_size"),
        (("--config=configs/anet.py", "--config.model.lorentz_dim=126"), "lorentz_dim"),
        (("--config=configs/anet.py", "--checkpoint=x"), "--mode=evaluate"),
        (("--config=configs/anet.py", "--config.model.euclidean_widths=('a',)"), "widths"),
        (("--config=configs/sweeps/lorentz_window.py",), "hlformer_jax.sweep"),
        (("--config=configs/anet.py", "extra"), "unexpected argument 'extra'"),
        (
            ("--config=configs/anet.py", "--config.data.manual_dir=nowhere", "--workdir=unused"),
            "nowhere/activitynet",
        ),
        (
            ("--config=configs/anet.py", "--mode=evaluate", "--checkpoint=nowhere"),
            "nowhere holds no checkpoint",
        ),
    ],
)
def test_a_wrong_command_is_one_clear_line(arguments, message, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "misspelt.py").write_text(
        "from hlformer_jax.config import default\n\n\ndef get_config():\n"
        "    config = default()\n    config.model.hiden_size = 3\n    return config\n"
    )
    if any("manual_dir" in argument for argument in arguments):
        arguments = (*arguments, f"--config.data.data_dir={tmp_path / 'prepared'}")
    result = subprocess.run(
        [sys.executable, "-m", "hlformer_jax.main", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        timeout=120,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.stderr
    assert lines[-1].startswith("error: ")
    assert message in lines[-1]
    assert not (tmp_path / "unused").exists()


def test_the_configurations_hold_the_released_hyper_parameters():
    found = {}
    for name in ("anet", "tvr", "charades", "synthetic"):
        file = ROOT / "configs" / f"{name}.py"
        found[name], small = load(file), load(file, "debug")
        assert small.train.epochs <= 2
        assert small.loss.partial_order == found[name].loss.partial_order
        with pytest.raises(AttributeError):
            found[name].data.new_field = 1
    # Table 4 of the paper: rate, delta, m, tau, lambda_c, lambda_f, lambda_1, lambda_2.
    table = {
        "anet": (2.5e-4, 0.2, 0.2, 0.6, 2e-2, 4e-2, 3e-3, 1e-3),
        "tvr": (3e-4, 0.15, 0.1, 9e-2, 5e-2, 4e-2, 8e-5, 1e-3),
        "charades": (2e-4, 0.2, 0.2, 0.6, 2e-2, 4e-2, 3e-3, 1e-3),
    }
    for name, values in table.items():
        config = found[name]
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
        config, base = load(ROOT / "configs" / f"gmmformer_v2_{name}.py"), found[name]
        assert config.loss.optimal_matching == weight
        assert config.optim == base.optim
        assert config.data == base.data
        same = ("margin", "diversity_margin", "clip_nce", "frame_nce", "query_diversity")
        assert all(config.loss[field] == base.loss[field] for field in same)
        same = ("temperature", "dropout", "input_dropout", "hidden_size", "num_heads")
        assert all(config.model[field] == base.model[field] for field in same)
    widths = {name: (c.data.visual_dim, c.data.text_dim) for name, c in found.items()}
    assert widths["anet"] == widths["charades"] == (1024, 1024)
    assert widths["tvr"] == (3072, 768)
    assert [found[name].model.dropout for name in table] == [0.31, 0.2, 0.25]
