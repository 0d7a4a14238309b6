"""Prepared sets: array_record files that TFDS wrote, one record a video."""
