"""Loading of the encoder of an index, from a hub id or a folder."""

import functools
import os
import sys
from pathlib import Path
from typing import Any

from hlformer_jax.errors import SearchError, optional
from hlformer_jax.search.index.records import EncoderFacts

DEFAULT_ENCODER = "google/siglip-base-patch16-224"


def load_encoder(given: str | Path) -> tuple[Any, tuple[str, ...]]:
    """The encoder of a hub id or a folder, and the places to load it from again.

    Raises:
      UserError: when there is none, or it cannot be read.
    """
    report = functools.partial(print, file=sys.stderr, flush=True)  # a program may read the results
    encoder = optional("hlformer_jax.encoders", "search").load(str(given), report=report)
    return encoder, (str(Path(given).resolve() if os.path.isdir(given) else given),)


def reload_encoder(facts: EncoderFacts, given: str | Path | None = None) -> Any:
    """The encoder of an index, from the first place that is there, or from a given one.

    Raises:
      UserError: when its folder is gone, or it cannot be read.
    """
    gone = [place for place in facts.places if os.path.isabs(place) and not os.path.isdir(place)]
    places = [place for place in facts.places if place not in gone]
    if given is None and gone and not places:
        raise SearchError(
            f"the encoder of the index, {facts.name!r}, is not at {gone[0]} any more: say where it"
            " is by --encoder=PATH"
        )
    return load_encoder(given if given is not None else (*places, facts.name)[0])[0]


def check_rate(fps: float) -> None:
    """Refuses what is no positive number of frames a second, or a very large one."""
    if not 0 < fps <= 1000:
        raise SearchError(f"--fps={fps}: give a number of frames a second above 0, such as 1")
