"""The training step, and groups of steps that run without the host.

`train_step` is a pure function of a state and a batch. A group of steps is one compiled program: a
loop on the device whose body gathers a batch from the window's features and takes a step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Int
from ml_collections import ConfigDict

from hlformer_jax import models
from hlformer_jax.config import ConfigError
from hlformer_jax.data.feed import WINDOWS, Feed, Window
from hlformer_jax.data.packed import Features, Plan
from hlformer_jax.models import TwoBranch
from hlformer_jax.models.two_branch import Constants
from hlformer_jax.ops.keys import derive_key
from hlformer_jax.ops.numerics import wide
from hlformer_jax.parallel import analysis, devices, processes, runtime
from hlformer_jax.training.objective import active_terms, draw_negatives, objective
from hlformer_jax.training.train_state import TrainState
from hlformer_jax.typing import Array, Batch

Scalars = dict[str, Array]
Step = Callable[[TrainState, Batch, "Numbers"], tuple[TrainState, Scalars]]
Steps = Callable[[TrainState, Window], tuple[TrainState, Scalars]]


class Compiled(NamedTuple):
    """A compiled group of steps.

    Attributes:
      steps: from a state, which is donated, and a window to the next state and the scalars of each
        step.
      program: what the compiler made, to be asked for its memory.
      flops: floating-point operations of one step on one device, by a compiler's count, without
        those that are done again to save memory.
    """

    steps: Steps
    program: Any
    flops: float


class Numbers(NamedTuple):
    """Numbers of a configuration that are arguments of the step, not part of its program.

    Attributes:
      seed: of the negatives and the dropout.
      loss: weights and constants of the losses.
      hard_negative_epoch: first epoch with hard negatives.
      hard_pool_size: how many there are to draw from.
      model: of the model.
    """

    seed: Int[Array, ""]
    loss: dict[str, Array]
    hard_negative_epoch: Int[Array, ""]
    hard_pool_size: Int[Array, ""]
    model: Constants


def numbers(config: ConfigDict) -> Numbers:
    """The numbers of a configuration."""
    other = ("hard_negative_epoch", "hard_pool_size", "diversity_form")
    loss = {name: value for name, value in config.loss.items() if name not in other}
    dtype = wide(jnp.dtype(config.dtype))
    return Numbers(
        jnp.asarray(config.seed, jnp.int32),
        {name: jnp.asarray(value, dtype) for name, value in loss.items()},
        jnp.asarray(config.loss.hard_negative_epoch, jnp.int32),
        jnp.asarray(config.loss.hard_pool_size, jnp.int32),
        models.constants(config),
    )


def check(config: ConfigDict, number: int) -> None:
    """Refuses a configuration that cannot be trained, before anything is prepared for it.

    Args:
      config: the whole configuration.
      number: of devices.

    Raises:
      ConfigError: when the model or the losses make no sense, or so many devices cannot train them;
        says what to change.
    """
    models.build(config)
    models.check_devices(config, number)
    active_terms(config)
    size, parts = config.train.batch_size, config.train.encode_parts
    if parts > 1 and devices.round_up(size, number) % (parts * number):
        raise ConfigError(
            f"config.train.batch_size is {size}: it must be a multiple of"
            f" config.train.encode_parts times the number of devices, {parts} x {number}"
        )


def scalar_names(config: ConfigDict) -> tuple[str, ...]:
    """Names of the scalars of a step, all float32."""
    return ("loss", *(f"loss/{name}" for name in active_terms(config)), "gradient_norm")


def train_step(
    model: TwoBranch,
    config: ConfigDict,
    optimiser: optax.GradientTransformation,
    steps_per_epoch: int,
    most_captions: int | None = None,
) -> Step:
    """Returns the step: state, batch and numbers to the next state and the scalars of the loss.

    The hard-negative phase begins inside the step, by its number, so that there is one
    compilation.
    """

    def step(state: TrainState, batch: Batch, numbers: Numbers) -> tuple[TrainState, Scalars]:
        bound = models.bind(model, numbers.model)
        epoch = state.step // steps_per_epoch
        negatives = draw_negatives(
            derive_key(numbers.seed, "negatives", state.step),
            batch,
            epoch >= numbers.hard_negative_epoch,
            numbers.hard_pool_size,
            model.is_guided,
        )
        dropout_key = derive_key(numbers.seed, "dropout", state.step)

        def loss(params: Any) -> tuple[Array, Scalars]:
            return objective(
                bound, config, params, batch, negatives, dropout_key, most_captions, numbers.loss
            )

        (total, terms), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
        updates, optimiser_state = optimiser.update(gradient, state.optimiser, state.params)
        params = optax.apply_updates(state.params, updates)
        params = models.project(params, config)
        scalars = {"loss": total} | {f"loss/{name}": value for name, value in terms.items()}
        scalars["gradient_norm"] = optax.tree.norm(gradient)
        return TrainState(state.step + 1, params, optimiser_state), scalars

    return step


def group_of_steps(
    step: Step, config: ConfigDict, feed: Feed
) -> Callable[[TrainState, Features, Plan, Int[Array, ""], Numbers], tuple[TrainState, Scalars]]:
    """Returns a function, to be jitted, that takes `count` steps by the plans of a window.

    Args:
      step: of `train_step`.
      config: the whole configuration; of it, which terms the loss has.
      feed: knows how a batch is gathered.

    Returns:
      A function of state, features, plans [S, ...], count <= S and numbers to the state after the
      steps and the scalars of each, [S]; those from `count` on are 0.
    """

    def steps(
        state: TrainState,
        features: Features,
        plans: Plan,
        count: Int[Array, ""],
        numbers: Numbers,
    ) -> tuple[TrainState, Scalars]:
        def body(number: Array, carry: tuple[TrainState, Scalars]) -> tuple[TrainState, Scalars]:
            state, scalars = step(carry[0], feed.gather(features, plans, number), numbers)
            record = lambda row, value: row.at[number].set(value)
            return state, jax.tree.map(record, carry[1], scalars)

        empty = {name: jnp.zeros(len(plans.videos)) for name in scalar_names(config)}
        return jax.lax.fori_loop(0, count, body, (state, empty))

    return steps


def _check_room(program: Any, feed: Feed) -> None:
    """Refuses a program that cannot run, before it fails in the midst of a run.

    Raises:
      ConfigError: in every process when in one the plan is larger than a device's memory.
    """
    limit = devices.room(feed.mesh)
    # Of a feed's windows, one is an argument of the program.
    waiting = 0 if feed.resident else feed.bytes_per_device * (1 - 1 / WINDOWS)
    needed = analysis.memory(program).get("peak", 0) + waiting
    if processes.any_process(limit is not None and needed > limit):
        raise ConfigError(
            f"a training step takes {needed / 1e9:.1f} GB on each device, of which JAX has"
            f" {(limit or np.nan) / 1e9:.1f} GB: raise config.train.encode_parts (to 2, 4, 8), set"
            " config.data.resident to 'never' or lower config.train.batch_size; JAX has three"
            " quarters of a GPU unless XLA_PYTHON_CLIENT_MEM_FRACTION says more"
        )


def compile_steps(
    model: TwoBranch,
    config: ConfigDict,
    optimiser: optax.GradientTransformation,
    feed: Feed,
    steps_per_epoch: int,
    state: TrainState,
) -> Compiled:
    """Compiles groups of steps for the windows of a feed.

    Args:
      model: a model of `models.build`.
      config: the whole configuration.
      optimiser: of `optim.build`.
      feed: gives the shapes, and later the windows.
      steps_per_epoch: tells the epoch of a step.
      state: a state, for its shapes.

    Returns:
      The compiled program, and what it costs.

    Raises:
      ConfigError: when the devices have less memory than it takes.
    """
    mesh = feed.mesh
    most_captions = int(feed.split.captions_per_video.max())
    whole = devices.replicated(mesh)
    count = jax.ShapeDtypeStruct((), np.int32, sharding=whole)
    given = devices.replicate(mesh, numbers(config))

    one = lambda model, config: train_step(model, config, optimiser, steps_per_epoch, most_captions)
    program = jax.jit(
        group_of_steps(one(model, config), config, feed),
        donate_argnums=0,
        out_shardings=(whole, whole),
    )
    lowered = program.lower(state, *feed.shapes(), count, given)
    compiled = lowered.compile(runtime.compiler_options(config))
    _check_room(compiled, feed)
    plain = analysis.countable(config)
    if plain == config and jax.default_backend() == "cpu":
        flops = analysis.flops(compiled)
    else:
        batch = jax.eval_shape(lambda: models.zero_batch(plain, feed.videos, feed.captions))
        total = analysis.count(one(models.build(plain), plain), state, batch, numbers(plain))
        flops = total / mesh.size

    def steps(state: TrainState, window: Window) -> tuple[TrainState, Scalars]:
        count = devices.replicate(mesh, np.int32(window.num_steps))
        return compiled(state, window.features, window.plans, count, given)

    return Compiled(steps, compiled, flops)
