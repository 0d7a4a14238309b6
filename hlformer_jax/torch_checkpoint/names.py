"""Parameter names of the released codes, and where each of them lives in ours.

The released codes of HLFormer, GMMFormer v2, GMMFormer, MS-SL and DL-DKD descend from one another
and share most names. They keep the blocks of a bank in a list; here they are slices of one array,
so a released name stands for a path and, within a bank, an index on the leading axis. Linear
weights are stored transposed (PyTorch: out, in).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hlformer_jax.torch_checkpoint.errors import ConversionError, quoted


class Location(NamedTuple):
    """Where a released tensor lives.

    Attributes:
      path: keys into the nested parameters.
      block: index on the leading axis of a bank, None outside banks.
      transposed: whether the released matrix is the transpose of ours.
    """

    path: tuple[str, ...]
    block: int | None
    transposed: bool


NOT_PARAMETERS = re.compile(r"(^|\.)manifold\.k$|^A_query_input_proj\.")
"""What is stored with the released parameters: the constant curvature of the attention, and the
projection of DL-DKD's exploration branch that is never called."""

_PARAMETER = re.compile(r"\w{1,64}(\.\w{1,64}){0,11}", re.ASCII)
"""What any parameter's name looks like: letters, digits, underscores, and not too many dots."""

_MARKS = (
    ("gmmformer_v2", r"weight_token$"),
    ("ms_sl", r"mapping_linear\."),
    ("dl_dkd", r"B_mapping_linear\."),
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
    (r"B_query_input_proj\.", "query_input."),
    (r"B_query_pos_embed\.", "query_position."),
    (r"B_query_encoder\.", "query_encoder."),
    (r"B_modular_vector_mapping\.", "query_pooling."),
    (r"A_query_pos_embed\.", "exploration_position."),
    (r"A_query_encoder\.", "exploration_encoder."),
    (r"A_modular_vector_mapping\.", "exploration_pooling."),
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
    listed = list(names)
    models = (model for model, mark in _MARKS if any(re.match(mark, name) for name in listed))
    return next(models, None)


def locate(name: str, model: str = "hlformer") -> Location:
    """Returns where the released parameter `name` of that model lives in ours."""
    ours = name
    if model == "dl_dkd":
        for released, branch in (("A", "frame"), ("B", "clip")):  # the branch that it stands for
            ours = re.sub(rf"^{released}_frame_", f"{branch}_", ours)
            ours = re.sub(rf"^{released}_mapping_linear\.", f"{branch}_mapping.", ours)
    if model == "gmmformer":
        ours = re.sub(r"^modular_vector_mapping_2\.", "video_pooling.", ours)
    for pattern, replacement in _PREFIXES:
        ours, replaced = re.subn("^" + pattern, replacement, ours)
        if replaced:
            break
    for pattern, replacement in _PARTS:
        ours = re.sub(pattern, replacement, ours)
    block = re.search(r"\.\[(\d+)\]", ours)
    path = tuple(re.sub(r"\.\[\d+\]", "", ours).split("."))
    return Location(path, int(block[1]) if block else None, path[-1] == "kernel")


def to_params(released: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Turns released parameters (or anything named like them) into our nested parameters.

    Args:
      released: arrays by released name; constants that are no parameters are left out.

    Returns:
      Nested dict of NumPy arrays, banks stacked.

    Raises:
      ConversionError: when a name is no parameter's, two names have one location, or a bank's
        blocks do not count from 0 or differ in shape.
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
        blocks[block] = _oriented(name, path, value.T if transposed else np.asarray(value))
    params: dict[str, Any] = {}
    for path, blocks in banks.items():
        if clash := [path[:end] for end in range(1, len(path)) if path[:end] in banks]:
            inner, outer = ".".join(path), ".".join(clash[0])
            raise ConversionError(f"{quoted(inner)} lies within {quoted(outer)}, which is a tensor")
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = _stack(path, blocks)
    return params


def _oriented(name: str, path: tuple[str, ...], value: np.ndarray) -> np.ndarray:
    """Removes axes of one element that only the released code has."""
    if path[-2:] == ("attention", "scale"):
        if value.size != 1:
            raise ConversionError(f"{quoted(name)} has {value.size} elements instead of one")
        return value.reshape(())
    if path == ("weight_token",):
        return value.reshape(-1)  # stored with axes for batch and position
    return value


def _stack(path: tuple[str, ...], blocks: dict[int | None, np.ndarray]) -> np.ndarray:
    """Returns one array for a bank's blocks, or the only array of a path outside banks."""
    if blocks.keys() == {None}:
        return blocks[None]
    if blocks.keys() != set(range(len(blocks))):
        raise ConversionError(
            f"{quoted('.'.join(path))}: its blocks do not count from 0 to the last"
        )
    shapes = {value.shape for value in blocks.values()}
    if len(shapes) > 1:
        two = " and ".join(map(str, sorted(shapes)[:2]))
        raise ConversionError(f"{quoted('.'.join(path))}: its blocks differ in shape: {two}")
    return np.stack([blocks[block] for block in range(len(blocks))])


def lookup(params: Mapping[str, Any], name: str, model: str = "hlformer") -> Any:
    """Our counterpart of one released tensor of that model, in the released orientation."""
    path, block, transposed = locate(name, model)
    value: Any = params
    for key in path:
        value = value[key]
    value = value if block is None else value[block]
    return value.T if transposed else value
