"""Registered dataclasses: the leaves and constants that jit sees, one structure per class."""

import dataclasses
import itertools

import flax.struct
import jax
import jax.numpy as jnp
import pytest

from hlformer_jax.ops.manifolds import Euclidean, Lorentz, Poincare, Product, Sphere
from hlformer_jax.pytrees import STATIC, register_dataclass
from hlformer_jax.retrieval.scoring import GuidedSimilarity, MaximumSimilarity

ALIKE = {
    "spaces": [Poincare(0.7), Lorentz(0.7), Sphere(0.7)],
    "products": [Product((space(1.0), Euclidean())) for space in (Poincare, Lorentz, Sphere)],
    "scores": [MaximumSimilarity((0.5, 0.5)), GuidedSimilarity((0.5, 0.5))],
}


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Ellipse:
    axes: dict[str, float]
    unit: str = dataclasses.field(metadata=STATIC)
    tilt: float = 0.0


@pytest.mark.parametrize("name", ALIKE)
def test_structures_of_classes_with_equal_fields_differ(name):
    structures = [jax.tree.structure(tree) for tree in ALIKE[name]]
    assert all(a != b for a, b in itertools.combinations(structures, 2))


@pytest.mark.slow  # it takes seconds
def test_jit_distinguishes_classes_with_equal_fields():
    # With equal structures, about half of the processes gave one function in ten a wrong program.
    spaces = ALIKE["spaces"]
    for _ in range(100):
        number = jax.jit(lambda space: jnp.asarray([type(s) for s in spaces].index(type(space))))
        assert [int(number(space)) for space in spaces] == [0, 1, 2]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (flax.struct.field(pytree_node=False), "field 'unit' of Circle is a flax.struct.field"),
        (
            dataclasses.field(init=False),
            r"field 'unit' of Circle is a dataclasses.field\(init=False",
        ),
    ],
)
def test_fields_that_would_be_misread_are_refused(field, message):
    circle = dataclasses.make_dataclass("Circle", ["radius", ("unit", str, field)])
    with pytest.raises(TypeError, match=message):
        register_dataclass(circle)


def test_fields_are_children_or_constants():
    tree = Ellipse({"long": 2.0, "short": 1.0}, "m", 0.5)
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    assert [jax.tree_util.keystr(path) for path, _ in paths] == [
        ".axes['long']", ".axes['short']", ".tilt",
    ]  # fmt: skip
    assert jax.tree.unflatten(structure, [3, 4, 5]) == Ellipse({"long": 3, "short": 4}, "m", 5)
    assert structure != jax.tree.structure(dataclasses.replace(tree, unit="cm"))
    assert jax.tree.map(lambda x: 2 * x, tree).unit == "m"


def test_constants_stay_constants_in_a_subclass_of_flax():
    @flax.struct.dataclass  # noqa: TID251  (a user may)
    class Arc(Ellipse):
        angle: float = 1.0

    leaves, structure = jax.tree.flatten(Arc({"long": 2.0}, "m", 0.5, 3.0))
    assert leaves == [2.0, 0.5, 3.0]
    assert jax.tree.unflatten(structure, leaves).unit == "m"
