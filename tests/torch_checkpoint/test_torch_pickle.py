"""The reader of PyTorch checkpoints: what it reads, and that what it refuses is never executed.

No PyTorch here: honest files are pickled by Python's own pickler from stand-ins for torch's
classes, as torch.save does it; hostile ones are written instruction by instruction.
"""

import collections
import io
import pickle
import sys
import types
import zipfile

import ml_dtypes
import numpy as np
import pytest

from hlformer_jax.torch_checkpoint import pickle_reader
from hlformer_jax.torch_checkpoint.errors import TorchFileError, UnsafeTorchFileError

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


@pytest.fixture
def torch(monkeypatch):
    return FakeTorch(monkeypatch)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "best.ckpt"


def example(name):
    values = np.arange(6).reshape(2, 3) % 2 if name == "Bool" else np.arange(6).reshape(2, 3)
    return values.astype(DTYPES[name])


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("order", ["little", "big", None])
def test_reads_tensors_of_every_dtype_and_byte_order(torch, path, name, order):
    array = example(name)
    stored = array.view(f"u{array.itemsize}")
    stored = stored.byteswap() if order == "big" else stored
    torch.save(path, {"x": torch.tensor(name, stored)}, byteorder=order)
    read = pickle_reader.load(path)["x"]
    assert read.dtype == array.dtype
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_a_whole_checkpoint(torch, path, protocol):
    schedule = torch.classes["WarmupLinearSchedule"]()
    schedule.warmup, schedule.t_total = 0.01, 100.0
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = torch.tensor("Float", weights)
    state = collections.OrderedDict(a=tensor, b=tensor)
    state._metadata = collections.OrderedDict([("", {"version": 1})])
    parameter = torch.call("_rebuild_parameter", tensor, True, collections.OrderedDict())
    torch.save(
        path,
        {
            "state_dict": state,
            "parameter": parameter,
            "size": torch.call("Size", (2, 3)),
            "optimizer": {"state": {}, "param_groups": [{"schedule": schedule, "params": [0, 1]}]},
            "config": {"name": "HLFormer, é", "none": None, "yes": True, "betas": (0.9, 1e-300)},
            "numbers": [0, 255, 65535, -1, 2**31, -(2**40), 2**70],
            "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
            7: "an integer key",
        },
        protocol,
    )
    read = pickle_reader.load(path)
    assert type(read["state_dict"]) is dict and list(read["state_dict"]) == ["a", "b"]
    for array in (*read["state_dict"].values(), read["parameter"]):
        np.testing.assert_array_equal(array, weights)
    assert read["size"] == (2, 3)
    (group,) = read["optimizer"]["param_groups"]
    assert group["schedule"].name == "Opts.optimization.WarmupLinearSchedule"
    assert group["schedule"].state == {"warmup": 0.01, "t_total": 100.0}
    assert read["config"]["betas"] == (0.9, 1e-300) and read["config"]["name"] == "HLFormer, é"
    assert read["numbers"] == [0, 255, 65535, -1, 2**31, -(2**40), 2**70]
    assert read["tuples"] == [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]
    assert read[7] == "an integer key"


def test_the_record_of_a_foreign_class_is_not_its_class(torch, path):
    torch.save(path, {"x": torch.classes["WarmupLinearSchedule"]()})
    assert type(pickle_reader.load(path)["x"]) is pickle_reader.Record


@pytest.mark.parametrize(
    ("offset", "size", "stride", "expected"),
    [
        (0, (3, 2), (1, 3), [[0, 3], [1, 4], [2, 5]]),  # transposed
        (1, (2,), (3,), [1, 4]),
        (5, (), (), 5),
        (0, (2, 2), (1, 1), [[0, 1], [1, 2]]),  # overlapping
        (0, (3, 3), (2, 0), [[0, 0, 0], [2, 2, 2], [4, 4, 4]]),  # expanded
        (4, (1, 2), (2**62, 1), [[4, 5]]),  # the step of an axis of one element is never taken
        (0, (0, 3), (3, 1), np.zeros((0, 3))),
    ],
)
def test_views_of_a_storage_are_read_only_arrays(torch, path, offset, size, stride, expected):
    storage = np.arange(6, dtype=np.float32)
    torch.save(path, {"x": torch.tensor("Float", storage, offset, size, stride)})
    read = pickle_reader.load(path)["x"]
    np.testing.assert_array_equal(read, np.asarray(expected, np.float32))
    if read.size:
        with pytest.raises(ValueError, match="read-only"):
            read[...] = 1


@pytest.mark.parametrize(
    ("offset", "size", "stride", "message"),
    [
        (0, (7,), (1,), "beyond its storage"),
        (6, (), (), "beyond its storage"),
        (0, (2, 3), (4, 1), "beyond its storage"),
        (2**62, (1,), (1,), "beyond its storage"),
        (2**64, (1,), (1,), "not sizes"),
        (0, (2, 2**40), (0, 0), "larger than the file"),
        (0, (2**62,) * 16, (0,) * 16, "larger than the file"),
        (0, (1,) * 17, (1,) * 17, "has 17 dimensions"),
        (0, (2,), (-1,), "not sizes"),
        (-1, (2,), (1,), "not sizes"),
        (0, (-2,), (1,), "not sizes"),
        (0, (True,), (1,), "not sizes"),
        (0, (2.0,), (1,), "not sizes"),
        (0, [2], (1,), "list, not a tuple"),
        (0, (2,), (1, 1), "has strides"),
    ],
)
def test_refuses_views_that_leave_their_storage(torch, path, offset, size, stride, message):
    storage = np.arange(6, dtype=np.float32)
    torch.save(path, {"x": torch.tensor("Float", storage, offset, size, stride)})
    with pytest.raises(TorchFileError, match=message):
        pickle_reader.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numel": 5}, "too large"),
        ({"numel": 7}, "24 bytes instead of 7"),
        ({"numel": 2**62}, "24 bytes instead of"),
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
TOUCH = "touch {}"  # the file whose absence shows that nothing was executed

HOSTILE = {
    "os.system": named("os", "system") + text(TOUCH) + b"\x85R",
    "posix.system": named("posix", "system") + text(TOUCH) + b"\x85R",
    "posix.system by STACK_GLOBAL": stack_named("posix", "system") + text(TOUCH) + b"\x85R",
    "subprocess.check_call": named("subprocess", "check_call") + text(TOUCH) + b"\x85R",
    "builtins.eval": named("builtins", "eval") + text("open('{}', 'w')") + b"\x85R",
    "__builtin__.eval": named("__builtin__", "eval") + text("open('{}', 'w')") + b"\x85R",
    "builtins.getattr": named("builtins", "getattr") + ORDERED_DICT + text("__init__") + b"\x86R",
    "pathlib.Path": named("pathlib", "Path") + text("{}") + b"\x85R",
    "numpy.load": named("numpy", "load") + text("{}") + b"\x85R",
    "copyreg._reconstructor": named("copyreg", "_reconstructor"),
    "torch.load": named("torch", "load"),
    "torch.storage._load_from_bytes": named("torch.storage", "_load_from_bytes"),
    "Opts.optimization.WarmupCosineSchedule": named("Opts.optimization", "WarmupCosineSchedule"),
    "Opts.optimization.": named("Opts.optimization", ""),
    "collections.OrderedDict.__init__.__globals__": named(
        "collections", "OrderedDict.__init__.__globals__"
    ),
    "OrderedDict.__reduce__": stack_named("collections", "OrderedDict.__reduce__"),
    "hlformer_jax.torch_checkpoint.pickle_reader.Record": named(
        "hlformer_jax.torch_checkpoint.pickle_reader", "Record"
    ),
    "instruction INST": b"(" + text(TOUCH) + b"iposix\nsystem\n",
    "instruction OBJ": b"(" + ORDERED_DICT + text(TOUCH) + b"o",
    "instruction NEWOBJ_EX": SCHEDULE + b")}\x92",
    "instruction EXT1": b"\x82\x01",
    "instruction EXT2": b"\x83\x01\x00",
    "instruction EXT4": b"\x84\x01\x00\x00\x00",
    "instruction PERSID": b"Pstorage\n",
    "instruction DUP": b"}2",
    "instruction STRING": b"S'x'\n",
    "instruction NEXT_BUFFER": b"\x97",
    "to make a .collections.OrderedDict": ORDERED_DICT + b")\x81",
    "to make a .Opts.optimization": SCHEDULE + text(TOUCH) + b"\x85\x81",
    "to call .Opts.optimization": SCHEDULE + b")R",
    "to call .torch.FloatStorage": named("torch", "FloatStorage") + b"K\x01\x85R",
    "to call .collections.OrderedDict' with 1": ORDERED_DICT + b"]\x85R",
    "to call .torch.Size' with 0": named("torch", "Size") + b")R",
    "to call .torch._utils._rebuild_parameter": named("torch._utils", "_rebuild_parameter")
    + SCHEDULE
    + b"NN\x87R",
    "attributes of .collections.OrderedDict": ORDERED_DICT + b"}" + text("fromkeys") + b"Nsb",
    "attributes of .torch._utils._rebuild_tensor_v2": REBUILD + b"}" + text("__code__") + b"Nsb",
    "attributes of .Opts.optimization": SCHEDULE + b"}" + text("__setstate__") + b"Nsb",
    "attributes of a list": b"]}b",
    "attributes of a _Storage": STORAGE + b"}" + text("data") + b"Nsb",
    "attributes that are no dictionary": SCHEDULE + b")\x81N}" + text("name") + b"Ns\x86b",
    "attributes that are no dictionary of names": SCHEDULE + b")\x81}K\x01Nsb",
    "persistent id": text("storage") + b"Q",
    "a persistent id": b"(" + text("storage") + named("torch", "Size") + text("0") * 2 + b"K\x01tQ",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_refuses_by_name_and_executes_nothing(tmp_path, path, what):
    sentinel = tmp_path / "executed"
    instructions = HOSTILE[what]
    for template in (TOUCH, "open('{}', 'w')", "{}"):
        instructions = instructions.replace(text(template), text(template.format(sentinel)))
    write_zip(path, inside(instructions), {"0": bytes(4)})
    before = set(sys.modules)
    with pytest.raises(UnsafeTorchFileError, match=what.split(" by ")[0]) as caught:
        pickle_reader.load(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert not sentinel.exists()
    new = {name for name in set(sys.modules) - before if not name.startswith("encodings.")}
    assert not new


@pytest.mark.parametrize("what", ["os.system", "builtins.eval", "instruction INST"])
def test_the_hostile_files_are_hostile(tmp_path, what):
    sentinel = tmp_path / "executed"
    instructions = HOSTILE[what]
    for template in (TOUCH, "open('{}', 'w')"):
        instructions = instructions.replace(text(template), text(template.format(sentinel)))
    value = pickle.loads(inside(instructions))["optimizer"]["x"]
    if hasattr(value, "close"):
        value.close()
    assert sentinel.exists()


def test_attributes_of_a_record_are_items_not_attributes(path):
    name = text("name") + text("posix.system")
    state = b"}" + name + b"s" + text("__class__") + b"Nsb"
    write_zip(path, inside(SCHEDULE + b")\x81" + state))
    record = pickle_reader.load(path)["optimizer"]["x"]
    assert type(record) is pickle_reader.Record
    assert record.name == "Opts.optimization.WarmupLinearSchedule"
    assert record.state == {"name": "posix.system", "__class__": None}


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"", "malformed"),
        (b"\x80\x02}", "malformed"),  # no STOP
        (b"\x80\x02.", "malformed"),  # nothing to return
        (b"\x80\x02].", "list, not a dict"),
        (b"\x80\x02}(K\x01u.", "malformed"),  # a key without a value
        (b"\x80\x02}u.", "malformed"),  # no mark
        (b"\x80\x02h\x05.", "malformed"),  # nothing in the memo
        (b"\x80\x02]K\x01K\x02s.", "list, not a dict"),
        (b"\x80\x02}K\x01a.", "malformed"),
        (b"\x80\x02K\x01)R.", "int, not a _Name"),
        (b"\x80\x02}K\x01K\x02\x93.", "malformed"),
        (b"\x80\x02}\xff.", "malformed"),
        (b"\x80\x02}X\xff\xff\xff\xff.", "malformed"),  # a text of 4 GiB that is not there
        (b"\x80\x02}\x80\x02]K\x01s.", "list for a key"),
        # Tuples of which hashing the last would take 2^64 steps.
        (b"\x80\x02})" + b"q\x00h\x00\x86" * 64 + b"K\x01s.", "tuple for a key"),
        (b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.", "tuple for a key"),
    ],
)
def test_refuses_a_malformed_pickle(path, pickled, message):
    write_zip(path, pickled)
    with pytest.raises(TorchFileError, match=message):
        pickle_reader.load(path)


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


def test_a_damaged_file_is_refused_or_read_but_raises_nothing_else(torch, path):
    array = np.arange(6, dtype=np.float32)
    schedule = torch.classes["WarmupLinearSchedule"]()
    torch.save(path, {"x": torch.tensor("Float", array), "y": schedule, "z": [1, (2.0, "é")]})
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(1500):
        damaged = bytearray(whole)
        for position in random.integers(len(whole), size=random.integers(1, 4)):
            damaged[position] = random.integers(256)
        if random.random() < 0.1:
            damaged = damaged[: random.integers(len(whole))]
        path.write_bytes(damaged)
        try:
            pickle_reader.load(path)
        except TorchFileError:
            pass


# Of pickletools, when it decodes the text of an instruction that is then refused.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_damaged_instructions_are_refused_or_read_but_raise_nothing_else(torch, path):
    array = np.arange(6, dtype=np.float32)
    schedule = torch.classes["WarmupLinearSchedule"]()
    torch.save(path, {"x": torch.tensor("Float", array), "y": schedule, "z": [1, (2.0, "é")]})
    whole = zipfile.ZipFile(path).read("best/data.pkl")
    random = np.random.default_rng(1)
    for _ in range(1500):
        damaged = bytearray(whole)
        for position in random.integers(len(whole), size=random.integers(1, 4)):
            damaged[position] = random.integers(256)
        write_zip(path, bytes(damaged), torch.storages)
        try:
            pickle_reader.load(path)
        except TorchFileError:
            pass
