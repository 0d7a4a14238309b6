"""Programs that XLA compiles for the description of an absent GPU, and their planned times.

A plan measures nothing. Its time is the sum of a roofline over the program's kernels, which are
read from the text of the scheduled HLO. The time of a kernel is `LAUNCH` plus the largest of these:
its operations of each kind at the rate of that kind, and its bytes (operands and results, each
once) at the rate of the device memory. A fusion that slices or gathers an operand reads only those
elements; a fusion that updates a slice in place writes only the slice. Caches and the choices of
autotuning are ignored. Vector and integer operations count too, because they can take longer than
the memory: for example a random mask, which is computed from a hash.

`benchmarks.measured` runs the same programs on a GPU and compares them with their plans.
"""

import collections
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from benchmarks import measure
from benchmarks.measure import Options
from benchmarks.query import (
    SECONDS,
    Archive,
    encoder_size,
    validation,
)
from benchmarks.simulated import CAPTIONS_PER_VIDEO
from hlformer_jax import cli, files, models
from hlformer_jax.config import ConfigError, family_of
from hlformer_jax.data.feed import Schedule
from hlformer_jax.figures import drawing
from hlformer_jax.lazy import install_command, optional
from hlformer_jax.models import VideoEncoding
from hlformer_jax.models.hover import Points
from hlformer_jax.retrieval import corpus, scoring
from hlformer_jax.retrieval.evaluation import rank_queries
from hlformer_jax.retrieval.hierarchy import rank_nodes, relatives
from hlformer_jax.runtime import compiler, devices
from hlformer_jax.training.step import TrainState, chunk_of_steps, init_state

# Roofline


LAUNCH = 1.5e-6
"""Seconds that each kernel takes in addition to its work."""

PRODUCTS, MEMORY = 0.65, 0.7
"""Shares of the peaks of the data sheet that matrix products and copies reach in practice.

With these and `LAUNCH` the plans of five programs are 0.90 to 1.11 of their shortest times on an
H100 (docs/gpu.md). Large matrix products alone reach 0.8, and the largest kernels that copy 0.8 to
0.9.
"""

DEAREST = 15


class Gpu(NamedTuple):
    """A GPU by its data sheet, in bytes and bytes per second; matrix products in TFLOP/s, dense."""

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
        """Return the operations per second that are reached in practice, by kind."""
        lanes = self.cores * self.ghz * 1e9
        products = {"bfloat16": self.bfloat16, "tf32": self.tf32, "float64": self.float64}
        products |= {"int8": self.int8, "float32": 2e-12 * lanes * self.lanes}
        rates = {name: PRODUCTS * 1e12 * rate for name, rate in products.items()}
        # All generations in GPUS have 64 integer and 16 special operations per clock and core.
        return rates | {"vector": lanes * self.lanes, "integer": lanes * 64, "special": lanes * 16}

    def description(self) -> str:
        """Return XLA's GpuTargetConfigProto, with the fields that the compiler uses."""
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
    """An instruction of HLO; `result` is the text of a type, `rest` the text after the operands."""

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
    """Return dtype and shape of each array in the text of an HLO type."""
    return [
        (dtype, tuple(int(size) for size in sizes.split(",") if size))
        for dtype, sizes in _ARRAY.findall(text)
    ]


def nbytes(text: str) -> int:
    """Return the bytes of all arrays in the text of an HLO type."""
    return sum(_itemsize(dtype) * int(np.prod(shape)) for dtype, shape in arrays(text))


def _elements(text: str) -> float:
    """Return the number of elements of all arrays in the text of an HLO type."""
    return float(sum(np.prod(shape) for _, shape in arrays(text)))


def _itemsize(dtype: str) -> int:
    if dtype in ("token", "opaque"):
        return 0
    digits = re.search(r"\d+", dtype)
    return max(int(digits.group()) // 8, 1) if digits else 1


class Hlo:
    """A scheduled program, parsed from its text, with the source lines of its instructions.

    Attributes:
      computations: the instructions of each computation, by name.
      entry: name of the computation at which the program begins.
    """

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
        """Return an instruction's innermost source line in this package, else of any package."""
        frame, innermost = _number("stack_frame_id", instruction.rest), ""
        while frame:
            content = self._tables["StackFrames"].get(frame, "")
            location = self._tables["FileLocations"].get(_number("file_location_id", content), "")
            file = self._tables["FileNames"].get(_number("file_name_id", location), "").strip('"')
            place = f"{file}:{_number('line', location)}"
            if "hlformer_jax/" in file:
                return place.rsplit("hlformer_jax/", 1)[1]
            innermost = innermost or place.rsplit("site-packages/", 1)[-1]
            parent = _number("parent_frame_id", content) - 1  # XLA writes the parent's number + 1
            frame = parent if parent != frame else 0
        match = re.search(r'op_name="([^"]*)"', instruction.rest)
        return innermost or (match[1].rsplit("/", 1)[-1] if match else instruction.opcode)


def _number(name: str, text: str) -> int:
    """Return the number of NAME=NUMBER in a text; 0 if there is none."""
    match = re.search(name + r"=(\d+)", text)
    return int(match[1]) if match else 0


# Costs


class Kernel(NamedTuple):
    """A kernel: how often it runs, and its bytes and operations in each run."""

    name: str
    line: str
    result: str
    times: float
    bytes: float
    operations: dict[str, float]

    def seconds(self, gpu: Gpu) -> float:
        """Return the seconds of one run: the largest of its parts, plus the launch."""
        return LAUNCH + max(self.parts(gpu).values())

    def parts(self, gpu: Gpu) -> dict[str, float]:
        """Return the seconds of one run that each kind of operation, or the memory, would take."""
        rates = gpu.rates()
        parts = {name: count / rates[name] for name, count in self.operations.items()}
        return parts | {"memory": self.bytes / (MEMORY * gpu.bandwidth)}


def kernels(hlo: Hlo, turns: float = 1, name: str = "", times: float = 1) -> Iterator[Kernel]:
    """Yield the kernels of a program.

    Of the branches of a conditional, the one that moves the most bytes counts.

    Args:
      hlo: the program.
      turns: number of iterations of each loop for which the program does not state it.
      name: name of the computation; "" for the entry.
      times: how often the computation runs.
    """
    computation = hlo.computations[name or hlo.entry]
    for instruction in computation.values():
        find_called = functools.partial(_find_called, instruction)
        if instruction.opcode == "while":
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', instruction.rest)
            count = times * (float(trips[1]) if trips else turns)
            for body in find_called("body") + find_called("condition"):
                yield from kernels(hlo, turns, body, count)
        elif instruction.opcode == "conditional":
            branches = re.search(r"branch_computations=\{([^}]*)\}", instruction.rest)
            names = re.findall(r"%([\w.\-]+)", branches[1]) if branches else []
            names += find_called("true_computation") + find_called("false_computation")
            choices = [list(kernels(hlo, turns, branch, times)) for branch in names]
            yield from max(choices, key=lambda branch: sum(k.times * k.bytes for k in branch))
        elif instruction.opcode in ("call", "async-start"):
            for body in find_called("to_apply") + find_called("calls"):
                yield from kernels(hlo, turns, body, times)
        elif not _is_free(instruction.opcode):
            moved, operations = _cost(hlo, computation, instruction)
            name, line, result = instruction.name, hlo.line(instruction), instruction.result
            yield Kernel(name, line, result, times, moved, operations)


def _find_called(instruction: Instruction, key: str) -> list[str]:
    """Return the names of the computations that an instruction calls as KEY."""
    return re.findall(rf"\b{key}=%?([\w.\-]+)", instruction.rest)


def _is_free(opcode: str) -> bool:
    return opcode in _FREE or opcode.endswith(("-done", "-update"))


def _cost(
    hlo: Hlo, computation: Computation, instruction: Instruction
) -> tuple[float, dict[str, float]]:
    operands = [computation[name].result for name in instruction.operands if name in computation]
    result = nbytes(instruction.result)
    if instruction.opcode == "fusion":
        body = hlo.computations[re.search(r"\bcalls=%?([\w.\-]+)", instruction.rest)[1]]  # type: ignore[index]
        count: dict[str, float] = collections.defaultdict(float)
        for inner in body.values():
            for kind, operations in _operations(body, inner).items():
                count[kind] += operations
        return _moved(body), dict(count)
    if instruction.opcode == "custom-call":
        sizes = arrays(instruction.result)
        result -= sum(int(np.prod(shape)) for dtype, shape in sizes if dtype == "s8")
        if nbytes(instruction.result) == result == 0:  # int8 alone is not a workspace
            result = nbytes(instruction.result)
    return sum(map(nbytes, operands)) + result, _operations(computation, instruction)


def _operations(computation: Computation, instruction: Instruction) -> dict[str, float]:
    """Return the number of operations, by kind (see `Gpu.rates`)."""
    dtype, shape = (arrays(instruction.result) or [("f32", ())])[0]
    size = float(np.prod(shape))
    if instruction.opcode == "dot" or "__cublas$" in instruction.rest:
        first, lhs = arrays(computation[instruction.operands[0]].result)[0]
        text = instruction.rest.replace('"', "").replace("[", "{").replace("]", "}")
        match = re.search(r"lhs_contracting_dims?(?:ensions)?[=:]\{([\d,]*)\}", text)
        axes = [int(axis) for axis in match[1].split(",") if axis] if match else [-1]
        highest = re.search(r"operand_precision[=:]\{(HIGHEST|highest)", text)
        kinds = {"f32": "float32" if highest else "tf32", "f64": "float64", "s8": "int8"}
        return {kinds.get(first, "bfloat16"): 2 * size * float(np.prod([lhs[i] for i in axes]))}
    if instruction.opcode in ("reduce", "reduce-window"):
        read = computation[instruction.operands[0]].result
        return {"vector": float(np.prod(arrays(read)[0][1]))}
    if instruction.opcode in _SPECIAL:
        return {"special": size}
    if instruction.opcode in _VECTOR:
        return {"integer" if dtype[0] in "us" else "vector": size}
    return {}


def _moved(body: Computation) -> float:
    """Return the bytes that a fusion reads and writes."""
    users: dict[str, list[Instruction]] = collections.defaultdict(list)
    for instruction in body.values():
        for name in dict.fromkeys(instruction.operands):
            users[name].append(instruction)

    def read(instruction: Instruction) -> float:
        """Return the number of elements of an operand that are read."""
        total, size = 0.0, _elements(instruction.result)
        for user in users[instruction.name]:
            first = user.operands[0] == instruction.name
            if user.opcode in ("bitcast", "reshape", "convert", "copy"):
                total += read(user)
            elif user.opcode in ("slice", "dynamic-slice", "gather"):
                total += _elements(user.result) if first else size
            elif user.opcode != "dynamic-update-slice" or not first:
                return size
        return min(total, size)

    def written(instruction: Instruction) -> float:
        if instruction.opcode in ("tuple", "bitcast"):
            return sum(written(body[name]) for name in instruction.operands)
        if instruction.opcode == "dynamic-update-slice":
            return nbytes(body[instruction.operands[1]].result)
        return nbytes(instruction.result)

    inputs = sum(
        read(instruction) * nbytes(instruction.result) / max(_elements(instruction.result), 1)
        for instruction in body.values()
        if instruction.opcode == "parameter"
    )
    return inputs + sum(written(instruction) for instruction in body.values() if instruction.root)


def summary(
    text: str, gpu: Gpu, memory: Mapping[str, float], turns: float = 1, units: float = 1
) -> dict[str, Any]:
    """Return the plan of a program, as a JSON object.

    Args:
      text: the text of the scheduled HLO.
      gpu: the GPU whose rates are used.
      memory: the bytes that `compiler.memory_plan` returns.
      turns: see `kernels`.
      units: number of units (such as steps) that the program computes; times, bytes and operations
        of the plan are per unit.
    """
    program = list(kernels(Hlo(text), turns, times=1 / units))
    total: dict[str, float] = collections.defaultdict(float)
    bound: dict[str, float] = collections.defaultdict(float)
    lines: dict[str, float] = collections.defaultdict(float)
    for kernel in program:
        parts = kernel.parts(gpu)
        for kind, count in kernel.operations.items():
            total[kind] += kernel.times * count
        bound[max(parts, key=lambda kind: parts[kind])] += kernel.times * max(parts.values())
        bound["launches"] += kernel.times * LAUNCH
        lines[kernel.line] += kernel.times * kernel.seconds(gpu)
    program.sort(key=lambda kernel: -kernel.times * kernel.seconds(gpu))
    return {
        "kernels": len(program),
        "launches": sum(kernel.times for kernel in program),
        "bytes": sum(kernel.times * kernel.bytes for kernel in program),
        "operations": dict(total),
        "memory": dict(memory),
        "seconds": sum(bound.values()),
        "bound": dict(sorted(bound.items(), key=lambda item: -item[1])),
        "lines": dict(sorted(lines.items(), key=lambda item: -item[1])),
        "dearest": [
            {
                "kernel": kernel.name,
                "line": kernel.line,
                "result": re.sub(r"\{[\d,:T()S]*\}|/\*.*?\*/", "", kernel.result),
                "times": kernel.times,
                "seconds": kernel.times * kernel.seconds(gpu),
                "bytes": kernel.times * kernel.bytes,
                "bound": max(kernel.parts(gpu), key=lambda kind: kernel.parts(gpu)[kind]),
            }
            for kernel in program[:DEAREST]
        ],
    }


# The programs


class Program(NamedTuple):
    """A program to be compiled and run.

    Attributes:
      lowered: the result of `jax.jit(…).lower`.
      arguments: function that makes arguments for a run, on real devices.
      turns: number of iterations of its loop; see `kernels`.
      units: number of units that it computes; see `summary`.
      carries: whether the first result is the first argument of the next run.
    """

    lowered: Any
    arguments: Callable[[], Sequence[Any]]
    turns: float = 1
    units: int = 1
    carries: bool = False


def _abstract(mesh: Mesh, tree: Any) -> Any:
    """Return the shapes to compile for; those without a sharding are replicated."""
    replicated = devices.replicated(mesh)

    def shape(x: Any) -> jax.ShapeDtypeStruct:
        if isinstance(x, jax.ShapeDtypeStruct) and x.sharding is not None:
            return x
        x = x if hasattr(x, "dtype") else np.asarray(x)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated)

    return jax.tree.map(shape, tree)


def _lower(mesh: Mesh, function: Callable[..., Any], *arguments: Any) -> Program:
    """Return the program of a function whose time does not depend on its arguments' values."""
    return Program(
        jax.jit(function).lower(*_abstract(mesh, arguments)), lambda: _anything(arguments)
    )


def _anything(tree: Any) -> Any:
    """Return arrays of given shapes: random numbers; integers of several bytes 0; masks True."""
    noise = np.random.default_rng(0).standard_normal(2**20, np.float32)

    def draw(x: Any) -> Any:
        dtype = np.dtype(x.dtype)
        if dtype.kind == "b" or dtype.itemsize > 1 and dtype.kind in "iu":
            return jnp.full(x.shape, dtype.kind == "b", dtype)
        values = noise.view(dtype) if dtype.kind in "iu" else noise.astype(dtype)
        return jnp.asarray(np.resize(values, x.shape))

    return jax.tree.map(draw, tree)


def _step(config: ConfigDict, mesh: Mesh, options: Options) -> Program:
    """Return the program of a chunk of training steps, as `training` compiles it.

    The plan's memory is that of the whole chunk.
    """
    del options  # the sizes are the configuration's
    size, steps = config.train.batch_size, config.train.log_every
    captions = round(size * steps * CAPTIONS_PER_VIDEO)
    family = measure.simulated_family(config, mesh, size * steps, captions)
    feed = family.feed(Schedule(family.num_examples, size, config.seed).groups(1, steps))
    optimiser, loss = family.optimiser(100), jax.tree.map(np.asarray, family.loss(feed.steps))

    def make_state() -> TrainState:
        return init_state(family.init_params(), optimiser)

    replicated = devices.replicated(mesh)
    program = jax.jit(
        chunk_of_steps(optimiser, family.project, feed),
        donate_argnums=0,
        out_shardings=(replicated, replicated),
    )
    inputs = jax.eval_shape(make_state), *feed.shapes(), np.int32(feed.steps), loss
    lowered = program.lower(*_abstract(mesh, inputs))

    def arguments() -> list[Any]:
        return [make_state(), *_first_chunk(feed), *inputs[3:]]

    return Program(lowered, arguments, feed.steps, feed.steps, carries=True)


def _first_chunk(feed: Any) -> tuple[Any, Any]:
    """Return the features and indices of a feed's first chunk, on its devices; close the feed."""
    chunk = next(feed.chunks())
    feed.close()
    return chunk.features, chunk.indices


def _stored(scorer: Any, encoded: Any, videos: int, dtype: str, mesh: Mesh) -> corpus.Corpus:
    """Return the shapes of a corpus of encoded videos, with the number of `encoded` in a block."""
    blocks = -(-videos // jax.tree.leaves(encoded)[0].shape[0])
    first = devices.mesh(jax.devices()[:1])
    stored = jax.eval_shape(lambda: corpus.empty(scorer, encoded, blocks, dtype, first))
    placed: corpus.Corpus = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        stored,
        corpus.shardings(mesh, stored),
    )
    return placed


def _evaluate(config: ConfigDict, mesh: Mesh, options: Options) -> Program:
    """Return the program that encodes and ranks a resident split of ActivityNet's size."""
    family = measure.simulated_family(config, mesh, *validation(config, options), resident=True)
    if family_of(config) == "hover":
        return _evaluate_nodes(config, mesh, family)
    evaluator, split = family.evaluator, family.data.val
    feed = evaluator.feed(split, resident=True)
    model, shapes = jax.tree.map(np.asarray, family.model), jax.eval_shape(family.init_params)
    encoded = jax.eval_shape(evaluator.encode_batch, model, shapes, *feed.shapes(), np.int32(0))
    stored = _stored(evaluator.scorer, encoded[0], len(split), config.eval.corpus, mesh)
    sharding = devices.sharded(mesh, axis=1)
    queries = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((feed.steps, *x.shape), x.dtype, sharding=sharding),
        encoded[1],
    )

    def program(
        model: Any, params: Any, features: Any, indices: Any, count: Any, *state: Any
    ) -> Any:
        stored, encoded, videos = state
        stored, encoded = evaluator.encode_chunk(
            model, params, features, indices, count * 0, count, stored, encoded
        )
        queries = encoded.vectors.reshape(-1, encoded.vectors.shape[-1])[videos]
        return rank_queries(stored, queries, videos, config.eval.query_batch)

    rest = np.int32(feed.steps), stored, queries, split.caption_video
    inputs = _abstract(mesh, (model, shapes, *feed.shapes(), *rest))

    def arguments() -> list[Any]:
        chunk, params = _first_chunk(feed), family.init_params()
        return [model, params, *chunk, *rest[:1], *_anything(rest[1:3]), *rest[3:]]

    return Program(jax.jit(program).lower(*inputs), arguments, feed.steps)


def _evaluate_nodes(config: ConfigDict, mesh: Mesh, family: Any) -> Program:
    """Return the program that encodes the nodes of the validation split and ranks both ways."""
    evaluator, split = family.evaluator, family.data.val
    feed = evaluator.feed(split, resident=True)
    size = devices.round_up(min(config.eval.query_batch, split.num_nodes), mesh.size)
    width = (feed.steps, feed.nodes, config.model.hyperbolic_dim)
    points: Any = jax.ShapeDtypeStruct(width, jnp.float32, sharding=devices.sharded(mesh, axis=1))

    def program(
        params: Any, features: Any, indices: Any, count: Any, stored: Any, related: Any
    ) -> Any:
        stored = evaluator.encode_chunk(params, features, indices, count * 0, count, stored)
        video, text = (x.reshape(-1, width[-1])[: split.num_nodes] for x in stored)
        ranks = functools.partial(rank_nodes, nodes=related, size=size, mesh=mesh)
        vectors = family.model.options.space.search_vectors
        return ranks(*vectors(text, video)), ranks(*vectors(video, text))

    related = relatives(split.pool)
    rest = np.int32(feed.steps), Points(points, points), related
    inputs = _abstract(mesh, (jax.eval_shape(family.init_params), *feed.shapes(), *rest))

    def arguments() -> list[Any]:
        chunk, params = _first_chunk(feed), family.init_params()
        return [params, *chunk, *rest[:1], _anything(rest[1]), related]

    return Program(jax.jit(program).lower(*inputs), arguments, feed.steps)


def _query(count: int, config: ConfigDict, mesh: Mesh, options: Options) -> Program:
    """Return the program that encodes and searches sentences in 2,500 videos in bfloat16."""
    model = models.build(config)
    videos = measure.num_videos(config, options, "test", corpus.SEARCHED_VIDEOS)
    params = jax.eval_shape(lambda: models.init_params(model, config))
    captions = jax.eval_shape(lambda: models.zero_batch(config, captions=count).captions)
    encoded = corpus.encoded_shapes(config, devices.round_up(min(corpus.BLOCK, videos), mesh.size))
    stored = _stored(scoring.build_scorer(config, model), encoded, videos, "bfloat16", mesh)

    def program(params: Any, captions: Any, stored: corpus.Corpus) -> Any:
        return corpus.search(stored, models.encode_query(model, params, captions), 10)

    return _lower(mesh, program, params, captions, stored)


def _search(config: ConfigDict, mesh: Mesh, options: Options) -> Program:
    """Return the program of a query of a thousand hours, one frame per second, in int8."""
    del config
    videos = Archive(options.hours, 768).videos
    frames: Any = jax.ShapeDtypeStruct((min(corpus.BLOCK, videos), SECONDS, 768), jnp.float32)
    scorer = scoring.MaximumSimilarity(np.asarray([0.0, 1.0], np.float32))
    stored = _stored(scorer, VideoEncoding(None, frames), videos, "int8", mesh)
    query = jax.ShapeDtypeStruct((1, 768), jnp.float32)
    return _lower(mesh, lambda stored, query: corpus.search(stored, query, 10), stored, query)


def _extract(config: ConfigDict, mesh: Mesh, options: Options) -> Program:
    """Return the program that encodes a batch of images, as large as SigLIP base/16, 224 pixels."""
    encoders = optional("hlformer_jax.encoders.encoder", "search")
    train = optional("hlformer_jax.encoders.train", "search")
    pixels, size = encoder_size(options.encoder)
    encoder = train.untrained(pixels, ["a person opens the fridge"], size=size, name="plan")
    kernel_dtype = jnp.dtype(config.dtype)

    def shape_of(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, kernel_dtype if x.ndim > 1 else x.dtype)

    def program(params: Any, images: Any) -> Any:
        return encoders.encode_images(params, encoder.config, encoder.image_processor, images)

    images = jax.ShapeDtypeStruct((encoders.MAX_IMAGES_AT_ONCE, pixels, pixels, 3), np.uint8)
    params = jax.tree.map(shape_of, encoder.params["vision"])
    return _lower(mesh, program, params, images)


PROGRAMS: dict[str, Callable[[ConfigDict, Mesh, Options], Program]] = {
    "step": _step,
    "evaluate": _evaluate,
    "query": functools.partial(_query, 1),
    "queries": functools.partial(_query, 256),
    "search": _search,
    "extract": _extract,
}
"""The programs by name."""

OF_EVERY_FAMILY = ("step", "evaluate")
"""The programs that HOVER has too."""


def mesh(gpu: Gpu, count: int = 1) -> Mesh:
    """Return a mesh of described GPUs, which can have shapes but no arrays.

    Raises:
      ConfigError: if JAX has no compiler for the GPU.
    """
    from jax.experimental import topologies

    # Without this, the plugin looks for the libraries of a driver.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    jax.config.update("jax_platforms", "cpu")
    try:
        described = topologies.get_topology_desc(
            platform="cuda", topology_name="", topology=f"1x1x{count}",
            target_config=gpu.description(),
        )  # fmt: skip
    except Exception as error:  # of the plugin, in many classes
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"no compiler for {gpu.name}: {install_command('cuda12')} ({reason})"
        ) from None
    return devices.mesh(described.devices)


def compiled(name: str, mesh: Mesh, config: ConfigDict, options: Options) -> tuple[Any, Program]:
    """Compile a program for present or described devices.

    Args:
      name: name of the program in `PROGRAMS`.
      mesh: the devices.
      config: the configuration.
      options: the sizes.

    Returns:
      The compiled program, and the `Program` that it was compiled from.

    Raises:
      ConfigError: if the model has no such program.
    """
    if family_of(config) != "prvr" and name not in OF_EVERY_FAMILY:
        raise ConfigError(
            f"--config is of the model {config.model.name!r}: give one of partially relevant video"
            " retrieval, for example configs/anet.py, or --program=step or evaluate"
        )
    measure.announce(f"compile {name}, {config.dtype}")
    with jax.default_matmul_precision(compiler.precision(config)):
        program = PROGRAMS[name](config, mesh, options)
        # Without a device there is no autotuning, and Triton fails to find tiles for some products.
        described = mesh.devices.flat[0] not in jax.devices()
        compiler_options: Any = {"xla_gpu_enable_triton_gemm": False} if described else None
        return program.lowered.compile(compiler_options), program


def read(path: Path) -> dict[str, Any]:
    """Read a written plan.

    Raises:
      ConfigError: if the file is not a plan.
    """
    try:
        result: Any = files.parse_json(files.read_bytes(path))
        _facts(result), result["lines"], result["dearest"]
        return dict(result)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is not a plan written by --json ({error})") from None


def plan(name: str, gpu: str, config: ConfigDict, options: Options) -> dict[str, Any]:
    """Return the plan of a program, as a JSON object; see `summary`.

    Raises:
      ConfigError: if JAX has no compiler for the GPU, or the model has no such program.
    """
    return summary_of(name, gpu, config, *compiled(name, mesh(GPUS[gpu]), config, options))


def summary_of(
    name: str, gpu: str, config: ConfigDict, program: Any, source: Program
) -> dict[str, Any]:
    """Return the plan of a compiled program (`compiled`), as a JSON object; see `summary`."""
    about = {"program": name, "gpu": gpu, "dtype": config.dtype, "jax": jax.__version__}
    if config.dtype == "float32":
        about["dtype"] += f" ({config.precision})"
    memory, counts = compiler.memory_plan(program), (source.turns, source.units)
    return about | summary(program.as_text(), GPUS[gpu], memory, *counts)


# Output

_digits = cli.three_digits


def show(result: Mapping[str, Any], reference: Mapping[str, Any] | None = None) -> None:
    """Print a plan, beside another plan of the same program if given."""
    both = [result] if reference is None else [result, reference]
    print(f"planned, not measured: {result['program']}, {result['gpu']}, {result['dtype']}")
    facts = [_facts(x) for x in both]
    names = dict.fromkeys(name for x in facts for name in x)
    rows = [[name, *(_digits(x.get(name, 0.0)) for x in facts)] for name in names]
    cli.print_table(("", "plan", "other")[: 1 + len(both)], rows, width=120)
    if reference is None:
        head: tuple[str, ...] = ("ms", "bound", "GB", "times", "line", "result")
        rows = []
        for kernel in result["dearest"]:
            numbers = 1e3 * kernel["seconds"], kernel["bytes"] / 1e9, kernel["times"]
            time, moved, times = map(_digits, numbers)
            line, result_type = kernel["line"], kernel["result"][:60]
            rows.append([time, kernel["bound"], moved, times, line, result_type])
    else:
        head = ("ms", "other ms", "line")
        old, new = reference["lines"], result["lines"]
        lines = sorted({*new, *old}, key=lambda x: -abs(new.get(x, 0) - old.get(x, 0)))
        rows = [
            [*(_digits(1e3 * x["lines"].get(line, 0)) for x in both), line]
            for line in lines[:DEAREST]
        ]
    cli.print_table(head, rows, text_columns=head, width=120)


def _facts(result: Mapping[str, Any]) -> dict[str, float]:
    facts = {"ms": 1e3 * result["seconds"], "kernels": result["kernels"]}
    facts |= {"launches": result["launches"], "GB moved": result["bytes"] / 1e9}
    facts |= {f"{name} GB": value / 1e9 for name, value in result["memory"].items()}
    facts |= {f"{name} TFLOP": x / 1e12 for name, x in sorted(result["operations"].items())}
    return facts | {f"ms of {name}": 1e3 * x for name, x in result["bound"].items()}


def tree_map(result: Mapping[str, Any], path: Path, replace: files.Replace) -> None:
    """Draw the time of each source line as an area; write PATH.png, PATH.svg and PATH.csv."""
    lines = [(line, 1e3 * seconds) for line, seconds in result["lines"].items() if seconds > 0]
    with drawing.styled():
        figure = drawing.Figure(figsize=(10, 6), layout="constrained")
        axes = figure.add_subplot()
        axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], frame_on=False)
        colours: dict[str, str] = {}
        for (line, time), (x, y, width, height) in zip(lines, _tiles(lines), strict=True):
            file = line.rsplit(":", 1)[0]
            colour = colours.setdefault(file, drawing.COLOURS[len(colours) % 6])
            axes.bar(x, height, width, y, align="edge", color=colour, edgecolor="white", alpha=0.8)
            if width > 0.08 and height > 0.03:
                label = f"{line}\n{_digits(time)} ms"
                axes.text(x + width / 2, y + height / 2, label, ha="center", va="center", size=6)
        title = f"{result['program']}, {result['gpu']}, {result['dtype']}: planned, not measured"
        axes.set_title(f"{title}, {_digits(1e3 * result['seconds'])} ms in all")
        table = {"line": [line for line, _ in lines], "ms": [time for _, time in lines]}
        drawing.write(figure, path, table, replace)


Tile = tuple[float, float, float, float]


def _tiles(lines: list[tuple[str, float]], area: Tile = (0, 0, 1, 1)) -> list[Tile]:
    """Divide an area in proportion to the weights, recursively by halves along the longer side."""
    if len(lines) < 2:
        return [area] * len(lines)
    weights = np.cumsum([weight for _, weight in lines])
    cut = int(np.clip(np.searchsorted(weights, weights[-1] / 2), 1, len(lines) - 1))
    share = float(weights[cut - 1] / weights[-1])
    x, y, width, height = area
    if width >= height:
        first, last = (
            (x, y, share * width, height),
            (x + share * width, y, (1 - share) * width, height),
        )
    else:
        first, last = (
            (x, y, width, share * height),
            (x, y + share * height, width, (1 - share) * height),
        )
    return _tiles(lines[:cut], first) + _tiles(lines[cut:], last)
