"""Fixtures of training tests: compiled programs, and runs that were never interrupted."""

import contextlib
import io
import os
import pickle
import signal
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest
import runs

from hlformer_jax import files
from hlformer_jax.training import hover, loop, prvr

PROGRAMS = {}
"""Compiled programs of all runs of this process, by the values that they depend on."""


@contextlib.contextmanager
def sharing_programs():
    """Share compiled programs between runs whose programs are equal."""
    compile_steps = loop.compile_steps

    def shared(make, *key):
        if key not in PROGRAMS:
            PROGRAMS[key] = make()
        return PROGRAMS[key]

    def steps(loss, optimiser, project, feed, state, config, constants):
        arguments = loss, optimiser, project, feed, state, config, constants
        fields = runs.program_fields(config)
        if isinstance(loss, runs.Attraction):  # its program does not depend on the length
            fields = runs.program_fields(config, excluded=("train.epochs",))
        return shared(lambda: compile_steps(*arguments), type(loss), fields)

    def evaluator(make):
        return lambda model, config, mesh: shared(
            lambda: make(model, config, mesh), make, runs.program_fields(config), mesh
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "compile_steps", steps)
        patch.setattr(prvr, "Evaluator", evaluator(prvr.Evaluator))
        patch.setattr(hover, "NodeEvaluator", evaluator(hover.NodeEvaluator))
        yield


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """Share programs between the runs of all tests; fixtures of the session start before this."""
    with sharing_programs():
        yield


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The directory of a run of a tree."""
    path = tmp_path_factory.mktemp("tree") / "uninterrupted"
    with sharing_programs():
        runs.train(runs.tree(), path)
    return path


@pytest.fixture(scope="session")
def shared():
    """A folder that the processes of a session of tests share."""
    return Path(os.environ["HLFORMER_TEST_SHARED"]) / "retrieval"


@pytest.fixture(scope="session")
def data_dir(shared):
    """Folder of the prepared videos of the runs of retrieval."""
    return shared / "prepared"


class Retrieval(NamedTuple):
    """A run of retrieval and records of it.

    Attributes:
      path: its directory.
      results: its test metrics.
      initial: its initial parameters.
      final: its parameters at the end.
      compiled: number of programs compiled before each chunk, and at the end.
      stderr: its standard error.
    """

    path: Path
    results: dict
    initial: Any
    final: Any
    compiled: list
    stderr: str


@pytest.fixture(scope="session")
def retrieval(shared, data_dir):
    """A run of retrieval that was never interrupted, made once in a session."""
    record = shared / "run.pickle"
    with files.lock(shared, waiting=lambda: None):
        if not record.exists():
            stderr = io.StringIO()
            with sharing_programs(), contextlib.redirect_stderr(stderr):
                run = _train(data_dir, shared / "uninterrupted")
            record.write_bytes(pickle.dumps((*run, stderr.getvalue())))
    return Retrieval(*pickle.loads(record.read_bytes()))


def _train(data_dir, path):
    compiled, before = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **_: compiled.append(event) if "backend_compile" in event else None
    )
    config = runs.retrieval(data_dir, **{"train.baseline": True})
    with loop.start(config, path) as trainer:
        steps = trainer.steps

        def count_programs(state, chunk):
            before.append(len(compiled))
            return steps(state, chunk)

        trainer.steps = count_programs
        initial = jax.device_get(trainer.state.params)
        trainer.run()
    before.append(len(compiled))
    final = jax.device_get(trainer.state.params)
    outcome = loop.train(config, path)  # the training is complete: this tests
    return path, outcome.results, initial, final, before


@pytest.fixture(scope="session")
def trees_dir(tmp_path_factory):
    """Folder of the prepared trees of the runs of HOVER."""
    return tmp_path_factory.mktemp("trees")


@pytest.fixture(scope="session")
def hover_run(trees_dir, tmp_path_factory):
    """The directory of a run of HOVER that was never interrupted, and its test metrics."""
    path = tmp_path_factory.mktemp("hover") / "uninterrupted"
    with sharing_programs():
        return path, loop.train(runs.hover(trees_dir), path).results


@pytest.fixture
def ctrl_c():
    """Handle Ctrl-C as a program in the foreground does, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
