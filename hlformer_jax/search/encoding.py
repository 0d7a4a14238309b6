"""Encoders of an index: where one is loaded from, and where it is found again."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.storage import EncoderFacts

DEFAULT = "google/siglip-base-patch16-224"

MISSING_EXTRA = 'searching needs more packages: pip install "hlformer-jax[search]"'


def extra(module: str) -> Any:
    """A module of the package that needs the extra `search`.

    Raises:
      SearchError: when the extra is not installed.
    """
    try:
        return importlib.import_module(f"hlformer_jax.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("hlformer_jax"):
            raise
        raise SearchError(f"{MISSING_EXTRA} (there is no {error.name})") from None


def load(given: str | Path) -> tuple[Any, tuple[str, ...]]:
    """Loads an encoder.

    Args:
      given: a hub id, or a folder.

    Returns:
      The encoder, and where it can be loaded from again.

    Raises:
      UserError: when there is none, or it cannot be read.
    """
    encoder = extra("encoders").load(str(given), tell=_tell)
    if os.path.isdir(given):
        return encoder, (str(Path(given).resolve()),)
    return encoder, (str(given),)


def _tell(line: str) -> None:
    """Prints a line beside the results, which a program may read."""
    print(line, file=sys.stderr, flush=True)


def reload(facts: EncoderFacts, given: str | Path | None = None) -> Any:
    """Loads the encoder of an index.

    Args:
      facts: what the index says of it.
      given: where to load it from, where it is elsewhere now.

    Raises:
      SearchError: when its folder is gone.
      UserError: when it cannot be read.
    """
    if given is not None:
        return load(given)[0]
    gone = [place for place in facts.places if os.path.isabs(place) and not os.path.isdir(place)]
    places = [place for place in facts.places if place not in gone]
    if gone and not places:
        raise SearchError(
            f"the encoder of the index, {facts.name!r}, is not at {gone[0]} any more: say where it"
            " is by --encoder=PATH"
        )
    return load(places[0] if places else facts.name)[0]
