"""Sweeps: variants of a configuration, each trained with several seeds, and their table.

__main__      the command
definition    what a file of configs/sweeps defines, and the runs that it expands to; no JAX
runs          trains the runs one after another; each leaves result.json or failure.json
tables        means, spreads and ranks of all variants: table.json, .md, .csv, the plot, the print;
              which differences are real: a paired bootstrap over queries
"""
