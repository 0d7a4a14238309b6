"""The reader of PyTorch checkpoints: what it reads, and that what it refuses is never executed."""

import collections
import pickle
import sys
import tracemalloc

import numpy as np
import pytest
from torch_files import (
    DTYPES,
    ORDERED_DICT,
    REBUILD,
    SCHEDULE,
    STORAGE,
    inside,
    named,
    stack_named,
    text,
    write_zip,
)

from hlformer_jax.torch_checkpoint import pickle_reader
from hlformer_jax.torch_checkpoint.errors import TorchFileError, UnsafeTorchFileError


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
    "instruction BYTEARRAY8": b"\x96" + bytes([0, 0, 0, 0, 1, 0, 0, 0]),
    "instruction LONG4": b"\x8b\xff\xff\xff\x7f",
    "instruction LONG": b"L" + b"9" * 5000 + b"L\n",
    "instruction FROZENSET": b"(\x91",
    "instruction 0xfe": b"\xfe",
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
    "attributes that are no dictionary of names by slots": SCHEDULE
    + b")\x81N}"
    + text("__class__")
    + b"Ns\x86b",
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


# Each would take gigabytes, hours, or the stack, if it were followed to the letter.
BOMBS = {
    "an index of the memo beyond 2^31": b"r\xff\xff\xff\xffN",
    "a frame of 2^63 bytes": b"\x95" + b"\xff" * 7 + b"\x7fN",
    "lists within lists": b"]" * 100_000 + b"a" * 99_999,
    "a dictionary that holds itself": b"}q\x00" + text("a") + b"h\x00s",
    "a state that many records share": b"}q\x00("
    + b"".join(text(str(i)) + b"N" for i in range(100))
    + b"u"
    + (SCHEDULE + b"q\x01)\x81h\x00b")
    + b"]q\x02("
    + b"h\x01)\x81h\x00b" * 20_000
    + b"e\x87",
    "a tuple doubled": b")" + b"q\x00h\x00\x86" * 10_000,
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_small_file_takes_little_memory(path, what):
    write_zip(path, inside(BOMBS[what]))
    tracemalloc.start()
    try:
        pickle_reader.load(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (b"(" + b"K\x01" * 1_000_000 + b"t", "1000000 dimensions"),
        (b"(" + (b"\x8a\xff" + b"\x7f" * 255) * 15 + b"t", "not sizes"),  # of 2039 bits
        (b"(\x8a\xff" + b"\x7f" * 255 + b"q\x07" + b"h\x07" * 999_999 + b"t", "dimensions"),
    ],
    ids=["a million", "gigantic", "a million gigantic ones"],
)
def test_a_tensor_with_absurd_dimensions_is_refused_at_once(path, size, message):
    call = REBUILD + b"(" + STORAGE + b"K\x00" + size + b"q\x08h\x08\x89NtR"
    write_zip(path, inside(call), {"0": bytes(4)})
    with pytest.raises(TorchFileError, match=message) as caught:
        pickle_reader.load(path)
    assert len(str(caught.value)) < 500


def test_what_a_file_names_reaches_a_message_escaped_and_shortened(path):
    write_zip(path, inside(stack_named("os\n\x1b[31m", "system" * 10_000)))
    with pytest.raises(UnsafeTorchFileError) as caught:
        pickle_reader.load(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


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
        (b"\x80\x06}.", "malformed"),  # a protocol that there is not
        (b"\x80\x02}X\xff\xff\xff\xff.", "malformed"),  # a text of 4 GiB that is not there
        (b"\x80\x02}\x80\x02]K\x01s.", "list for a key"),
        (b"\x80\x02}G\x7f\xf8" + bytes(6) + b"K\x01s.", "float for a key"),
        # Integers that share one hash would take a step for each other to store.
        (b"\x80\x02}\x8a\xff" + b"\x7f" * 255 + b"K\x01s.", "large int for a key"),
        # Tuples of which hashing the last would take 2^64 steps.
        (b"\x80\x02})" + b"q\x00h\x00\x86" * 64 + b"K\x01s.", "tuple for a key"),
        (b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.", "tuple for a key"),
    ],
)
def test_refuses_a_malformed_pickle(path, pickled, message):
    write_zip(path, pickled)
    with pytest.raises(TorchFileError, match=message):
        pickle_reader.load(path)
