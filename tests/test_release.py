"""Tags and pushes of `launch/release.sh`, and versions of tools that two files name."""

import os
import re
import shutil
import subprocess

import processes
import pytest


@pytest.fixture
def clone(tmp_path):
    """Functions that call git and release.sh in a clone with the files of a release."""
    names = {
        f"GIT_{role}_{field}": value
        for role in ("AUTHOR", "COMMITTER")
        for field, value in (("NAME", "a"), ("EMAIL", "a@example.org"))
    }
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull}
    root = tmp_path / "clone"

    def call(*command):
        return subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False
        )

    (root / "hlformer_jax").mkdir(parents=True)
    shutil.copytree(processes.ROOT / "launch", root / "launch")
    (root / "hlformer_jax" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (root / "CHANGELOG.md").write_text(
        "## [1.2.3] - unreleased\n\n- new\n\n## [1.2.2] - 2026-01-01\n"
    )
    for command in (
        ("init", "--quiet", "--initial-branch=main"),
        ("init", "--quiet", "--bare", "../origin"),
        ("remote", "add", "origin", "../origin"),
        ("add", "."),
        ("commit", "--quiet", "--message=begin"),
        ("push", "--quiet", "origin", "main"),
    ):
        assert call("git", *command).returncode == 0, command
    return lambda *arguments: call("git", *arguments).stdout, lambda *flags: call(
        "bash", "launch/release.sh", *flags
    )


def test_release_is_dated_tagged_and_pushed_once(clone):
    git, release = clone
    assert release().returncode == 0
    assert (
        git("ls-remote", "--tags", "origin", "v1.2.3^{}").split()[0]
        == git("rev-parse", "main").strip()
    )
    dated, older = re.findall(
        r"^## \[(\S+)\] - (\d{4}-\d\d-\d\d)$", git("show", "v1.2.3:CHANGELOG.md"), re.M
    )
    assert dated[0] == "1.2.3" and older == ("1.2.2", "2026-01-01")
    again = release()
    assert again.returncode == 1 and "v1.2.3 is released" in again.stderr


def test_release_of_uncommitted_changes_is_refused(clone):
    git, release = clone
    (processes.Path(git("rev-parse", "--show-toplevel").strip()) / "new").write_text("")
    refused = release()
    assert refused.returncode == 1 and "not committed" in refused.stderr and git("tag") == ""


def test_dry_run_does_not_push(clone):
    git, release = clone
    assert release("--dry-run").returncode == 0
    assert git("tag").strip() == "v1.2.3" and git("ls-remote", "--tags", "origin") == ""


def test_hooks_use_the_pinned_version_of_ruff():
    hooks = (processes.ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    pinned = (processes.ROOT / "launch" / "constraints.txt").read_text(encoding="utf-8").split()
    versions = re.findall(r"ruff==[\d.]+", hooks)
    assert len(versions) == 2 and set(versions) <= set(pinned)
