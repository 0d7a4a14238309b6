"""The training step, and chunks of steps that run without the host.

`train_step` makes the step, a pure function of a state and a batch, from a loss, an optimiser and a
projection. A chunk of steps is one compiled program: a loop on the device that gathers each batch
from the features of the chunk and takes a step.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from hlformer_jax.config import ConfigError, flat
from hlformer_jax.data.feed import Chunk
from hlformer_jax.pytrees import register_dataclass
from hlformer_jax.runtime import compiler, devices, processes
from hlformer_jax.training.optim import Rows, RowWise
from hlformer_jax.typing import Array

Params = Any
Scalars = dict[str, Array]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a step changes, as a frozen pytree.

    Random keys are derived from the number of the step and not stored.

    Attributes:
      step: number of finished steps, int32.
      params: parameters of the model.
      optimiser: state of the optimiser.
    """

    step: Any
    params: Any
    optimiser: Any


def init_state(params: Any, optimiser: optax.GradientTransformation) -> TrainState:
    """Return the state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), params, optimiser.init(params))


Step = Callable[[TrainState, Any], tuple[TrainState, Scalars]]
Steps = Callable[[TrainState, Chunk], tuple[TrainState, Scalars]]


@runtime_checkable
class Loss(Protocol):
    """The loss of a family of models: a callable pytree.

    Its arrays are arguments of the compiled step, so that losses that differ only in their arrays
    share a program; everything else is part of the program. Define it as a dataclass with
    `pytrees.register_dataclass`, or convert a function by `jax.tree_util.Partial`.
    """

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms."""

    def __call__(
        self, params: Params, batch: Any, step: Int[Array, ""]
    ) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
        """Return the loss of a batch at a step, and its terms by name.

        Random numbers must depend only on the step and on a seed of the loss.
        """


@runtime_checkable
class Feed(Protocol):
    """The batches of a run on the devices, in chunks of steps of one shape."""

    @property
    def mesh(self) -> Mesh:
        """The devices."""

    @property
    def bytes_ahead(self) -> float:
        """Bytes on each device for chunks that are loaded ahead of their use."""

    def load(self) -> None:
        """Begin to load the first features, without waiting for them."""

    def chunks(self, first: int = 0) -> Iterator[Any]:
        """Yield the chunks of steps, from step `first` on."""

    def shapes(self) -> tuple[Any, Any]:
        """Return the shapes of a chunk's features and gather indices."""

    def gather(self, features: Any, indices: Any, step: Int[Array, ""]) -> Any:
        """Return the batch of a step of a chunk; for use inside of jit.

        Args:
          features: features of the chunk.
          indices: gather indices of the chunk.
          step: index of the step in the chunk, from 0.
        """

    def close(self) -> None:
        """Release threads and memory."""


class Compiled(NamedTuple):
    """Compiled steps.

    Attributes:
      steps: takes the steps of a chunk; the buffers of the given state are reused (donated).
      program: the compiled program, for its memory and costs.
    """

    steps: Steps
    program: Any


def train_step(
    loss: Loss,
    optimiser: optax.GradientTransformation,
    project: Callable[[Params], Params] = lambda params: params,
) -> Step:
    """Return the training step.

    Args:
      loss: the loss.
      optimiser: the optimiser.
      project: maps updated parameters to parameters that satisfy their constraints.

    Returns:
      A function of a state and a batch that returns the next state and scalars: `loss`,
      `loss/TERM` for every term, and `gradient_norm`.
    """

    def step(state: TrainState, batch: Any) -> tuple[TrainState, Scalars]:
        rows = state.params if isinstance(state.params, Rows) else None
        gradient_of = jax.value_and_grad(loss, has_aux=True)
        params = state.params if rows is None else rows.tree()
        (total, terms), gradient = gradient_of(params, batch, state.step)
        gradient = gradient if rows is None else rows.like(gradient)
        updates, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
        moved = optax.apply_updates(state.params, updates)
        params = project(moved) if rows is None else moved.apply(project)
        scalars = {"loss": total} | {f"loss/{name}": value for name, value in terms.items()}
        norm = optax.tree.norm if rows is None else Rows.norm
        scalars["gradient_norm"] = norm(gradient)
        return TrainState(state.step + 1, params, optimiser_state), scalars

    return step


def scalar_names(loss: Loss) -> tuple[str, ...]:
    """Return the names of the scalars of a step, all float32."""
    return ("loss", *(f"loss/{name}" for name in loss.terms), "gradient_norm")


def chunk_of_steps(
    optimiser: optax.GradientTransformation, project: Callable[[Params], Params], feed: Feed
) -> Callable[[TrainState, Any, Any, Int[Array, ""], Loss], tuple[TrainState, Scalars]]:
    """Return a function, to be jitted, that takes the first `count` of at most S steps of a chunk.

    Its arguments are the state, the features, the gather indices [S, ...], count and the loss. It
    returns the state after the steps, and the scalars [S] of the steps, zero from `count` on.
    """

    def steps(
        state: TrainState, features: Any, indices: Any, count: Int[Array, ""], loss: Loss
    ) -> tuple[TrainState, Scalars]:
        take_step = train_step(loss, optimiser, project)

        def body(index: Array, carry: tuple[TrainState, Scalars]) -> tuple[TrainState, Scalars]:
            state, scalars = take_step(carry[0], feed.gather(features, indices, index))
            records = jax.tree.map(lambda row, value: row.at[index].set(value), carry[1], scalars)
            return state, records

        max_steps = len(jax.tree.leaves(indices)[0])
        empty = {name: jnp.zeros(max_steps) for name in scalar_names(loss)}
        start = join_rows(state) if isinstance(optimiser, RowWise) else state
        end, scalars = jax.lax.fori_loop(0, count, body, (start, empty))
        return separate_rows(end), scalars

    return steps


def join_rows(state: TrainState) -> TrainState:
    """Convert the parameters to `Rows`, and all trees of this structure in the optimiser."""
    rows = Rows.from_tree(state.params)
    structure: Any = jax.tree.structure(state.params)

    def has_structure(part: Any) -> bool:
        return bool(structure == jax.tree.structure(part))

    def join(part: Any) -> Any:
        return rows.like(part) if has_structure(part) else part

    optimiser = jax.tree.map(join, state.optimiser, is_leaf=has_structure)
    return TrainState(state.step, rows, optimiser)


def separate_rows(state: TrainState) -> TrainState:
    """Convert the `Rows` of a state to trees."""

    def is_rows(part: Any) -> bool:
        return isinstance(part, Rows)

    separated: TrainState = jax.tree.map(
        lambda part: part.tree() if is_rows(part) else part, state, is_leaf=is_rows
    )
    return separated


MAX_SHARED_PROGRAMS = 8
"""Largest number of compiled training steps that are kept for later runs of the process."""

_shared_programs: dict[Hashable, Any] = {}


def list_program_fields(config: ConfigDict) -> Hashable:
    """Return the fields, with their values, that are constants of a family's compiled steps.

    Fields of `config.loss` and `config.model` are left out, because they are part of the loss,
    which is an argument of the program; fields of `config.eval`, because steps do not use them.
    """
    left_out = ("loss", "model", "eval")
    fields = [(name, repr(value)) for name, value in flat(config).items()]
    return tuple(sorted(x for x in fields if x[0].partition(".")[0] not in left_out))


def compile_steps(
    loss: Loss,
    optimiser: optax.GradientTransformation,
    project: Callable[[Params], Params],
    feed: Feed,
    state: TrainState,
    config: ConfigDict,
    constants: Hashable = None,
) -> Compiled:
    """Compile chunks of steps.

    Args:
      loss: the loss of the run.
      optimiser: the optimiser of the run.
      project: maps updated parameters to parameters that satisfy their constraints.
      feed: the feed of the run's batches.
      state: the state, or its shapes.
      config: the configuration of the run.
      constants: identifies optimiser, projection and feed. With `config.compile_fast`, runs whose
        constants and shapes of arguments agree share a program. None: the program is not shared.

    Returns:
      The compiled steps.

    Raises:
      ConfigError: if a step takes more memory than the devices have.
    """
    mesh = feed.mesh
    sharding = devices.replicated(mesh)
    count = jax.ShapeDtypeStruct((), np.int32, sharding=sharding)
    loss = devices.replicate(mesh, loss)
    arguments = (state, *feed.shapes(), count, loss)
    key = (constants, mesh, jax.tree.structure(arguments), _types(arguments))
    shares = config.compile_fast and constants is not None
    compiled = _shared_programs.get(key) if shares else None
    if compiled is None:
        program = jax.jit(
            chunk_of_steps(optimiser, project, feed),
            donate_argnums=0,
            out_shardings=(sharding, sharding),
        )
        with jax.default_matmul_precision(compiler.precision(config)):  # of the loss too
            lowered = program.lower(*arguments)
        compiled = lowered.compile(compiler.compiler_options(config))
    if shares:
        _shared_programs[key] = compiled
        while len(_shared_programs) > MAX_SHARED_PROGRAMS:
            del _shared_programs[next(iter(_shared_programs))]
    _check_memory(compiled, feed)

    def steps(state: TrainState, chunk: Chunk) -> tuple[TrainState, Scalars]:
        count = devices.replicate(mesh, np.int32(chunk.num_steps))
        return compiled(state, chunk.features, chunk.indices, count, loss)

    return Compiled(steps, compiled)


def _types(tree: Any) -> tuple[Hashable, ...]:
    return tuple((x.shape, x.dtype, x.sharding) for x in jax.tree.leaves(tree))


def _check_memory(program: Any, feed: Feed) -> None:
    """Raise ConfigError in every process if a program needs more memory than any device has."""
    limit = devices.available_bytes(feed.mesh)
    needed = compiler.memory_plan(program).get("peak", 0) + feed.bytes_ahead
    if processes.any_process(limit is not None and needed > limit):
        raise ConfigError(
            f"a training step takes {needed / 1e9:.1f} GB on each device, but JAX"
            f" has {(limit or np.nan) / 1e9:.1f} GB: raise"
            " config.train.encode_parts (to 2, 4, 8), set config.data.resident to 'never' or"
            " lower config.train.batch_size; JAX uses three quarters of a GPU's memory"
            " unless XLA_PYTHON_CLIENT_MEM_FRACTION is higher"
        )
