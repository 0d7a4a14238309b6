"""What executes the annotations of the package in the tests."""

from beartype import BeartypeConf, beartype

# As type checkers do, an int passes for a float.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
