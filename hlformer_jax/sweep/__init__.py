"""Sweeps: variants of a configuration, each trained with several seeds, and their table."""
