"""The fingerprint of a content: the same anywhere, another one for another content."""

import numpy as np
import pytest

from hlformer_jax.search import fingerprint as module
from hlformer_jax.search.fingerprint import fingerprint

SIZES = [0, 1, module.WHOLE - 1, module.WHOLE, module.WHOLE + 1, 3 * module.WHOLE + 17]


def content(size):
    return bytearray(np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes())


@pytest.mark.parametrize("size", SIZES)
def test_it_does_not_depend_on_the_name_and_does_on_both_ends(tmp_path, size):
    one, other = tmp_path / "one", tmp_path / "two"
    data = content(size)
    one.write_bytes(data)
    other.write_bytes(data)
    found = fingerprint(one)
    assert found == fingerprint(other) and len(found) == 32
    for place in {0, size - 1} if size else ():
        changed = data.copy()
        changed[place] ^= 1
        other.write_bytes(changed)
        assert fingerprint(other) != found
    other.write_bytes(data + b"\0")
    assert fingerprint(other) != found


@pytest.mark.parametrize("size", SIZES)
def test_pieces_lie_in_the_file_in_order_and_never_overlap(size):
    pieces = module._pieces(size)
    ends = [0, *(start + length for start, length in pieces)]
    assert all(start >= end for (start, _), end in zip(pieces, ends[:-1], strict=True))
    assert pieces[0][0] == 0 and ends[-1] == size
    assert sum(length for _, length in pieces) == min(size, module.WHOLE)


def test_a_change_in_the_middle_of_a_file_that_is_read_whole_is_seen(tmp_path):
    path = tmp_path / "film"
    data = content(module.WHOLE)
    path.write_bytes(data)
    found = fingerprint(path)
    data[module.WHOLE // 2] ^= 1
    path.write_bytes(data)
    assert fingerprint(path) != found
