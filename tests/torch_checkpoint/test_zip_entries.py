"""The zip file around a checkpoint: entries that are missing, too large, or of another format."""

import zipfile

import numpy as np
import pytest
from torch_files import write_zip

from hlformer_jax.torch_checkpoint import pickle_reader, zip_entries
from hlformer_jax.torch_checkpoint.errors import TorchFileError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numel": 5}, "too large"),
        ({"numel": 7}, "24 bytes instead of 7"),
        ({"numel": 2**62}, "24 bytes instead of"),
        ({"numel": 2**2000}, "persistent id"),
        ({"numel": -1}, "persistent id"),
        ({"numel": True}, "persistent id"),
        ({"numel": "6"}, "persistent id"),
        ({"key": "9"}, "lacks the entry 'data/9'"),
        ({"key": "../version"}, "lacks the entry"),
        ({"key": "/etc/passwd"}, "lacks the entry"),
        ({"key": 0}, "persistent id"),
        ({"tag": "module"}, "persistent id"),
    ],
)
def test_refuses_storages_that_are_not_as_declared(torch, path, changes, message):
    torch.save(path, {"x": torch.tensor("Float", np.arange(6, dtype=np.float32), **changes)})
    with pytest.raises(TorchFileError, match=message):
        pickle_reader.load(path)


def test_refuses_a_storage_declared_twice_and_differently(torch, path):
    one = torch.tensor("Float", np.arange(6, dtype=np.float32))
    two = torch.tensor("Int", np.arange(6, dtype=np.int32), key="0")
    torch.save(path, {"x": one, "y": two})
    with pytest.raises(TorchFileError, match="declared twice"):
        pickle_reader.load(path)


def test_refuses_compressed_entries(torch, path):
    array = np.zeros(100_000, np.float32)
    torch.save(path, {"x": torch.tensor("Float", array)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(TorchFileError, match="compressed"):
        pickle_reader.load(path)


def test_refuses_entries_that_overlap(torch, path):
    array = np.zeros(10_000, np.float32)
    torch.save(path, {i: torch.tensor("Float", array, key=str(i)) for i in range(40)})
    pickled = zipfile.ZipFile(path).read("best/data.pkl")
    write_zip(path, pickled, {"0": array.tobytes()})
    with zipfile.ZipFile(path, "a") as archive:
        first = archive.getinfo("best/data/0")
        for i in range(1, 40):
            entry = zipfile.ZipInfo(f"best/data/{i}")
            entry.header_offset, entry.CRC = first.header_offset, first.CRC
            entry.file_size = entry.compress_size = first.file_size
            archive.filelist.append(entry)
        archive._didModify = True
    # Newer Pythons refuse it themselves.
    with pytest.raises(TorchFileError, match="too large|not a whole zip"):
        pickle_reader.load(path)


# Instructions, written out.


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
            "legacy format .raw pickle",
        ),
        (bytes(257) + b"ustar" + bytes(300), "legacy format .tar"),
        (b"\x89HDF\r\n\x1a\n", "not a PyTorch checkpoint"),
        (b"", "not a PyTorch checkpoint"),
        (b"PK\x03\x04" + bytes(100), "not a whole zip"),
    ],
)
def test_refuses_other_formats_by_name(path, data, message):
    path.write_bytes(data)
    with pytest.raises(TorchFileError, match=message):
        pickle_reader.load(path)


def test_refuses_a_zip_of_something_else_and_an_unknown_byte_order(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("arr_0.npy", b"")
    with pytest.raises(TorchFileError, match="0 entries"):
        pickle_reader.load(path)
    write_zip(path, b"\x80\x02}.", byteorder="middle")
    with pytest.raises(TorchFileError, match="byte order, 'middle'"):
        pickle_reader.load(path)


def test_a_missing_file_is_a_missing_file(path):
    with pytest.raises(FileNotFoundError):
        pickle_reader.load(path)


def test_refuses_a_pickle_that_would_take_gigabytes(path):
    write_zip(path, b"\x80\x02" + b"}" * zip_entries.LARGEST_PICKLE + b".")
    with pytest.raises(TorchFileError, match="'data.pkl' is too large"):
        pickle_reader.load(path)
