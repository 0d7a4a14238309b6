import pytest
import torch_files


@pytest.fixture
def torch(monkeypatch):
    return torch_files.FakeTorch(monkeypatch)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "best.ckpt"
