"""Reads PyTorch's zip checkpoints without PyTorch, and executes nothing that they hold.

``torch.save`` writes a zip of uncompressed entries below one folder: ``data.pkl`` is the pickled
object, whose tensors name the entries ``data/0``, ``data/1``, … that hold their numbers. A pickle
is a program: it may name any function and call it. This module therefore does not unpickle.
It runs the few instructions that tensors, numbers, text and containers need, on values that are
inert; a name in the file is only ever compared with the names listed below, never looked up.
"""

import dataclasses
import math
import pathlib
import pickletools
import struct
import sys
import zipfile
from typing import Any

import ml_dtypes
import numpy as np

from hlformer_jax.errors import UserError


class CheckpointError(UserError, ValueError):
    """The file is not a whole PyTorch zip checkpoint."""


class UnsafeCheckpointError(CheckpointError):
    """The file asks for something else than tensors and plain containers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """What is left of an object whose class is not ours: its class's name and its attributes."""

    name: str
    state: dict[str, Any]


# Names are written as pickle writes them: the module, a space, the name within it.
_STORAGES = {
    "torch FloatStorage": np.dtype(np.float32),
    "torch DoubleStorage": np.dtype(np.float64),
    "torch HalfStorage": np.dtype(np.float16),
    "torch BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch LongStorage": np.dtype(np.int64),
    "torch IntStorage": np.dtype(np.int32),
    "torch ShortStorage": np.dtype(np.int16),
    "torch CharStorage": np.dtype(np.int8),
    "torch ByteStorage": np.dtype(np.uint8),
    "torch BoolStorage": np.dtype(np.bool_),
}

# The learning rate schedule that the authors' optimiser keeps among its options.
_RECORDS = frozenset({"Opts.optimization WarmupLinearSchedule"})

# The dictionary of options that MS-SL saves; its attributes repeat its items.
_DICTS = frozenset({"easydict EasyDict"})

_FUNCTIONS = frozenset(
    {
        "collections OrderedDict",
        "torch Size",
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_tensor_v2",
    }
)


@dataclasses.dataclass(frozen=True)
class _Name:
    """A function or class that the pickle names; it stands for nothing but its name."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class _Storage:
    data: bytes
    dtype: np.dtype[Any]
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
      UnsafeCheckpointError: the pickle names, or does, anything that is not listed above.
      CheckpointError: the file is in PyTorch's older format, incomplete or inconsistent.
    """
    path = pathlib.Path(path)
    with path.open("rb") as file:
        try:
            _check_format(file.read(512))
            with zipfile.ZipFile(file) as archive:
                return _interpret(_Entries(archive, path.stat().st_size))
        except CheckpointError as error:
            raise type(error)(f"{path}: {error}") from None
        except _ZIP_ERRORS as error:
            raise CheckpointError(f"{path}: is not a whole zip file: {error}") from error


# What zipfile raises on files that were cut, garbled, encrypted or written by something else.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)


def _check_format(head: bytes) -> None:
    if head.startswith(b"PK\x03\x04"):
        return
    if head[257:262] == b"ustar" or head.startswith(b"\x80"):
        kind = "tar" if head[257:262] == b"ustar" else "raw pickle"
        raise CheckpointError(
            f"is in PyTorch's legacy format ({kind}), which is not read: load it with a current "
            "torch, if you trust it, and save it again with torch.save"
        )
    raise CheckpointError("is not a PyTorch checkpoint: a zip file was expected")


class _Entries:
    """The zip's entries. Only uncompressed ones are read, so none is larger than the file."""

    def __init__(self, archive: zipfile.ZipFile, file_size: int):
        self.file_size = file_size
        self._archive = archive
        self._unread = file_size
        pickles = [
            name
            for name in archive.namelist()
            if name.endswith("/data.pkl") and name.count("/") == 1
        ]
        if len(pickles) != 1:
            raise CheckpointError(f"has {len(pickles)} entries */data.pkl instead of one")
        self._folder = pickles[0].removesuffix("data.pkl")
        byte_order = "little"  # of the torch releases that did not write it
        if self._folder + "byteorder" in archive.namelist():
            byte_order = self.read("byteorder", 8).decode("ascii", "replace")
        if byte_order not in ("little", "big"):
            raise CheckpointError(f"has an unknown byte order, {byte_order!r}")
        self._swap = byte_order != sys.byteorder

    def read(self, name: str, at_most: int | None = None) -> bytes:
        try:
            info = self._archive.getinfo(self._folder + name)
        except KeyError:
            raise CheckpointError(f"lacks the entry {name!r}") from None
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise CheckpointError(f"the entry {name!r} is compressed, which torch.save never does")
        # Entries that overlap could together hold far more than the file.
        self._unread -= info.file_size
        if self._unread < 0 or (at_most is not None and info.file_size > at_most):
            raise CheckpointError(f"the entry {name!r} is too large, {info.file_size} bytes")
        data = self._archive.read(info)
        if len(data) != info.file_size:
            raise CheckpointError(f"the entry {name!r} is cut short")
        return data

    def storage(self, key: str, dtype: np.dtype[Any], numel: int) -> _Storage:
        data = self.read(f"data/{key}", numel * dtype.itemsize)
        if len(data) != numel * dtype.itemsize:
            raise CheckpointError(
                f"the entry 'data/{key}' has {len(data)} bytes instead of {numel} × {dtype}"
            )
        if dtype == np.bool_:
            data = (np.frombuffer(data, np.uint8) != 0).tobytes()
        elif self._swap:
            data = np.frombuffer(data, f"u{dtype.itemsize}").byteswap().tobytes()
        return _Storage(data, dtype, numel)


def _interpret(entries: _Entries) -> dict[Any, Any]:
    """Runs the pickle's instructions, as `pickletools` documents them, and returns its value."""
    machine = _Machine(entries)
    try:
        for opcode, argument, _ in pickletools.genops(entries.read("data.pkl")):
            if opcode.name != "STOP":
                machine.step(opcode.name, argument)
        return _expect(dict, machine.pop())
    except CheckpointError:
        raise
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"its data.pkl is malformed: {error!r}") from error


class _Machine:
    """The stack, the stacks below open marks, and the memo of a pickle."""

    def __init__(self, entries: _Entries):
        self.entries = entries
        self.storages: dict[str, _Storage] = {}
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def step(self, opcode: str, argument: Any) -> None:
        push = self.stack.append
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "NONE":
                push(None)
            case "NEWTRUE" | "NEWFALSE":
                push(opcode == "NEWTRUE")
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                push(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE":
                push(argument)
            case "MARK":
                self.below.append(self.stack)
                self.stack = []
            case "EMPTY_TUPLE":
                push(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [self.pop() for _ in range(int(opcode[-1]))]
                push(tuple(reversed(items)))
            case "TUPLE":
                value = tuple(self.pop_mark())
                self.stack.append(value)
            case "EMPTY_LIST":
                push([])
            case "APPEND":
                value = self.pop()
                _expect(list, self.stack[-1]).append(value)
            case "APPENDS":
                values = self.pop_mark()
                _expect(list, self.stack[-1]).extend(values)
            case "EMPTY_DICT":
                push({})
            case "SETITEM":
                value, key = self.pop(), self.pop()
                self.set_items([key, value])
            case "SETITEMS":
                self.set_items(self.pop_mark())
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                push(self.memo[argument])
            case "GLOBAL":
                push(_name(argument))
            case "STACK_GLOBAL":
                name, module = self.pop(), self.pop()
                push(_name(f"{_expect(str, module)} {_expect(str, name)}"))
            case "BINPERSID":
                push(self.load_storage(self.pop()))
            case "REDUCE":
                arguments, function = _expect(tuple, self.pop()), _expect(_Name, self.pop())
                push(self.call(function.name, arguments))
            case "NEWOBJ":
                arguments, cls = _expect(tuple, self.pop()), _expect(_Name, self.pop())
                if cls.name not in _RECORDS | _DICTS or arguments:
                    raise UnsafeCheckpointError(f"refused to make a {_show(cls.name)}")
                is_dict = cls.name in _DICTS
                push({} if is_dict else Record(cls.name.replace(" ", "."), {}))
            case "BUILD":
                self.build(self.pop())
            case _:
                named = f" of {_show(argument)}" if isinstance(argument, str) else ""
                raise UnsafeCheckpointError(f"refused the pickle instruction {opcode}{named}")

    def set_items(self, keys_and_values: list[Any]) -> None:
        target = _expect(dict, self.stack[-1])
        for key, value in zip(keys_and_values[::2], keys_and_values[1::2], strict=True):
            # A tuple could be nested so deep, or so wide, that hashing it does not come back.
            if not isinstance(key, str | int | float | None):
                raise CheckpointError(f"has a dictionary with a {type(key).__name__} for a key")
            target[key] = value

    def build(self, state: Any) -> None:
        """Gives the object on top its attributes: a record keeps them, a dict drops them."""
        target = self.stack[-1]
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise UnsafeCheckpointError("refused attributes that are no dictionary of names")
        if isinstance(target, Record):
            target.state.update(state)
        elif not isinstance(target, dict):
            what = _show(target.name) if isinstance(target, _Name) else f"a {type(target).__name__}"
            raise UnsafeCheckpointError(f"refused to set attributes of {what}")

    def load_storage(self, identifier: Any) -> _Storage:
        match identifier:
            case (str("storage"), _Name(name), str(key), str(_), int(numel)) if (
                name in _STORAGES and numel >= 0 and type(numel) is int
            ):
                dtype = _STORAGES[name]
            case _:
                raise UnsafeCheckpointError("refused a persistent id that is no tensor's storage")
        if key not in self.storages:
            self.storages[key] = self.entries.storage(key, dtype, numel)
        storage = self.storages[key]
        if (storage.dtype, storage.numel) != (dtype, numel):
            raise CheckpointError(f"the entry 'data/{key}' is declared twice, and differently")
        return storage

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """What the function or class of this name returns, for those that may be called."""
        match name, arguments:
            case "collections OrderedDict", ():
                return {}
            case "torch Size", (size,):
                return _sizes(size)
            case "torch._utils _rebuild_parameter", (np.ndarray() as data, _, _):
                return data
            case "torch._utils _rebuild_tensor_v2", (storage, offset, size, stride, *_):
                return self.tensor(storage, offset, size, stride)
        raise UnsafeCheckpointError(
            f"refused to call {_show(name)} with {len(arguments)} arguments of these types"
        )

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any) -> np.ndarray:
        """The view of a storage that a tensor is; offset and strides count elements."""
        _expect(_Storage, storage)
        (offset,), size, stride = _sizes((offset,)), _sizes(size), _sizes(stride)
        if len(size) != len(stride):
            raise CheckpointError(f"a tensor of shape {size} has strides {stride}")
        count, itemsize = math.prod(size), storage.dtype.itemsize
        if 0 in size:
            return np.empty(size, storage.dtype)
        # Strides may let elements share memory, but a tensor larger than the file is an attack.
        if count * itemsize > self.entries.file_size:
            raise CheckpointError(f"a tensor of shape {size} is larger than the file")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if last >= storage.numel:
            raise CheckpointError(f"a tensor of shape {size} reaches beyond its storage")
        # The step along an axis of one element is never taken, and may be any number.
        steps = [itemsize * step if n > 1 else 0 for n, step in zip(size, stride, strict=True)]
        return np.ndarray(size, storage.dtype, storage.data, offset * itemsize, steps)


def _name(name: str) -> _Name:
    if not any(name in known for known in (_STORAGES, _RECORDS, _DICTS, _FUNCTIONS)):
        raise UnsafeCheckpointError(
            f"refused {_show(name)}, which is neither a tensor nor a plain container; "
            "nothing of the file was executed"
        )
    return _Name(name)


def _show(name: str) -> str:
    """A name from the file, fit for one line of an error."""
    return repr(name.replace(" ", ".", 1)[:100])


def _expect(cls: type, value: Any) -> Any:
    # Exactly: a bool is an int to isinstance, and nothing here has subclasses otherwise.
    if type(value) is not cls:
        raise CheckpointError(f"its data.pkl holds a {type(value).__name__}, not a {cls.__name__}")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    if any(type(n) is not int or n < 0 for n in _expect(tuple, values)):
        raise CheckpointError("a tensor's shape, strides or offset are not sizes")
    return values
