"""The public functions of hyperbolic space, read from the table of `docs/geometry.md`.

A function that joins the table joins the tests that go over it: its arguments are made from its
signature, arrays from the axes of their annotations and the rest from `NUMBERS`.
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import AbstractArray

from hlformer_jax.ops import cones, distributions, horopca, lorentz, means, poincare

TABLE = Path(__file__).parents[2] / "docs" / "geometry.md"
MODULES = {
    module.__name__.rpartition(".")[-1]: module
    for module in (cones, distributions, horopca, lorentz, means, poincare)
}
N = 5  # dimension of the spaces
SIZES = {"n": N, "n1": N + 1, "d": N + 1, "L": 4, "M": 3, "N": 4, "k": 2, "m": 3, "classes": 3}
NUMBERS = {"t": 0.3, "limit": 0.5, "r": -1.5, "scale": 0.7, "dims": (2, 3), "n": N}
BATCH = "*#batch"


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of the table.

    Attributes:
      name: its module and its name.
      function: the function.
    """

    name: str
    function: Callable

    def __call__(self, arguments, c=None):
        """Calls it, at a curvature if it has one."""
        return self.function(**arguments, **({"c": c} if self.curved else {}))

    @property
    def curved(self):
        """Whether it has a curvature, as all have but inner products and the like."""
        return "c" in inspect.signature(self.function).parameters

    @property
    def required(self):
        """Annotations of the parameters to be given, the curvature aside."""
        found = inspect.signature(self.function).parameters
        return {
            name: p.annotation
            for name, p in found.items()
            if p.default is inspect.Parameter.empty and name != "c"
        }

    @property
    def axes(self):
        """Axes of the arrays among them."""
        # A jaxtyping of several kinds of arrays is the union of theirs.
        kinds = {name: typing.get_args(of) or (of,) for name, of in self.required.items()}
        return {
            name: re.sub(r"\*#?batch", BATCH, kind.dim_str).split()
            for name, (kind, *_) in kinds.items()
            if isinstance(kind, type) and issubclass(kind, AbstractArray)
        }

    @property
    def vectors(self):
        """Parameters with one vector for each entry of the batch: points, tangent vectors."""
        return [name for name, axes in self.axes.items() if axes[:1] == [BATCH] and len(axes) == 2]

    @property
    def batched(self):
        """Parameters with batch axes: vectors, sets of vectors, sequences of them."""
        found = [name for name, axes in self.axes.items() if axes[:1] == [BATCH]]
        return found or [name for name in self.required if name == "points"]

    def at(self, arguments, index):
        """The arguments for one entry of the batch."""
        take = lambda value: jax.tree.map(lambda array: array[index], value)
        return {n: take(v) if n in self.batched else v for n, v in arguments.items()}

    def traceable(self, arguments):
        """The arrays among the arguments, and a function of those and a curvature."""
        fixed = {n: v for n, v in arguments.items() if n in ("key", "dims", "n")}
        arrays = {n: v for n, v in arguments.items() if n not in fixed}
        return arrays, lambda arrays, c: self({**arrays, **fixed}, c)

    def arguments(self, batch, seed=0):
        """Arguments by name, arrays in float64; points lie within 1.3 of the origin for c = 1."""
        rng, found = np.random.default_rng(seed), {}

        def array(*axes):
            shape = [SIZES[axis] for axis in axes if axis != BATCH]
            lead = batch if axes[:1] == (BATCH,) else ()
            if axes[-1] in ("n1", "d"):
                space = rng.uniform(-0.8, 0.8, size=(*lead, *shape[:-1], shape[-1] - 1))
                return np.asarray(lorentz.from_space(space))
            drawn = rng.uniform(-0.25, 0.25, size=(*lead, *shape))
            return drawn if lead or len(shape) < 2 else np.linalg.qr(drawn.T)[0].T

        for name, annotation in self.required.items():
            if self.axes.get(name):
                found[name] = array(*self.axes[name])
            elif name == "key":
                found[name] = jax.random.key(seed)
            elif getattr(annotation, "__origin__", None) is Sequence and name == "points":
                width = "n1" if self.name.startswith("lorentz") else "n"
                found[name] = [array(BATCH, width), array(BATCH, width)]
            else:
                found[name] = NUMBERS[name]
                if name in self.axes:
                    found[name] = np.asarray(found[name])
        return found


def cases(table=TABLE):
    """The functions that the table names, in its order; of `lorentz` or `poincare` by default."""
    found = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1] if line.startswith("|") else ()
        for default, cell in zip(("lorentz", "poincare"), cells[2:], strict=False):
            for module, name in re.findall(r"`(?:([a-z_]+)\.)?([a-z]\w*)`", cell):
                function = getattr(MODULES[module or default], name)
                found.setdefault(f"{module or default}.{name}", function)
    return [Case(name, function) for name, function in found.items()]


CASES = cases()
