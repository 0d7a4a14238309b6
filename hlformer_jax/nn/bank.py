"""The bank of windowed attention blocks: one vmapped block for each geometry."""

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, Bool, Float

from hlformer_jax.nn.blocks import BlockOptions, EuclideanBlock, LorentzBlock, LorentzOptions
from hlformer_jax.ops import windows
from hlformer_jax.typing import Array


class Windows(NamedTuple):
    """Windows of a bank, logarithms for the Lorentz blocks; None for a geometry without blocks."""

    euclidean: Float[Array, "K L L"] | None
    log_lorentz: Float[Array, "K L L"] | None


@dataclasses.dataclass(frozen=True)
class BankOptions:
    """Options of a bank: of all blocks, of the Lorentz blocks, and the numbers of either."""

    block: BlockOptions
    lorentz: LorentzOptions
    euclidean_blocks: int
    lorentz_blocks: int


def make_windows(
    euclidean_widths: tuple[float, ...],
    lorentz_widths: tuple[float, ...],
    length: int,
    kind: str,
    dtype: DTypeLike,
) -> Windows:
    """The windows of a bank over L positions, of a kind of `ops.windows.KINDS`, as constants.

    Each block has a width; 0 is no window.
    """
    euclidean = log_lorentz = None
    if euclidean_widths:
        euclidean = windows.attention_windows(euclidean_widths, length, kind, dtype)
    if lorentz_widths:
        log_lorentz = windows.log_attention_windows(lorentz_widths, length, kind, dtype)
    return Windows(euclidean, log_lorentz)


class GaussianBank(nn.Module):
    """K windowed attention blocks over the same input: one vmapped block for each geometry.

    Parameters carry a leading axis of blocks, Euclidean blocks first in the output (the released
    order). The windows are arguments, so that banks which differ in them alone share a program.
    """

    options: BankOptions

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*batch L H"],
        windows: Windows,
        mask: Bool[Array, "*batch L"] | None,
        train: bool,
        c: ArrayLike = 1.0,
    ) -> Float[Array, "K *batch L H"]:
        options, outputs = self.options, []
        if options.euclidean_blocks:
            bank = _over_blocks(EuclideanBlock, (None, None, 0, None, None))(
                options.block, name="euclidean"
            )
            outputs.append(bank(x, x, windows.euclidean, mask, train))
        if options.lorentz_blocks:
            bank = _over_blocks(LorentzBlock, (None, 0, None, None, None))(
                options.block, options.lorentz, name="lorentz"
            )
            outputs.append(bank(x, windows.log_lorentz, mask, train, c))
        return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs)


def _over_blocks(block: type[nn.Module], in_axes: tuple[int | None, ...]) -> Any:
    return nn.vmap(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=in_axes,
    )
