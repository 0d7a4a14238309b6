#!/usr/bin/env bash
# Trains or evaluates on this machine: `bash launch/local.sh --config=configs/synthetic.py [flags]`.
# The first run installs what it needs into .venv (launch/environment.sh). Paths are relative to
# where you are; a config that is not there is looked up in the checkout.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
environment

if (($# == 0)); then set -- --config=configs/synthetic.py; fi
flags=()
previous=""
for flag in "$@"; do
  option=""
  if [[ $flag == --config=* ]]; then option=--config=; fi
  if [[ -n $option || $previous == --config ]]; then
    config=${flag#"$option"}
    file=${config%%:*} # configs/x.py:debug is the variant `debug` of configs/x.py
    if [[ ! -e $file && -e $root/$file ]]; then config=$root/$config; fi
    flags+=("$option$config")
  else
    flags+=("$flag")
  fi
  previous=$flag
done

# -P: the working directory is no place to import from. exec: signals reach Python.
exec "$root/.venv/bin/python" -P -m hlformer_jax.main "${flags[@]}"
