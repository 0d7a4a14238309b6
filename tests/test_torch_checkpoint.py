"""The converter of PyTorch checkpoints: what it reads and converts, and what it refuses.

What it refuses is never executed: files are written as torch.save does, without PyTorch, the
hostile ones instruction by instruction.
"""

import collections
import contextlib
import functools
import io
import json
import math
import pickle
import pickletools
import shlex
import shutil
import sys
import tracemalloc
import types
import zipfile

import jax
import ml_dtypes
import numpy as np
import pytest
import released
from absl import flags
from ml_collections import config_flags

from hlformer_jax import models, torch_checkpoint
from hlformer_jax.config import default
from hlformer_jax.errors import UserError
from hlformer_jax.torch_checkpoint import ConversionError, TorchFileError, UnsafeTorchFileError
from hlformer_jax.training import checkpoints, loaded_run

RUN = released.GOLDEN / "released_run"
ROOT = released.GOLDEN.parents[1]
FILES = {
    "hlformer": "best.ckpt",
    "gmmformer_v2": "gmmformer_v2.ckpt",
    "gmmformer": "gmmformer.ckpt",
    "ms_sl": "ms_sl.ckpt",
    "dl_dkd": "dl_dkd.ckpt",
}


# The command.


@pytest.fixture
def convert(tmp_path, capsys):
    def convert(model):
        """The converted checkpoint and the command line that is printed for it."""
        out = tmp_path / "o u't"
        assert torch_checkpoint.main(["convert", str(RUN / FILES[model]), str(out)]) == 0
        return out, capsys.readouterr().out.strip().splitlines()[-1]

    return convert


def parse(line, monkeypatch):
    """The flags that `hlformer_jax.main` sees of a command line: its options, and the config."""
    words = shlex.split(line)
    assert words[1:3] == ["-m", "hlformer_jax.main"]
    values = flags.FlagValues()
    config = config_flags.DEFINE_config_file("config", flag_values=values)
    flags.DEFINE_string("mode", None, "", flag_values=values)
    flags.DEFINE_string("checkpoint", None, "", flag_values=values)
    monkeypatch.setattr(sys, "argv", words[2:])
    monkeypatch.chdir(ROOT)
    assert values(sys.argv) == sys.argv[:1] and values.mode == "evaluate"
    return values.checkpoint, config.value


# ml_collections loads a configuration file by a method that Python is to lose.
@pytest.mark.filterwarnings(r"ignore:the load_module\(\) method:DeprecationWarning")
# In 16 bit the features of both sides of a cosine are rounded, by 2^-12 of their size each.
@pytest.mark.parametrize(
    ("model", "dtype", "tolerance"),
    [
        pytest.param("hlformer", "float32", 2e-5, marks=pytest.mark.slow),
        ("ms_sl", "float32", 2e-5),
        pytest.param("dl_dkd", "float32", 2e-5, marks=pytest.mark.slow),
        pytest.param("gmmformer", "float32", 2e-5, marks=pytest.mark.slow),
        pytest.param("gmmformer_v2", "float16", 2**-11, marks=pytest.mark.slow),
    ],
)
def test_the_printed_command_gives_the_recorded_scores_and_metrics(
    tmp_path, monkeypatch, convert, model, dtype, tolerance
):
    out, line = convert(model)
    prepared, scores_file = tmp_path / "prepared", tmp_path / "scores.npz"
    line = line.replace("PATH", shlex.quote(str(RUN)))
    line += f" --config.data.data_dir={shlex.quote(str(prepared))} --config.data.dtype={dtype}"
    path, config = parse(line, monkeypatch)
    assert path == str(out)
    said = []
    result = loaded_run.evaluate_checkpoint(config, out, scores_file, said.append)
    assert FILES[model] in said[0]
    with (
        np.load(scores_file) as ours,
        np.load(RUN / "expected.npz") as recorded,
        np.load(RUN / "expected_family.npz") as family,
    ):
        rows = [list(ours["queries"]).index(name) for name in recorded["queries"]]
        columns = [list(ours["videos"]).index(name) for name in recorded["videos"]]
        scores, recalls = recorded["scores"], json.loads((RUN / "expected.json").read_text())["R"]
        if model != "hlformer":
            scores, recalls = family[f"{model}/scores"], family[f"{model}/R"]
        assert len(set(rows)) == len(ours["scores"]) == len(scores)
        np.testing.assert_allclose(ours["scores"][rows][:, columns], scores, rtol=0, atol=tolerance)
    if dtype == "float32":
        # Ranks are equal; how Python adds their shares up has changed with version 3.12.
        exact = 1e-14 if model == "hlformer" else 1e-6
        known = [name for name in result.metrics if name != "InCone"]  # not of the released code
        assert known == ["R@1", "R@5", "R@10", "R@100", "SumR"]
        np.testing.assert_allclose([result.metrics[name] for name in known], recalls, rtol=exact)
    assert (result.queries, result.videos) == (133, 44)


@pytest.mark.parametrize(("file", "silent"), [("ms_sl.ckpt", True), ("gmmformer.ckpt", False)])
def test_the_command_says_where_the_file_does_not_name_its_collection(
    tmp_path, capsys, file, silent
):
    assert torch_checkpoint.main(["convert", str(RUN / file), str(tmp_path / "out")]) == 0
    assert ("does not say which collection" in capsys.readouterr().out) == silent


@pytest.mark.parametrize("damage", ["absent", "cut", "text"])
def test_the_command_says_in_one_line_what_is_wrong(tmp_path, damage, capsys):
    path = tmp_path / "best.ckpt"
    if damage == "cut":
        content = (RUN / "best.ckpt").read_bytes()
        path.write_bytes(content[: len(content) // 2])
    elif damage == "text":
        shutil.copy(RUN / "expected.json", path)
    assert torch_checkpoint.main(["convert", str(path), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.strip().splitlines()) == 1
    assert "best.ckpt" in error
    assert not (tmp_path / "out").exists()


# Conversion.

FILE = RUN / FILES["gmmformer"]


@pytest.fixture
def content(monkeypatch):
    """What the reader gives for the file, to be changed by a test."""
    content = torch_checkpoint.load(FILE)
    monkeypatch.setattr(torch_checkpoint, "load", lambda path: content)
    return content


@pytest.fixture
def saved(monkeypatch):
    """What would be written: parameters and information."""
    saved = []
    monkeypatch.setattr(checkpoints, "save_params", lambda *arguments: saved.extend(arguments))
    return saved


def test_sizes_options_and_progress_are_those_of_the_file(saved, tmp_path):
    info = torch_checkpoint.convert(FILE, tmp_path / "out")
    assert info == {
        "source": "gmmformer.ckpt",
        "epoch": 0,
        "validation_SumR": 237.83783783783784,
        "collection": "activitynet",
        "model.name": "gmmformer",
        "model.fusion": "mean",
        "model.window": "released",
        "model.video_level": True,
        "model.euclidean_widths": [0.0, 0.5, 1.0, 5.0],
        "model.lorentz_widths": [],
        "model.lorentz_blocks": 0,
        "model.hidden_size": 8,
        "data.text_dim": 20,
        "data.visual_dim": 24,
        "data.max_frames": 128,
        "data.max_words": 30,
        "model.euclidean_blocks": 4,
        "model.num_heads": 2,
        "data.max_clips": 32,
        "model.clip_weight": 0.7,
        "model.frame_weight": 0.3,
    }
    assert saved[2] == info


def test_the_weights_and_the_collection_are_read_from_the_options(content, saved, tmp_path):
    content["config"] |= {"clip_scale_w": 0.5, "frame_scale_w": 0.5, "collection": "charades"}
    info = torch_checkpoint.convert(FILE, tmp_path / "out")
    assert (info["model.clip_weight"], info["model.frame_weight"]) == (0.5, 0.5)
    assert torch_checkpoint.config_file(info) == "configs/gmmformer.py:charades"


@pytest.mark.parametrize(
    ("info", "file"),
    [
        ({"model.name": "hlformer", "collection": "charades"}, "configs/charades.py"),
        ({"model.name": "hlformer", "collection": "activitynet"}, "configs/anet.py"),
        ({"model.name": "ms_sl", "data.visual_dim": 3072}, "configs/ms_sl.py:tvr"),
        ({"model.name": "ms_sl", "data.visual_dim": 1024}, "configs/ms_sl.py:anet"),
        ({"model.name": "dl_dkd", "data.visual_dim": 3072}, "configs/dl_dkd.py:tvr"),
    ],
)
def test_the_configuration_is_that_of_the_collection(info, file):
    assert torch_checkpoint.config_file({"data.visual_dim": 1024, **info}) == file


@pytest.mark.parametrize(
    ("metrics", "sum_recall"),
    [
        ([1.0, 2.0, 3.0, 4.0, 10.0], 10.0),
        (140.0, 140.0),
        (np.float32(140.0).reshape(1), 140.0),
        ([], None),
        ([math.nan], None),
        (math.inf, None),
        (2**2000, None),
        ("high", None),
    ],
)
def test_the_validation_metric_is_read_where_it_is_one(
    content, saved, tmp_path, metrics, sum_recall
):
    content["model_val"] = metrics
    assert torch_checkpoint.convert(FILE, tmp_path / "out").get("validation_SumR") == sum_recall


DOUBLED = functools.reduce(lambda x, _: (x, x), range(64), ())
"""A tuple that is written with 2^64 parentheses."""


VALUES = [math.inf, math.nan, 1e300, 2**2000, -1, "4\n", True, [4], DOUBLED]
OPTIONS = list(torch_checkpoint.OPTIONS)


@pytest.mark.parametrize(
    ("option", "value"),
    [  # each option and each value; all pairs are slow
        pytest.param(
            option, value, marks=() if i % len(OPTIONS) == k % len(OPTIONS) else pytest.mark.slow
        )
        for k, option in enumerate(OPTIONS)
        for i, value in enumerate(VALUES)
    ],
)
def test_an_option_that_no_model_can_have_is_refused(content, saved, tmp_path, option, value):
    content["config"][option] = value
    with pytest.raises(ConversionError, match=f"option {option} ") as caught:
        torch_checkpoint.convert(FILE, tmp_path / "out")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


@pytest.mark.parametrize("what", ["missing", "without axes", "with three axes"])
def test_a_tensor_that_is_not_as_released_is_refused_or_written_but_no_traceback(
    content, saved, tmp_path, what
):
    state = dict(content["state_dict"])
    refused = 0
    for name, value in list(state.items())[::6]:
        changed = {"without axes": value.ravel()[0:1].reshape(()), "with three axes": value[None]}
        content["state_dict"] = {**state, name: changed[what]} if what in changed else dict(state)
        if what == "missing":
            del content["state_dict"][name]
        try:
            torch_checkpoint.convert(
                FILE, tmp_path / "out"
            )  # the shapes are compared where it is restored
        except ConversionError as error:
            refused += 1
            assert len(str(error).splitlines()) == 1
    assert refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({7: np.zeros(1)}, "has the key '7', which is not a name"),
        ({"a\n\x1b[31m": 3}, r"state_dict\['a\\n\\x1b\[31m'\] is not a tensor"),
        ({"curv": np.full(1, np.nan)}, "'curv' holds NaN or infinite values"),
        ({"curv": np.full(1, 1e300)}, "'curv' holds NaN or infinite values"),
        ({"curv": np.full(1, np.inf, ml_dtypes.bfloat16)}, "'curv' holds NaN or infinite values"),
        ({"curv": np.zeros((0, 3))}, r"'curv' has no elements: its shape is \(0, 3\)"),
        ({"a" * 10_000: np.zeros(1)}, "aaa…' is not the name of a parameter"),
        ({f"a{i}": np.broadcast_to(np.zeros(1), 1000) for i in range(1000)}, "larger than the fil"),
    ],
    ids=range(8),
)
def test_a_state_that_is_not_of_parameters_is_refused_in_a_line(
    content, saved, tmp_path, changes, message
):
    content["state_dict"] |= changes
    with pytest.raises(ConversionError, match=message) as caught:
        torch_checkpoint.convert(FILE, tmp_path / "out")
    assert str(caught.value).isprintable() and str(FILE) in str(caught.value)


def test_the_checkpoint_of_another_model_is_refused(content, saved, tmp_path):
    content["state_dict"] = {
        name: value for name, value in content["state_dict"].items() if "clip_encoder" not in name
    }
    with pytest.raises(ConversionError, match="HLFormer, GMMFormer"):
        torch_checkpoint.convert(FILE, tmp_path / "out")


def test_an_existing_directory_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(checkpoints.CheckpointError, match="not empty"):
        torch_checkpoint.convert(FILE, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "precious"


# Names.

QUERY = "clip_encoder.e_attns.{}.self.query.bias"


def test_every_tensor_of_the_checkpoint_has_its_location():
    state = torch_checkpoint.load(released.GOLDEN / "released_run" / "best.ckpt")["state_dict"]
    config = default()
    config.data.update(visual_dim=24, text_dim=20)
    config.model.update(hidden_size=32, lorentz_dim=15)
    ours = jax.eval_shape(lambda: models.init_params(models.build(config), config))
    converted = torch_checkpoint.to_params(state)
    assert jax.tree.map(np.shape, converted) == jax.tree.map(lambda x: x.shape, ours)
    for name, value in state.items():
        if not torch_checkpoint.NOT_PARAMETERS.search(name):
            counterpart = released.lookup(converted, name)
            np.testing.assert_array_equal(counterpart, value.reshape(np.shape(counterpart)))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({QUERY.format(0): 1, QUERY.format(2): 1}, "do not count from 0"),
        ({QUERY.format(0): 1, QUERY.format("9" * 60): 1}, "do not count from 0"),
        ({QUERY.format(0): 1, QUERY.format(1): 2}, r"differ in shape: \(1,\) and \(2,\)"),
        ({QUERY.format(0): 1, QUERY.format("00"): 1}, "and another tensor are both clip_branch"),
        (
            {QUERY.format(0): 1, "clip_encoder_1.e_attns.0.self.query.bias": 1},
            "and another tensor are both clip_branch.bank",
        ),
        (
            {QUERY.format(0): 1, "clip_branch.bank.euclidean.attention.query.bias": 1},
            "do not count from 0",
        ),
        ({"a.b": 1, "a": 1}, "'a.b' lies within 'a'"),
        ({"a": 1, "a.b": 1}, "'a.b' lies within 'a'"),
        ({"a\n\x1b[31mb": 1}, r"'a\\n\\x1b\[31mb' is not the name"),
        ({"a..b": 1}, "is not the name"),
        ({"../a": 1}, "is not the name"),
        ({"": 1}, "is not the name"),
        ({QUERY.format("٣"): 1}, "is not the name"),
        ({QUERY.format("9" * 5000): 1}, "is not the name"),
        ({".".join("a" * 100_000): 1}, "is not the name"),
        (
            {"clip_encoder.h_attns.0.self.lorentz_multiattention.scale": 3},
            "has 3 elements instead of one",
        ),
    ],
    ids=range(16),
)
def test_names_that_no_released_code_has_are_refused_in_a_line(tensors, message):
    with pytest.raises(ConversionError, match=message) as caught:
        torch_checkpoint.to_params(
            {name: np.zeros(size, np.float32) for name, size in tensors.items()}
        )
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


# Files.

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
    read = torch_checkpoint.load(path)["x"]
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
    read = torch_checkpoint.load(path)
    assert list(read["state_dict"]) == ["a", "b"]
    for array in (*read["state_dict"].values(), read["parameter"]):
        np.testing.assert_array_equal(array, weights)
    assert read["size"] == (2, 3)
    (group,) = read["optimizer"]["param_groups"]
    assert group == {"schedule": {}, "params": [0, 1]}
    assert read["config"]["betas"] == (0.9, 1e-300) and read["config"]["name"] == "HLFormer, é"
    assert read["numbers"] == [0, 255, 65535, -1, 2**31, -(2**40), 2**70]
    assert read["tuples"] == [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]
    assert read[7] == "an integer key"


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
    read = torch_checkpoint.load(path)["x"]
    np.testing.assert_array_equal(read, np.asarray(expected, np.float32))
    if read.size:
        with pytest.raises(ValueError, match="refused"):
            read[...] = 1


OVER, FEW = "larger than the file", "24 bytes instead of"
BEYOND, NO_SIZES, NO_STORAGE = "beyond its storage", "not sizes", "persistent id"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, (7,), (1,)), BEYOND),
        ((6, (), ()), BEYOND),
        ((0, (2, 3), (4, 1)), BEYOND),
        ((2**62, (1,), (1,)), BEYOND),
        ((2**64, (1,), (1,)), NO_SIZES),
        ((0, (2, 2**40), (0, 0)), OVER),
        ((0, (2**62,) * 16, (0,) * 16), OVER),
        ((0, (1,) * 17, (1,) * 17), "has 17 dimensions"),
        ((0, (2,), (-1,)), NO_SIZES),
        ((-1, (2,), (1,)), NO_SIZES),
        ((0, (-2,), (1,)), NO_SIZES),
        ((0, (True,), (1,)), NO_SIZES),
        ((0, (2.0,), (1,)), NO_SIZES),
        ((0, [2], (1,)), "list"),
        ((0, (2,), (1, 1)), "has strides"),
        ({"numel": 5}, "too large"),
        ({"numel": 7}, f"{FEW} 7"),
        ({"numel": 2**62}, FEW),
        ({"numel": 2**2000}, NO_STORAGE),
        ({"numel": -1}, NO_STORAGE),
        ({"numel": True}, NO_STORAGE),
        ({"numel": "6"}, NO_STORAGE),
        ({"key": "9"}, "lacks the entry 'data/9'"),
        ({"key": "../version"}, "lacks the entry"),
        ({"key": "/etc/passwd"}, "lacks the entry"),
        ({"key": 0}, NO_STORAGE),
        ({"tag": "module"}, NO_STORAGE),
    ],
)
def test_refuses_tensors_that_leave_their_storage_or_are_not_as_declared(
    torch, path, given, message
):
    view, changes = ((), given) if isinstance(given, dict) else (given, {})
    storage = np.arange(6, dtype=np.float32)
    torch.save(path, {"x": torch.tensor("Float", storage, *view, **changes)})
    with pytest.raises(TorchFileError, match=message):
        torch_checkpoint.load(path)


TOUCH = "touch {}"  # the file whose absence shows that nothing was executed

HOSTILE = {
    "os.system": named("os", "system") + text(TOUCH) + b"\x85R",
    "posix.system": named("posix", "system") + text(TOUCH) + b"\x85R",
    "STACK_GLOBAL": stack_named("posix", "system") + text(TOUCH) + b"\x85R",
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
    "no name": named("Opts.optimization", ""),
    "collections.OrderedDict.__init__.__globals__": named(
        "collections", "OrderedDict.__init__.__globals__"
    ),
    "OrderedDict.__reduce__": stack_named("collections", "OrderedDict.__reduce__"),
    "hlformer_jax.torch_checkpoint._Dict": named("hlformer_jax.torch_checkpoint", "_Dict"),
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
    "an object of a function": ORDERED_DICT + b")\x81",
    "an object with arguments": SCHEDULE + text(TOUCH) + b"\x85\x81",
    "a call of a class": SCHEDULE + b")R",
    "a call of a storage": named("torch", "FloatStorage") + b"K\x01\x85R",
    "a call with arguments": ORDERED_DICT + b"]\x85R",
    "a call without arguments": named("torch", "Size") + b")R",
    "a parameter of no tensor": named("torch._utils", "_rebuild_parameter") + SCHEDULE + b"NN\x87R",
    "attributes of a function": ORDERED_DICT + b"}" + text("fromkeys") + b"Nsb",
    "code of a function": REBUILD + b"}" + text("__code__") + b"Nsb",
    "attributes of a class": SCHEDULE + b"}" + text("__setstate__") + b"Nsb",
    "attributes of a list": b"]}b",
    "attributes of a _Storage": STORAGE + b"}" + text("data") + b"Nsb",
    "attributes by slots": SCHEDULE + b")\x81N}" + text("__class__") + b"Ns\x86b",
    "attributes that are no dictionary": SCHEDULE + b")\x81N}" + text("name") + b"Ns\x86b",
    "attributes that are no dictionary of names": SCHEDULE + b")\x81}K\x01Nsb",
    "persistent id": text("storage") + b"Q",
    "a persistent id": b"(" + text("storage") + named("torch", "Size") + text("0") * 2 + b"K\x01tQ",
    "attributes of a tensor": REBUILD
    + b"("
    + STORAGE
    + b"K\x00K\x01\x85K\x01\x85\x89}tR"
    + b"(K\x01)N\x89]tb",
    "attributes of an int": b"K\x01N}" + text("real") + b"Ns\x86b",
    "items of a tensor": REBUILD
    + b"("
    + STORAGE
    + b"K\x00K\x00\x85K\x01\x85\x89}tR"
    + b"K\x00K\x01s",
    "items by a call of a class": named("easydict", "EasyDict") + b"])K\x01\x86a\x85R",
}


def hostile(what, sentinel):
    instructions = HOSTILE[what]
    for template in (TOUCH, "open('{}', 'w')", "{}"):
        instructions = instructions.replace(text(template), text(template.format(sentinel)))
    return inside(instructions)


@pytest.mark.parametrize("what", HOSTILE)
def test_refuses_a_hostile_pickle_and_executes_nothing(tmp_path, path, what):
    sentinel = tmp_path / "executed"
    write_zip(path, hostile(what, sentinel), {"0": bytes(4)})
    before = set(sys.modules)
    with pytest.raises(TorchFileError) as caught:
        torch_checkpoint.load(path)
    assert str(caught.value).isprintable() and str(path) in str(caught.value)
    if "." in what:
        assert isinstance(caught.value, UnsafeTorchFileError) and what in str(caught.value)
    assert not sentinel.exists()
    new = {name for name in set(sys.modules) - before if not name.startswith("encodings.")}
    assert not new


@pytest.mark.parametrize("what", ["os.system", "builtins.eval", "instruction INST"])
def test_the_hostile_files_are_hostile(tmp_path, what):
    sentinel = tmp_path / "executed"
    value = pickle.loads(hostile(what, sentinel))["optimizer"]["x"]
    if hasattr(value, "close"):
        value.close()
    assert sentinel.exists()


def test_what_a_file_names_reaches_a_message_escaped_and_shortened(path):
    write_zip(path, inside(stack_named("os\n\x1b[31m", "system" * 10_000)))
    with pytest.raises(UnsafeTorchFileError) as caught:
        torch_checkpoint.load(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


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


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=pytest.mark.slow if "many records" in what else ())
        for what in BOMBS
    ],
)
def test_a_small_file_takes_little_memory(path, what):
    write_zip(path, inside(BOMBS[what]))
    tracemalloc.start()
    try:
        with contextlib.suppress(TorchFileError):
            torch_checkpoint.load(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def sized(size):
    """A checkpoint with a tensor of this shape."""
    return inside(REBUILD + b"(" + STORAGE + b"K\x00" + size + b"\x89NtR")


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"", "malformed"),
        (b"\x80\x02}", "malformed"),  # no STOP
        (b"\x80\x02].", "list, not a dict"),
        (b"\x80\x02h\x05.", "malformed"),  # nothing in the memo
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
        # Shapes of absurdly many or large dimensions.
        (sized(b"(" + b"K\x01" * 400_000 + b"t"), "400000 dimensions"),
        (sized(b"(" + (b"\x8a\xff" + b"\x7f" * 255) * 15 + b"t"), "not sizes"),  # of 2039 bits
        (sized(b"(\x8a\xff" + b"\x7f" * 255 + b"q\x00" + b"h\x00" * 399_999 + b"t"), "dimensions"),
        # What would take gigabytes.
        (b"\x80\x02" + b"}" * torch_checkpoint.MAX_PICKLE + b".", "'data.pkl' is too large"),
    ],
    ids=range(16),
)
def test_refuses_a_malformed_pickle_at_once(path, pickled, message):
    write_zip(path, pickled, {"0": bytes(4)})
    with pytest.raises(TorchFileError, match=message) as caught:
        torch_checkpoint.load(path)
    assert len(str(caught.value)) < 500


def test_refuses_a_storage_declared_twice_and_differently(torch, path):
    one = torch.tensor("Float", np.arange(6, dtype=np.float32))
    two = torch.tensor("Int", np.arange(6, dtype=np.int32), key="0")
    torch.save(path, {"x": one, "y": two})
    with pytest.raises(TorchFileError, match="twice"):
        torch_checkpoint.load(path)


def test_refuses_compressed_entries(torch, path):
    array = np.zeros(100_000, np.float32)
    torch.save(path, {"x": torch.tensor("Float", array)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(TorchFileError, match="compressed"):
        torch_checkpoint.load(path)


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
        torch_checkpoint.load(path)


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
        torch_checkpoint.load(path)


def test_refuses_a_zip_of_something_else_and_an_unknown_byte_order(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("arr_0.npy", b"")
    with pytest.raises(TorchFileError, match="0 entries"):
        torch_checkpoint.load(path)
    write_zip(path, b"\x80\x02}.", byteorder="middle")
    with pytest.raises(TorchFileError, match="'middle'"):
        torch_checkpoint.load(path)


# Damage.

MAX_BYTES = 100e6
"""Bytes of memory that no variant of the file, of 58 kB, may take."""


@functools.cache
def whole():
    """The pickle, the positions of its instructions, and the entries of its storages."""
    with zipfile.ZipFile(RUN / FILES["ms_sl"]) as archive:
        entries = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    pickled = entries["data.pkl"]
    storages = {name[5:]: data for name, data in entries.items() if name.startswith("data/")}
    return pickled, [position for _, _, position in pickletools.genops(pickled)], storages


def flipped(data, random):
    changed = bytearray(data)
    for position in random.integers(len(data), size=random.integers(1, 5)):
        changed[position] = random.integers(256)
    return bytes(changed)


def damaged_file(random, sentinel):
    data = flipped((RUN / FILES["ms_sl"]).read_bytes(), random)
    return data[: random.integers(len(data))] if random.random() < 0.2 else data


def damaged_bytes(random, sentinel):
    pickled, _, storages = whole()
    return zipped(flipped(pickled, random), storages)


def damaged_instructions(random, sentinel):
    """Instructions removed, doubled, swapped or put between the others, hostile ones too."""
    pickled, positions, storages = whole()
    spans = zip(positions, [*positions[1:], len(pickled)], strict=True)
    instructions = [pickled[start:end] for start, end in spans]
    for _ in range(random.integers(1, 4)):
        at = random.integers(1, len(instructions))
        inserted = (
            b"",
            instructions[random.integers(len(instructions))],
            instructions[at] * 2,
            random.bytes(random.integers(1, 10)),
            named("posix", "system") + text(f"touch {sentinel}") + b"\x85R",
            named("collections", "OrderedDict") + b")R}" + text("__class__") + b"Nsb",
            named("Opts.optimization", "WarmupLinearSchedule") + b")\x81",
            b"r" + random.bytes(4),
            b"\x8a\xff" + random.bytes(255),
            b"G" + random.bytes(8),
        )
        instructions[at : at + random.integers(2)] = [inserted[random.integers(len(inserted))]]
    return zipped(b"".join(instructions), storages)


def zipped(pickled, storages):
    file = io.BytesIO()
    write_zip(file, pickled, storages)
    return file.getvalue()


def outcomes(count, seed, tmp_path):
    """How often each kind of damage was read or refused, by the name of the error."""
    random = np.random.default_rng(seed)
    path, sentinel = tmp_path / "best.ckpt", tmp_path / "executed"
    counted = collections.Counter()
    for index in range(count):
        damage = (damaged_file, damaged_bytes, damaged_instructions)[index % 3]
        path.write_bytes(damage(random, sentinel))
        outcome = "read"
        try:
            torch_checkpoint.convert(path, tmp_path / "out")
        except (TorchFileError, ConversionError) as error:
            outcome = type(error).__name__
            assert isinstance(error, UserError) and str(path) in str(error)
            assert str(error).isprintable() and len(str(error)) < 1000
        counted[damage.__name__, outcome] += 1
        assert not sentinel.exists()
    return counted


@pytest.mark.slow
def test_a_damaged_file_is_read_or_refused_in_a_line_within_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "save_params", lambda *arguments: None)
    tracemalloc.start()
    try:
        counted = outcomes(120, 0, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    damages, results = zip(*counted, strict=True)
    assert len(set(damages)) == 3
    assert set(results) == {"read", "TorchFileError", "UnsafeTorchFileError", "ConversionError"}
