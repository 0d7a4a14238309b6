"""Parameters of an encoder from safetensors files, and back.

A file is read strictly: a tensor that is missing, unknown or of another shape is an error, since a
model that runs with a part of its weights gives numbers that mean nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from hlformer_jax.encoders.config import Config
from hlformer_jax.encoders.errors import EncoderError
from hlformer_jax.encoders.layers import Params
from hlformer_jax.encoders.names import leaves

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""Names of the file of all weights, and of the list of several files."""

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
"""Dtypes that products may be computed in, by name."""

_FLOATS = ("F16", "BF16", "F32", "F64")
_BUFFERS = ".position_ids"  # of old files: the numbers from 0, no parameter


def files(folder: Path) -> list[Path]:
    """The weights' files of a folder, in a fixed order; they may be missing.

    Raises:
      EncoderError: when the list of several files is damaged, or names one elsewhere.
    """
    index = folder / INDEX
    if (folder / SINGLE).exists() or not index.exists():
        return [folder / SINGLE]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        plain = all(isinstance(name, str) and name == Path(name).name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EncoderError(f"{index}: no list of weights' files; fetch it again") from error
    if not names or not plain:
        raise EncoderError(f"{index}: names files that are not plain names in its folder")
    return [folder / name for name in sorted(names)]


def read(paths: list[Path], config: Config, dtype: str) -> Params:
    """The parameters in safetensors files.

    Args:
      paths: the files; each tensor is in one of them.
      config: sizes and options.
      dtype: a name of `DTYPES`, that kernels and token embeddings get; all else is float32.

    Returns:
      The parameter tree, of NumPy arrays.

    Raises:
      EncoderError: when a file is damaged, or a tensor missing, unknown, misshapen or no float.
      FileNotFoundError: when a file is missing.
    """
    with ExitStack() as stack:
        holders: dict[str, Any] = {}
        for path in paths:
            try:
                file = stack.enter_context(safetensors.safe_open(path, "np"))
            except safetensors.SafetensorError as error:
                raise EncoderError(
                    f"{path}: no whole safetensors file ({error}); fetch it again"
                ) from error
            holders |= dict.fromkeys(file.keys(), file)
        where = str(paths[0] if len(paths) == 1 else paths[0].parent)
        _check(holders, config, where)
        params: Params = {}
        for place, leaf in leaves(config).items():
            kept = DTYPES[dtype] if leaf.matrix else np.float32
            read = lambda name, leaf=leaf, kept=kept: leaf.read(
                holders[name].get_tensor(name).astype(np.float32)
            ).astype(kept)
            tensors = [read(name) for name in leaf.names]
            _put(params, place, np.stack(tensors) if leaf.stacked else tensors[0])
    return params


def to_bytes(params: Params, config: Config) -> bytes:
    """The content of a `model.safetensors`, in float32; equal parameters give equal bytes."""
    tensors: dict[str, np.ndarray] = {}
    for place, leaf in leaves(config).items():
        value = params
        for name in place:
            value = value[name]
        array = np.asarray(value, np.float32)
        parts = array if leaf.stacked else array[None]
        for name, part in zip(leaf.names, parts, strict=True):
            tensors[name] = np.ascontiguousarray(leaf.write(part).reshape(leaf.shape))
    return safetensors.numpy.save(tensors, metadata={"format": "pt"})


def empty(config: Config) -> Params:
    """A parameter tree of zeros in float32, to be filled by an initialisation."""
    params: Params = {}
    for place, leaf in leaves(config).items():
        one = leaf.read(np.zeros(leaf.shape, np.float32))
        _put(params, place, np.zeros((len(leaf.names),) * leaf.stacked + one.shape, np.float32))
    return params


def digest(content: bytes) -> str:
    """Hexadecimal SHA-256 of the content of a weights' file."""
    return hashlib.sha256(content).hexdigest()


def _check(holders: Mapping[str, Any], config: Config, where: str) -> None:
    """Refuses files that do not hold exactly the parameters of the configuration."""
    wanted = {name: leaf.shape for leaf in leaves(config).values() for name in leaf.names}
    missing = sorted(wanted.keys() - holders.keys())
    unknown = sorted(name for name in holders.keys() - wanted.keys() if not name.endswith(_BUFFERS))
    if missing:
        also = f" (it holds {unknown[0]} instead?)" if unknown else ""
        raise EncoderError(f"{where}: lacks the tensor {_first(missing)}{also}; not this model's")
    if unknown:
        raise EncoderError(f"{where}: holds an unknown tensor {_first(unknown)}; another model's?")
    for name, shape in wanted.items():
        part = holders[name].get_slice(name)
        found = tuple(part.get_shape())
        # CLIP and SigLIP differ in whether a logit's scale is a vector of one.
        if found != shape and not (name.startswith("logit_") and found in ((), (1,))):
            raise EncoderError(
                f"{where}: the tensor {name} has the shape {found}, but config.json says {shape}"
            )
        if part.get_dtype() not in _FLOATS:
            raise EncoderError(
                f"{where}: the tensor {name} is {part.get_dtype()}, none of {', '.join(_FLOATS)};"
                " quantised weights are not read"
            )


def _first(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _put(tree: Params, path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
