"""Where each parameter stands in a Hugging Face file: its name, shape and arrangement there."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hlformer_jax.encoders.config import Config, Tower

Path = tuple[str, ...]
"""The names on the way to a leaf of the parameter tree."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of the parameter tree.

    Attributes:
      names: its tensors in the file, one, or one for each layer.
      shape: the shape of each of these.
      read: the arrangement in the file → that of the tree.
      write: the way back.
      matrix: True for what a smaller dtype may hold: kernels and token embeddings.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    read: Callable[[np.ndarray], np.ndarray] = lambda x: x
    write: Callable[[np.ndarray], np.ndarray] = lambda x: x
    matrix: bool = False

    @property
    def stacked(self) -> bool:
        """Whether the layer is the leaf's first axis."""
        return self.names[0].split(".layers.")[0] != self.names[0]


def leaves(config: Config) -> dict[Path, Leaf]:
    """Every parameter of an encoder, by its path."""
    clip = config.family == "clip"
    vision, text = config.vision, config.text
    found: dict[Path, Leaf] = {}

    image = "vision_model"
    found |= _convolution(("vision", "patch"), f"{image}.embeddings.patch_embedding", config)
    positions = vision.grid**2 + clip
    found["vision", "positions"] = Leaf(
        (f"{image}.embeddings.position_embedding.weight",), (positions, vision.width)
    )
    if clip:
        found["vision", "class"] = Leaf((f"{image}.embeddings.class_embedding",), (vision.width,))
        found |= _norm(("vision", "pre_norm"), f"{image}.pre_layrnorm", vision)  # sic
    found |= _layers(("vision", "layers"), image, vision)
    found |= _norm(("vision", "post_norm"), f"{image}.post_layernorm", vision)
    if clip:
        sizes = (vision.width, config.width)
        found |= _linear(("vision", "projection"), "visual_projection", *sizes, bias=False)
    else:
        found |= _pooling(("vision", "pool"), f"{image}.head", vision)

    sentence = "text_model"
    found["text", "tokens"] = Leaf(
        (f"{sentence}.embeddings.token_embedding.weight",),
        (text.vocabulary, text.width),
        matrix=True,
    )
    found["text", "positions"] = Leaf(
        (f"{sentence}.embeddings.position_embedding.weight",), (text.positions, text.width)
    )
    found |= _layers(("text", "layers"), sentence, text)
    found |= _norm(("text", "final_norm"), f"{sentence}.final_layer_norm", text)
    head = "text_projection" if clip else f"{sentence}.head"
    found |= _linear(("text", "head"), head, text.width, config.width, bias=not clip)

    scalar = lambda x: x.reshape(())
    if clip:
        found[("scale",)] = Leaf(("logit_scale",), (), scalar)
    else:
        vector = lambda x: x.reshape((1,))
        for name in ("scale", "bias"):
            found[(name,)] = Leaf((f"logit_{name}",), (1,), scalar, vector)
    return found


def _linear(
    path: Path, name: str | tuple[str, ...], inputs: int, outputs: int, bias: bool = True
) -> Iterator[tuple[Path, Leaf]]:
    names = (name,) if isinstance(name, str) else name
    turned = lambda x: np.ascontiguousarray(np.swapaxes(x, -1, -2))
    kernel = tuple(f"{each}.weight" for each in names)
    yield (*path, "kernel"), Leaf(kernel, (outputs, inputs), turned, turned, matrix=True)
    if bias:
        yield (*path, "bias"), Leaf(tuple(f"{each}.bias" for each in names), (outputs,))


def _norm(path: Path, name: str | tuple[str, ...], tower: Tower) -> Iterator[tuple[Path, Leaf]]:
    names = (name,) if isinstance(name, str) else name
    for ours, theirs in (("scale", "weight"), ("bias", "bias")):
        yield (*path, ours), Leaf(tuple(f"{each}.{theirs}" for each in names), (tower.width,))


def _layers(path: Path, name: str, tower: Tower) -> Iterator[tuple[Path, Leaf]]:
    of_each = lambda part: tuple(f"{name}.encoder.layers.{i}.{part}" for i in range(tower.layers))
    for ours, theirs in (("norm1", "layer_norm1"), ("norm2", "layer_norm2")):
        yield from _norm((*path, ours), of_each(theirs), tower)
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    for ours, theirs in parts.items():
        names = of_each(f"self_attn.{theirs}")
        yield from _linear((*path, ours), names, tower.width, tower.width)
    yield from _linear((*path, "fc1"), of_each("mlp.fc1"), tower.width, tower.hidden)
    yield from _linear((*path, "fc2"), of_each("mlp.fc2"), tower.hidden, tower.width)


def _pooling(path: Path, name: str, tower: Tower) -> Iterator[tuple[Path, Leaf]]:
    yield (
        (*path, "probe"),
        Leaf(
            (f"{name}.probe",),
            (1, 1, tower.width),
            lambda x: x.reshape(-1),
            lambda x: x.reshape(1, 1, -1),
        ),
    )
    for (*_, leaf), found in _linear((*path, "in"), "", tower.width, 3 * tower.width):
        own = f"{name}.attention.in_proj_{'weight' if leaf == 'kernel' else 'bias'}"
        yield (
            (*path, "in", leaf),
            Leaf((own,), found.shape, found.read, found.write, found.matrix),
        )
    yield from _linear((*path, "out"), f"{name}.attention.out_proj", tower.width, tower.width)
    yield from _norm((*path, "norm"), f"{name}.layernorm", tower)
    yield from _linear((*path, "fc1"), f"{name}.mlp.fc1", tower.width, tower.hidden)
    yield from _linear((*path, "fc2"), f"{name}.mlp.fc2", tower.hidden, tower.width)


def _convolution(path: Path, name: str, config: Config) -> Iterator[tuple[Path, Leaf]]:
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
