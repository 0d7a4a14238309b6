"""feature.bin and shape.txt: rows in any order, and every fault named."""

import numpy as np
import pytest
from corpora import assert_refused, feature


def _recode(dtype):
    return feature("feature.bin", lambda data: np.frombuffer(data, "<f4").astype(dtype).tobytes())


FAULTS = {
    "bin_long": (
        feature("feature.bin", lambda d: d + d[:12]),
        ["feature.bin", "12 bytes too long", "shape.txt"],
    ),
    "bin_short": (
        feature("feature.bin", lambda d: d[:-4]),
        ["feature.bin", "4 bytes too short", "shape.txt"],
    ),
    "bin_float64": (_recode("<f8"), ["feature.bin", "too long", "float64"]),
    "bin_float16": (_recode("<f2"), ["feature.bin", "too short", "float16"]),
    "bin_big_endian": (_recode(">f4"), ["feature.bin", "big-endian"]),
    "bin_of_zeros": (feature("feature.bin", lambda d: bytes(len(d))), ["feature.bin", "is zero"]),
    "bin_float64_of_right_size": (
        feature(
            "feature.bin", lambda d: np.frombuffer(d[: len(d) // 2], "<f4").astype("<f8").tobytes()
        ),
        ["feature.bin", "float64"],
    ),
    "shape_three_numbers": (
        feature("shape.txt", lambda d: b"24 6 1\n"),
        ["shape.txt:1", "24 6 1", "ROWS WIDTH"],
    ),
    "shape_one_number": (feature("shape.txt", lambda d: b"24\n"), ["shape.txt:1", "ROWS WIDTH"]),
    "shape_words": (feature("shape.txt", lambda d: b"24 six\n"), ["shape.txt:1", "24 six"]),
    "shape_zero": (feature("shape.txt", lambda d: b"0 6\n"), ["shape.txt:1", "positive"]),
    "shape_width": (
        feature("shape.txt", lambda d: b"12 12\n"),
        ["shape.txt:1", "12 wide", "says 6", "data.visual_dim"],
    ),
    "shape_of_many_digits": (
        feature("shape.txt", lambda d: b"9" * 5000 + b" 6\n"),
        ["shape.txt:1", "ROWS WIDTH"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    assert_refused(write(tiny), *FAULTS[fault])
