"""Parameters of an encoder from safetensors files of a Hugging Face folder, and back.

`leaves` says where each parameter stands in a file: its name, shape and arrangement there. A file
is read strictly: a tensor that is missing, unknown or of another shape is an error, since a model
that runs with a part of its weights gives numbers that mean nothing.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from hlformer_jax.encoders.config import Config, EncoderError, Roberta, TextConfig, Tower
from hlformer_jax.encoders.transformer import Params

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""Names of the file of all weights, and of the list of several files."""

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
"""Dtypes that products may be computed in, by name."""

_FLOATS = ("F16", "BF16", "F32", "F64")
_BUFFERS = ".position_ids"  # of old files: the numbers from 0, no parameter
_PREFIX = "roberta."
_HEADS = ("lm_head.", "pooler.", "roberta.pooler.")  # of a RoBERTa, and not read
_LAYER = {
    "norm1": "layer_norm1", "norm2": "layer_norm2", "query": "self_attn.q_proj",
    "key": "self_attn.k_proj", "value": "self_attn.v_proj", "out": "self_attn.out_proj",
    "fc1": "mlp.fc1", "fc2": "mlp.fc2",
}  # fmt: skip
_ROBERTA_LAYER = {
    "norm1": "attention.output.LayerNorm", "norm2": "output.LayerNorm",
    "query": "attention.self.query", "key": "attention.self.key",
    "value": "attention.self.value", "out": "attention.output.dense",
    "fc1": "intermediate.dense", "fc2": "output.dense",
}  # fmt: skip

Place = tuple[str, ...]
"""The names on the way to a leaf of the parameter tree."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of the parameter tree."""

    names: tuple[str, ...]  # of its tensors in the file, one, or one for each layer
    shape: tuple[int, ...]  # of each of these
    read: Callable[[np.ndarray], np.ndarray] = lambda x: x  # file's arrangement → tree's
    write: Callable[[np.ndarray], np.ndarray] = lambda x: x  # the way back
    matrix: bool = False  # a kernel or token embeddings, which a smaller dtype may hold

    @property
    def stacked(self) -> bool:
        """Whether the layer is the leaf's first axis."""
        return re.search(r"\.layers?\.\d", self.names[0]) is not None


def leaves(config: TextConfig, prefix: str = "") -> dict[Place, Leaf]:
    """Every parameter of an encoder, by its path; a RoBERTa's names may have a prefix."""
    if isinstance(config, Roberta):
        return _roberta(config, prefix)
    assert isinstance(config, Config)
    clip = config.family == "clip"
    vision, text = config.vision, config.text
    tree: dict[Place, Leaf] = {}

    image = "vision_model"
    tree |= _convolution(("vision", "patch"), f"{image}.embeddings.patch_embedding", config)
    positions = vision.grid**2 + clip
    tree["vision", "positions"] = Leaf(
        (f"{image}.embeddings.position_embedding.weight",), (positions, vision.width)
    )
    if clip:
        tree["vision", "class"] = Leaf((f"{image}.embeddings.class_embedding",), (vision.width,))
        tree |= _norm(("vision", "pre_norm"), f"{image}.pre_layrnorm", vision)  # sic
    tree |= _layers(("vision", "layers"), f"{image}.encoder.layers", vision)
    tree |= _norm(("vision", "post_norm"), f"{image}.post_layernorm", vision)
    if clip:
        sizes = (vision.width, config.width)
        tree |= _linear(("vision", "projection"), "visual_projection", *sizes, bias=False)
    else:
        tree |= _pooling(("vision", "pool"), f"{image}.head", vision)

    sentence = "text_model"
    tree["text", "tokens"] = Leaf(
        (f"{sentence}.embeddings.token_embedding.weight",),
        (text.vocabulary, text.width),
        matrix=True,
    )
    tree["text", "positions"] = Leaf(
        (f"{sentence}.embeddings.position_embedding.weight",), (text.positions, text.width)
    )
    tree |= _layers(("text", "layers"), f"{sentence}.encoder.layers", text)
    tree |= _norm(("text", "final_norm"), f"{sentence}.final_layer_norm", text)
    head = "text_projection" if clip else f"{sentence}.head"
    tree |= _linear(("text", "head"), head, text.width, config.width, bias=not clip)

    scalar = lambda x: x.reshape(())
    if clip:
        tree[("scale",)] = Leaf(("logit_scale",), (), scalar)
    else:
        vector = lambda x: x.reshape((1,))
        for name in ("scale", "bias"):
            tree[(name,)] = Leaf((f"logit_{name}",), (1,), scalar, vector)
    return tree


def _linear(
    path: Place, name: str | tuple[str, ...], inputs: int, outputs: int, bias: bool = True
) -> Iterator[tuple[Place, Leaf]]:
    names = (name,) if isinstance(name, str) else name
    turned = lambda x: np.ascontiguousarray(np.swapaxes(x, -1, -2))
    kernel = tuple(f"{each}.weight" for each in names)
    yield (*path, "kernel"), Leaf(kernel, (outputs, inputs), turned, turned, matrix=True)
    if bias:
        yield (*path, "bias"), Leaf(tuple(f"{each}.bias" for each in names), (outputs,))


def _norm(path: Place, name: str | tuple[str, ...], tower: Tower) -> Iterator[tuple[Place, Leaf]]:
    names = (name,) if isinstance(name, str) else name
    for ours, theirs in (("scale", "weight"), ("bias", "bias")):
        yield (*path, ours), Leaf(tuple(f"{each}.{theirs}" for each in names), (tower.width,))


def _layers(
    path: Place, stem: str, tower: Tower, parts: Mapping[str, str] = _LAYER
) -> Iterator[tuple[Place, Leaf]]:
    sizes = {"fc1": (tower.width, tower.hidden), "fc2": (tower.hidden, tower.width)}
    for ours, theirs in parts.items():
        names = tuple(f"{stem}.{i}.{theirs}" for i in range(tower.layers))
        if ours.startswith("norm"):
            yield from _norm((*path, ours), names, tower)
        else:
            yield from _linear((*path, ours), names, *sizes.get(ours, (tower.width,) * 2))


def _roberta(config: Roberta, prefix: str) -> dict[Place, Leaf]:
    text, stem = config.text, f"{prefix}embeddings"
    table = lambda name, rows, **options: Leaf(
        (f"{stem}.{name}_embeddings.weight",), (rows, text.width), **options
    )
    tree: dict[Place, Leaf] = {
        ("text", "tokens"): table("word", text.vocabulary, matrix=True),
        ("text", "positions"): table("position", text.pad + 1 + text.positions),
        ("text", "segments"): table("token_type", config.segments),
    }
    tree |= _norm(("text", "first_norm"), f"{stem}.LayerNorm", text)
    return tree | dict(_layers(("text", "layers"), f"{prefix}encoder.layer", text, _ROBERTA_LAYER))


def _pooling(path: Place, name: str, tower: Tower) -> Iterator[tuple[Place, Leaf]]:
    flat, deep = lambda x: x.reshape(-1), lambda x: x.reshape(1, 1, -1)
    yield (*path, "probe"), Leaf((f"{name}.probe",), (1, 1, tower.width), flat, deep)
    for place, leaf in _linear((*path, "in"), "", tower.width, 3 * tower.width):
        own = f"{name}.attention.in_proj_{'weight' if place[-1] == 'kernel' else 'bias'}"
        yield place, replace(leaf, names=(own,))
    yield from _linear((*path, "out"), f"{name}.attention.out_proj", tower.width, tower.width)
    yield from _norm((*path, "norm"), f"{name}.layernorm", tower)
    yield from _linear((*path, "fc1"), f"{name}.mlp.fc1", tower.width, tower.hidden)
    yield from _linear((*path, "fc2"), f"{name}.mlp.fc2", tower.hidden, tower.width)


def _convolution(path: Place, name: str, config: Config) -> Iterator[tuple[Place, Leaf]]:
    """The convolution of patches as a product: [out, channel, row, column] in the file."""
    size, width = config.vision.patch_size, config.vision.width
    read = lambda x: np.ascontiguousarray(x.transpose(2, 3, 1, 0)).reshape(-1, width)
    write = lambda x: np.ascontiguousarray(x.reshape(size, size, 3, width).transpose(3, 2, 0, 1))
    yield (
        (*path, "kernel"),
        Leaf((f"{name}.weight",), (width, 3, size, size), read, write, matrix=True),
    )
    if config.family == "siglip":
        yield (*path, "bias"), Leaf((f"{name}.bias",), (width,))


def files(folder: Path) -> list[Path]:
    """The weights' files of a folder, in a fixed order; they may be missing."""
    index = folder / INDEX
    if (folder / SINGLE).exists() or not index.exists():
        return [folder / SINGLE]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        plain = all(isinstance(name, str) and name == Path(name).name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EncoderError(f"{index}: no list of weights' files; fetch it again") from error
    if not names or not plain:
        raise EncoderError(f"{index}: names files that are not plain names in its folder")
    return [folder / name for name in sorted(names)]


def read(paths: list[Path], config: TextConfig, dtype: str) -> Params:
    """The parameters in safetensors files, as NumPy arrays.

    Kernels and token embeddings get the dtype, a name of `DTYPES`; all else is float32.

    Raises:
      EncoderError: when a file is damaged, or a tensor missing, unknown, misshapen or no float.
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
        prefix = _PREFIX if any(name.startswith(_PREFIX) for name in holders) else ""
        tree = leaves(config, prefix)
        if isinstance(config, Roberta):
            holders = {k: file for k, file in holders.items() if not k.startswith(_HEADS)}
        _check(holders, tree, where)
        params: Params = {}
        for place, leaf in tree.items():
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


def _check(holders: Mapping[str, Any], tree: Mapping[Place, Leaf], where: str) -> None:
    """Refuses files that do not hold exactly these parameters."""
    wanted = {name: leaf.shape for leaf in tree.values() for name in leaf.names}
    first = lambda names: names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    missing = sorted(wanted.keys() - holders.keys())
    unknown = sorted(name for name in holders.keys() - wanted.keys() if not name.endswith(_BUFFERS))
    if missing:
        also = f" (it holds {unknown[0]} instead?)" if unknown else ""
        raise EncoderError(f"{where}: lacks the tensor {first(missing)}{also}; not this model's")
    if unknown:
        raise EncoderError(f"{where}: holds an unknown tensor {first(unknown)}; another model's?")
    for name, shape in wanted.items():
        part = holders[name].get_slice(name)
        actual = tuple(part.get_shape())
        # CLIP and SigLIP differ in whether a logit's scale is a vector of one.
        if actual != shape and not (name.startswith("logit_") and actual in ((), (1,))):
            raise EncoderError(
                f"{where}: the tensor {name} has the shape {actual}, but config.json says {shape}"
            )
        if part.get_dtype() not in _FLOATS:
            raise EncoderError(
                f"{where}: the tensor {name} is {part.get_dtype()}, none of {', '.join(_FLOATS)};"
                " quantised weights are not read"
            )


def _put(tree: Params, path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value
