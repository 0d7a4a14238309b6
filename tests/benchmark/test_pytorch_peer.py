"""The released code beside ours: what is refused, and how. No torch and no checkout are needed."""

import sys
import types

import pytest

from hlformer_jax.benchmark import pytorch_peer
from hlformer_jax.benchmark.pytorch_peer import PeerError
from hlformer_jax.config import default


def _checkout(folder, content=""):
    for name in pytorch_peer.MODULES:
        path = folder / "src" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


@pytest.fixture
def untouched(monkeypatch):
    """Leaves sys.path and the released modules' names as they were."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if name.split(".")[0] in {module.split(".")[0] for module in pytorch_peer.MODULES}:
            del sys.modules[name]


def test_every_setting_of_the_default_configuration_has_its_counterpart():
    config = default()
    config.model.update(hidden_size=64, lorentz_dim=31, euclidean_blocks=2, lorentz_blocks=2)
    config.model.lorentz_widths = (0, 2)
    found = pytorch_peer.settings(config)
    assert (found["hidden_size"], found["lorentz_dim"], found["attention_num"]) == (64, 31, 4)
    assert found["loss_factor"] == [0.02, 0.04, 0.003, 0.001]
    assert found["neg_factor"] == [0.2, 32.0, 1.0]


@pytest.mark.parametrize(
    ("field", "value", "only"),
    [
        ("model.lorentz_window", "corrected", "'released'"),
        ("model.window", "printed", "'released'"),
        ("model.head_merge", "hyperboloid", "'released'"),
        ("model.fusion", "mean", "'maim'"),
        ("model.gaze", False, "True"),
        ("model.euclidean_blocks", 3, "4"),
        ("model.lorentz_blocks", 0, "1"),
        ("model.lorentz_widths", (0, 2, 4, 16), r"\(0, 2, 4, 8\)"),
        ("data.max_frames", 64, "128"),
        ("loss.clip_triplet", 0.5, "1.0"),
        ("optim.weight_decay", 0.0, "0.01"),
    ],
)
def test_a_configuration_without_counterpart_is_refused_with_its_field(field, value, only):
    config = default()
    section, name = field.split(".")
    config[section][name] = value
    with pytest.raises(PeerError, match=rf"config\.{field} .*\(only {only}\)") as error:
        pytorch_peer.settings(config)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_no_checkout_is_refused_with_what_it_lacks(tmp_path):
    (_checkout(tmp_path) / "src" / "Opts" / "builder.py").unlink()
    with pytest.raises(PeerError, match="checkout") as error:
        pytorch_peer.Released(tmp_path, default(), "cpu")
    assert "Opts/builder.py" in str(error.value)
    assert "Losses/builder.py" not in str(error.value)


def test_without_torch_the_error_says_what_to_install(tmp_path, monkeypatch, untouched):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PeerError, match="geoopt"):
        pytorch_peer.Released(_checkout(tmp_path), default(), "cpu")


def test_a_package_that_the_checkout_needs_is_named(tmp_path, monkeypatch, untouched):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with pytest.raises(PeerError, match="no_such_geometry"):
        pytorch_peer.Released(_checkout(tmp_path, "import no_such_geometry"), default(), "cpu")


def test_a_second_checkout_in_one_process_is_refused(tmp_path, monkeypatch, untouched):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert set(pytorch_peer._load(_checkout(tmp_path / "first"))) == set(pytorch_peer.MODULES)
    with pytest.raises(PeerError, match="first"):
        pytorch_peer._load(_checkout(tmp_path / "second"))
