"""Loading of the encoder of an index."""

import os
from pathlib import Path
from typing import Any

from hlformer_jax import terminal
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import QueryError
from hlformer_jax.lazy import optional
from hlformer_jax.search.index import EncoderFacts
from hlformer_jax.search.index.records import present_places

DEFAULT_ENCODER = "google/siglip-base-patch16-224"
"""Hub id of the default encoder of a new index."""

DEMO_NOTE = "demo.json"
"""File that marks the directory of a demo, which contains the demo's encoder."""


def load_encoder(name_or_path: str | os.PathLike[str]) -> tuple[Encoder, tuple[str, ...]]:
    """Load an encoder by its hub id or from a folder.

    Args:
      name_or_path: the hub id, or the path of the folder.

    Returns:
      The encoder, and the places from which it can be loaded again.

    Raises:
      UserError: if the encoder does not exist, or cannot be read.
    """
    hub = optional("hlformer_jax.encoders.hub", "search")
    is_folder = os.path.isdir(name_or_path)
    place = str(Path(name_or_path).resolve()) if is_folder else os.fspath(name_or_path)
    return hub.load(os.fspath(name_or_path), report=terminal.report), (place,)


def reload_encoder(
    facts: EncoderFacts, name_or_path: str | os.PathLike[str] | None = None, precision: str = ""
) -> Encoder:
    """Load the encoder of an index.

    Args:
      facts: the identity of the encoder, which the index has recorded.
      name_or_path: hub id or folder to load it from; by default the first recorded place that is
        not a missing folder, or its name as a hub id if no place is recorded.
      precision: precision in which it encodes images; "" for the precision of the loaded weights.

    Raises:
      UserError: if the encoder's folder is missing, or the encoder cannot be read.
    """
    encoder = _load_again(facts, name_or_path)
    if precision:
        encoder.set_image_precision(precision, terminal.warn)
    return encoder


def _load_again(facts: EncoderFacts, name_or_path: str | os.PathLike[str] | None) -> Any:
    if name_or_path is not None:
        return load_encoder(name_or_path)[0]
    places = present_places(facts.places)
    if facts.places and not places:
        raise QueryError(
            "{place}, the folder of the index's encoder {name!r}, is missing: pass its new path as"
            " {encoder}",
            field="encoder",
            name=facts.name,
            place=facts.places[0],
        )
    return load_encoder((*places, facts.name)[0])[0]


def is_demo_encoder(facts: EncoderFacts) -> bool:
    """Return whether an encoder was loaded from the directory of a demo."""
    folders = (os.path.dirname(place) for place in facts.places if os.path.isabs(place))
    return any(os.path.isfile(os.path.join(folder, DEMO_NOTE)) for folder in folders)
