"""The notebooks of the documentation run from their first cell to their last."""

import nbclient
import nbformat
import processes
import pytest

NOTEBOOKS = sorted((processes.ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
# Jupyter's client and kernel warn of their own transport and event loop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(processes.ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=where).execute()
