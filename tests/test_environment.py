"""The record of a run's environment."""

import importlib.util
import shutil
import subprocess

from hlformer_jax.runtime import environment


def test_only_a_checkout_of_this_package_has_a_commit(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    def versions():
        spec = importlib.util.spec_from_file_location("copied", copy)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.list_versions()

    copy = tmp_path / "site-packages" / "environment.py"
    copy.parent.mkdir()
    shutil.copy(environment.__file__, copy)
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message=Of another project")
    assert "commit" not in versions()
    git("add", str(copy))
    git("commit", "--quiet", "--message=Of this package")
    assert len(versions()["commit"]) >= 7
