"""Writes files as torch.save does, without PyTorch, and pickles instruction by instruction.

Honest files are pickled by Python's own pickler from stand-ins for torch's classes.
"""

import collections
import io
import pickle
import sys
import types
import zipfile

import ml_dtypes
import numpy as np

DTYPES = {
    "Float": np.float32,
    "Double": np.float64,
    "Half": np.float16,
    "BFloat16": ml_dtypes.bfloat16,
    "Long": np.int64,
    "Int": np.int32,
    "Short": np.int16,
    "Char": np.int8,
    "Byte": np.uint8,
    "Bool": np.bool_,
}


def write_zip(path, pickled, storages=(), byteorder="little", compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("best/data.pkl", pickled)
        archive.writestr("best/.format_version", "1")
        if byteorder is not None:
            archive.writestr("best/byteorder", byteorder)
        for key, data in dict(storages).items():
            archive.writestr(f"best/data/{key}", data)
        archive.writestr("best/version", "3\n")
    return path


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.id if isinstance(obj, types.SimpleNamespace) else None


class FakeTorch:
    """Saves as torch.save does: tensors reduce to a call, storages to persistent ids."""

    def __init__(self, monkeypatch):
        self.storages = {}
        self.classes = {}

        def add(module, *names):
            for name in names:
                value = type(name, (), {"__module__": module, "__qualname__": name})
                setattr(sys.modules[module], name, value)
                self.classes[name] = value

        for module in ("torch", "torch._utils", "Opts", "Opts.optimization"):
            monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
        add("torch", "Size", *(f"{name}Storage" for name in DTYPES))
        add("torch._utils", "_rebuild_tensor_v2", "_rebuild_parameter")
        add("Opts.optimization", "WarmupLinearSchedule", "WarmupCosineSchedule")

    def call(self, name, *arguments):
        function = self.classes[name]
        return type("Call", (), {"__reduce__": lambda _: (function, arguments)})()

    def storage(self, name, array, **changes):
        key = str(len(self.storages))
        self.storages[key] = np.ascontiguousarray(array).tobytes()
        identifier = {"tag": "storage", "key": key, "device": "cuda:0", "numel": array.size}
        identifier.update(changes)
        tag, key, device, numel = identifier.values()
        return types.SimpleNamespace(id=(tag, self.classes[f"{name}Storage"], key, device, numel))

    def tensor(self, name, array, offset=0, size=None, stride=None, **changes):
        size = array.shape if size is None else size
        if stride is None:
            stride = tuple(step // array.itemsize for step in array.strides)
        storage = self.storage(name, array, **changes)
        hooks = collections.OrderedDict()
        return self.call("_rebuild_tensor_v2", storage, offset, size, stride, False, hooks)

    def save(self, path, value, protocol=2, **options):
        file = io.BytesIO()
        Pickler(file, protocol).dump(value)
        return write_zip(path, file.getvalue(), self.storages, **options)


# Instructions, written out.
def text(value):
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def named(module, name):
    return f"c{module}\n{name}\n".encode()


def stack_named(module, name):
    return text(module) + text(name) + b"\x93"


def inside(instructions):
    """A checkpoint whose optimiser holds the value of these instructions."""
    return b"\x80\x02}" + text("optimizer") + b"}" + text("x") + instructions + b"ss."


STORAGE = b"(" + text("storage") + named("torch", "FloatStorage") + text("0") + text("cpu")
STORAGE += b"K\x01tQ"
ORDERED_DICT = named("collections", "OrderedDict")
SCHEDULE = named("Opts.optimization", "WarmupLinearSchedule")
REBUILD = named("torch._utils", "_rebuild_tensor_v2")
