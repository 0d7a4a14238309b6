"""Converts checkpoints of the authors' released codes into ours, without PyTorch.

    python -m hlformer_jax.torch_checkpoint best.ckpt OUT

Sizes are read off the tensors; the number of heads, the temperature, the weights of the scores and
the collection off the options saved with them (MS-SL and DL-DKD save neither the weights nor the
collection); the rest is the model's definition (config.py). The command prints how OUT is
evaluated.

A checkpoint is a zip file of one pickle and the elements of its tensors, and a pickle is a program
that may name and call any function. Here it can do nothing: the standard unpickler
sees the instructions alone that tensors, numbers, text and containers need (`_checked`), every name
in the file stands for an inert object of this module (`_NAMES`), and no file takes more time or
memory than its size explains.
"""

import dataclasses
import io
import math
import pickle
import pickletools
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from absl import app

from hlformer_jax.cli import command_line
from hlformer_jax.config import DATA_SETS, DEFINITIONS
from hlformer_jax.errors import UserError
from hlformer_jax.training import checkpoints


class TorchFileError(UserError, ValueError):
    """The file is not a whole PyTorch zip checkpoint."""


class UnsafeTorchFileError(TorchFileError):
    """The file asks for something else than tensors and plain containers."""


class ConversionError(UserError, ValueError):
    """The file is no checkpoint of a released model; the message says why."""


def quoted(text: object) -> str:
    """A string of the file, fit for one line of a terminal: escaped and shortened."""
    text = str(text)
    return repr(text if len(text) <= 80 else text[:79] + "…")


# The command.


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status."""
    if len(argv) != 3:
        print("usage: python -m hlformer_jax.torch_checkpoint best.ckpt OUT", file=sys.stderr)
        return 2
    try:
        info = convert(Path(argv[1]), Path(argv[2]))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    described = ", ".join(f"{key} {value}" for key, value in info.items() if "." not in key)
    print(f"{argv[2]}: {info['model.name']} ({described})")
    if "collection" not in info:
        print(
            "The file does not say which collection it was trained on. Where it is not that of"
            f" {config_file(info)}, give the configuration of the other one: anet, tvr, charades."
        )
    print("To evaluate it, with PATH the directory of the released features:")
    print(evaluation_command(info, argv[2]))
    return 0


def evaluation_command(info: Mapping[str, Any], out: str) -> str:
    """The command line that evaluates a converted checkpoint; PATH in it is left to fill in."""
    fields = {
        f"config.{name}": tuple(value) if isinstance(value, list | tuple) else value
        for name, value in info.items()
        if "." in name
    }
    options = {
        "config": config_file(info),
        "mode": "evaluate",
        "checkpoint": out,
        **fields,
        "config.data.manual_dir": "PATH",
    }
    return command_line("main", *(f"--{name}={value}" for name, value in options.items()))


def config_file(info: Mapping[str, Any]) -> str:
    """The configuration that a converted checkpoint is evaluated with, such as configs/anet.py.

    Where the file does not name its collection, it is one whose features are as wide.
    """
    model = info["model.name"]
    by_width = "tvr" if info["data.visual_dim"] == 3072 else "activitynet"
    data_set = _DATA_SETS[info.get("collection", by_width)]
    return f"configs/{data_set}.py" if model == "hlformer" else f"configs/{model}.py:{data_set}"


# Conversion.

OPTIONS = {
    "n_heads": ("model.num_heads", int),
    "sft_factor": ("model.temperature", float),
    "map_size": ("data.max_clips", int),
    "clip_scale_w": ("model.clip_weight", float),
    "frame_scale_w": ("model.frame_weight", float),
}
"""Options in the file that no tensor's shape tells: our field, and its type."""

_DATA_SETS = {fields["collection"]: name for name, fields in DATA_SETS.items()}

_REQUIRED = (
    *("query_input", "query_position", "query_encoder", "query_pooling"),
    *("clip_branch", "frame_branch"),
)


def convert(source: Path, out: Path) -> dict[str, Any]:
    """Converts one file into a new directory; returns what is known of the checkpoint."""
    checkpoints.check_new(out)
    content = load(source)
    try:
        params, info = _converted(content, source.stat().st_size)
    except ConversionError as error:
        raise ConversionError(f"{source}: {error}") from None
    info = {"source": source.name, **info}
    checkpoints.save_params(out, params, info)
    return info


def _converted(content: Mapping[Any, Any], file_size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters, and what else is known of the checkpoint."""
    state = _section(content, "state_dict", "model")
    if state is None:
        raise ConversionError(
            "it has no 'state_dict': give the file that the released code saved (best.ckpt)"
        )
    tensors = _tensors(state, file_size)
    model = recognise(tensors)
    if model is None:
        raise ConversionError(
            "is no checkpoint of HLFormer, GMMFormer v2, GMMFormer, MS-SL or DL-DKD: none of their"
            " video branches is in it"
        )
    params = to_params(tensors)
    if missing := [name for name in _REQUIRED if name not in params]:
        raise ConversionError(f"is not a whole checkpoint: it has no {', '.join(missing)}")
    options = _section(content, "config", "model_cfg") or {}
    collection = options.get("collection")
    named = isinstance(collection, str) and collection in _DATA_SETS
    return params, {
        **_progress(content),
        **({"collection": collection} if named else {}),
        **_definition(model),
        **_sizes(params),
        **_options(options),
    }


def _section(content: Mapping[Any, Any], *names: str) -> Mapping[Any, Any] | None:
    """The first of these entries that is a dictionary: the released codes differ in its name."""
    return next((content[k] for k in names if isinstance(content.get(k), Mapping)), None)


def _tensors(state: Mapping[Any, Any], file_size: int) -> dict[str, np.ndarray]:
    """The tensors by their names, in 32 bit."""
    for name, value in state.items():
        if not isinstance(name, str):
            raise ConversionError(f"state_dict has the key {quoted(name)}, which is not a name")
        if not isinstance(value, np.ndarray):
            raise ConversionError(f"state_dict[{quoted(name)}] is not a tensor")
        if not value.size:
            raise ConversionError(f"{quoted(name)} has no elements: its shape is {value.shape}")
    # Tensors that share their elements could together hold far more than the file.
    if sum(value.nbytes for value in state.values()) > 2 * file_size:
        raise ConversionError("its tensors together are larger than the file")
    tensors = {}
    for name, value in state.items():
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            tensors[name] = np.asarray(value).astype(np.float32)
        if not np.all(np.isfinite(tensors[name])):
            raise ConversionError(f"{quoted(name)} holds NaN or infinite values")
    return tensors


def _definition(model: str) -> dict[str, Any]:
    """What the released code of a model does not leave to its options."""
    defined = DEFINITIONS[model]["model"]
    fixed: dict[str, Any] = {
        f"model.{name}": list(value) if isinstance(value, tuple) else value
        for name, value in defined.items()
        if not name.endswith("_blocks")  # which the tensors tell
    }
    fixed |= {"model.name": model, "model.window": "released"}
    if not defined["lorentz_blocks"]:
        fixed["model.lorentz_blocks"] = 0
    if model == "dl_dkd":
        fixed["data.teacher_dim"] = 0  # which training alone reads
    return fixed


def _progress(content: Mapping[Any, Any]) -> dict[str, Any]:
    """The epoch and its validation SumR, as far as the file says them."""
    progress: dict[str, Any] = {}
    epoch, metrics = content.get("epoch"), content.get("model_val")
    if type(epoch) is int and 0 <= epoch < 2**31:
        progress["epoch"] = epoch
    # A list of the recalls at 1, 5, 10 and 100 and their sum, or the sum alone.
    sum_recall: Any = metrics[-1] if isinstance(metrics, list | tuple) and metrics else metrics
    if isinstance(sum_recall, np.ndarray) and sum_recall.size == 1:
        sum_recall = sum_recall.item()
    if type(sum_recall) in (int, float) and 0 <= sum_recall <= 400:
        progress["validation_SumR"] = float(sum_recall)
    return progress


def _options(options: Mapping[Any, Any]) -> dict[str, float]:
    """What changes the scores, or what is fed, and no tensor tells."""
    fields = {}
    for name, (field, kind) in OPTIONS.items():
        value = options.get(name)
        if value is None:
            continue
        # Comparing comes first: converting an infinite or a gigantic number raises an error.
        least = 1 if kind is int else 0
        if type(value) not in (int, float) or not least <= value <= 2**16 or kind(value) != value:
            # To write a tuple of tuples may take forever.
            shown = quoted(value) if isinstance(value, int | float | str) else type(value).__name__
            raise ConversionError(f"its option {name} is {shown}, which no model can have")
        fields[field] = kind(value)
    return fields


def _sizes(params: Mapping[str, Any]) -> dict[str, int]:
    """The fields of the configuration that are sizes of a model, read off its parameters."""
    max_words, hidden_size = _matrix_shape(params, "query_position.embedding")
    result = {
        "model.hidden_size": hidden_size,
        "data.text_dim": _matrix_shape(params, "query_input.dense.kernel")[0],
        "data.visual_dim": _matrix_shape(params, "frame_branch.input.dense.kernel")[0],
        "data.max_frames": _matrix_shape(params, "frame_branch.position.embedding")[0],
        "data.max_words": max_words,
    }
    bank = params["frame_branch"].get("bank", {})
    if "euclidean" in bank:
        query = _matrix_shape(params, "frame_branch.bank.euclidean.attention.query.bias")
        result["model.euclidean_blocks"] = query[0]
    if "lorentz" in bank:
        path = "frame_branch.bank.lorentz.attention.input_proj.dense.bias"
        result["model.lorentz_blocks"], result["model.lorentz_dim"] = _matrix_shape(params, path)
    return result


def _matrix_shape(params: Mapping[str, Any], path: str) -> tuple[int, int]:
    value: Any = params
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, np.ndarray):
        raise ConversionError(f"is not a whole checkpoint: it has no {path}")
    if value.ndim != 2:
        raise ConversionError(f"{path} has {value.ndim} axes instead of two")
    return value.shape


# Names. The released codes descend from one another and share most names. They keep the blocks of
# a bank in a list; here they are slices of one array, so a released name stands for a path and,
# within a bank, an index on the leading axis. Linear weights are stored transposed (PyTorch: out,
# in).


NOT_PARAMETERS = re.compile(r"(^|\.)manifold\.k$|^A_query_input_proj\.")
"""What is stored with the released parameters: the constant curvature of the attention, and the
projection of DL-DKD's exploration branch that is never called."""

_PARAMETER = re.compile(r"\w{1,64}(\.\w{1,64}){0,11}", re.ASCII)
"""What any parameter's name looks like: letters, digits, underscores, and not too many dots."""

_MARKS = (
    ("gmmformer_v2", r"weight_token$"),
    ("ms_sl", r"mapping_linear\."),
    ("dl_dkd", r"B_mapping_linear\."),
    ("gmmformer", r"clip_encoder_2\."),
    ("hlformer", r"(clip|frame)_encoder(_1)?\.[eh]_attns\."),
)
"""Patterns of names that only the parameters of that model have."""

_OF_MODEL = {
    # Either branch of DL-DKD stands where other models have clips or frames.
    "dl_dkd": (
        (r"A_frame_", "frame_"),
        (r"B_frame_", "clip_"),
        (r"A_mapping_linear\.", "frame_mapping."),
        (r"B_mapping_linear\.", "clip_mapping."),
    ),
    "gmmformer": ((r"modular_vector_mapping_2\.", "video_pooling."),),
}
"""Prefixes of names that have another meaning in that model."""

_PREFIXES = (
    (r"(?:B_)?query_pos_embed\.", "query_position."),
    (r"(?:B_)?query_input_proj\.", "query_input."),
    (r"(clip|frame)_pos_embed\.", r"\1_branch.position."),
    (r"(clip|frame)_input_proj\.", r"\1_branch.input."),
    (r"(clip|frame)_encoder(?:_1)?\.e_attns\.(\d+)\.", r"\1_branch.bank.euclidean.[\2]."),
    (r"(clip|frame)_encoder(?:_1)?\.h_attns\.(\d+)\.", r"\1_branch.bank.lorentz.[\2]."),
    (r"(clip|frame)_encoder(?:_1)?\.attn(\d+)\.", r"\1_branch.bank.euclidean.[\2]."),
    (r"(clip|frame)_encoder_2\.attn(\d+)\.", r"\1_branch.bank_2.euclidean.[\2]."),
    (r"(clip|frame)_encoder(?:_1)?\.ca\.", r"\1_branch.fusion.cross."),
    (r"(clip|frame)_encoder\.(self|output)\.", r"\1_branch.bank.euclidean.[0].\2."),
    (r"(clip|frame)_encoder(?:_1)?\.", r"\1_branch.fusion."),
    (r"mapping_linear\.0\.", "guided_key."),
    (r"mapping_linear\.1\.", "guided_value."),
    (r"B_query_encoder\.", "query_encoder."),
    (r"A_query_pos_embed\.", "exploration_position."),
    (r"A_query_encoder\.", "exploration_encoder."),
    (r"A_modular_vector_mapping\.", "exploration_pooling."),
    (r"(?:B_)?modular_vector_mapping\.", "query_pooling."),
    (r"modular_vector_mapping_2\.", "frame_pooling."),
    (r"modular_vector_mapping_3\.", "clip_pooling."),
)
_PARTS = (
    (r"\.self\.lorentz_multiattention\.linear_(key|value)s\.", r".attention.\1."),
    (r"\.self\.lorentz_multiattention\.linear_query\.", ".attention.query."),
    (r"\.self\.lorentz_multiattention\.", ".attention."),
    (r"\.self\.", ".attention."),
    (r"\.output\.(dense|LayerNorm)\.", r".\1."),
    (r"\.position_embeddings\.weight$", ".embedding"),
    (r"\.net\.1\.", ".dense."),
    (r"\.weight\.weight$", ".dense.weight"),
    (r"(LayerNorm|norm1|norm2)\.weight$", r"\1.scale"),
    (r"\.weight$", ".kernel"),
)


def recognise(names: Iterable[str]) -> str | None:
    """The model, by its name in `config.model.name`, whose parameters have these names."""
    listed = list(names)
    models = (model for model, mark in _MARKS if any(re.match(mark, name) for name in listed))
    return next(models, None)


def locate(name: str, model: str = "hlformer") -> tuple[tuple[str, ...], int | None, bool]:
    """Where a released parameter lives in ours: keys, index in a bank, whether transposed."""
    ours = name
    for prefixes in (_OF_MODEL.get(model, ()), _PREFIXES):
        for pattern, replacement in prefixes:
            ours, replaced = re.subn("^" + pattern, replacement, ours)
            if replaced:
                break
    for pattern, replacement in _PARTS:
        ours = re.sub(pattern, replacement, ours)
    block = re.search(r"\.\[(\d+)\]", ours)
    path = tuple(re.sub(r"\.\[\d+\]", "", ours).split("."))
    return path, int(block[1]) if block else None, path[-1] == "kernel"


def to_params(released: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Our nested parameters, banks stacked, of released ones (or anything named like them)."""
    model = recognise(released) or "hlformer"
    banks: dict[tuple[str, ...], dict[int | None, np.ndarray]] = {}
    for name, value in released.items():
        if not _PARAMETER.fullmatch(name):
            raise ConversionError(f"{quoted(name)} is not the name of a parameter")
        if NOT_PARAMETERS.search(name):
            continue
        path, block, transposed = locate(name, model)
        blocks = banks.setdefault(path, {})
        if block in blocks:
            raise ConversionError(f"{quoted(name)} and another tensor are both {'.'.join(path)}")
        blocks[block] = _oriented(name, path, value.T if transposed else np.asarray(value))
    params: dict[str, Any] = {}
    for path, blocks in banks.items():
        if clash := [path[:end] for end in range(1, len(path)) if path[:end] in banks]:
            inner, outer = ".".join(path), ".".join(clash[0])
            raise ConversionError(f"{quoted(inner)} lies within {quoted(outer)}, which is a tensor")
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = _stack(path, blocks)
    return params


def _oriented(name: str, path: tuple[str, ...], value: np.ndarray) -> np.ndarray:
    """Removes axes of one element that only the released code has."""
    if path[-2:] == ("attention", "scale"):
        if value.size != 1:
            raise ConversionError(f"{quoted(name)} has {value.size} elements instead of one")
        return value.reshape(())
    if path == ("weight_token",):
        return value.reshape(-1)  # stored with axes for batch and position
    return value


def _stack(path: tuple[str, ...], blocks: dict[int | None, np.ndarray]) -> np.ndarray:
    """Returns one array for a bank's blocks, or the only array of a path outside banks."""
    if blocks.keys() == {None}:
        return blocks[None]
    name = quoted(".".join(path))
    if blocks.keys() != set(range(len(blocks))):
        raise ConversionError(f"{name}: its blocks do not count from 0 to the last")
    shapes = {value.shape for value in blocks.values()}
    if len(shapes) > 1:
        two = " and ".join(map(str, sorted(shapes)[:2]))
        raise ConversionError(f"{name}: its blocks differ in shape: {two}")
    return np.stack([blocks[block] for block in range(len(blocks))])


# Reading the file.

MAX_PICKLE = 2**20
"""Bytes of the pickle, which becomes some 100 times as large in memory; released: 0.1 MB."""


def load(path: str | Path) -> dict[Any, Any]:
    """Reads a checkpoint that ``torch.save`` wrote, and executes nothing of it.

    Tensors and parameters are read-only arrays of the same dtype (bfloat16 is that of ml_dtypes);
    attributes of objects are left out.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            _check_format(file.read(512))
            with zipfile.ZipFile(file) as archive:
                return _unpickle(_Entries(archive, path.stat().st_size))
        except TorchFileError as error:
            raise type(error)(f"{path}: {error}") from None
        except Exception as error:  # zipfile has many, by how a file was cut or garbled
            raise TorchFileError(f"{path}: is not a whole zip file: {quoted(error)}") from error


def _check_format(head: bytes) -> None:
    """Refuses what is no zip file, and PyTorch's older formats by their names."""
    kind = "tar" if head[257:262] == b"ustar" else "raw pickle"
    if kind == "tar" or head.startswith(b"\x80"):
        raise TorchFileError(
            f"is in PyTorch's legacy format ({kind}), which is not read: load it with a"
            " current torch, if you trust it, and save it again with torch.save"
        )
    if not head.startswith(b"PK\x03\x04"):
        raise TorchFileError("is not a PyTorch checkpoint: a zip file was expected")


class _Entries:
    """The entries of the zip file, which together are read as far as the file is large.

    All are uncompressed and lie below one folder: ``data.pkl``, the storages ``data/0``,
    ``data/1``, …, and since PyTorch 2.1 ``byteorder``.
    """

    def __init__(self, archive: zipfile.ZipFile, file_size: int):
        self.file_size = self._unread = file_size
        self._archive = archive
        names = archive.namelist()
        pickles = [name for name in names if re.fullmatch(r"[^/]*/data\.pkl", name, re.DOTALL)]
        if len(pickles) != 1:
            raise TorchFileError(f"has {len(pickles)} entries */data.pkl instead of one")
        self._folder = pickles[0].removesuffix("data.pkl")
        byte_order = "little"  # of the torch releases that did not write it
        if self._folder + "byteorder" in names:
            byte_order = self.read("byteorder", 8).decode("ascii", "replace")
        if byte_order not in ("little", "big"):
            raise TorchFileError(f"has an unknown byte order, {byte_order!r}")
        self._swap = byte_order != sys.byteorder

    def storage(self, key: str, dtype: np.dtype, numel: int) -> bytes:
        """The elements of a storage in the byte order of this machine; booleans are 0 or 1."""
        data = self.read(f"data/{key}", numel * dtype.itemsize)
        if len(data) != numel * dtype.itemsize:
            entry = quoted(f"data/{key}")
            raise TorchFileError(
                f"the entry {entry} has {len(data)} bytes instead of {numel} × {dtype}"
            )
        if dtype == np.bool_:
            return (np.frombuffer(data, np.uint8) != 0).tobytes()
        if self._swap:
            return np.frombuffer(data, f"u{dtype.itemsize}").byteswap().tobytes()
        return data

    def read(self, name: str, at_most: int) -> bytes:
        """The bytes of an entry, refused before it is read where they are more than `at_most`."""
        entry = f"the entry {quoted(name)}"
        try:
            info = self._archive.getinfo(self._folder + name)
        except KeyError:
            raise TorchFileError(f"lacks {entry}") from None
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


# The pickle. The unpickler does more than call what `find_class` returns: BUILD sets attributes of
# any object, unless it has `__setstate__`; the memo is an array as long as its largest index; and
# keys of a dictionary are hashed, which for tuples of tuples takes forever or overflows the stack.

_INSTRUCTIONS = frozenset(
    """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE
    SHORT_BINUNICODE EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT
    SETITEM SETITEMS BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL BINPERSID
    REDUCE NEWOBJ BUILD
    """.split()
)
_NEW_DICT = pickle.GLOBAL + b"easydict\nEasyDict\n" + pickle.EMPTY_TUPLE + pickle.NEWOBJ
_MAX_DIMENSIONS = 16  # a released tensor has three at most


def _unpickle(entries: _Entries) -> dict[Any, Any]:
    pickled = entries.read("data.pkl", MAX_PICKLE)
    try:
        content = _Unpickler(_checked(pickled), entries).load()
    except TorchFileError:
        raise
    except Exception as error:  # of struct, of text, of an empty stack: all mean the same
        raise TorchFileError(f"its data.pkl is malformed: {quoted(error)}") from error
    if not isinstance(content, dict):
        raise TorchFileError(f"its data.pkl holds a {type(content).__name__}, not a dict")
    return content


def _checked(pickled: bytes) -> bytes:
    """The same program, of listed instructions alone, in which every dictionary is a `_Dict`."""
    file, program, memoised = io.BytesIO(pickled), bytearray(), 0
    for opcode, argument, start in pickletools.genops(file):
        name = opcode.name
        if name not in _INSTRUCTIONS:
            raise UnsafeTorchFileError(f"refused the pickle instruction {name}")
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            if argument is not None and argument > memoised:
                raise TorchFileError("its data.pkl leaves gaps in the memo")
            memoised += 1
        if name == "EMPTY_DICT":
            program += _NEW_DICT
        elif name != "FRAME":  # which has the number of bytes of what follows
            program += pickled[start : file.tell()]
    return bytes(program)


class _Inert:
    """What no instruction of a pickle changes."""

    def __setstate__(self, state: Any) -> None:
        raise UnsafeTorchFileError(f"refused to set attributes of a {type(self).__name__}")

    def __setitem__(self, key: Any, value: Any) -> None:
        raise UnsafeTorchFileError(f"refused to set items of a {type(self).__name__}")


class _Dict(dict[Any, Any]):
    """A dictionary, or an object of a listed class, whose attributes are dropped."""

    __slots__ = ()

    def __new__(cls) -> "_Dict":
        return super().__new__(cls)

    def __init__(self) -> None:
        # The instruction that makes an object does not come here; one that calls the class does.
        raise UnsafeTorchFileError("refused to call a class")

    def __setitem__(self, key: Any, value: Any) -> None:
        # Large integers can be made to share one hash.
        if type(key) is not str and (type(key) is not int or abs(key) >= 2**31):
            kind = "large int" if type(key) is int else type(key).__name__
            raise TorchFileError(f"has a dictionary with a {kind} for a key")
        super().__setitem__(key, value)

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
            raise UnsafeTorchFileError("refused attributes that are no dictionary of names")


class _Tensor(_Inert, np.ndarray):
    """A tensor of the file."""


@dataclasses.dataclass(frozen=True)
class _Storage(_Inert):
    data: bytes
    dtype: np.dtype
    numel: int
    file_size: int


@dataclasses.dataclass(frozen=True)
class _Name(_Inert):
    """A function of this module in place of the file's, or the dtype of a storage."""

    name: str
    function: Callable[..., Any] | None = None
    dtype: np.dtype | None = None

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.function(*arguments)  # type: ignore[misc]
        except TypeError:
            raise UnsafeTorchFileError(
                f"refused to call {self.name} with {len(arguments)} arguments of these types"
            ) from None


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> np.ndarray:
    """The view of a storage that a tensor is; offset and strides count elements."""
    if type(storage) is not _Storage:
        raise TypeError
    (offset,), size, stride = _check_sizes((offset,)), _check_sizes(size), _check_sizes(stride)
    if len(size) != len(stride):
        raise TorchFileError(f"a tensor of shape {size} has strides {stride}")
    itemsize = storage.dtype.itemsize
    if 0 in size:
        return _Tensor(size, storage.dtype)
    # Strides may let elements share memory, but a tensor larger than the file is an attack.
    if math.prod(size) * itemsize > storage.file_size:
        raise TorchFileError(f"a tensor of shape {size} is larger than the file")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if last >= storage.numel:
        raise TorchFileError(f"a tensor of shape {size} reaches beyond its storage")
    # The step along an axis of one element is never taken, and may be any number.
    steps = [itemsize * step if n > 1 else 0 for n, step in zip(size, stride, strict=True)]
    return _Tensor(size, storage.dtype, storage.data, offset * itemsize, steps)


def _parameter(tensor: Any, requires_grad: Any, hooks: Any) -> np.ndarray:
    if type(tensor) is not _Tensor:
        raise TypeError
    return tensor


def _check_sizes(values: Any) -> tuple[int, ...]:
    """A shape or strides: a few 64-bit integers, as PyTorch has them."""
    if type(values) is not tuple:
        raise TorchFileError(f"a tensor's shape or strides are a {type(values).__name__}")
    if len(values) > _MAX_DIMENSIONS:
        raise TorchFileError(f"a tensor has {len(values)} dimensions: {_MAX_DIMENSIONS} are read")
    if any(type(n) is not int or not 0 <= n < 2**63 for n in values):
        raise TorchFileError("a tensor's shape, strides or offset are not sizes")
    return values


_STORAGES = {
    "torch.FloatStorage": np.float32,
    "torch.DoubleStorage": np.float64,
    "torch.HalfStorage": np.float16,
    "torch.BFloat16Storage": ml_dtypes.bfloat16,
    "torch.LongStorage": np.int64,
    "torch.IntStorage": np.int32,
    "torch.ShortStorage": np.int16,
    "torch.CharStorage": np.int8,
    "torch.ByteStorage": np.uint8,
    "torch.BoolStorage": np.bool_,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": lambda: _Dict.__new__(_Dict),
    "torch.Size": _check_sizes,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_tensor_v2": _tensor,
}
_NAMES: Mapping[str, Any] = {
    "Opts.optimization.WarmupLinearSchedule": _Dict,
    "easydict.EasyDict": _Dict,
    **{name: _Name(name, dtype=np.dtype(dtype)) for name, dtype in _STORAGES.items()},
    **{name: _Name(name, function) for name, function in _FUNCTIONS.items()},
}
"""What a file may name, and the inert object of this module that stands for it."""


class _Unpickler(pickle.Unpickler):
    """The standard unpickler, to which the file's names are those of `_NAMES`."""

    def __init__(self, pickled: bytes, entries: _Entries):
        super().__init__(io.BytesIO(pickled))
        self._entries = entries
        self._storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Stands in for the function or class of that name, if it is on the list."""
        dotted = f"{module}.{name}"
        if dotted not in _NAMES:
            raise UnsafeTorchFileError(
                f"refused {quoted(dotted)}, which is neither a tensor nor a plain container; "
                "nothing of the file was executed"
            )
        return _NAMES[dotted]

    def persistent_load(self, pid: Any) -> _Storage:
        """Reads the storage of a tensor: its dtype, key, device and number of elements."""
        match pid:
            case ("storage", _Name(dtype=np.dtype() as dtype), str(key), str(), int(numel)) if (
                type(numel) is int and 0 <= numel < 2**63
            ):
                pass
            case _:
                raise UnsafeTorchFileError("refused a persistent id that is no tensor's storage")
        if key not in self._storages:
            data = self._entries.storage(key, dtype, numel)
            self._storages[key] = _Storage(data, dtype, numel, self._entries.file_size)
        storage = self._storages[key]
        if (storage.dtype, storage.numel) != (dtype, numel):
            entry = quoted(f"data/{key}")
            raise TorchFileError(f"the entry {entry} is declared twice, and differently")
        return storage


if __name__ == "__main__":
    app.run(main)
