"""Rows rounded to few bits, with the error of each: the best of millions without reading them all.

A row is kept as scale · values + rest, values of int8, and beside it the length of the rest. So for
every row, by Cauchy and Schwarz,

    |⟨row, query⟩ − scale ⟨values, query⟩| ≤ error = |rest| · |query|

and a row can be among the best k videos only where its product and its error together reach the
k-th largest of the videos' products without theirs. Those rows, a few hundred of millions, are
multiplied again as they were; so what is found is exact, and only the time depends on the rounding.

With the dtype bfloat16 the values are the upper halves of float32 numbers, and scales are 1.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax.search import packed

DTYPES = {"int8": np.int8, "bfloat16": np.uint16}
"""What values can be rounded to, and the dtype of their files: NumPy has no bfloat16."""

DTYPE = "int8"
"""What an index rounds to: half of the bytes of bfloat16, and the result is the same."""

MOST = 2**14
"""Rows that are multiplied again together; so many are copied."""


class Quantised(NamedTuple):
    """Rows that are rounded.

    Attributes:
      values: int8, or the bits of bfloat16 as uint16, mapped from the disk.
      scale: what they are multiplied by, float32.
      error: the largest error of a product with a unit vector, that of computing it included.
    """

    values: np.ndarray
    scale: Float[np.ndarray, " R"]
    error: Float[np.ndarray, " R"]


def quantise(rows: Float[np.ndarray, "R d"], dtype: str = DTYPE) -> Quantised:
    """Rounds rows to the nearest.

    Args:
      rows: rows of any floating dtype, finite.
      dtype: a name of `DTYPES`.
    """
    wide = packed.widened(rows, np.empty(rows.shape, np.float32))
    if dtype == "int8":
        largest = np.maximum(wide.max(-1), -wide.min(-1))
        scale = np.where(largest > 0, largest, np.float32(1)) / np.float32(127)
        values = np.rint(wide / scale[:, None]).astype(np.int8)
    else:
        scale = np.ones(len(wide), np.float32)
        bits = wide.view(np.uint32)
        values = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # ties to even
    rest = packed.widened(values, np.empty(wide.shape, np.float32))
    rest *= -scale[:, None]
    rest += wide
    lengths, rests = (np.sqrt(np.vecdot(x, x)) for x in (wide, rest))
    # A product of d terms in float32 is off by d/2 ulps of the lengths' product at most, and there
    # are two, one of the values and one of the row as it was.
    rounding = np.float32(wide.shape[-1] * 2.0**-23)
    return Quantised(values, scale, rests + rounding * (lengths + rests))


def kept(path: Path, matrix: Float[np.ndarray, "R d"], dtype: str = DTYPE) -> Quantised:
    """The rounded rows of a matrix, from files where they are there, or else made and written.

    Args:
      path: the matrix's file; theirs have its name and more, and go with it.
      matrix: the matrix.
      dtype: a name of `DTYPES`.

    Returns:
      The rounded rows, mapped from the disk where they can be written there.
    """
    count, shape = len(matrix), matrix.shape
    files = [path.with_suffix(f".{dtype}{part}.npy") for part in ("", "-bounds")]
    kinds = [(shape, np.dtype(DTYPES[dtype])), ((2, count), np.dtype(np.float32))]
    found = [packed.mapped(file, *kind) for file, kind in zip(files, kinds, strict=True)]
    if all(one is not None for one in found):
        values, bounds = (one for one in found if one is not None)
        return Quantised(values, *np.array(bounds))
    bounds = np.empty((2, count), np.float32)

    def fill(values: np.ndarray) -> None:
        for start in range(0, count, packed.ROWS_AT_ONCE):
            part = slice(start, start + packed.ROWS_AT_ONCE)
            values[part], bounds[0, part], bounds[1, part] = quantise(matrix[part], dtype)

    values = packed.written(files[0], *kinds[0], fill)
    packed.written(files[1], *kinds[1], lambda target: np.copyto(target, bounds))
    return Quantised(values, *bounds)


def products(rows: Quantised, query: Float[np.ndarray, " d"]) -> Float[np.ndarray, " R"]:
    """Inner products of rounded rows and a query, in float32."""
    found = packed.products(rows.values, query)
    found *= rows.scale
    return found


def best(
    rows: Quantised,
    matrix: Float[np.ndarray, "R d"],
    starts: Int[np.ndarray, " V"],
    query: Float[np.ndarray, " d"],
    count: int,
    among: Bool[np.ndarray, " V"],
) -> Float[np.ndarray, " V"] | None:
    """Scores of the best videos.

    Args:
      rows: the rounded rows.
      matrix: the rows as they were.
      starts: the first row of each video, rising.
      query: the query.
      count: how many of the best are wanted.
      among: which videos are asked for.

    Returns:
      The largest product of each video that may be among the best `count`, exact for those that
      are, all that are as good as the last of them included; -inf for the others. None where so
      many rows would have to be multiplied again that all can be.
    """
    if not 0 < count < np.count_nonzero(among):
        return None
    scores = products(rows, query)
    reach = rows.error * np.float32(np.linalg.norm(query) * (1 + 1e-6))
    least = np.maximum.reduceat(scores - reach, starts)[among]
    threshold = np.partition(least, -count)[-count]
    scores += reach
    chosen = np.flatnonzero(scores >= threshold)
    videos = np.searchsorted(starts, chosen, side="right") - 1
    asked = among[videos]
    chosen, videos = chosen[asked], videos[asked]
    if len(chosen) > len(matrix) // 8:
        return None
    found = np.full(len(starts), -np.inf, np.float32)
    for start in range(0, len(chosen), MOST):
        part = matrix[chosen[start : start + MOST]]
        # Row by row: equal rows have equal products, wherever they stand.
        exact = np.vecdot(packed.widened(part, np.empty(part.shape, np.float32)), query)
        np.maximum.at(found, videos[start : start + MOST], exact)
    return found
