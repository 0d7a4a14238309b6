"""The identity of a content: all its bytes, wherever the file lies."""

import hashlib
import os

import pytest

from hlformer_jax.search.storage import Stamp, fingerprint


@pytest.mark.parametrize("size", [0, 1, 300_000])
def test_every_byte_counts_and_the_name_does_not(tmp_path, size):
    content = bytearray(os.urandom(size))
    one, other = tmp_path / "one", tmp_path / "other name"
    one.write_bytes(content)
    other.write_bytes(content)
    assert fingerprint(one) == fingerprint(other) == hashlib.sha256(content).hexdigest()
    for place in range(0, size, max(size // 7, 1)):
        changed = content.copy()
        changed[place] ^= 1
        other.write_bytes(changed)
        assert fingerprint(other) != fingerprint(one)


def test_a_stamp_tells_of_a_change_whose_time_was_set_back(tmp_path):
    path = tmp_path / "film"
    path.write_bytes(b"before")
    before = Stamp.of(path.stat())
    path.write_bytes(b"behind")
    os.utime(path, ns=(before.modified_ns, before.modified_ns))
    after = Stamp.of(path.stat())
    assert after[:2] == before[:2] and after != before
