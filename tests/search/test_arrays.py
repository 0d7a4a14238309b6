"""Files of vectors: no pickles in them, and any byte that differs is damage."""

import zipfile

import archive
import numpy as np
import pytest

from hlformer_jax.search.errors import DamagedError
from hlformer_jax.search.index import Index
from hlformer_jax.search.storage import Stamp, VideoArrays


def test_files_of_vectors_hold_no_pickles(index):
    for path in (index.directory / "videos").iterdir():
        with np.load(path, allow_pickle=False) as file:
            assert set(file) == {*VideoArrays._fields, "facts"}
        with zipfile.ZipFile(path) as file:
            assert not file.testzip()


def _flipped(content, place=400):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_vectors_of_another_encoder_are_not_taken_for_those_of_this_one(index, tmp_path):
    content = index.manifest.videos["b.film"].content
    other = Index.create(tmp_path / "other", index.root, archive.Encoder("0" * 64))
    with other.writing():
        other.keep(content, index.read(content), {"b.film": Stamp(1, 2, 3)})
    (other.directory / "videos" / f"{content}.npz").replace(index.file(content))
    with pytest.raises(DamagedError, match="is not of this index"):
        index.read(content)


def test_any_byte_that_differs_is_damage(index):
    content = index.manifest.videos["b.film"].content
    path = index.file(content)
    whole = path.read_bytes()
    for place in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(_flipped(whole, place))
        with pytest.raises(DamagedError, match="is damaged"):
            index.read(content)
    path.write_bytes(whole)
    index.read(content)
