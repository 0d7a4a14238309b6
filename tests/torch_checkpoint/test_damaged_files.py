"""A damaged or hostile file is read or refused in a line: no other error, nothing executed.

`outcomes` tries as many files as it is asked for; a search at leisure asks for more.
"""

import collections
import functools
import io
import pickletools
import tracemalloc
import zipfile

import numpy as np
import released
from torch_files import named, text, write_zip

from hlformer_jax.errors import UserError
from hlformer_jax.torch_checkpoint import convert
from hlformer_jax.torch_checkpoint import errors as own
from hlformer_jax.training import checkpoints

FILE = released.GOLDEN / "released_run" / "ms_sl.ckpt"
LARGEST = 100e6
"""Bytes of memory that no variant of the file, of 58 kB, may take."""


@functools.cache
def whole():
    """The pickle, the positions of its instructions, and the entries of its storages."""
    with zipfile.ZipFile(FILE) as archive:
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
    data = flipped(FILE.read_bytes(), random)
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
            convert.convert(path, tmp_path / "out")
        except (own.TorchFileError, own.ConversionError) as error:
            outcome = type(error).__name__
            assert isinstance(error, UserError) and str(path) in str(error)
            assert str(error).isprintable() and len(str(error)) < 1000
        counted[damage.__name__, outcome] += 1
        assert not sentinel.exists()
    return counted


def test_a_damaged_file_is_read_or_refused_in_a_line_within_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "save_params", lambda *arguments: None)
    tracemalloc.start()
    try:
        counted = outcomes(120, 0, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < LARGEST
    finally:
        tracemalloc.stop()
    damages, results = zip(*counted, strict=True)
    assert len(set(damages)) == 3
    assert set(results) == {"read", "TorchFileError", "UnsafeTorchFileError", "ConversionError"}
