"""Roofline of a program that XLA compiled for a GPU: its kernels, read from the scheduled text.

Of each kernel the time is the largest of its operations at the peak of their precision, and its
bytes (operands and results, once each) at the device memory's, plus `LAUNCH`. A fusion that slices
or gathers an operand reads what it takes; one that updates a slice in place writes the slice.
Caches are left out, and what autotuning would choose. Vector and integer operations count too: a
mask from a hash is bound by them and not by memory.
"""

import collections
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

LAUNCH = 2e-6
"""Seconds from one kernel to the next."""

PRODUCTS, MEMORY = 0.8, 0.85
"""Shares of the data sheet's peaks that matrix products and copies reach in practice."""

DEAREST = 15


class Gpu(NamedTuple):
    """A GPU by its data sheet; rates of matrix products in TFLOP/s, dense, without sparsity."""

    name: str
    capability: tuple[int, int]
    cores: int
    lanes: int
    threads: int
    shared: int
    l2: int
    ghz: float
    bandwidth: float
    memory: int
    bfloat16: float
    tf32: float
    float64: float
    int8: float

    def rates(self) -> dict[str, float]:
        """Operations a second in practice."""
        lanes = self.cores * self.ghz * 1e9
        products = {"bfloat16": self.bfloat16, "tf32": self.tf32, "float64": self.float64}
        products |= {"int8": self.int8, "float32": 2e-12 * lanes * self.lanes}
        rates = {name: PRODUCTS * 1e12 * rate for name, rate in products.items()}
        # Of every generation here: 64 integer operations a clock on each core, 16 special ones.
        return rates | {"vector": lanes * self.lanes, "integer": lanes * 64, "special": lanes * 16}

    def description(self) -> str:
        """The fields of XLA's GpuTargetConfigProto that the compiler decides by."""
        major, minor = self.capability
        return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: {self.threads}
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {self.shared - 1024}
  shared_memory_per_core: {self.shared} core_count: {self.cores} fpus_per_core: {self.lanes}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.l2} clock_rate_ghz: {self.ghz}
  device_memory_size: {self.memory} registers_per_core_limit: 65536
  registers_per_block_limit: 65536 cuda_compute_capability {{ major: {major} minor: {minor} }}
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{self.name}"
"""


GPUS = {
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048, 233_472, 52_428_800, 1.98,
                3.352e12, 84_942_979_072, 989, 495, 67, 1979),
    "h200": Gpu("NVIDIA H200 141GB HBM3e", (9, 0), 132, 128, 2048, 233_472, 52_428_800, 1.98,
                4.8e12, 151_397_597_184, 989, 495, 67, 1979),
    "a100-80": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048, 167_936, 41_943_040, 1.41,
                   2.039e12, 85_100_068_864, 312, 156, 19.5, 624),
    "a6000": Gpu("NVIDIA RTX A6000", (8, 6), 84, 128, 1536, 102_400, 6_291_456, 1.8,
                 7.68e11, 51_041_271_808, 155, 77.4, 0.6, 310),
}  # fmt: skip


# The program's text


class Instruction(NamedTuple):
    """An instruction of HLO; `result` is the text of its type, `rest` what follows the operands."""

    name: str
    result: str
    opcode: str
    operands: list[str]
    rest: str
    root: bool


Computation = dict[str, Instruction]

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z0-9\-]*)\(([^)]*)\)(.*)$")
_ARRAY = re.compile(r"(pred|token|opaque|[a-z]+\d+\w*)\[([\d,]*)\]")
_FREE = (
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id"
    " opt-barrier add-dependency"
).split()
_SPECIAL = (
    "exponential exponential-minus-one log log-plus-one tanh logistic sqrt rsqrt cbrt power divide"
    " sine cosine atan2 erf remainder"
).split()
_VECTOR = (
    "add subtract multiply maximum minimum compare select negate abs sign floor ceil clamp convert"
    " and or xor not shift-left shift-right-logical shift-right-arithmetic round-nearest-even"
).split()


def arrays(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """The arrays of a type: dtypes and shapes."""
    shape = lambda sizes: tuple(int(size) for size in sizes.split(",") if size)
    return [(dtype, shape(sizes)) for dtype, sizes in _ARRAY.findall(text)]


def nbytes(text: str) -> int:
    """Bytes of all arrays of a type."""
    return sum(_itemsize(dtype) * int(np.prod(shape)) for dtype, shape in arrays(text))


def _elements(text: str) -> float:
    """Elements of all arrays of a type."""
    return float(sum(np.prod(shape) for _, shape in arrays(text)))


def _itemsize(dtype: str) -> int:
    if dtype in ("token", "opaque"):
        return 0
    digits = re.search(r"\d+", dtype)
    return max(int(digits.group()) // 8, 1) if digits else 1


class Hlo:
    """A scheduled program of several computations, with the source lines of its instructions."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self._tables: dict[str, dict[int, str]] = collections.defaultdict(dict)
        table, current = "", None
        for line in text.splitlines():
            if line.startswith(" ") and (match := _LINE.match(line)) and current is not None:
                root, name, result, opcode, operands, rest = match.groups()
                if opcode in ("constant", "parameter"):
                    rest, operands = f"{operands}){rest}", ""
                names = re.findall(r"%([\w.\-]+)", operands)
                current[name] = Instruction(name, result, opcode, names, rest, bool(root))
            elif match := _HEAD.match(line):
                current = self.computations.setdefault(match.group(2), {})
                self.entry = match.group(2) if match.group(1) else self.entry
            elif re.fullmatch(r"\w+", line):
                table = line
            elif match := re.match(r"^(\d+) (.*)$", line):
                self._tables[table][int(match.group(1))] = match.group(2)

    def line(self, instruction: Instruction) -> str:
        """The line of this package (else the innermost) that an instruction comes from."""
        field = lambda name, text: (
            int(match[1]) if (match := re.search(name + r"=(\d+)", text)) else 0
        )
        frame, innermost = field("stack_frame_id", instruction.rest), ""
        while frame:
            content = self._tables["StackFrames"].get(frame, "")
            location = self._tables["FileLocations"].get(field("file_location_id", content), "")
            file = self._tables["FileNames"].get(field("file_name_id", location), "").strip('"')
            place = f"{file}:{field('line', location)}"
            if "hlformer_jax/" in file:
                return place.rsplit("hlformer_jax/", 1)[1]
            innermost = innermost or place.rsplit("site-packages/", 1)[-1]
            parent = field("parent_frame_id", content) - 1  # XLA counts a frame's parent from 1
            frame = parent if parent != frame else 0
        match = re.search(r'op_name="([^"]*)"', instruction.rest)
        return innermost or (match[1].rsplit("/", 1)[-1] if match else instruction.opcode)


# Costs


class Kernel(NamedTuple):
    """A kernel: how often it runs, and what it moves and computes each time."""

    name: str
    line: str
    result: str
    times: float
    bytes: float
    operations: dict[str, float]

    def seconds(self, gpu: Gpu) -> float:
        """Of one run: the larger of both times, and the launch."""
        return LAUNCH + max(self.parts(gpu).values())

    def parts(self, gpu: Gpu) -> dict[str, float]:
        """Seconds by what they would be spent on, were it alone."""
        rates = gpu.rates()
        parts = {name: count / rates[name] for name, count in self.operations.items()}
        return parts | {"memory": self.bytes / (MEMORY * gpu.bandwidth)}


def kernels(hlo: Hlo, turns: float = 1, name: str = "", times: float = 1) -> Iterator[Kernel]:
    """The kernels of a program.

    Args:
      hlo: the program.
      turns: of each loop whose number of turns is not in the program.
      name: the computation; the entry by default.
      times: how often it runs.
    """
    computation = hlo.computations[name or hlo.entry]
    for one in computation.values():
        called = lambda key, one=one: re.findall(rf"\b{key}=%?([\w.\-]+)", one.rest)
        if one.opcode == "while":
            known = re.search(r'known_trip_count":\{"n":"(\d+)"', one.rest)
            count = times * (float(known[1]) if known else turns)
            for body in called("body") + called("condition"):
                yield from kernels(hlo, turns, body, count)
        elif one.opcode == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", one.rest)
            names = re.findall(r"%([\w.\-]+)", branches[1]) if branches else []
            names += called("true_computation") + called("false_computation")
            every = [list(kernels(hlo, turns, branch, times)) for branch in names]
            yield from max(every, key=lambda branch: sum(k.times * k.bytes for k in branch))
        elif one.opcode in ("call", "async-start"):
            for body in called("to_apply") + called("calls"):
                yield from kernels(hlo, turns, body, times)
        elif one.opcode not in _FREE and not one.opcode.endswith(("-done", "-update")):
            moved, operations = _cost(hlo, computation, one)
            yield Kernel(one.name, hlo.line(one), one.result, times, moved, operations)


def _cost(hlo: Hlo, computation: Computation, one: Instruction) -> tuple[float, dict[str, float]]:
    operands = [computation[name].result for name in one.operands if name in computation]
    result = nbytes(one.result)
    if one.opcode == "fusion":
        body = hlo.computations[re.search(r"\bcalls=%?([\w.\-]+)", one.rest)[1]]  # type: ignore[index]
        count: dict[str, float] = collections.defaultdict(float)
        for inner in body.values():
            for kind, operations in _operations(body, inner).items():
                count[kind] += operations
        return _moved(body), dict(count)
    if one.opcode == "custom-call":
        result -= sum(int(np.prod(shape)) for dtype, shape in arrays(one.result) if dtype == "s8")
        if nbytes(one.result) == result == 0:  # int8 alone is no workspace
            result = nbytes(one.result)
    return sum(map(nbytes, operands)) + result, _operations(computation, one)


def _operations(computation: Computation, one: Instruction) -> dict[str, float]:
    """Operations by the unit or precision that they take."""
    dtype, shape = (arrays(one.result) or [("f32", ())])[0]
    size = float(np.prod(shape))
    if one.opcode == "dot" or "__cublas$" in one.rest:
        first, lhs = arrays(computation[one.operands[0]].result)[0]
        text = one.rest.replace('"', "").replace("[", "{").replace("]", "}")
        match = re.search(r"lhs_contracting_dims?(?:ensions)?[=:]\{([\d,]*)\}", text)
        axes = [int(axis) for axis in match[1].split(",") if axis] if match else [-1]
        highest = re.search(r"operand_precision[=:]\{(HIGHEST|highest)", text)
        kinds = {"f32": "float32" if highest else "tf32", "f64": "float64", "s8": "int8"}
        return {kinds.get(first, "bfloat16"): 2 * size * float(np.prod([lhs[i] for i in axes]))}
    if one.opcode in ("reduce", "reduce-window"):
        read = computation[one.operands[0]].result
        return {"vector": float(np.prod(arrays(read)[0][1]))}
    if one.opcode in _SPECIAL:
        return {"special": size}
    if one.opcode in _VECTOR:
        return {"integer" if dtype[0] in "us" else "vector": size}
    return {}


def _moved(body: Computation) -> float:
    """Bytes that a fusion reads and writes."""
    users: dict[str, list[Instruction]] = collections.defaultdict(list)
    for one in body.values():
        for name in dict.fromkeys(one.operands):
            users[name].append(one)

    def read(one: Instruction) -> float:
        """Elements of an operand that are read."""
        total, whole = 0.0, _elements(one.result)
        for user in users[one.name]:
            first = user.operands[0] == one.name
            if user.opcode in ("bitcast", "reshape", "convert", "copy"):
                total += read(user)
            elif user.opcode in ("slice", "dynamic-slice", "gather"):
                total += _elements(user.result) if first else whole
            elif user.opcode != "dynamic-update-slice" or not first:
                return whole
        return min(total, whole)

    def written(one: Instruction) -> float:
        if one.opcode in ("tuple", "bitcast"):
            return sum(written(body[name]) for name in one.operands)
        if one.opcode == "dynamic-update-slice":
            return nbytes(body[one.operands[1]].result)
        return nbytes(one.result)

    inputs = sum(
        read(one) * nbytes(one.result) / max(_elements(one.result), 1)
        for one in body.values()
        if one.opcode == "parameter"
    )
    return inputs + sum(written(one) for one in body.values() if one.root)


def summary(
    text: str, gpu: Gpu, memory: Mapping[str, float], turns: float = 1, units: float = 1
) -> dict[str, Any]:
    """The plan of a program, as JSON has it.

    Args:
      text: its scheduled HLO.
      gpu: the GPU that it is for.
      memory: bytes, see `parallel.memory_plan`.
      turns: see `kernels`.
      units: what the rest is given for one of: as many as the program computes.
    """
    every = list(kernels(Hlo(text), turns, times=1 / units))
    total: dict[str, float] = collections.defaultdict(float)
    bound: dict[str, float] = collections.defaultdict(float)
    lines: dict[str, float] = collections.defaultdict(float)
    for one in every:
        parts = one.parts(gpu)
        for kind, count in one.operations.items():
            total[kind] += one.times * count
        bound[max(parts, key=lambda kind: parts[kind])] += one.times * max(parts.values())
        bound["launches"] += one.times * LAUNCH
        lines[one.line] += one.times * one.seconds(gpu)
    every.sort(key=lambda one: -one.times * one.seconds(gpu))
    return {
        "kernels": len(every),
        "launches": sum(one.times for one in every),
        "bytes": sum(one.times * one.bytes for one in every),
        "operations": dict(total),
        "memory": dict(memory),
        "seconds": sum(bound.values()),
        "bound": dict(sorted(bound.items(), key=lambda item: -item[1])),
        "lines": dict(sorted(lines.items(), key=lambda item: -item[1])),
        "dearest": [
            {
                "kernel": one.name,
                "line": one.line,
                "result": re.sub(r"\{[\d,:T()S]*\}|/\*.*?\*/", "", one.result),
                "times": one.times,
                "seconds": one.times * one.seconds(gpu),
                "bytes": one.times * one.bytes,
                "bound": max(one.parts(gpu), key=lambda kind: one.parts(gpu)[kind]),
            }
            for one in every[:DEAREST]
        ],
    }
