"""The entries of the zip file that ``torch.save`` writes.

All entries are uncompressed and lie below one folder, which holds ``data.pkl``, the entries
``data/0``, ``data/1``, … with the elements of the tensors' storages, and since PyTorch 2.1
``byteorder``. All that is read together is never larger than the file.
"""

import struct
import sys
import zipfile

import numpy as np

from hlformer_jax.torch_checkpoint.errors import TorchFileError, quoted

LARGEST_PICKLE = 4 * 2**20
"""Bytes of ``data.pkl``, which becomes up to 80 times as large in memory; released: 0.1 MB."""

# What zipfile raises on files that were cut, garbled, encrypted or written by something else.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)


def check_format(head: bytes) -> None:
    """Refuses what is no zip file, and PyTorch's older formats by their names.

    Args:
      head: the file's first 512 bytes.

    Raises:
      TorchFileError: when the file is no zip file.
    """
    if head.startswith(b"PK\x03\x04"):
        return
    if head[257:262] == b"ustar" or head.startswith(b"\x80"):
        kind = "tar" if head[257:262] == b"ustar" else "raw pickle"
        raise TorchFileError(
            f"is in PyTorch's legacy format ({kind}), which is not read: load it with a current "
            "torch, if you trust it, and save it again with torch.save"
        )
    raise TorchFileError("is not a PyTorch checkpoint: a zip file was expected")


class Entries:
    """The entries of one checkpoint.

    Attributes:
      file_size: the bytes of the whole file.
    """

    def __init__(self, archive: zipfile.ZipFile, file_size: int):
        """Finds the folder and the byte order.

        Args:
          archive: the opened file.
          file_size: the bytes of the whole file.

        Raises:
          TorchFileError: when there is not one ``data.pkl``, or no known byte order.
        """
        self.file_size = file_size
        self._archive = archive
        self._unread = file_size
        pickles = [
            name
            for name in archive.namelist()
            if name.endswith("/data.pkl") and name.count("/") == 1
        ]
        if len(pickles) != 1:
            raise TorchFileError(f"has {len(pickles)} entries */data.pkl instead of one")
        self._folder = pickles[0].removesuffix("data.pkl")
        byte_order = "little"  # of the torch releases that did not write it
        if self._folder + "byteorder" in archive.namelist():
            byte_order = self._read("byteorder", 8).decode("ascii", "replace")
        if byte_order not in ("little", "big"):
            raise TorchFileError(f"has an unknown byte order, {byte_order!r}")
        self._swap = byte_order != sys.byteorder

    def pickled(self) -> bytes:
        """Returns the pickle; raises `TorchFileError` when it is missing or too large."""
        return self._read("data.pkl", LARGEST_PICKLE)

    def storage(self, key: str, dtype: np.dtype, numel: int) -> bytes:
        """Reads the elements of a storage.

        Args:
          key: the storage's name below ``data/``.
          dtype: the declared type.
          numel: the declared number of elements.

        Returns:
          The elements in the byte order of this machine; booleans are 0 or 1.

        Raises:
          TorchFileError: when the entry is missing or not of the declared size.
        """
        data = self._read(f"data/{key}", numel * dtype.itemsize)
        if len(data) != numel * dtype.itemsize:
            raise TorchFileError(
                f"the entry {quoted(f'data/{key}')} has {len(data)} bytes"
                f" instead of {numel} × {dtype}"
            )
        if dtype == np.bool_:
            return (np.frombuffer(data, np.uint8) != 0).tobytes()
        if self._swap:
            return np.frombuffer(data, f"u{dtype.itemsize}").byteswap().tobytes()
        return data

    def _read(self, name: str, at_most: int) -> bytes:
        try:
            info = self._archive.getinfo(self._folder + name)
        except KeyError:
            raise TorchFileError(f"lacks the entry {quoted(name)}") from None
        entry = f"the entry {quoted(name)}"
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise TorchFileError(f"{entry} is compressed, which torch.save never does")
        # Entries that overlap could together hold far more than the file.
        self._unread -= info.file_size
        if self._unread < 0 or info.file_size > at_most:
            raise TorchFileError(f"{entry} is too large, {info.file_size} bytes")
        data = self._archive.read(info)
        if len(data) != info.file_size:
            raise TorchFileError(f"{entry} is cut short")
        return data
