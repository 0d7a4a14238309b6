"""What XLA would run on a GPU that is not there: it compiles for the description of one.

Nothing is measured. How the time of a program is counted: `roofline`.
"""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rich.box
import rich.console
import rich.table
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax import command, files, models, parallel
from hlformer_jax.benchmark import measure
from hlformer_jax.benchmark.query import BLOCK, SEARCHED_VIDEOS, SECONDS, VALIDATION
from hlformer_jax.benchmark.roofline import DEAREST, GPUS, Gpu, summary
from hlformer_jax.config import ConfigError, family_of
from hlformer_jax.data.feed import Schedule, VideoFeed, in_order
from hlformer_jax.data.split import CAPTIONS_PER_VIDEO
from hlformer_jax.figures import drawing
from hlformer_jax.models import VideoEncoding
from hlformer_jax.retrieval import corpus, scoring
from hlformer_jax.retrieval.evaluation import Evaluator, _rank
from hlformer_jax.training import optim, prvr
from hlformer_jax.training.step import chunk_of_steps, init_state

# The programs


class Program(NamedTuple):
    """A program to be compiled, the turns of its loop, and its units; see `roofline.summary`."""

    lowered: Any
    turns: float = 1
    units: float = 1


def _lower(mesh: Mesh, function: Callable[..., Any], *arguments: Any) -> Any:
    return jax.jit(function).lower(*(parallel.abstract(mesh, one) for one in arguments))


def _params(config: ConfigDict) -> Any:
    return jax.eval_shape(lambda: models.init_params(models.build(config), config))


def _step(config: ConfigDict, mesh: Mesh) -> Program:
    """A step of a chunk of them, as training compiles it; the memory is that of the chunk."""
    model, size, steps = models.build(config), config.train.batch_size, config.train.log_every
    count = size * steps
    split = measure.simulated_split(count, round(count * CAPTIONS_PER_VIDEO), config)
    groups = Schedule(count, size, config.seed).groups(1, steps)
    feed = VideoFeed(split, groups, mesh, size, resident=False)
    optimiser = optim.build(config.optim, model.module, 100)
    state = jax.eval_shape(lambda params: init_state(params, optimiser), _params(config))
    loss = prvr.build_objective(config, model, steps, int(split.captions_per_video.max()))
    project = functools.partial(models.project, model)
    whole = parallel.replicated(mesh)
    program = jax.jit(
        chunk_of_steps(optimiser, project, feed), donate_argnums=0, out_shardings=(whole, whole)
    )
    state, loss, number = parallel.abstract(
        mesh, (state, jax.tree.map(np.asarray, loss), np.zeros((), np.int32))
    )
    return Program(program.lower(state, *feed.shapes(), number, loss), steps, steps)


def _corpus(config: ConfigDict, mesh: Mesh, videos: int, dtype: str) -> corpus.Corpus:
    model, size = models.build(config), parallel.round_up(min(BLOCK, videos), mesh.size)
    encode = lambda params: models.encode_video(
        model, params, models.zero_batch(config, size).videos
    )
    encoded = jax.eval_shape(encode, _params(config))
    return _stored(scoring.build_scorer(config, model), encoded, videos, dtype)


def _stored(scorer: Any, encoded: Any, videos: int, dtype: str) -> corpus.Corpus:
    size = jax.tree.leaves(encoded)[0].shape[0]
    here = parallel.mesh(jax.devices()[:1])
    return jax.eval_shape(lambda: corpus.empty(scorer, encoded, -(-videos // size), dtype, here))


def _evaluate(config: ConfigDict, mesh: Mesh) -> Program:
    """Encoding and ranking of a validation split of ActivityNet's size, resident."""
    videos, captions = VALIDATION
    split = measure.simulated_split(videos, captions, config)
    size = parallel.round_up(config.eval.video_batch, mesh.size)
    feed = VideoFeed(split, in_order(videos, size, videos), mesh, size, resident=True)
    model = models.build(config)
    evaluator = Evaluator(model, config, parallel.mesh(jax.devices()[:1]))
    evaluator._mesh = mesh  # shapes alone are put there
    params, steps = _params(config), -(-videos // size)
    encoded = jax.eval_shape(evaluator._encode_step, model, params, *feed.shapes(), np.int32(0))
    stored = _stored(evaluator.scorer, encoded[0], videos, config.eval.corpus)
    queries = jax.ShapeDtypeStruct((steps, *encoded[1].shape), encoded[1].dtype)
    number, own = np.zeros((), np.int32), np.zeros(captions, np.int32)

    def program(
        model: Any, params: Any, features: Any, indices: Any, count: Any, *state: Any
    ) -> Any:
        stored, encoded, own = state
        stored, encoded = evaluator._encode_chunk(
            model, params, features, indices, count * 0, count, stored, encoded
        )
        asked = encoded.reshape(-1, encoded.shape[-1])[own]
        return _rank(stored, asked, own, config.eval.query_batch)

    arguments = [parallel.abstract(mesh, x) for x in (jax.tree.map(np.asarray, model), params)]
    rest = parallel.abstract(mesh, (number, stored, queries, own))
    return Program(jax.jit(program).lower(*arguments, *feed.shapes(), *rest), steps)


def _query(count: int, config: ConfigDict, mesh: Mesh) -> Program:
    """Sentences encoded and searched for in a corpus of 2,500 videos, bfloat16."""
    model = models.build(config)
    captions = jax.eval_shape(lambda: models.zero_batch(config, captions=count).captions)

    def program(params: Any, captions: Any, stored: corpus.Corpus) -> Any:
        return corpus.search(stored, models.encode_query(model, params, captions), 10)

    stored = _corpus(config, mesh, SEARCHED_VIDEOS, "bfloat16")
    return Program(_lower(mesh, program, _params(config), captions, stored))


def _search(config: ConfigDict, mesh: Mesh) -> Program:
    """A query of a thousand hours' frames, a frame a second, int8."""
    del config
    videos = 3_600_000 // SECONDS
    frames: Any = jax.ShapeDtypeStruct((BLOCK, SECONDS, 768), jnp.float32)
    scorer = scoring.MaximumSimilarity(np.asarray([0.0, 1.0], np.float32))
    stored = _stored(scorer, VideoEncoding(None, frames), videos, "int8")
    query = jax.ShapeDtypeStruct((1, 768), jnp.float32)
    return Program(
        _lower(mesh, lambda stored, query: corpus.search(stored, query, 10), stored, query)
    )


def _extract(config: ConfigDict, mesh: Mesh) -> Program:
    """A batch of images through an encoder as large as SigLIP base/16 at 224 pixels."""
    try:
        from hlformer_jax.encoders import encoder as encoders
        from hlformer_jax.encoders import train
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"pip install 'hlformer-jax[search]' (there is no {error.name})"
        ) from None

    size = train.Size(768, 12, 12, 4, 16, 64, 32)
    parts, _, preparation = train._parts(224, ["a person opens the fridge"], size, "base")
    params = train._initial(parts, np.random.default_rng(0))["vision"]
    kind = jnp.dtype(config.dtype)
    kernel = lambda x: jax.ShapeDtypeStruct(x.shape, kind if x.ndim > 1 else x.dtype)
    pixels = np.broadcast_to(np.uint8(0), (encoders.MAX_IMAGES_AT_ONCE, 224, 224, 3))
    program = lambda params, pixels: encoders._images(params, parts, preparation, pixels)
    return Program(_lower(mesh, program, jax.tree.map(kernel, params), pixels))


PROGRAMS: dict[str, Callable[[ConfigDict, Mesh], Program]] = {
    "step": _step,
    "evaluate": _evaluate,
    "query": functools.partial(_query, 1),
    "queries": functools.partial(_query, 256),
    "search": _search,
    "extract": _extract,
}


def mesh(gpu: Gpu, devices: int = 1) -> Mesh:
    """A mesh of described GPUs, for shapes alone.

    Raises:
      ConfigError: when JAX has no compiler for a GPU.
    """
    from jax.experimental import topologies

    # The plugin otherwise looks for a driver's libraries.
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")
    jax.config.update("jax_platforms", "cpu")
    try:
        described = topologies.get_topology_desc(
            platform="cuda", topology_name="", topology=f"1x1x{devices}",
            target_config=gpu.description(),
        )  # fmt: skip
    except Exception as error:  # of the plugin, in many classes
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"no compiler for {gpu.name}: pip install 'hlformer-jax[cuda12]' ({reason})"
        ) from None
    return parallel.mesh(described.devices)


def compiled(name: str, gpu: Gpu, config: ConfigDict, devices: int = 1) -> tuple[Any, Program]:
    """A program, compiled for described GPUs, and what it was compiled from.

    Raises:
      ConfigError: as `mesh` does.
    """
    described = mesh(gpu, devices)
    with jax.default_matmul_precision(parallel.precision(config)):
        program = PROGRAMS[name](config, described)
        # Without a device nothing is tuned, and Triton finds no tiles for some products.
        options: Any = {"xla_gpu_enable_triton_gemm": False}
        return program.lowered.compile(options), program


def read(path: Path) -> dict[str, Any]:
    """A plan that was written.

    Raises:
      ConfigError: when the file holds none.
    """
    try:
        result: Any = files.parse_json(files.read_bytes(path))
        _facts(result), result["lines"], result["dearest"]
        return dict(result)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path} is no plan written by --json ({error})") from None


def plan(name: str, gpu: str, config: ConfigDict) -> dict[str, Any]:
    """The plan of a program, as JSON has it; see `summary`.

    Raises:
      ConfigError: as `mesh` does, or for a model of another family.
    """
    if family_of(config) != "prvr":
        raise ConfigError(
            f"--config is of the model {config.model.name!r}: give one of partially relevant video"
            " retrieval, for example configs/anet.py"
        )
    program, source = compiled(name, GPUS[gpu], config)
    about = {"program": name, "gpu": gpu, "dtype": config.dtype, "jax": jax.__version__}
    if config.dtype == "float32":
        about["dtype"] += f" ({config.precision})"
    memory, counts = parallel.memory_plan(program), (source.turns, source.units)
    return about | summary(program.as_text(), GPUS[gpu], memory, *counts)


# Output

_digits = command.three_digits


def show(result: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> None:
    """Prints a plan, beside another of the same program."""
    console = rich.console.Console(width=120)
    both = [result] if other is None else [result, other]
    title = f"planned, not measured: {result['program']}, {result['gpu']}, {result['dtype']}"
    console.print(title)
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    for column in ("", "plan", "other")[: 1 + len(both)]:
        table.add_column(column, justify="right" if column else "left")
    facts = [_facts(one) for one in both]
    for what in dict.fromkeys(name for one in facts for name in one):
        table.add_row(what, *(_digits(one.get(what, 0.0)) for one in facts))
    console.print(table)
    dear = rich.table.Table(box=rich.box.SIMPLE_HEAD)
    for column in ("ms", "bound", "GB", "times", "line", "result"):
        dear.add_column(column)
    for one in result["dearest"] if other is None else ():
        numbers = 1e3 * one["seconds"], one["bytes"] / 1e9, one["times"]
        time, moved, times = map(_digits, numbers)
        dear.add_row(time, one["bound"], moved, times, one["line"], one["result"][:60])
    if other is not None:
        dear = rich.table.Table(box=rich.box.SIMPLE_HEAD)
        for column in ("ms", "other ms", "line"):
            dear.add_column(column)
        change = lambda line: result["lines"].get(line, 0) - other["lines"].get(line, 0)
        lines = sorted({*result["lines"], *other["lines"]}, key=lambda line: -abs(change(line)))
        for line in lines[:DEAREST]:
            dear.add_row(*(_digits(1e3 * one["lines"].get(line, 0)) for one in both), line)
    console.print(dear)


def _facts(result: Mapping[str, Any]) -> dict[str, float]:
    facts = {"ms": 1e3 * result["seconds"], "kernels": result["kernels"]}
    facts |= {"launches": result["launches"], "GB moved": result["bytes"] / 1e9}
    facts |= {f"{name} GB": value / 1e9 for name, value in result["memory"].items()}
    facts |= {f"{name} TFLOP": x / 1e12 for name, x in sorted(result["operations"].items())}
    return facts | {f"ms of {name}": 1e3 * x for name, x in result["bound"].items()}


def tree_map(result: Mapping[str, Any], path: Path, replace: files.Replace) -> None:
    """Draws the time of each source line as an area, PATH.png, PATH.svg and PATH.csv."""
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
    """Rectangles of areas in proportion: halves of about equal weight, along the longer side."""
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
