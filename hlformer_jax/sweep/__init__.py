"""Sweeps: variants of a configuration, each trained with several seeds, and their table.

definition    what a file of configs/sweeps defines, and the runs that it expands to; no JAX
runs          trains the runs one after another; each leaves result.json or failure.json
summary       mean, spread and rank of every variant, as data
comparison    which differences are real: a paired bootstrap over queries
tables        table.json, .md, .csv and what is printed
publish       tables and plot together, written whenever a run ends
__main__      the command line
"""
