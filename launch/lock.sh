#!/usr/bin/env bash
# Renews launch/constraints.txt, the versions that launch/ installs: `bash launch/lock.sh [flags of uv]`.
# Without flags it adds packages that pyproject.toml newly needs and keeps all other versions. --upgrade
# takes the newest version of every package, --upgrade-package=NAME that of one package. It needs uv
# (`pip install uv`). NVIDIA's libraries are not in the file; jax[cuda12] and jax[cuda13] bound them.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

command -v uv >/dev/null || die "needs uv: pip install uv"
cd "$root"
exec uv pip compile pyproject.toml --extra test --universal --python-version 3.11 --no-annotate --quiet \
  --custom-compile-command "bash launch/lock.sh" --output-file launch/constraints.txt "$@"
