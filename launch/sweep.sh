#!/usr/bin/env bash
# Runs a sweep on this machine: `bash launch/sweep.sh --config=configs/sweeps/hlformer_table2.py
# --workdir=DIR [flags]`. The first run installs what it needs into .venv (launch/environment.sh).
# Paths are relative to where you are; --config also takes a name, such as sweeps/hlformer_table2.
#
# --tasks=N shares the runs among N processes, each with a GPU of its own where there are any;
# without it one process does them all, each on all GPUs. A process that fails leaves the others.
# The same command goes on where it was stopped.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
environment

(($#)) || die "--config is missing: for example --config=configs/sweeps/lorentz_window.py:debug"
read_flags --tasks "$@"

# -P: the working directory is no place to import from.
command=("$root/.venv/bin/python" -P -m hlformer_jax.sweep "${flags[@]}")
if ((processes == 1)); then exec "${command[@]}"; fi # signals reach Python

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
    # A signal ends `wait` as well; what it was passed on to may still be saving itself.
    kill -0 "$pid" 2>/dev/null || break
  done
  # 143, stopped and to be gone on with, says more than 1.
  if ((status == 143 || failed == 0)); then failed=$status; fi
done
exit "$failed"
