"""Registration of dataclasses as pytrees that `jax.jit` tells apart."""

import dataclasses
from types import MappingProxyType
from typing import Any, TypeVar

import jax

T = TypeVar("T")

STATIC = MappingProxyType({"static": True, "pytree_node": False})
"""Metadata of a field that is part of the structure: ``dataclasses.field(metadata=STATIC)``.

The second entry is for a `flax.struct.dataclass` that is a subclass.
"""


def register_dataclass(cls: type[T]) -> type[T]:
    """Register a dataclass as a pytree that `jax.jit` does not confuse with another class.

    JAX 0.10.0 to 0.10.2 compare structures of two classes as equal if the classes were registered
    by `jax.tree_util.register_dataclass` (which `flax.struct.dataclass` calls too) and the objects
    have equal static fields and as many leaves. A jitted function that has been called with an
    object of one class may then run the program of that class for an object of the other: the
    result is wrong, without an error, in some processes and not in others. Other kinds of
    registration do not have this fault.

    Args:
      cls: the dataclass. Its fields are children; those with the metadata `STATIC` are part of the
        structure, and so must be hashable.

    Returns:
      The class.

    Raises:
      TypeError: for a field that is not an argument of the constructor, and for a field of
        `flax.struct`, whose metadata has another name.
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # of a dataclass
    for field in fields:
        is_flax = "pytree_node" in field.metadata and "static" not in field.metadata
        if not field.init or is_flax:
            problem = "flax.struct.field" if field.init else "dataclasses.field(init=False)"
            raise TypeError(
                f"the field {field.name!r} of {cls.__name__} is a {problem}: use"
                " dataclasses.field(), with metadata=STATIC for a constant"
            )
    children = [field.name for field in fields if not field.metadata.get("static")]
    static = [field.name for field in fields if field.metadata.get("static")]
    keys = [jax.tree_util.GetAttrKey(name) for name in children]

    def flatten(tree: T) -> tuple[list[Any], tuple[Any, ...]]:
        leaves = [getattr(tree, name) for name in children]
        return leaves, tuple(getattr(tree, name) for name in static)

    def flatten_with_keys(tree: T) -> tuple[list[Any], tuple[Any, ...]]:
        leaves, constants = flatten(tree)
        return list(zip(keys, leaves, strict=True)), constants

    def unflatten(constants: tuple[Any, ...], leaves: Any) -> T:
        values = zip([*children, *static], [*leaves, *constants], strict=True)
        return cls(**dict(values))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
