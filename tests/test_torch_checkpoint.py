"""Conversion of PyTorch checkpoints of the released codes, without executing their pickles.

Files are written as torch.save does, without PyTorch, the hostile ones instruction by instruction.
"""

import collections
import contextlib
import functools
import io
import json
import math
import pickle
import pickletools
import re
import shlex
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

from hlformer_jax.torch_checkpoint import __main__ as command
from hlformer_jax.torch_checkpoint import convert as conversion
from hlformer_jax.torch_checkpoint import names, reader
from hlformer_jax.torch_checkpoint.names import ConversionError
from hlformer_jax.torch_checkpoint.reader import TorchFileError, UnsafeTorchFileError
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
        """Return the converted checkpoint and the printed command line."""
        out = tmp_path / "o u't"
        assert command.main(["convert", str(RUN / FILES[model]), str(out)]) == 0
        return out, capsys.readouterr().out.strip().splitlines()[-1]

    return convert


def parse(line, monkeypatch):
    """Return the checkpoint and the configuration that `hlformer_jax.main` reads from a line."""
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


# ml_collections loads a configuration file by a method that Python will drop.
@pytest.mark.slow  # it takes seconds
@pytest.mark.filterwarnings(r"ignore:the load_module\(\) method:DeprecationWarning")
# In 16 bits, rounding changes the features of both sides of a cosine by 2^-12 of their size.
@pytest.mark.parametrize(
    ("model", "dtype", "tolerance"),
    [
        ("hlformer", "float32", 2e-5),
        ("ms_sl", "float32", 2e-5),
        ("dl_dkd", "float32", 2e-5),
        ("gmmformer", "float32", 2e-5),
        ("gmmformer_v2", "float16", 2**-11),
    ],
)
def test_printed_command_gives_the_recorded_scores(
    tmp_path, monkeypatch, convert, model, dtype, tolerance
):
    out, line = convert(model)
    prepared, scores_file = tmp_path / "prepared", tmp_path / "scores.npz"
    line = line.replace("PATH", shlex.quote(str(RUN)))
    line += f" --config.data.data_dir={shlex.quote(str(prepared))} --config.data.dtype={dtype}"
    path, config = parse(line, monkeypatch)
    assert path == str(out)
    lines = []
    result = loaded_run.evaluate_checkpoint(config, out, scores_file, lines.append)
    assert FILES[model] in lines[0]
    with (
        np.load(scores_file) as computed,
        np.load(RUN / "expected.npz") as recorded,
        np.load(RUN / "expected_family.npz") as family,
    ):
        rows = [list(computed["queries"]).index(name) for name in recorded["queries"]]
        columns = [list(computed["videos"]).index(name) for name in recorded["videos"]]
        scores, recalls = recorded["scores"], json.loads((RUN / "expected.json").read_text())["R"]
        if model != "hlformer":
            scores, recalls = family[f"{model}/scores"], family[f"{model}/R"]
        assert len(set(rows)) == len(computed["scores"]) == len(scores)
        np.testing.assert_allclose(
            computed["scores"][rows][:, columns], scores, rtol=0, atol=tolerance
        )
    if dtype == "float32":
        # Ranks are equal, but Python sums their shares differently since version 3.12.
        exact = 1e-14 if model == "hlformer" else 1e-6
        shared = [name for name in result.metrics if name != "InCone"]  # the released code has none
        assert shared == ["R@1", "R@5", "R@10", "R@100", "SumR"]
        np.testing.assert_allclose([result.metrics[name] for name in shared], recalls, rtol=exact)
    assert (result.queries, result.videos) == (133, 44)


@pytest.mark.parametrize(
    ("file", "has_collection"), [("ms_sl.ckpt", False), ("gmmformer.ckpt", True)]
)
def test_command_says_that_a_file_names_no_collection(tmp_path, capsys, file, has_collection):
    assert command.main(["convert", str(RUN / file), str(tmp_path / "out")]) == 0
    assert ("does not name the collection" in capsys.readouterr().out) != has_collection


def test_command_lists_fields_that_the_file_does_not_determine(tmp_path, capsys, monkeypatch):
    content = reader.load(RUN / FILES["hlformer"])
    monkeypatch.setattr(conversion, "load", lambda path: content)
    arguments = ["convert", str(RUN / FILES["hlformer"])]
    assert command.main([*arguments, str(tmp_path / "all")]) == 0
    complete = capsys.readouterr().out
    assert "does not determine" not in complete and "Warning" not in complete
    content["config"] = {"collection": "activitynet", "n_heads": 4}
    content["state_dict"] = {
        name: value for name, value in content["state_dict"].items() if ".e_attns.3." not in name
    }
    assert command.main([*arguments, str(tmp_path / "less")]) == 0
    printed = capsys.readouterr().out
    listed = "model.temperature=0.6, data.max_clips=32, model.clip_weight=0.7, model.frame_weight="
    assert f"does not determine {listed}0.3: these are the values of configs/anet.py" in printed
    assert "model.euclidean_blocks is 3 in the file, but 4 in configs/anet.py" in printed


@pytest.mark.slow  # it takes seconds
def test_command_notes_parameters_that_the_released_code_clamps(tmp_path, capsys, monkeypatch):
    content = reader.load(RUN / FILES["hlformer"])
    monkeypatch.setattr(conversion, "load", lambda path: content)
    arguments = ["convert", str(RUN / FILES["hlformer"])]
    assert command.main([*arguments, str(tmp_path / "inside")]) == 0
    assert "Note: " not in capsys.readouterr().out
    state, block = content["state_dict"], "clip_encoder.h_attns.1.self.scale_alpha"
    outside = {"curv": -5.0, "video_alpha": 0.5, "textual_alpha": 0.25, block: 0.125}
    for name, value in outside.items():
        state[name] = np.full_like(state[name], value)
    assert command.main([*arguments, str(tmp_path / "outside")]) == 0
    printed = capsys.readouterr().out.splitlines()
    notes = {line.partition(",")[0] for line in printed if line.startswith("Note: ")}
    attention = "clip_branch.bank.lorentz.attention.scale_alpha"
    assert notes == {
        f"Note: {attention if name == block else name} is {value:g} in the file"
        for name, value in outside.items()
    }
    assert any("evaluation uses -2.30259, as the released code does" in line for line in printed)
    content["config"]["curv_init"] = 0.1
    state["curv"] = np.full_like(state["curv"], -4.5)  # above log 0.01
    assert command.main([*arguments, str(tmp_path / "other")]) == 0
    printed = capsys.readouterr().out
    assert "--config.model.curvature=0.1" in printed and "Note: curv is" not in printed


@pytest.mark.parametrize("size", [None, 0, 30_000])
def test_command_prints_one_line_for_a_bad_file(tmp_path, size, capsys):
    path = tmp_path / "best.ckpt"
    if size is not None:
        path.write_bytes((RUN / "best.ckpt").read_bytes()[:size])
    assert command.main(["convert", str(path), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and "best.ckpt" in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


# Conversion.

FILE = RUN / FILES["gmmformer"]


@pytest.fixture
def content(monkeypatch):
    """The content of the file, which a test may change."""
    content = reader.load(FILE)
    monkeypatch.setattr(conversion, "load", lambda path: content)
    return content


@pytest.fixture
def saved(monkeypatch):
    """The arguments of `save_params`: directory, parameters and information."""
    saved = []
    monkeypatch.setattr(checkpoints, "save_params", lambda *arguments: saved.extend(arguments))
    return saved


def test_info_describes_the_file(saved, tmp_path):
    info = conversion.convert(str(FILE), str(tmp_path / "out"))
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


def test_options_determine_weights_and_collection(content, saved, tmp_path):
    content["config"] |= {"clip_scale_w": 0.5, "frame_scale_w": 0.5, "collection": "charades"}
    info = conversion.convert(FILE, tmp_path / "out")
    assert (info["model.clip_weight"], info["model.frame_weight"]) == (0.5, 0.5)
    assert conversion.config_file(info) == "configs/gmmformer.py:charades"


@pytest.mark.parametrize(
    ("info", "file"),
    [
        ({"model.name": "hlformer", "collection": "activitynet"}, "configs/anet.py"),
        ({"model.name": "ms_sl", "data.visual_dim": 3072}, "configs/ms_sl.py:tvr"),
        ({"model.name": "ms_sl", "data.visual_dim": 1024}, "configs/ms_sl.py:anet"),
    ],
)
def test_configuration_follows_collection_or_feature_width(info, file):
    assert conversion.config_file({"data.visual_dim": 1024, **info}) == file


@pytest.mark.parametrize(
    ("metrics", "sum_recall"),
    [
        ([1.0, 2.0, 3.0, 4.0, 10.0], 10.0),
        (140.0, 140.0),
        (np.float32(140.0).reshape(1), 140.0),
        ([], None),
        ([math.nan], None),
        ("high", None),
    ],
)
def test_validation_metric_is_read_if_it_is_a_number(content, saved, tmp_path, metrics, sum_recall):
    content["model_val"] = metrics
    assert conversion.convert(FILE, tmp_path / "out").get("validation_SumR") == sum_recall


DOUBLED_TUPLE = functools.reduce(lambda x, _: (x, x), range(64), ())


@pytest.mark.parametrize("value", [math.inf, math.nan, 2**2000, -1, "4", True, DOUBLED_TUPLE])
def test_impossible_option_is_refused(content, saved, tmp_path, value):
    content["config"]["map_size"] = value
    with pytest.raises(ConversionError, match="option map_size"):
        conversion.convert(FILE, tmp_path / "out")


def test_tensor_of_wrong_rank_is_refused_in_one_line(content, saved, tmp_path):
    state = dict(content["state_dict"])
    errors = []
    for name, value in list(state.items())[::6]:
        content["state_dict"] = {**state, name: value[None]}
        with pytest.raises(ConversionError) as refusal:
            conversion.convert(FILE, tmp_path / "out")
        errors.append(refusal.value)
    assert errors and all(len(str(error).splitlines()) == 1 for error in errors)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("modular_vector_mapping.weight", None, "it lacks query_pooling"),
        (
            "modular_vector_mapping.weight",
            np.transpose,
            r"query_pooling.kernel has .*\(1, 8\) inst",
        ),
        (
            "clip_input_proj.net.1.weight",
            np.transpose,
            r"clip_branch.input.dense.kernel has the sh",
        ),
        (
            "clip_input_proj.net.1.bias",
            lambda x: x[1:],
            r"clip_branch.input.dense.bias has the sha",
        ),
        ("adapter.weight", lambda _: np.ones(3), "the model has no adapter.kernel"),
    ],
)
def test_tensors_that_differ_from_the_model_are_named(
    content, saved, tmp_path, name, change, message
):
    state = content["state_dict"]
    value = state.pop(name, None)
    if change is not None:
        state[name] = change(value)
    with pytest.raises(ConversionError, match=f"{FILE.name}: .*{message}"):
        conversion.convert(FILE, tmp_path / "out")
    assert not saved


@pytest.mark.slow  # a conversion for each tensor
@pytest.mark.parametrize("model", FILES)
def test_every_missing_or_changed_tensor_is_refused(monkeypatch, saved, tmp_path, model):
    file = RUN / FILES[model]
    content = reader.load(file)
    monkeypatch.setattr(conversion, "load", lambda path: content)
    state = content["state_dict" if "state_dict" in content else "model"]
    for name, value in list(state.items()):
        if names.NOT_PARAMETERS.search(name):
            continue
        del state[name]
        with pytest.raises(ConversionError):
            conversion.convert(file, tmp_path / "out")
        if value.ndim == 2 and value.shape[0] != value.shape[1]:
            state[name] = value.T
            with pytest.raises(ConversionError):
                conversion.convert(file, tmp_path / "out")
        state[name] = value
    assert not saved


def test_long_lists_of_tensors_are_shortened(content, saved, tmp_path):
    content["state_dict"] |= {f"adapter{k}": np.ones(1) for k in range(9)}
    with pytest.raises(ConversionError, match="the model has no .*adapter4 and 4 more$"):
        conversion.convert(FILE, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({7: np.zeros(1)}, "'7'"),
        ({"a\n\x1b[31m": 3}, "not a tensor"),
        ({"curv": np.full(1, 1e300)}, "'curv' holds NaN or infinite values"),
        ({"curv": np.zeros((0, 3))}, "'curv'"),
        ({f"a{i}": np.broadcast_to(np.zeros(1), 1000) for i in range(1000)}, "larger than the fil"),
    ],
    ids=range(5),
)
def test_state_other_than_parameters_is_refused(content, saved, tmp_path, changes, message):
    content["state_dict"] |= changes
    with pytest.raises(ConversionError, match=message) as caught:
        conversion.convert(FILE, tmp_path / "out")
    assert str(caught.value).isprintable() and str(FILE) in str(caught.value)


def test_checkpoint_of_another_model_is_refused(content, saved, tmp_path):
    content["state_dict"] = {
        name: value for name, value in content["state_dict"].items() if "clip_encoder" not in name
    }
    with pytest.raises(ConversionError, match="HLFormer, GMMFormer"):
        conversion.convert(FILE, tmp_path / "out")


def test_branches_with_other_numbers_of_blocks_are_refused(content, saved, tmp_path):
    content["state_dict"] = {
        name: value
        for name, value in content["state_dict"].items()
        if not name.startswith("clip_encoder.attn3.")
    }
    with pytest.raises(ConversionError, match=r"clip branch has 3 blocks \(bank\.euc.* branch 4"):
        conversion.convert(FILE, tmp_path / "out")


def test_prefix_of_data_parallel_is_removed(content, saved, tmp_path):
    info = conversion.convert(FILE, tmp_path / "out")
    state = content["state_dict"].items()
    content["state_dict"] = {f"module.{name}": value for name, value in state}
    assert conversion.convert(FILE, tmp_path / "out") == info
    plain, prefixed = saved[1], saved[4]
    assert jax.tree.structure(plain) == jax.tree.structure(prefixed)


def test_existing_directory_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("precious")
    with pytest.raises(checkpoints.CheckpointError, match="not empty"):
        conversion.convert(FILE, tmp_path / "out")
    assert (tmp_path / "out" / "mine").read_text() == "precious"


# Names.

QUERY = "clip_encoder.e_attns.{}.self.query.bias"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({QUERY.format(0): 1, QUERY.format(2): 1}, "are not numbered from 0"),
        ({QUERY.format(0): 1, QUERY.format(1): 2}, "differ in shape"),
        ({QUERY.format(0): 1, QUERY.format("00"): 1}, "and another tensor are both clip_branch"),
        ({"a": 1, "a.b": 1}, "'a.b' lies within"),
        ({"a\n\x1b[31mb": 1}, r"'a\\n\\x1b\[31mb' is not the name"),
        ({".".join("a" * 100_000): 1}, "is not the name"),
        (
            {"clip_encoder.h_attns.0.self.lorentz_multiattention.scale": 3},
            "has 3 elements instead of one",
        ),
    ],
    ids=range(7),
)
def test_unreleased_names_are_refused(sizes, message):
    with pytest.raises(ConversionError, match=message) as caught:
        names.to_params({name: np.zeros(size, np.float32) for name, size in sizes.items()})
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
    """Imitates torch.save: tensors reduce to a call, storages to persistent ids."""

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


# Instructions of a pickle.
def text(value):
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def global_name(module, name):
    return f"c{module}\n{name}\n".encode()


def stack_global(module, name):
    return text(module) + text(name) + b"\x93"


def checkpoint_with(instructions):
    """Return a checkpoint whose optimiser holds the value of these instructions."""
    return b"\x80\x02}" + text("optimizer") + b"}" + text("x") + instructions + b"ss."


STORAGE = b"(" + text("storage") + global_name("torch", "FloatStorage") + text("0") + text("cpu")
STORAGE += b"K\x01tQ"
ORDERED_DICT = global_name("collections", "OrderedDict")
SCHEDULE = global_name("Opts.optimization", "WarmupLinearSchedule")
REBUILD = global_name("torch._utils", "_rebuild_tensor_v2")


@pytest.fixture
def torch(monkeypatch):
    return FakeTorch(monkeypatch)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "best.ckpt"


def example(name):
    values = np.arange(6).reshape(2, 3) % 2 if name == "Bool" else np.arange(6).reshape(2, 3)
    return values.astype(DTYPES[name])


@pytest.mark.parametrize("order", ["little", None])
def test_tensors_of_every_dtype_are_read(torch, path, order):
    arrays = {name: example(name) for name in DTYPES}
    tensors = {name: torch.tensor(name, array) for name, array in arrays.items()}
    torch.save(path, tensors, byteorder=order)
    content = reader.load(path)
    for name, array in arrays.items():
        assert content[name].dtype == array.dtype
        np.testing.assert_array_equal(content[name], array)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_checkpoint_with_optimiser_and_options_is_read(torch, path, protocol):
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
    read = reader.load(path)
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


# The package's name before NumPy 2, and since.
@pytest.mark.parametrize(
    ("package", "protocol"), [("core", 2), *(("_core", protocol) for protocol in (2, 3, 4, 5))]
)
def test_numpy_scalars_are_numbers(path, package, protocol):
    scalars = [np.int64(-3), np.uint8(200), np.float64(0.1), np.float32(1.5), np.bool_(True)]
    pickled = pickle.dumps({"epoch": np.int64(3), "values": scalars}, protocol)
    pickled = re.sub(rb"cnumpy\._?core\.", f"cnumpy.{package}.".encode(), pickled)
    content = reader.load(write_zip(path, pickled))
    assert content == {"epoch": 3, "values": [-3, 200, 0.1, 1.5, True]}
    assert [type(value) for value in content["values"]] == [int, int, float, float, bool]


@pytest.mark.parametrize(
    "value", [np.datetime64("2020-01-01"), np.complex64(1j), np.str_("a"), np.arange(3), b"bytes"]
)
def test_other_numpy_objects_are_refused(path, value):
    with pytest.raises(TorchFileError, match="best.ckpt"):
        reader.load(write_zip(path, pickle.dumps({"x": value, "y": np.ones(1)}, 2)))


def test_numpy_scalar_of_another_byte_order_is_refused(path):
    pickled = pickle.dumps({"x": np.float64(0.5)}, 2).replace(text("<"), text(">"))
    with pytest.raises(TorchFileError, match="byte order '>'"):
        reader.load(write_zip(path, pickled))


@pytest.mark.parametrize(
    ("offset", "size", "stride", "expected"),
    [
        (0, (3, 2), (1, 3), [[0, 3], [1, 4], [2, 5]]),  # transposed
        (1, (2,), (3,), [1, 4]),
        (5, (), (), 5),
        (0, (2, 2), (1, 1), [[0, 1], [1, 2]]),  # overlapping
        (0, (3, 3), (2, 0), [[0, 0, 0], [2, 2, 2], [4, 4, 4]]),  # expanded
        (0, (0, 3), (3, 1), np.zeros((0, 3))),
    ],
)
def test_tensors_are_read_only_views_of_a_storage(torch, path, offset, size, stride, expected):
    storage = np.arange(6, dtype=np.float32)
    torch.save(path, {"x": torch.tensor("Float", storage, offset, size, stride)})
    read = reader.load(path)["x"]
    np.testing.assert_array_equal(read, np.asarray(expected, np.float32))
    if read.size:
        with pytest.raises(ValueError, match="read-only"):
            read[...] = 1


@pytest.mark.parametrize(
    ("view", "changes"),
    [
        ((0, (7,), (1,)), {}),  # beyond the storage
        ((-1, (2,), (1,)), {}),
        ((0, (2,), (-1,)), {}),
        ((0, (2**62,) * 16, (0,) * 16), {}),
        ((), {"numel": 7}),
        ((), {"key": "/etc/passwd"}),
        ((), {"tag": "module"}),
    ],
)
def test_tensor_outside_of_its_storage_is_refused(torch, path, view, changes):
    storage = np.arange(6, dtype=np.float32)
    torch.save(path, {"x": torch.tensor("Float", storage, *view, **changes)})
    with pytest.raises(TorchFileError, match=r"best\.ckpt"):
        reader.load(path)


TOUCH = "touch {}"
"""Command that makes a file, whose absence shows that nothing was executed."""

HOSTILE = {
    "os.system": global_name("os", "system") + text(TOUCH) + b"\x85R",
    "posix.system": stack_global("posix", "system") + text(TOUCH) + b"\x85R",
    "builtins.eval": global_name("builtins", "eval") + text("open('{}', 'w')") + b"\x85R",
    "collections.OrderedDict.__init__.__globals__": global_name(
        "collections", "OrderedDict.__init__.__globals__"
    ),
    "instruction INST": b"(" + text(TOUCH) + b"iposix\nsystem\n",
    "instruction OBJ": b"(" + ORDERED_DICT + text(TOUCH) + b"o",
    "instruction EXT1": b"\x82\x01",
    "object of a function": REBUILD + b")\x81",
    "attributes of a function": REBUILD + b"}" + text("__code__") + b"Nsb",
    "attributes of a class": SCHEDULE + b"}" + text("__setstate__") + b"Nsb",
    "persistent id": text("storage") + b"Q",
    "dtype of objects": global_name("numpy", "dtype") + text("O8") + b"\x89\x88\x87R",
    "scalar of a storage's dtype": global_name("numpy._core.multiarray", "scalar")
    + global_name("torch", "FloatStorage")
    + b"C\x04\x00\x00\x00\x00\x86R",
    "storage of a scalar's dtype": b"("
    + text("storage")
    + global_name("numpy", "dtype")
    + text("f4")
    + b"\x89\x88\x87R"
    + text("0")
    + text("cpu")
    + b"K\x01tQ",
    "another codec": global_name("_codecs", "encode") + text("a") + text("zlib_codec") + b"\x86R",
    "items of a tensor": REBUILD
    + b"("
    + STORAGE
    + b"K\x00K\x00\x85K\x01\x85\x89}tR"
    + b"K\x00K\x01s",
}


def hostile(case, sentinel):
    instructions = HOSTILE[case]
    for template in (TOUCH, "open('{}', 'w')"):
        instructions = instructions.replace(text(template), text(template.format(sentinel)))
    return checkpoint_with(instructions)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_pickle_is_refused_and_not_executed(tmp_path, path, case):
    sentinel = tmp_path / "executed"
    write_zip(path, hostile(case, sentinel), {"0": bytes(4)})
    modules = set(sys.modules)
    with pytest.raises(TorchFileError) as caught:
        reader.load(path)
    assert str(caught.value).isprintable() and str(path) in str(caught.value)
    if "." in case:
        assert isinstance(caught.value, UnsafeTorchFileError) and case in str(caught.value)
    assert not sentinel.exists()
    assert set(sys.modules) == modules


@pytest.mark.parametrize("case", ["os.system", "builtins.eval", "instruction INST"])
def test_hostile_pickles_execute_in_pythons_reader(tmp_path, case):
    sentinel = tmp_path / "executed"
    value = pickle.loads(hostile(case, sentinel))["optimizer"]["x"]
    if hasattr(value, "close"):
        value.close()
    assert sentinel.exists()


def test_names_of_a_file_are_escaped_and_shortened(path):
    write_zip(path, checkpoint_with(stack_global("os\n\x1b[31m", "system" * 10_000)))
    with pytest.raises(UnsafeTorchFileError) as caught:
        reader.load(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def tensor(offset=b"K\x00", size=b"K\x01", stride=b"K\x00\x85"):
    return REBUILD + b"(" + STORAGE + offset + size + b"\x85" + stride + b"\x89}tR"


HUGE = tensor(size=b"\x8a\x05" + (2**34).to_bytes(5, "little"))
"""A tensor of 2^34 elements that are all the same four bytes of the file."""

DTYPE = global_name("numpy", "dtype") + text("f4") + b"\x89\x88\x87R"
DOUBLED = b")" + b"q\x00h\x00\x86" * 64

BOMBS = {
    "large memo index": b"r\xff\xff\xff\xffN",
    "large frame": b"\x95" + b"\xff" * 7 + b"\x7fN",
    "large text": b"X\xff\xff\xff\xff",
    "nested lists": b"]" * 100_000 + b"a" * 99_999,
    "doubled tuple": b")" + b"q\x00h\x00\x86" * 10_000,
    "doubled tuple as a key": b"}" + DOUBLED + b"K\x01s",
    "doubled tuple as a byte order": DTYPE + b"(K\x03" + DOUBLED + b"tb",
    "tensor as a byte order": DTYPE + b"(K\x03" + HUGE + b"tb",
    "tensor as a size": global_name("torch", "Size") + HUGE + b"\x85R",
    "list as many sizes": b"]("
    + b"N" * 400_000
    + b"eq\x01"
    + global_name("torch", "Size")
    + b"q\x02"
    b"(" + b"h\x02h\x01\x85R" * 100 + b"t",
    "tensor as arguments": global_name("torch._utils", "_rebuild_parameter") + HUGE + b"R",
    "tensor as arguments of a class": SCHEDULE + HUGE + b"\x81",
    "tensor as strides": tensor(stride=HUGE),
    "tensor as a stride": tensor(stride=HUGE + b"\x85"),
    "tensor as an offset": tensor(offset=HUGE),
    "tensor as a codec": global_name("_codecs", "encode") + text("a") + HUGE + b"\x86R",
    "tensor as the tag of a storage": b"(" + HUGE + STORAGE[1:],
}
"""Values that would take gigabytes or hours, or exhaust the stack, if they were built naively."""


@pytest.mark.parametrize("case", BOMBS)
def test_exploding_values_take_little_memory(path, case):
    write_zip(path, checkpoint_with(BOMBS[case]), {"0": bytes(4)})
    tracemalloc.start()
    try:
        with contextlib.suppress(TorchFileError):
            reader.load(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b"\x80\x02}",  # no STOP
        b"\x80\x02].",  # a list
        b"\x80\x02h\x05.",  # nothing in the memo
        b"\x80\x06}.",  # an unknown protocol
        b"\x80\x02" + b"}" * reader.MAX_PICKLE_BYTES + b".",
    ],
    ids=range(6),
)
def test_malformed_pickle_is_refused(path, pickled):
    write_zip(path, pickled, {"0": bytes(4)})
    with pytest.raises(TorchFileError) as caught:
        reader.load(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 500


def test_entries_larger_than_the_file_are_refused(torch, path):
    array = np.zeros(100_000, np.float32)
    torch.save(path, {"x": torch.tensor("Float", array)}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(TorchFileError, match="too large"):
        reader.load(path)


SAFETENSORS = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02\x8a\nl\xfc", "not a complete zip file"),  # of torch.save before 1.6
        (b"", "not a complete zip file"),
        (b"PK\x03\x04" + bytes(100), "not a complete zip file"),
        (
            len(SAFETENSORS).to_bytes(8, "little") + SAFETENSORS + bytes(4),
            r"a safetensors file: give the zip file .*torch\.save",
        ),
    ],
    ids=range(4),
)
def test_another_format_is_refused(path, data, message):
    path.write_bytes(data)
    with pytest.raises(TorchFileError, match=message):
        reader.load(path)


def test_zip_of_something_else_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("arr_0.npy", b"")
    with pytest.raises(TorchFileError, match="0 entries"):
        reader.load(path)


# Damage.

MAX_BYTES = 100e6
"""Memory limit for any damaged variant of the file of 58 kB."""


def damaged_file(random):
    data = bytearray((RUN / FILES["ms_sl"]).read_bytes())
    for position in random.integers(len(data), size=random.integers(1, 5)):
        data[position] = random.integers(256)
    return bytes(data[: random.integers(len(data))] if random.random() < 0.2 else data)


def damaged_instructions(random):
    """Return the file with instructions removed, doubled or inserted."""
    with zipfile.ZipFile(RUN / FILES["ms_sl"]) as archive:
        entries = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    pickled = entries["data.pkl"]
    positions = [position for _, _, position in pickletools.genops(pickled)]
    spans = zip(positions, [*positions[1:], len(pickled)], strict=True)
    instructions = [pickled[start:end] for start, end in spans]
    for _ in range(random.integers(1, 4)):
        at = random.integers(1, len(instructions))
        choices = (
            b"",
            instructions[random.integers(len(instructions))],
            instructions[at] * 2,
            random.bytes(random.integers(1, 10)),
            b"r" + random.bytes(4),
            b"\x8a\xff" + random.bytes(255),
        )
        instructions[at : at + random.integers(2)] = [choices[random.integers(len(choices))]]
    storages = {name[5:]: data for name, data in entries.items() if name.startswith("data/")}
    file = io.BytesIO()
    write_zip(file, b"".join(instructions), storages)
    return file.getvalue()


@pytest.mark.slow
def test_damaged_file_gives_one_line_within_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "save_params", lambda *arguments: None)
    random = np.random.default_rng(0)
    path, outcomes = tmp_path / "best.ckpt", collections.Counter()
    tracemalloc.start()
    try:
        for damage in [damaged_file, damaged_instructions] * 60:
            path.write_bytes(damage(random))
            try:
                conversion.convert(path, tmp_path / "out")
                outcomes["read"] += 1
            except (TorchFileError, ConversionError) as error:
                outcomes[type(error).__name__] += 1
                assert str(path) in str(error) and str(error).isprintable()
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert {"read", "TorchFileError", "UnsafeTorchFileError"} <= set(outcomes)
