"""What is waited for before the work: preparation of data, compiling, a process's first result."""

import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from hlformer_jax import models, parallel
from hlformer_jax.benchmark import measure
from hlformer_jax.benchmark.measure import Floor, Options, Row, clock, summary
from hlformer_jax.benchmark.step import Training
from hlformer_jax.data import prepared
from hlformer_jax.errors import UserError
from hlformer_jax.retrieval.evaluation import Evaluator


def prepare(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Released files to records, in input bytes a second."""
    with tempfile.TemporaryDirectory() as directory:
        collection = measure.released_files(directory, options.videos or 400, config)
        paths = (collection.feature_dir / "feature.bin", collection.text_features)
        size = sum(path.stat().st_size for path in paths)
        clocks, copies = [], []
        for repeat in range(3):
            target = Path(directory) / str(repeat)
            clocks.append(clock(prepared.prepare, collection, target, config.data.storage))
            copies.append(sum(clock(shutil.copy, path, target) for path in paths))
    timing = summary(clocks)
    # What is read must be written: at best in the time in which the files themselves are copied.
    floor = Floor(0.0, 2.0 * size, float(np.median(copies)))
    yield Row("prepare", timing, floor, {"MB": size / 1e6, "MB/s": size / 1e6 / timing.median})


def compilation(config: ConfigDict, options: Options) -> Iterator[Row]:
    """Time to trace and compile the programs of a run, nothing kept from earlier ones."""
    del options  # once, as a second time would be another
    jax.config.update("jax_enable_compilation_cache", False)
    model = models.build(config)

    def evaluate() -> None:
        split = measure.simulated_split(
            config.eval.video_batch, 2 * config.eval.video_batch, config
        )
        evaluator = Evaluator(model, config, parallel.mesh())
        params = parallel.replicate(parallel.mesh(), models.init_params(model, config))
        evaluator.evaluate(params, evaluator.feed(split))

    for name, run in (
        ("initial parameters", lambda: models.init_params(model, config)),
        ("training", lambda: Training(config, config.train.batch_size, 1)),
        ("evaluation", evaluate),
    ):
        yield Row(name, summary([clock(run)]))


def first_results(directory: Path, count: int) -> Iterator[Row]:
    """So many processes, one after another, that open an index and answer twice."""
    # Its source alone is run: nothing that this module imports is to count.
    code = f"{inspect.getsource(_open_and_ask)}\nimport sys\n_open_and_ask(*sys.argv[1:])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if jax.default_backend() != "cpu":
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    times: list[dict[str, float]] = []
    for _ in range(count):
        start = [sys.executable, "-c", code, str(directory), repr(time.time())]
        ended = subprocess.run(start, env=environment, capture_output=True, text=True)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            raise UserError(f"a process that opens the index failed: {last}")
        times.append(json.loads(ended.stdout.splitlines()[-1]))
    parts = list(times[0])
    total = summary([sum(one[part] for part in parts[:-1]) for one in times])
    yield Row("first result of a fresh process", total)
    for part in parts:
        yield Row(f"  {part}", summary([one[part] for one in times]))


def _open_and_ask(directory: str, start: str) -> None:
    """Opens an index, asks it twice, and prints what took how long since `start`, as JSON."""
    import json
    import time

    from hlformer_jax import search
    from hlformer_jax.errors import optional

    sentence = "a person opens the fridge"
    optional("hlformer_jax.encoders", "search")
    marks = [float(start), time.time()]
    library = search.open(directory)
    marks.append(time.time())
    library.encoder.sentences([sentence])
    marks.append(time.time())
    for _ in range(2):
        library.query(sentence)
        marks.append(time.time())
    parts = "start and imports", "opening", "encoder's first sentence", "query", "the next query"
    seconds = [end - begin for begin, end in zip(marks[:-1], marks[1:], strict=True)]
    print(json.dumps(dict(zip(parts, seconds, strict=True))))
