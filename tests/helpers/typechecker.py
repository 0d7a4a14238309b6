"""The runtime checker of annotations, which the tests install for the whole package."""

from beartype import BeartypeConf, beartype

# The numeric tower: an int is accepted for a float, as by static checkers.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
