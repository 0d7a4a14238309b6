"""All public functions with a batch of points and curvatures on two devices: a program of its own.

It prints how many functions gave the values that they give on one device.
"""

import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
jax.config.update("jax_enable_x64", True)

from public import CASES  # noqa: E402


def main():
    """Computes everything on one device and on both, in a program each."""
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        for axes in (("batch",), ())
    )
    cases = [case for case in CASES if case.curved]
    traceable = [case.traceable(case.arguments((4,))) for case in cases]
    c = np.linspace(0.5, 2, 4)

    def everything(arguments, c):
        return [call(arrays, c) for (_, call), arrays in zip(traceable, arguments, strict=True)]

    arguments = [arrays for arrays, _ in traceable]
    sharded = [
        {name: jax.device_put(array, split if name in case.batched else whole)
         for name, array in arrays.items()}
        for case, arrays in zip(cases, arguments, strict=True)
    ]  # fmt: skip
    want = jax.jit(everything)(arguments, c)
    got = jax.jit(everything)(sharded, jax.device_put(c, split))
    for case, one, other in zip(cases, got, want, strict=True):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert len(a.sharding.device_set) == 2, case.name
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14, err_msg=case.name)
    print(len(cases))


main()
