"""The directory of a run: its checkpoints and records, and who may use it.

checkpoint    series of checkpoints; the only file that knows orbax
workdir       which run a directory belongs to
lock          one process at a time
metrics_log   metrics.jsonl and TensorBoard
files         files that are written whole or not at all

Of several processes of a run, the first writes.
"""
