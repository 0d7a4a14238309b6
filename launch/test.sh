#!/usr/bin/env bash
# Checks that a change must pass, in minutes: `bash launch/test.sh [--all | --nightly] [pytest
# arguments]`. These are style, types, and the fast tests. --all also runs the slow tests (a rehearsal
# of each sweep, processes that die), checks annotations of arrays in the fast tests, and builds the
# documentation into build/docs. --nightly is --all with every variant of the sweeps, with XLA's
# optimisations, as in users' programs, and with annotations checked in all tests. TEST_PROCESSES is the number of test processes (default: 2;
# 0: pytest itself runs the tests). All tests of a file run in one process, because they share
# compiled programs. tests/conftest.py sets the order.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
environment test
cd "$root"
unset PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, which would all compile every module

chosen=(-m "not slow")
if [[ ${1-} == --all || ${1-} == --nightly ]]; then
  chosen=()
  export HLFORMER_TEST_ALL=1
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
say "mypy, beside the tests" # at the same time, because mypy uses one core
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
