"""Reader of PyTorch's zip checkpoints: tensors and plain containers.

A checkpoint is a zip file with a pickle and the elements of its tensors. A pickle is a program that
may name and call any function. Here it executes nothing: only the instructions of `_OPCODES` run,
and each name in the file stands for an object of this module (`_NAMES`). Memory is bounded: the
pickle by `MAX_PICKLE_BYTES`, all entries together by the size of the file.
"""

import dataclasses
import io
import operator
import pickle
import re
import reprlib
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from hlformer_jax.errors import UserError

MAX_PICKLE_BYTES = 2**20
"""Largest size of the pickle, which needs about 100 times as much memory (released: 0.1 MB)."""


class TorchFileError(UserError, ValueError):
    """Error for a file that is not a complete zip checkpoint of PyTorch."""


class UnsafeTorchFileError(TorchFileError):
    """Error for a file that contains more than tensors and plain containers."""


def quoted(value: object) -> str:
    """Return a value from a file in a form for error messages: quoted, escaped and shortened."""
    # A tuple of a few bytes may be nested so that its full text would need terabytes.
    text = str(value) if isinstance(value, str | Exception) else reprlib.repr(value)
    return repr(text if len(text) <= 80 else text[:79] + "…")


def load(path: str | Path) -> dict[Any, Any]:
    """Read a checkpoint that `torch.save` wrote.

    Args:
      path: the file.

    Returns:
      Its content. Tensors and parameters are read-only arrays of the same dtype (for bfloat16 the
      dtype of ml_dtypes), NumPy scalars are numbers of Python; attributes of objects are dropped.

    Raises:
      TorchFileError: if the file is not a complete checkpoint.
      UnsafeTorchFileError: if it names a function or class that is not allowed, or uses another
        instruction of pickles.
      OSError: if the file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                content = _read(archive, path.stat().st_size)
        except TorchFileError as error:
            raise type(error)(f"{path}: {error}") from None
        except zipfile.BadZipFile as error:
            kind = "a safetensors file" if _is_safetensors(path) else "not a complete zip file"
            raise TorchFileError(
                f"{path}: is {kind}: give the zip file that the released code saved by torch.save"
                " (best.ckpt, of PyTorch 1.6 or later)"
            ) from error
        except Exception as error:  # a damaged file fails in many ways
            raise TorchFileError(
                f"{path}: is not a PyTorch checkpoint, or is damaged: {quoted(error)}"
            ) from error
    return content


def _is_safetensors(path: Path) -> bool:
    """Return whether a file begins like safetensors: the size of a JSON object, and the object."""
    with path.open("rb") as file:
        start = file.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size


def _read(archive: zipfile.ZipFile, file_size: int) -> dict[Any, Any]:
    entries = _Entries(archive, file_size)
    byte_order = entries.read("byteorder", 8, b"little")  # PyTorch writes it since 2.1
    if byte_order.decode() != sys.byteorder:
        raise TorchFileError(f"has the byte order {quoted(byte_order.decode())}")
    pickled = io.BytesIO(entries.read("data.pkl", MAX_PICKLE_BYTES))
    content = _Unpickler(pickled, entries).load()
    if not isinstance(content, dict):
        raise TorchFileError(f"holds a {type(content).__name__}, not a dict")
    return content


class _Entries:
    """The entries of the zip file, which are all in one folder."""

    def __init__(self, archive: zipfile.ZipFile, file_size: int):
        self._archive = archive
        self._unread = file_size
        names = [name for name in archive.namelist() if re.fullmatch(r"[^/]*/data\.pkl", name)]
        if len(names) != 1:
            raise TorchFileError(f"has {len(names)} entries */data.pkl, but must have one")
        self._folder = names[0].removesuffix("data.pkl")

    def read(self, name: str, max_bytes: int, default: bytes | None = None) -> bytes:
        """Return the bytes of an entry.

        Args:
          name: path of the entry in the folder.
          max_bytes: largest size of the entry.
          default: the bytes to return if the entry is missing; None raises an error.

        Raises:
          TorchFileError: if the entry is missing or too large.
        """
        try:
            info = self._archive.getinfo(self._folder + name)
        except KeyError:
            if default is not None:
                return default
            raise TorchFileError(f"lacks the entry {quoted(name)}") from None
        # Entries that overlap or are compressed could be far larger than the file.
        num_bytes = max(info.file_size, info.compress_size)
        self._unread -= num_bytes
        if num_bytes > max_bytes or self._unread < 0:
            raise TorchFileError(f"has too large an entry, {quoted(name)}")
        return self._archive.read(info)


@dataclasses.dataclass(frozen=True)
class _Storage:
    elements: bytes
    dtype: np.dtype


class _Dict(dict[Any, Any]):
    """A dictionary; also stands for an object of an allowed class, whose attributes are dropped."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, str | int):  # hashing nested tuples may take forever
            raise TorchFileError(f"has a dictionary with a {type(key).__name__} for a key")
        super().__setitem__(key, value)


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> np.ndarray:
    """Return a view of a storage; `offset` and `stride` count elements. NumPy checks the bounds."""
    if not isinstance(storage, _Storage) or not isinstance(stride, tuple):
        raise TypeError("a tensor has no storage, or no strides")
    itemsize = storage.dtype.itemsize
    strides = tuple(itemsize * operator.index(step) for step in stride)
    start = itemsize * operator.index(offset)
    return np.ndarray(size, storage.dtype, storage.elements, start, strides)


def _parameter(tensor: Any, requires_grad: Any, hooks: Any) -> np.ndarray:
    return tensor


def _size(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple):
        raise TypeError("a size is not a tuple")
    return values


@dataclasses.dataclass(frozen=True)
class _ScalarType:
    """The dtype of a NumPy scalar; storages have plain dtypes."""

    dtype: np.dtype


def _scalar_type(code: str, *_: Any) -> _ScalarType:
    """Return the dtype for a code of NumPy; only of real numbers and booleans."""
    if not re.fullmatch("b1|[iu][1248]|f[248]", code):
        raise TorchFileError(f"has a NumPy scalar of the dtype {quoted(code)}")
    return _ScalarType(np.dtype(code))


def _scalar(kind: Any, element: Any) -> bool | int | float:
    """Return a NumPy scalar as a number of Python."""
    if not isinstance(kind, _ScalarType) or len(element) != kind.dtype.itemsize:
        raise TypeError("a NumPy scalar has no dtype, or another size")
    return np.frombuffer(element, kind.dtype)[0].item()


def _encode_scalar(text: Any, encoding: Any) -> bytes:
    """Return the bytes of a NumPy scalar, which old protocols of pickle store as a text."""
    if not isinstance(text, str) or not isinstance(encoding, str) or encoding != "latin1":
        raise TypeError("bytes have another encoding than latin1")
    return text.encode(encoding)


_NAMES: Mapping[str, Any] = {
    "collections.OrderedDict": _Dict,
    "easydict.EasyDict": _Dict,
    "Opts.optimization.WarmupLinearSchedule": _Dict,
    "_codecs.encode": _encode_scalar,
    "numpy.dtype": _scalar_type,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "torch.Size": _size,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch.FloatStorage": np.dtype(np.float32),
    "torch.DoubleStorage": np.dtype(np.float64),
    "torch.HalfStorage": np.dtype(np.float16),
    "torch.BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch.LongStorage": np.dtype(np.int64),
    "torch.IntStorage": np.dtype(np.int32),
    "torch.ShortStorage": np.dtype(np.int16),
    "torch.CharStorage": np.dtype(np.int8),
    "torch.ByteStorage": np.dtype(np.uint8),
    "torch.BoolStorage": np.dtype(np.bool_),
}
"""The names that a file may use, and the object of this module that replaces each of them."""

_OPCODES = frozenset(
    getattr(pickle, name)[0]
    for name in """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE
    SHORT_BINUNICODE SHORT_BINBYTES EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS
    EMPTY_DICT SETITEM SETITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL
    BINPERSID REDUCE NEWOBJ BUILD
    """.split()
)
"""The instructions that tensors, numbers, texts and containers need."""


class _Instructions(dict[int, Any]):
    def __missing__(self, opcode: int) -> Any:
        raise UnsafeTorchFileError(f"refused the pickle instruction {bytes([opcode])!r}")


def _with_tuple(call: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return an instruction that calls a function, but only with a tuple of arguments.

    Python would also unpack a tensor, which may have far more elements than the file has bytes.
    """

    def load_call(unpickler: Any) -> None:
        if not isinstance(unpickler.stack[-1], tuple):
            kind = type(unpickler.stack[-1]).__name__
            raise UnsafeTorchFileError(f"refused a call with the arguments of a {kind}")
        call(unpickler)

    return load_call


class _Unpickler(pickle._Unpickler):
    """Python's own unpickler with the allowed instructions and names only.

    A value of the file may be compared only when its type is known: comparing a tensor with a text
    makes an array of its shape, which may be far larger than the file.
    """

    stack: list[Any]
    dispatch = _Instructions(
        (opcode, function)
        for opcode, function in pickle._Unpickler.dispatch.items()
        if opcode in _OPCODES
    )

    def __init__(self, pickled: io.BytesIO, entries: _Entries):
        super().__init__(pickled)
        self._entries = entries
        self._storages: dict[tuple[str, np.dtype, int], _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return the object of this module for an allowed name."""
        dotted = f"{module}.{name}"
        if dotted not in _NAMES:
            raise UnsafeTorchFileError(
                f"refused {quoted(dotted)}, which is neither a tensor nor a plain container; "
                "nothing of the file was executed"
            )
        return _NAMES[dotted]

    def persistent_load(self, pid: Any) -> _Storage:
        """Read the storage of a tensor: its dtype, key, device and number of elements."""
        match pid:
            case (str("storage"), np.dtype() as dtype, str(key), _, int(count)):
                pass
            case _:
                raise UnsafeTorchFileError("refused a persistent id other than a tensor's storage")
        if (key, dtype, count) not in self._storages:
            elements = self._entries.read(f"data/{key}", count * dtype.itemsize)
            if len(elements) != count * dtype.itemsize:
                raise TorchFileError(f"has only {len(elements)} bytes of {quoted(key)}")
            self._storages[key, dtype, count] = _Storage(elements, dtype)
        return self._storages[key, dtype, count]

    def load_empty_dictionary(self) -> None:
        """Push a dictionary whose keys are checked."""
        self.stack.append(_Dict())

    def load_build(self) -> None:
        """Drop the attributes of an object; those of a NumPy dtype have its byte order."""
        attributes = self.stack.pop()
        if type(self.stack[-1]) is _ScalarType:
            order = attributes[1]
            if not isinstance(order, str) or order not in ("<", "|"):
                raise TorchFileError(f"has a NumPy scalar of byte order {quoted(order)}")
            return
        if type(self.stack[-1]) is not _Dict:
            kind = type(self.stack[-1]).__name__
            raise UnsafeTorchFileError(f"refused to set attributes of a {kind}")

    dispatch[pickle.EMPTY_DICT[0]] = load_empty_dictionary
    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.REDUCE[0]] = _with_tuple(dispatch[pickle.REDUCE[0]])
    dispatch[pickle.NEWOBJ[0]] = _with_tuple(dispatch[pickle.NEWOBJ[0]])
