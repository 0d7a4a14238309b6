"""The runtime checker of annotations, which the tests install for the whole package."""

from beartype import BeartypeConf, beartype

# The numeric tower: an int where a float is asked for, as static checkers read it.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
