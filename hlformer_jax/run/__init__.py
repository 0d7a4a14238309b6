"""The directory of a run: checkpoints, records, and who may use it."""
