"""Files of a configuration: read, or refused by their line."""

import subprocess
import sys

import pytest
from command_line import ROOT

from hlformer_jax import config as package
from hlformer_jax.config import ConfigError, load


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
        "import sys, hlformer_jax.config, hlformer_jax.sweep.definition, hlformer_jax.main;"
        f"hlformer_jax.config.load({str(ROOT / 'configs/sweeps/hlformer_table2.py')!r});"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
    assert set(package.__all__) >= {"check", "debug", "default", "load", "variant"}
