"""Refuses to allocate what no memory of this machine could hold, before it is killed for it."""

import os

from hlformer_jax.data.source import DataError


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Checks that the machine's memory, free or not, can hold something.

    Args:
      needed: bytes.
      what: what needs them, for the message.
      remedy: what to do about it, for the message.

    Raises:
      DataError: if the machine has less.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > total:
        raise DataError(
            f"{what} would take {needed / 1e9:.1f} GB of memory, and this machine has "
            f"{total / 1e9:.1f} GB; {remedy}"
        )
