"""Runtime of a program: devices, processes, the compiler and the environment.

    devices     the mesh, and the placement of arrays
    processes   several processes of one run
    compiler    precision, options and costs of compiled programs
    environment the devices and versions that a run records

One axis, `data`, runs over all devices of all processes. Parameters are replicated. The videos and
captions of a batch, and features that are kept on the devices, are sharded along their first axis;
a corpus is sharded along the videos of its blocks. Losses are written for the whole batch, and XLA
adds the communication, so that the number of devices changes a result only by rounding.
"""
