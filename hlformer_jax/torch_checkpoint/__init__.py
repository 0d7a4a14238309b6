"""Checkpoints of the authors' released codes as ours."""
