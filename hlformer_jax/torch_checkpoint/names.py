"""Parameter names of the released codes, and where each of them lives in ours.

The released codes of HLFormer, GMMFormer v2, GMMFormer and MS-SL descend from one another and share
most names. They keep the blocks of a bank in a list; here they are slices of one array, so a
released name stands for a path and, within a bank, an index on the leading axis. Linear weights
are stored transposed (PyTorch: out, in).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Place(NamedTuple):
    """Where a released tensor lives.

    Attributes:
      path: keys into the nested parameters.
      block: index on the leading axis of a bank, None outside banks.
      transposed: whether the released matrix is the transpose of ours.
    """

    path: tuple[str, ...]
    block: int | None
    transposed: bool


NOT_PARAMETERS = re.compile(r"(^|\.)manifold\.k$")
"""The constant curvature of the attention, stored with the released parameters."""

_MARKS = (
    ("gmmformer_v2", r"weight_token$"),
    ("ms_sl", r"mapping_linear\."),
    ("gmmformer", r"clip_encoder_2\."),
    ("hlformer", r"(clip|frame)_encoder(_1)?\.[eh]_attns\."),
)
"""What only that model's parameters are called."""

_PREFIXES = (
    (r"query_pos_embed\.", "query_position."),
    (r"query_input_proj\.", "query_input."),
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
    (r"modular_vector_mapping\.", "query_pooling."),
    (r"modular_vector_mapping_2\.", "frame_pooling."),
    (r"modular_vector_mapping_3\.", "clip_pooling."),
)
_PARTS = (
    (r"\.self\.lorentz_multiattention\.linear_keys\.", ".attention.key."),
    (r"\.self\.lorentz_multiattention\.linear_values\.", ".attention.value."),
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
    """The model, by its name in `config.model.name`, whose parameters have these names."""
    known = list(names)
    found = (
        model for model, mark in _MARKS if any(re.match(mark, name) is not None for name in known)
    )
    return next(found, None)


def place(name: str, model: str = "hlformer") -> Place:
    """Returns where the released parameter `name` of that model lives in ours."""
    ours = name
    if model == "gmmformer":
        ours = re.sub(r"^modular_vector_mapping_2\.", "video_pooling.", ours)
    for pattern, replacement in _PREFIXES:
        ours, found = re.subn("^" + pattern, replacement, ours)
        if found:
            break
    for pattern, replacement in _PARTS:
        ours = re.sub(pattern, replacement, ours)
    block = re.search(r"\.\[(\d+)\]", ours)
    path = tuple(re.sub(r"\.\[\d+\]", "", ours).split("."))
    return Place(path, int(block[1]) if block else None, path[-1] == "kernel")


def to_params(released: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Turns released parameters (or anything named like them) into our nested parameters.

    Args:
      released: arrays by released name; constants that are no parameters are left out.

    Returns:
      Nested dict of NumPy arrays, banks stacked.

    Raises:
      ValueError: when a bank's blocks are not numbered from 0 or differ in shape.
    """
    model = recognise(released) or "hlformer"
    stacks: dict[tuple[str, ...], dict[int | None, np.ndarray]] = {}
    for name, value in released.items():
        if NOT_PARAMETERS.search(name):
            continue
        where = place(name, model)
        value = np.asarray(value)
        value = value.T if where.transposed else value
        if where.path[-2:] == ("attention", "scale"):
            value = value.reshape(())  # stored with one element by the released code
        if where.path == ("weight_token",):
            value = value.reshape(-1)  # stored with axes for batch and position
        stacks.setdefault(where.path, {})[where.block] = value
    params: dict[str, Any] = {}
    for path, blocks in stacks.items():
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = _stack(path, blocks)
    return params


def _stack(path: tuple[str, ...], blocks: dict[int | None, np.ndarray]) -> np.ndarray:
    if None in blocks:
        return blocks[None]
    numbers = sorted(number for number in blocks if number is not None)
    if numbers != list(range(len(numbers))):
        raise ValueError(f"{'.'.join(path)}: blocks {numbers} are not numbered from 0 without gap")
    shapes = {blocks[number].shape for number in numbers}
    if len(shapes) > 1:
        raise ValueError(f"{'.'.join(path)}: the blocks of the bank differ in shape: {shapes}")
    return np.stack([blocks[number] for number in numbers])


def lookup(params: Mapping[str, Any], name: str, model: str = "hlformer") -> Any:
    """Our counterpart of one released tensor of that model, in the released orientation."""
    where = place(name, model)
    value: Any = params
    for key in where.path:
        value = value[key]
    value = value if where.block is None else value[where.block]
    return value.T if where.transposed else value
