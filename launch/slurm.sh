#!/usr/bin/env bash
# Trains under Slurm: `sbatch [--nodes=N …] launch/slurm.sh --config=configs/anet.py --workdir=DIR
# --config.data.manual_dir=PATH`. DIR, PATH and the checkout must be on a file system that all nodes
# share. There is one task per GPU; the tasks find one another through Slurm. Two minutes before the
# end of its time the run writes a checkpoint, and the job is queued again. It is also queued again if
# a node fails.
#
#SBATCH --job-name=hlformer
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append

# Slurm runs a copy of this file, so the checkout is $HLFORMER, or the directory of submission.
checkout=${HLFORMER:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}
[[ -f $checkout/launch/environment.sh ]] ||
  { echo "error: submit from the checkout, or set HLFORMER to its path" >&2; exit 1; }
source "$checkout/launch/environment.sh"
environment

# From Slurm 22.05 on, srun does not take this over from sbatch: a task would have a single core.
cores=(${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"})
# --kill-on-bad-exit: if a task dies, the others end too, instead of waiting for it.
status=0
srun --kill-on-bad-exit=1 ${cores[@]+"${cores[@]}"} "$root/.venv/bin/python" -P -m hlformer_jax.main "$@" || status=$?
if ((status == 143)); then # SIGTERM: the run has written a checkpoint
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
