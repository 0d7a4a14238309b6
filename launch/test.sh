#!/usr/bin/env bash
# Checks everything: `bash launch/test.sh [pytest arguments]`. Style, types, then the tests.
# TEST_PROCESSES says how many run at once; 0 is none beside pytest itself. A file stays in one
# process, since its tests share what they compile; in the order of tests/conftest.py.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
environment test
cd "$root"

failed=()
check() {
  local name=$1
  shift
  say "$name"
  "$@" || failed+=("$name")
}

check "ruff check" .venv/bin/ruff check --quiet
check "ruff format" .venv/bin/ruff format --check --quiet
check "mypy" .venv/bin/mypy
check "pytest" .venv/bin/python -m pytest -n "${TEST_PROCESSES:-2}" --dist loadfile \
  --no-loadscope-reorder "$@"

if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
