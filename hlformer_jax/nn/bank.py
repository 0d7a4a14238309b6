"""The bank of windowed attention blocks: one vmapped block for each geometry."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.nn.blocks import EuclideanBlock, LorentzBlock
from hlformer_jax.ops import windows
from hlformer_jax.ops.numerics import wide
from hlformer_jax.typing import Array


class Windows(NamedTuple):
    """Windows of a bank over L positions; of a geometry without blocks None.

    Attributes:
      euclidean: of the Euclidean blocks.
      log_lorentz: logarithms of those of the Lorentz blocks.
    """

    euclidean: Float[Array, "K L L"] | None
    log_lorentz: Float[Array, "K L L"] | None


class GaussianBank(nn.Module):
    """K windowed attention blocks over the same input: one vmapped block for each geometry.

    Parameters carry a leading axis of blocks, Euclidean blocks first in the output (the released
    order). Widths of 0 are blocks without a window.

    Attributes:
      euclidean_widths: width of each Euclidean block.
      lorentz_widths: width of each Lorentz block.
      window: kind of window, see ops/windows.py.
      lorentz_window: "released" or "corrected" use of it in the Lorentz blocks.
      curvature: initial c of Lorentz blocks that learn one each; None: the curvature of the call.
      expansion: see `EuclideanBlock`.
      kernels: see `EuclideanAttention`.

    `given` windows take the place of those that the widths ask for: arguments of a program that is
    to serve several.
    """

    euclidean_widths: Sequence[float]
    lorentz_widths: Sequence[float]
    lorentz_dim: int
    num_heads: int
    dropout: float
    window: str = "released"
    lorentz_window: str = "released"
    head_merge: str = "released"
    curvature: float | None = None
    expansion: int = 4
    dtype: Any = jnp.float32
    kernels: str = "xla"

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch L H"],
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
        c: ArrayLike = 1.0,
        given: Windows | None = None,
    ) -> Float[Array, "K *batch L H"]:
        outputs = []
        window, log_window = given or self.windows(x.shape[-2], wide(x.dtype))
        if self.euclidean_widths:
            bank = _over_blocks(EuclideanBlock, (None, None, 0, None, None))(
                self.num_heads,
                self.dropout,
                self.expansion,
                dtype=self.dtype,
                kernels=self.kernels,
                name="euclidean",
            )
            outputs.append(bank(x, x, window, mask, train))
        if self.lorentz_widths:
            own = self.curvature is not None
            if self.curvature is not None:
                start = nn.initializers.constant(math.log(self.curvature))
                c = jnp.exp(self.param("attention_curv", start, (len(self.lorentz_widths),)))
            bank = _over_blocks(LorentzBlock, (None, 0, None, None, 0 if own else None))(
                self.lorentz_dim,
                self.num_heads,
                self.dropout,
                self.lorentz_window,
                self.head_merge,
                self.expansion,
                self.dtype,
                self.kernels,
                name="lorentz",
            )
            outputs.append(bank(x, log_window, mask, train, c))
        return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs)

    @nn.nowrap
    def windows(self, length: int, dtype: Any) -> Windows:
        """The windows of the bank's blocks, constants."""
        euclidean = log_lorentz = None
        if self.euclidean_widths:
            euclidean = windows.attention_windows(self.euclidean_widths, length, self.window, dtype)
        if self.lorentz_widths:
            log_lorentz = windows.log_attention_windows(
                self.lorentz_widths, length, self.window, dtype
            )
        return Windows(euclidean, log_lorentz)


def _over_blocks(block: type[nn.Module], in_axes: tuple[int | None, ...]) -> Any:
    return nn.vmap(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=in_axes,
    )
