"""Reads PyTorch's zip checkpoints without PyTorch, and executes nothing that they hold.

A pickle is a program: it may name any function and call it. This module runs the few of its
instructions that tensors, numbers, text and containers need, on values that are inert; a name in
the file is only ever looked up in the lists below, and nothing on the stack can be called.

It extends the unpickler that the standard library has in Python, not the one in C, in which
`find_class` alone can be replaced. That is not enough: measured with Python 3.11, an index of
2^28 for the memo, six bytes, takes 4 GB (the C unpickler's memo is an array; 2^32 would take 64);
a tuple of tuples as a key takes 2^64 steps to hash, or overflows the stack; BUILD sets any
attribute of what `find_class` returned, such as a function's defaults or an array's dtype. Here
the memo is a dictionary, and `dispatch` holds the allowed instructions, of which REDUCE, NEWOBJ,
BUILD, SETITEM and SETITEMS are our own. Each instruction costs a bounded number of steps and
bytes, so that the limit on the pickle's size limits time and memory.
"""

import dataclasses
import io
import math
import pathlib
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from hlformer_jax.torch_checkpoint import zip_entries
from hlformer_jax.torch_checkpoint.errors import TorchFileError, UnsafeTorchFileError, quoted


@dataclasses.dataclass(eq=False)
class Record:
    """What is left of an object whose class is not ours: its class's name and its attributes."""

    name: str
    state: dict[str, Any]


_STORAGES = {
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
_RECORD = "Opts.optimization.WarmupLinearSchedule"
"""The learning rate schedule that the authors' optimiser keeps among its options."""
_EASY_DICT = "easydict.EasyDict"
"""The dictionary of options that MS-SL saves; its attributes repeat its items."""
_ORDERED_DICT = "collections.OrderedDict"
_SIZE = "torch.Size"
_PARAMETER = "torch._utils._rebuild_parameter"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_NAMES = {*_STORAGES, _RECORD, _EASY_DICT, _ORDERED_DICT, _SIZE, _PARAMETER, _TENSOR}

_MOST_DIMENSIONS = 16  # a released tensor has three at most
_MOST_ATTRIBUTES = 100  # a released object has twenty at most

_INSTRUCTIONS = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE
    SHORT_BINUNICODE EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT
    SETITEM SETITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL BINPERSID
    REDUCE NEWOBJ BUILD
"""
_CODES = [getattr(pickle, name)[0] for name in _INSTRUCTIONS.split()]


@dataclasses.dataclass(frozen=True, eq=False)
class _Name:
    """A function or class that the pickle names; it stands for nothing but its name."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class _Storage:
    data: bytes
    dtype: np.dtype
    numel: int


def load(path: str | pathlib.Path) -> dict[Any, Any]:
    """Reads a checkpoint that ``torch.save`` wrote.

    Args:
      path: the file.

    Returns:
      The saved dictionary: plain dicts, lists, tuples, numbers and text. Tensors and parameters
      are read-only arrays of the same dtype (bfloat16 is that of ml_dtypes); an ``OrderedDict``
      or ``EasyDict`` is a dict; an object of a known foreign class is a `Record`.

    Raises:
      UnsafeTorchFileError: the pickle names, or does, anything that is not listed above.
      TorchFileError: the file is in PyTorch's older format, incomplete or inconsistent.
      OSError: the file cannot be opened.
    """
    path = pathlib.Path(path)
    with path.open("rb") as file:
        try:
            zip_entries.check_format(file.read(512))
            with zipfile.ZipFile(file) as archive:
                return _unpickle(zip_entries.Entries(archive, path.stat().st_size))
        except TorchFileError as error:
            raise type(error)(f"{path}: {error}") from None
        except zip_entries.ZIP_ERRORS as error:
            raise TorchFileError(f"{path}: is not a whole zip file: {quoted(error)}") from error


def _unpickle(entries: zip_entries.Entries) -> dict[Any, Any]:
    pickled = entries.pickled()
    try:
        return _expect(dict, _Unpickler(pickled, entries).load())
    except TorchFileError:
        raise
    except Exception as error:  # of struct, of text, of an empty stack: all mean the same
        raise TorchFileError(f"its data.pkl is malformed: {quoted(error)}") from error


class _Dispatch(dict[int, Any]):
    """The allowed instructions by their codes; any other is refused when it is met."""

    def __missing__(self, code: int) -> Any:
        names = {opcode.code: opcode.name for opcode in pickletools.opcodes}
        name = names.get(chr(code), f"0x{code:02x}")
        raise UnsafeTorchFileError(f"refused the pickle instruction {name}")


class _Unpickler(pickle._Unpickler):
    """The standard unpickler with fewer instructions; see the module's docstring."""

    dispatch = _Dispatch((code, pickle._Unpickler.dispatch[code]) for code in _CODES)
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, pickled: bytes, entries: zip_entries.Entries):
        super().__init__(io.BytesIO(pickled))
        self._entries = entries
        self._storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Stands in for the function or class of that name, if it is on the lists."""
        dotted = f"{module}.{name}"
        if dotted not in _NAMES:
            raise UnsafeTorchFileError(
                f"refused {quoted(dotted)}, which is neither a tensor nor a plain container; "
                "nothing of the file was executed"
            )
        return _Name(dotted)

    def persistent_load(self, pid: Any) -> _Storage:
        """Reads the storage of a tensor: its dtype, key, device and number of elements."""
        match pid:
            case (str("storage"), _Name(name), str(key), str(_), int(numel)) if (
                name in _STORAGES and type(numel) is int and 0 <= numel < 2**63
            ):
                dtype = _STORAGES[name]
            case _:
                raise UnsafeTorchFileError("refused a persistent id that is no tensor's storage")
        if key not in self._storages:
            data = self._entries.storage(key, dtype, numel)
            self._storages[key] = _Storage(data, dtype, numel)
        storage = self._storages[key]
        if (storage.dtype, storage.numel) != (dtype, numel):
            raise TorchFileError(
                f"the entry {quoted(f'data/{key}')} is declared twice, and differently"
            )
        return storage

    def _reduce(self) -> None:
        """Calls a function on the stack: one of four, which are these lines."""
        arguments, function = self.stack.pop(), self.stack.pop()
        match _expect(_Name, function).name, _expect(tuple, arguments):
            case name, () if name == _ORDERED_DICT:
                value: Any = {}
            case name, (size,) if name == _SIZE:
                value = _sizes(size)
            case name, (np.ndarray() as value, _, _) if name == _PARAMETER:
                pass
            case name, (storage, offset, size, stride, *_) if name == _TENSOR:
                value = _tensor(storage, offset, size, stride, self._entries.file_size)
            case name, _:
                raise UnsafeTorchFileError(
                    f"refused to call {quoted(name)} with {len(arguments)} arguments of these types"
                )
        self.stack.append(value)

    def _new_object(self) -> None:
        arguments, cls = _expect(tuple, self.stack.pop()), _expect(_Name, self.stack.pop())
        if cls.name not in (_RECORD, _EASY_DICT) or arguments:
            raise UnsafeTorchFileError(f"refused to make a {quoted(cls.name)}")
        self.stack.append({} if cls.name == _EASY_DICT else Record(cls.name, {}))

    def _build(self) -> None:
        """Gives the object on top its attributes: a record keeps them, a dict drops them."""
        state, target = self.stack.pop(), self.stack[-1]
        if (
            not isinstance(state, dict)
            or len(state) > _MOST_ATTRIBUTES
            or not all(isinstance(key, str) for key in state)
        ):
            raise UnsafeTorchFileError("refused attributes that are no dictionary of names")
        if isinstance(target, Record):
            target.state = state
        elif not isinstance(target, dict):
            named = isinstance(target, _Name)
            what = quoted(target.name) if named else f"a {type(target).__name__}"
            raise UnsafeTorchFileError(f"refused to set attributes of {what}")

    def _set_item(self) -> None:
        self._set_items([self.stack.pop(-2), self.stack.pop()])

    def _set_marked_items(self) -> None:
        self._set_items(self.pop_mark())

    def _set_items(self, keys_and_values: list[Any]) -> None:
        target = _expect(dict, self.stack[-1])
        for key, value in zip(keys_and_values[::2], keys_and_values[1::2], strict=True):
            # Hashing a tuple may not come back; large integers can be made to share one hash.
            if not isinstance(key, str) and (type(key) is not int or abs(key) >= 2**31):
                kind = "large int" if type(key) is int else type(key).__name__
                raise TorchFileError(f"has a dictionary with a {kind} for a key")
            target[key] = value

    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.NEWOBJ[0]] = _new_object
    dispatch[pickle.BUILD[0]] = _build
    dispatch[pickle.SETITEM[0]] = _set_item
    dispatch[pickle.SETITEMS[0]] = _set_marked_items


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, file_size: int) -> np.ndarray:
    """The view of a storage that a tensor is; offset and strides count elements."""
    _expect(_Storage, storage)
    (offset,), size, stride = _sizes((offset,)), _sizes(size), _sizes(stride)
    if len(size) != len(stride):
        raise TorchFileError(f"a tensor of shape {size} has strides {stride}")
    count, itemsize = math.prod(size), storage.dtype.itemsize
    if 0 in size:
        return np.empty(size, storage.dtype)
    # Strides may let elements share memory, but a tensor larger than the file is an attack.
    if count * itemsize > file_size:
        raise TorchFileError(f"a tensor of shape {size} is larger than the file")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if last >= storage.numel:
        raise TorchFileError(f"a tensor of shape {size} reaches beyond its storage")
    # The step along an axis of one element is never taken, and may be any number.
    steps = [itemsize * step if n > 1 else 0 for n, step in zip(size, stride, strict=True)]
    return np.ndarray(size, storage.dtype, storage.data, offset * itemsize, steps)


def _expect(cls: type, value: Any) -> Any:
    # Exactly: a bool is an int to isinstance, and nothing here has subclasses otherwise.
    if type(value) is not cls:
        raise TorchFileError(f"its data.pkl holds a {type(value).__name__}, not a {cls.__name__}")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    """Checks a shape or strides: a few 64-bit integers, as PyTorch has them."""
    if len(_expect(tuple, values)) > _MOST_DIMENSIONS:
        raise TorchFileError(f"a tensor has {len(values)} dimensions: {_MOST_DIMENSIONS} are read")
    if any(type(n) is not int or not 0 <= n < 2**63 for n in values):
        raise TorchFileError("a tensor's shape, strides or offset are not sizes")
    return values
