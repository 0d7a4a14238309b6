#!/usr/bin/env bash
# Runs a sweep as a Slurm array: `sbatch --array=0-7 launch/slurm_sweep.sh
# --config=configs/sweeps/hlformer_table2.py --workdir=DIR --config.base.data.manual_dir=PATH`.
# DIR, PATH and the checkout lie on a file system that all nodes share. Each task of the array does
# every 8th run, on one GPU; the last to finish writes the complete table. Two minutes before its
# time is up a task saves itself and is queued again; so it is when its node fails.
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

# Slurm runs a copy of this file: the checkout is where the job was submitted from, or $HLFORMER.
checkout=${HLFORMER:-${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}}
[[ -f $checkout/launch/environment.sh ]] ||
  { echo "error: submit from the checkout, or set HLFORMER to its path" >&2; exit 1; }
source "$checkout/launch/environment.sh"
environment

status=0
srun "$root/.venv/bin/python" -P -m hlformer_jax.sweep "$@" || status=$?
if ((status == 143)); then # it was asked to stop, and has saved itself
  # The last task of an array has the array's own number: by that alone all would be queued again.
  job=$SLURM_JOB_ID
  if [[ -n ${SLURM_ARRAY_JOB_ID-} ]]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
  scontrol requeue "$job"
fi
exit "$status"
