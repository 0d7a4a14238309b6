"""Devices, processes and the compiler.

    devices     one axis, `data`, over all devices: what is sharded, what is replicated
    processes   joining the processes of a run, and what they agree on
    runtime     precision and compilation, as a configuration asks for them
    analysis    what a compiled program costs

One process uses all GPUs that it sees. Losses and negatives are those of the whole batch, so that
any number of devices gives the same losses and gradients, up to rounding. Several processes:

    bash launch/local.sh --processes=2 --config=configs/anet.py --workdir=DIR
    sbatch --nodes=2 launch/slurm.sh --config=configs/anet.py --workdir=DIR

A process that dies ends the run, and the same command resumes from the newest checkpoint, with any
number of processes. On one machine `launch/sweep.sh --tasks=N` shares the runs of a sweep among N
GPUs; `launch/slurm_sweep.sh` does as an array. (Tested on virtual CPU devices and on processes of
one machine; not yet on GPUs, nor under a real Slurm.)
"""
