"""Vector databases beside which the search is timed: they find what NumPy finds."""

import numpy as np
import pytest

from hlformer_jax.benchmark import stores
from hlformer_jax.benchmark.archive import BEST, Archive


@pytest.mark.parametrize(
    ("name", "module"), [("Qdrant local", "qdrant_client"), ("LanceDB", "lancedb")]
)
def test_a_store_finds_the_best_frames(name, module, tmp_path):
    pytest.importorskip(module)
    archive = Archive(0.0, 8)
    queries = archive.queries(3)
    every = np.concatenate([archive.vectors(video) for video in range(archive.videos)])
    _, fill = stores.available()[name]
    ask = fill(archive, tmp_path)
    for query in queries:
        np.testing.assert_array_equal(ask(query), np.argsort(-(every @ query))[:BEST])


def test_a_store_that_is_not_installed_is_told(monkeypatch, capsys):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(stores.importlib, "import_module", missing)
    assert stores.available() == {}
    assert "LanceDB is not measured: lancedb is not installed" in capsys.readouterr().err
