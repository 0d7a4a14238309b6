"""Search in a store: an archive for it, libraries on it, and hits that agree with those without."""

import os

import archive
import numpy as np
import pytest

from hlformer_jax import search


def folder(path):
    """A folder of 18 films, some equal to the last bit, of dates that no two share."""
    archive.folder(path)
    for i in range(12):
        archive.random_film(path / f"f{i % 3}" / f"{i}.film", 8 + 5 * i, seed=i)
    for name in ("0.film", "z.film", "f1/y.film"):
        (path / name).write_bytes((path / "b.film").read_bytes())
    for i, film in enumerate(sorted(path.rglob("*.film"))):
        os.utime(film, (1e9 + 86400 * i + 0.25, 1e9 + 86400 * i + 0.25))
    return path


def opened(index, store, **options):
    """The library of an index, on a store or, with None, without one."""
    return search.open(index.directory, encoder=archive.Encoder(), store=store, **options)


def agree(found, expected, tolerance=1e-6):
    """The same videos in the same order, of the same scores and moments, up to rounding."""
    assert [hit.video for hit in found] == [hit.video for hit in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=tolerance)
        assert len(one.moments) == len(other.moments)
        np.testing.assert_allclose(one.scores, other.scores, atol=tolerance)
        for moment, same in zip(one.moments, other.moments, strict=True):
            assert moment == pytest.approx(same, abs=tolerance)
