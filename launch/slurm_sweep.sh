#!/usr/bin/env bash
# Runs a sweep as a Slurm array: `sbatch --array=0-7 launch/slurm_sweep.sh
# --config=configs/sweeps/hlformer_table2.py --workdir=DIR --config.base.data.manual_dir=PATH`.
# DIR, PATH and the checkout must be on a file system that all nodes share. Each of the 8 tasks does
# every 8th run, on one GPU; the last task to finish writes the complete table. Two minutes before the
# end of its time a task writes a checkpoint and is queued again. It is also queued again if its node
# fails.
#
#SBATCH --job-name=hlformer-sweep
#SBATCH --nodes=1
#SBATCH --ntasks=1
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
status=0
srun ${cores[@]+"${cores[@]}"} "$root/.venv/bin/python" -P -m hlformer_jax.sweep "$@" || status=$?
if ((status == 143)); then # SIGTERM: the run has written a checkpoint
  # The last task of an array has the job id of the whole array, which would queue all tasks again.
  job=$SLURM_JOB_ID
  if [[ -n ${SLURM_ARRAY_JOB_ID-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
  scontrol requeue "$job"
fi
exit "$status"
