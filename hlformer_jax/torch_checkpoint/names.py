"""Names of parameters in the released codes, and their places in this package's parameter tree.

The released codes descend from one another and share most names. They keep the blocks of a bank in
a list; this package stacks them in one array. A released name therefore stands for a path and, in a
bank, for an index on the leading axis. PyTorch stores the weights of linear layers as [out, in],
this package as [in, out].
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hlformer_jax.errors import UserError
from hlformer_jax.torch_checkpoint.reader import quoted


class ConversionError(UserError, ValueError):
    """Error for a file that is not a complete checkpoint of a released model."""


NOT_PARAMETERS = re.compile(r"(^|\.)manifold\.k$|^A_query_input_proj\.")
"""Names of tensors that are not parameters: the constant curvature of the attention, and a
projection of DL-DKD's exploration branch that the released code never calls."""

_PARAMETER = re.compile(r"\w{1,64}(\.\w{1,64}){0,11}", re.ASCII)
"""Form of a parameter's name: 1 to 12 parts of letters, digits and underscores, joined by dots."""

_MARKS = (
    ("gmmformer_v2", r"weight_token$"),
    ("ms_sl", r"mapping_linear\."),
    ("dl_dkd", r"B_mapping_linear\."),
    ("gmmformer", r"clip_encoder_2\."),
    ("hlformer", r"(clip|frame)_encoder(_1)?\.[eh]_attns\."),
)
"""Patterns of names by which a model is recognised; the first pattern that occurs decides."""

_MODEL_PREFIXES = {
    # DL-DKD's branches A and B are at the places of other models' frames and clips.
    "dl_dkd": (
        (r"A_frame_", "frame_"),
        (r"B_frame_", "clip_"),
        (r"A_mapping_linear\.", "frame_mapping."),
        (r"B_mapping_linear\.", "clip_mapping."),
    ),
    "gmmformer": ((r"modular_vector_mapping_2\.", "video_pooling."),),
}
"""Prefixes of names that only one model has or uses differently; replaced before `_PREFIXES`."""

_PREFIXES = (
    (r"(?:B_)?query_pos_embed\.", "query_position."),
    (r"(?:B_)?query_input_proj\.", "query_input."),
    (r"(clip|frame)_pos_embed\.", r"\1_branch.position."),
    (r"(clip|frame)_input_proj\.", r"\1_branch.input."),
    (r"(clip|frame)_encoder(?:_1)?\.e_attns\.(\d+)\.", r"\1_branch.bank.euclidean.[\2]."),
    (r"(clip|frame)_encoder(?:_1)?\.h_attns\.(\d+)\.", r"\1_branch.bank.lorentz.[\2]."),
    (r"(clip|frame)_encoder(?:_1)?\.attn(\d+)\.", r"\1_branch.bank.euclidean.[\2]."),
    (r"(clip|frame)_encoder_2\.attn(\d+)\.", r"\1_branch.bank_2.euclidean.[\2]."),
    (r"(clip|frame)_encoder(?:_1)?\.ca\.", r"\1_branch.fusion.cross."),
    (r"(clip|frame)_encoder\.(self|output)\.", r"\1_branch.bank.euclidean.[0].\2."),
    (r"(clip|frame)_encoder(?:_1)?\.", r"\1_branch.fusion."),
    (r"mapping_linear\.0\.", "guided_key."),
    (r"mapping_linear\.1\.", "guided_value."),
    (r"B_query_encoder\.", "query_encoder."),
    (r"A_query_pos_embed\.", "exploration_position."),
    (r"A_query_encoder\.", "exploration_encoder."),
    (r"A_modular_vector_mapping\.", "exploration_pooling."),
    (r"(?:B_)?modular_vector_mapping\.", "query_pooling."),
    (r"modular_vector_mapping_2\.", "frame_pooling."),
    (r"modular_vector_mapping_3\.", "clip_pooling."),
)
_PARTS = (
    (r"\.self\.lorentz_multiattention\.linear_(key|value)s\.", r".attention.\1."),
    (r"\.self\.lorentz_multiattention\.linear_query\.", ".attention.query."),
    (r"\.self\.lorentz_multiattention\.", ".attention."),
    (r"\.self\.", ".attention."),
    (r"\.output\.(dense|LayerNorm)\.", r".\1."),
    (r"\.position_embeddings\.weight$", ".embedding"),
    (r"\.net\.1\.", ".dense."),
    (r"\.weight\.weight$", ".dense.weight"),
    (r"(LayerNorm|norm1|norm2)\.weight$", r"\1.scale"),
    (r"\.weight$", ".kernel"),
)


def recognise(names: Iterable[str]) -> str | None:
    """Recognise a model by the names of its parameters.

    Args:
      names: the released names.

    Returns:
      A value of `config.model.name`; None if the names are not of a released model.
    """
    listed = list(names)
    models = (model for model, mark in _MARKS if any(re.match(mark, name) for name in listed))
    return next(models, None)


def locate(name: str, model: str = "hlformer") -> tuple[tuple[str, ...], int | None, bool]:
    """Return the place of a released parameter in this package's parameter tree.

    An unknown name is not an error: its place is the name itself.

    Args:
      name: the released name.
      model: the model, a value of `config.model.name`.

    Returns:
      The keys of its path; its index in a bank, or None outside of banks; and whether it must be
      transposed.
    """
    place = name
    for prefixes in (_MODEL_PREFIXES.get(model, ()), _PREFIXES):
        for pattern, replacement in prefixes:
            place, replaced = re.subn("^" + pattern, replacement, place)
            if replaced:
                break
    for pattern, replacement in _PARTS:
        place = re.sub(pattern, replacement, place)
    block = re.search(r"\.\[(\d+)\]", place)
    path = tuple(re.sub(r"\.\[\d+\]", "", place).split("."))
    return path, int(block[1]) if block else None, path[-1] == "kernel"


def to_params(released: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Convert released parameters to this package's parameter tree.

    Args:
      released: arrays by their released names: the parameters, or for example their gradients.

    Returns:
      Nested dictionaries of arrays; the blocks of a bank are stacked.

    Raises:
      ConversionError: if a text cannot be a name, two tensors have the same place, an array has
        the wrong size, or the blocks of a bank are incomplete or differ in shape.
    """
    model = recognise(released) or "hlformer"
    banks: dict[tuple[str, ...], dict[int | None, np.ndarray]] = {}
    for name, value in released.items():
        if not _PARAMETER.fullmatch(name):
            raise ConversionError(f"{quoted(name)} is not the name of a parameter")
        if NOT_PARAMETERS.search(name):
            continue
        path, block, transposed = locate(name, model)
        blocks = banks.setdefault(path, {})
        if block in blocks:
            raise ConversionError(f"{quoted(name)} and another tensor are both {'.'.join(path)}")
        blocks[block] = _drop_axes(name, path, value.T if transposed else np.asarray(value))
    params: dict[str, Any] = {}
    for path, blocks in banks.items():
        if any(path[:end] in banks for end in range(1, len(path))):
            raise ConversionError(f"{quoted('.'.join(path))} lies within another tensor")
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = _stack(path, blocks)
    return params


def _drop_axes(name: str, path: tuple[str, ...], value: np.ndarray) -> np.ndarray:
    """Remove axes of length 1 that only the released code has."""
    if path[-2:] == ("attention", "scale"):
        if value.size != 1:
            raise ConversionError(f"{quoted(name)} has {value.size} elements instead of one")
        return value.reshape(())
    if path == ("weight_token",):
        return value.reshape(-1)  # stored with axes for batch and position
    return value


def _stack(path: tuple[str, ...], blocks: dict[int | None, np.ndarray]) -> np.ndarray:
    """Return the stacked blocks of a bank, or the only array of a path outside of banks."""
    if blocks.keys() == {None}:
        return blocks[None]
    name = quoted(".".join(path))
    if blocks.keys() != set(range(len(blocks))):
        raise ConversionError(f"{name}: its blocks are not numbered from 0 without gaps")
    if len({value.shape for value in blocks.values()}) > 1:
        raise ConversionError(f"{name}: its blocks differ in shape")
    return np.stack([blocks[block] for block in range(len(blocks))])
