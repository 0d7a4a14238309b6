#!/usr/bin/env bash
# Checks what a change is to pass, in minutes: `bash launch/test.sh [--all | --nightly] [pytest
# arguments]`. Style, types, then the tests; --all runs the slow ones too (each sweep rehearsed,
# processes that die) and builds the documentation into build/docs. --nightly is --all with every
# variant of the sweeps, and with XLA's optimisations, as users' programs have them. TEST_PROCESSES says
# how many run at once; 0 is none beside pytest itself. A file stays in one process, since its tests
# share what they compile; in the order of tests/conftest.py.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
environment test
cd "$root"

chosen=(-m "not slow")
if [[ ${1-} == --all || ${1-} == --nightly ]]; then
  chosen=()
  if [[ $1 == --nightly ]]; then export HLFORMER_TEST_OPTIMISED=1; fi
  shift
fi

failed=()
check() {
  local name=$1
  shift
  say "$name"
  "$@" || failed+=("$name")
}

check "ruff check" .venv/bin/ruff check --quiet
check "ruff format" .venv/bin/ruff format --check --quiet
say "mypy, beside the tests" # alone it would leave a core idle
.venv/bin/mypy &
types=$!
check "pytest" .venv/bin/python -m pytest -n "${TEST_PROCESSES:-2}" --dist loadfile \
  --no-loadscope-reorder ${chosen[@]+"${chosen[@]}"} "$@"
wait "$types" || failed+=("mypy")
if ((${#chosen[@]} == 0)); then
  check "documentation" env NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --site-dir "$root/build/docs"
fi

if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
