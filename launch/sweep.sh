#!/usr/bin/env bash
# Runs a sweep on this machine: `bash launch/sweep.sh --config=configs/sweeps/hlformer_table2.py
# --workdir=DIR [flags]`. The first run installs the package into .venv (launch/environment.sh).
# Paths are relative to the current directory. --config also takes the name of a file of configs/,
# such as sweeps/hlformer_table2.
#
# --tasks=N divides the runs among N processes. If the machine has GPUs, each process has its own.
# Without --tasks, one process does all runs, one after the other, each on all GPUs. If a process
# fails, the others continue. The same command continues a sweep that was stopped.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
environment

(($#)) || die "--config is missing: for example --config=configs/sweeps/lorentz_window.py:debug"
read_flags --tasks "$@"

# -P: do not import from the working directory.
command=("$root/.venv/bin/python" -P -m hlformer_jax.sweep "${flags[@]}")
if ((processes == 1)); then exec "${command[@]}"; fi # exec, so that signals reach Python

share_gpus --tasks
pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT
for ((i = 0; i < processes; i++)); do
  CUDA_VISIBLE_DEVICES=${gpus[i]-} "${command[@]}" --task="$i" --tasks="$processes" &
  pids+=($!)
done

failed=0
for pid in "${pids[@]}"; do
  while true; do
    status=0
    wait "$pid" || status=$?
    # A signal also ends `wait`, while the process may still be writing its checkpoint.
    kill -0 "$pid" 2>/dev/null || break
  done
  # 143 (stopped, can be continued) takes precedence over other failures.
  if ((status == 143 || failed == 0)); then failed=$status; fi
done
exit "$failed"
