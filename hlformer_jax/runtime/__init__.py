"""Runtime of a program: devices, the processes of a run, and the compiler.

    devices     the mesh, and where arrays live
    processes   several processes of one run
    compiler    precision, options and costs of compiled programs

One axis, `data`, runs over all devices of all processes. Parameters are replicated; the videos and
captions of a batch, the corpus and features that live on the devices are sharded along their
leading axis. Losses are written for the whole batch, and XLA adds the communication: the number of
devices changes a result by rounding only.
"""
