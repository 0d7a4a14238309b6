"""Parameters of an encoder, read from and written to safetensors files of a Hugging Face folder.

An architecture's `leaves` give the name, shape and layout of each parameter in a file. Reading is
strict: a tensor that is missing, unknown or of another shape is an error, because a model with only
a part of its weights would give meaningless numbers.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from hlformer_jax.encoders.config import EncoderError, Text, Tower, Vision
from hlformer_jax.encoders.transformer import Params

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""Name of the file with all weights, and of the list if there are several files of weights."""

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
"""Possible dtypes of the operands of matrix products, by name."""

_FLOATS = ("F16", "BF16", "F32", "F64")
_BUFFERS = ".position_ids"  # tensors of old files with the numbers 0, 1, …; not parameters
_LAYER = {
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.out_proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}

Place = tuple[str, ...]
"""Path of a leaf in the parameter tree."""


def _identity(array: np.ndarray) -> np.ndarray:
    return array


@dataclass(frozen=True)
class Leaf:
    """One leaf of the parameter tree."""

    names: tuple[str, ...]  # names of its tensors in the file: one, or one for each layer
    shape: tuple[int, ...]  # shape of each of these tensors
    read: Callable[[np.ndarray], np.ndarray] = _identity  # layout of the file → layout of the tree
    write: Callable[[np.ndarray], np.ndarray] = _identity  # layout of the tree → order of the file
    is_matrix: bool = False  # a kernel or token embeddings, which may be stored in bfloat16

    def without_prefix(self, prefix: str) -> "Leaf":
        """Return the leaf with names that do not begin with a prefix."""
        return replace(self, names=tuple(name.removeprefix(prefix) for name in self.names))

    @property
    def is_stacked(self) -> bool:
        """True if the first axis of the leaf is the number of the layer."""
        return re.search(r"\.layers?\.\d", self.names[0]) is not None


Leaves = dict[Place, Leaf]
"""Leaves by their paths in the parameter tree."""


def as_scalar(array: np.ndarray) -> np.ndarray:
    """Return an array of one number without axes."""
    return array.reshape(())


def _transpose(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2))


def linear_leaves(
    path: Place, name: str | tuple[str, ...], sizes: tuple[int, int], bias: bool = True
) -> Leaves:
    """Return the leaves of an affine map.

    Args:
      path: its path in the tree.
      name: its name in the file, or a name for each layer.
      sizes: numbers of coordinates of its input and its output.
      bias: whether it has a bias.
    """
    names = (name,) if isinstance(name, str) else name
    inputs, outputs = sizes
    kernel = tuple(f"{name}.weight" for name in names)
    leaves = {
        (*path, "kernel"): Leaf(kernel, (outputs, inputs), _transpose, _transpose, is_matrix=True)
    }
    if bias:
        leaves[*path, "bias"] = Leaf(tuple(f"{name}.bias" for name in names), (outputs,))
    return leaves


def norm_leaves(path: Place, name: str | tuple[str, ...], tower: Tower) -> Leaves:
    """Return the leaves of a layer norm; `name` may be a tuple with a name for each layer."""
    names = (name,) if isinstance(name, str) else name
    return {
        (*path, field): Leaf(tuple(f"{name}.{key}" for name in names), (tower.width,))
        for field, key in (("scale", "weight"), ("bias", "bias"))
    }


def layer_leaves(path: Place, stem: str, tower: Tower, names: Mapping[str, str] = _LAYER) -> Leaves:
    """Return the leaves of a stack of layers.

    Args:
      path: its path in the tree.
      stem: the beginning of its names in the file, before the number of a layer.
      tower: its sizes.
      names: the names of a layer's parts in the file, by their names in `transformer`.
    """
    hidden = {"fc1": (tower.width, tower.hidden), "fc2": (tower.hidden, tower.width)}
    leaves: Leaves = {}
    for part, name in names.items():
        in_file = tuple(f"{stem}.{layer}.{name}" for layer in range(tower.layers))
        if part.startswith("norm"):
            leaves |= norm_leaves((*path, part), in_file, tower)
        else:
            sizes = hidden.get(part, (tower.width, tower.width))
            leaves |= linear_leaves((*path, part), in_file, sizes)
    return leaves


def text_leaves(text: Text) -> Leaves:
    """Return the leaves that the text encoders of CLIP and SigLIP share."""
    stem = "text_model"
    return {
        ("text", "tokens"): Leaf(
            (f"{stem}.embeddings.token_embedding.weight",),
            (text.vocabulary, text.width),
            is_matrix=True,
        ),
        ("text", "positions"): Leaf(
            (f"{stem}.embeddings.position_embedding.weight",), (text.positions, text.width)
        ),
        **layer_leaves(("text", "layers"), f"{stem}.encoder.layers", text),
        **norm_leaves(("text", "final_norm"), f"{stem}.final_layer_norm", text),
    }


def image_leaves(vision: Vision, positions: int, bias: bool) -> Leaves:
    """Return the leaves that the image encoders of CLIP and SigLIP share.

    Args:
      vision: the sizes of the encoder.
      positions: number of positions.
      bias: whether the map of patches has a bias.
    """
    stem, size, width = "vision_model", vision.patch_size, vision.width
    patch = f"{stem}.embeddings.patch_embedding"
    leaves = {
        # A convolution in the file, a matrix in the tree.
        ("vision", "patch", "kernel"): Leaf(
            (f"{patch}.weight",),
            (width, 3, size, size),
            _flatten_patches,
            partial(_unflatten_patches, size),
            is_matrix=True,
        ),
        ("vision", "positions"): Leaf(
            (f"{stem}.embeddings.position_embedding.weight",), (positions, width)
        ),
        **layer_leaves(("vision", "layers"), f"{stem}.encoder.layers", vision),
        **norm_leaves(("vision", "post_norm"), f"{stem}.post_layernorm", vision),
    }
    if bias:
        leaves["vision", "patch", "bias"] = Leaf((f"{patch}.bias",), (width,))
    return leaves


def _flatten_patches(kernel: np.ndarray) -> np.ndarray:
    """Bring [out, channel, row, column] to [row · column · channel, out]."""
    return np.ascontiguousarray(kernel.transpose(2, 3, 1, 0)).reshape(-1, len(kernel))


def _unflatten_patches(size: int, kernel: np.ndarray) -> np.ndarray:
    rows = kernel.reshape(size, size, 3, kernel.shape[-1])
    return np.ascontiguousarray(rows.transpose(3, 2, 0, 1))


def pooling_leaves(path: Place, name: str, tower: Tower) -> Leaves:
    """Return the leaves of attention pooling by a learned query."""
    width, hidden = tower.width, tower.hidden
    attention = f"{name}.attention"
    return {
        (*path, "probe"): Leaf((f"{name}.probe",), (1, 1, width), np.ravel),
        # One kernel holds query, key and value, as in PyTorch's attention layer.
        (*path, "in", "kernel"): Leaf(
            (f"{attention}.in_proj_weight",),
            (3 * width, width),
            _transpose,
            _transpose,
            is_matrix=True,
        ),
        (*path, "in", "bias"): Leaf((f"{attention}.in_proj_bias",), (3 * width,)),
        **linear_leaves((*path, "out"), f"{attention}.out_proj", (width, width)),
        **norm_leaves((*path, "norm"), f"{name}.layernorm", tower),
        **linear_leaves((*path, "fc1"), f"{name}.mlp.fc1", (width, hidden)),
        **linear_leaves((*path, "fc2"), f"{name}.mlp.fc2", (hidden, width)),
    }


def files(folder: Path) -> list[Path]:
    """Return the paths of a folder's weight files, in a fixed order; files may be missing.

    Raises:
      EncoderError: if the list of several files is damaged.
    """
    index = folder / INDEX
    if (folder / SINGLE).exists() or not index.exists():
        return [folder / SINGLE]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        are_plain = all(isinstance(name, str) and name == Path(name).name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EncoderError(f"{index}: not a list of weight files; fetch it again") from error
    if not names or not are_plain:
        raise EncoderError(f"{index}: its weight files must be plain names in the same folder")
    return [folder / name for name in sorted(names)]


def read(
    paths: list[Path],
    leaves: Leaves,
    dtype: str,
    prefix: str = "",
    unread: tuple[str, ...] = (),
) -> Params:
    """Read parameters as NumPy arrays.

    Args:
      paths: safetensors files.
      leaves: the leaves, whose names begin with the prefix.
      dtype: a name of `DTYPES`, for kernels and token embeddings; other leaves are float32.
      prefix: an optional beginning of the names of all tensors.
      unread: beginnings of the names of tensors to ignore.

    Raises:
      EncoderError: if a file is damaged, or a tensor is missing, unknown, misshapen or not a float.
    """
    with ExitStack() as stack:
        holders: dict[str, Any] = {}  # the open file of each tensor
        for path in paths:
            try:
                file = stack.enter_context(safetensors.safe_open(path, "np"))
            except safetensors.SafetensorError as error:
                raise EncoderError(
                    f"{path}: not a complete safetensors file ({error}); fetch it again"
                ) from error
            holders |= dict.fromkeys(file.keys(), file)
        if not any(name.startswith(prefix) for name in holders):
            leaves = {place: leaf.without_prefix(prefix) for place, leaf in leaves.items()}
        holders = {name: file for name, file in holders.items() if not name.startswith(unread)}
        _check(holders, leaves, str(paths[0] if len(paths) == 1 else paths[0].parent))
        params: Params = {}
        for place, leaf in leaves.items():
            leaf_dtype = DTYPES[dtype] if leaf.is_matrix else np.float32
            tensors = [
                leaf.read(holders[name].get_tensor(name).astype(np.float32)).astype(leaf_dtype)
                for name in leaf.names
            ]
            _put(params, place, np.stack(tensors) if leaf.is_stacked else tensors[0])
    return params


def to_bytes(params: Params, leaves: Leaves) -> bytes:
    """Return the content of a float32 `model.safetensors`; equal parameters give equal bytes."""
    tensors: dict[str, np.ndarray] = {}
    for place, leaf in leaves.items():
        value = params
        for name in place:
            value = value[name]
        array = np.asarray(value, np.float32)
        layers = array if leaf.is_stacked else array[None]
        for name, tensor in zip(leaf.names, layers, strict=True):
            tensors[name] = np.ascontiguousarray(leaf.write(np.asarray(tensor)).reshape(leaf.shape))
    return safetensors.numpy.save(tensors, metadata={"format": "pt"})


def empty(leaves: Leaves) -> Params:
    """Return a parameter tree of float32 zeros, to be filled by an initialisation."""
    params: Params = {}
    for place, leaf in leaves.items():
        shape = leaf.read(np.zeros(leaf.shape, np.float32)).shape
        layers = (len(leaf.names),) if leaf.is_stacked else ()
        _put(params, place, np.zeros(layers + shape, np.float32))
    return params


def _check(holders: Mapping[str, Any], leaves: Leaves, where: str) -> None:
    """Refuse files that do not contain exactly these parameters."""
    shapes = {name: leaf.shape for leaf in leaves.values() for name in leaf.names}
    missing = sorted(shapes.keys() - holders.keys())
    unexpected = sorted(
        name for name in holders.keys() - shapes.keys() if not name.endswith(_BUFFERS)
    )
    if missing:
        instead = f" (it holds {unexpected[0]} instead?)" if unexpected else ""
        raise EncoderError(
            f"{where}: lacks the tensor {_abbreviate(missing)}{instead}; not the weights of this"
            " config.json"
        )
    if unexpected:
        raise EncoderError(
            f"{where}: holds an unknown tensor {_abbreviate(unexpected)}; weights of another model?"
        )
    for name, shape in shapes.items():
        tensor = holders[name].get_slice(name)
        actual = tuple(tensor.get_shape())
        # The scale of the logits is a number in some files and a vector of one number in others.
        if actual != shape and not (name.startswith("logit_") and actual in ((), (1,))):
            raise EncoderError(
                f"{where}: the tensor {name} has the shape {actual}, but config.json says {shape}"
            )
        if tensor.get_dtype() not in _FLOATS:
            raise EncoderError(
                f"{where}: the tensor {name} is {tensor.get_dtype()}, not one of"
                f" {', '.join(_FLOATS)}; quantised weights are not supported"
            )


def _abbreviate(names: list[str]) -> str:
    """Return the first name and the number of the others."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _put(tree: Params, place: Place, value: Any) -> None:
    for name in place[:-1]:
        tree = tree.setdefault(name, {})
    tree[place[-1]] = value
