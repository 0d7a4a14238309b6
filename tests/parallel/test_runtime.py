"""What a configuration asks of the compiler, and what is left of it after a run."""

import jax
import pytest

from hlformer_jax.config import debug, default
from hlformer_jax.parallel import runtime

NAMES = ("jax_default_matmul_precision", "jax_compilation_cache_dir")


@pytest.fixture
def settings(monkeypatch, tmp_path):
    """JAX's settings as they are before a program; put back after the test."""
    before = {name: getattr(jax.config, name) for name in NAMES}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in NAMES:
        jax.config.update(name, None)
    yield lambda: {name: getattr(jax.config, name) for name in NAMES}
    for name, value in before.items():
        jax.config.update(name, value)


def test_float32_products_are_as_precise_as_can_be_and_programs_are_kept(settings, tmp_path):
    config = default()
    config.dtype = "bfloat16"
    runtime.configure(config)
    assert settings()["jax_default_matmul_precision"] is None
    config.dtype = "float32"
    runtime.configure(config)
    assert settings()["jax_default_matmul_precision"] == "highest"
    assert settings()["jax_compilation_cache_dir"].startswith(str(tmp_path / "hlformer_jax"))


def test_a_folder_of_programs_that_was_named_is_kept(settings, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    runtime.configure(default())
    assert settings()["jax_compilation_cache_dir"] == str(tmp_path / "mine")


def test_the_next_run_of_a_process_finds_the_precision_as_it_was(settings):
    with pytest.raises(KeyError):
        with runtime.configured(default()):
            assert settings()["jax_default_matmul_precision"] == "highest"
            raise KeyError
    assert settings()["jax_default_matmul_precision"] is None


def test_only_what_is_to_compile_fast_leaves_optimisations_out(settings, monkeypatch):
    updates = {}  # JAX does not tell this one
    with monkeypatch.context() as patch:
        patch.setattr(jax.config, "update", updates.__setitem__)
        runtime.configure(default())
        assert "jax_disable_most_optimizations" not in updates
        runtime.configure(debug(default()))
    assert updates["jax_disable_most_optimizations"] is True


def test_only_what_is_to_compile_fast_has_options_of_the_compiler():
    assert runtime.compiler_options(default()) is None
    options = runtime.compiler_options(debug(default()))
    jax.jit(lambda x: x + 1, compiler_options=options)(1)  # this compiler knows them
