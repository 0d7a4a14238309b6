#!/usr/bin/env bash
# Trains or evaluates on this machine: `bash launch/local.sh --config=configs/synthetic.py [flags]`.
# The first run installs the package into .venv (launch/environment.sh). Paths are relative to the
# current directory. --config also takes the name of a file of configs/, such as synthetic.
#
# --processes=N runs N processes that share the work. If the machine has GPUs, each process has its
# own. If one of them dies, the others are stopped; the same command continues from the newest
# checkpoint.

source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
environment

if (($# == 0)); then set -- --config=configs/synthetic.py; fi
read_flags --processes "$@"

# -P: do not import from the working directory.
command=("$root/.venv/bin/python" -P -m hlformer_jax.main "${flags[@]}")
if ((processes == 1)); then exec "${command[@]}"; fi # exec, so that signals reach Python

port=$("$root/.venv/bin/python" -c 'import socket
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    print(s.getsockname()[1])')
share_gpus --processes
pids=()
for ((i = 0; i < processes; i++)); do
  CUDA_VISIBLE_DEVICES=${gpus[i]-} "${command[@]}" --coordinator="127.0.0.1:$port" \
    --processes="$processes" --process="$i" &
  pids+=($!)
done

trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' TERM INT
failed=0
patience=100 # tenths of a second for the others to end by themselves, after one has failed
while ((${#pids[@]})); do
  sleep 0.1 || true
  running=()
  for pid in "${pids[@]}"; do
    if kill -0 "$pid" 2>/dev/null; then
      running+=("$pid")
    else
      status=0
      wait "$pid" || status=$?
      if ((failed == 0)); then failed=$status; fi
    fi
  done
  pids=(${running[@]+"${running[@]}"})
  if ((failed != 0 && ${#pids[@]} && patience-- == 0)); then
    # The others wait for the process that is gone.
    kill -KILL "${pids[@]}" 2>/dev/null || true
    say "a process of $processes ended with status $failed; the others were stopped." \
      "The same command goes on from the newest checkpoint"
  fi
done
exit "$failed"
