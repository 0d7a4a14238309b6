"""Training: what a family of models gives the trainer, and which one a configuration is of.

    prvr          the family of HLFormer and its ancestors, with its objective
    hover         the family of HOVER, with its objective
    step          the state, the step, and compiled chunks of steps
    optim         the released optimiser
    loop          chunks of steps, validation, early stopping, signals, the test; metric logging
    checkpoints   the directory of a run: whose it is, and its checkpoints
    loaded_run    config and best parameters of a run; evaluation of a checkpoint, sentences asked

A family brings its data, its parameters, its loss and its metrics; the trainer brings the order of
the data, the steps, checkpoints, logs, early stopping and signals. A further one trains unchanged.

A loss is a weighted sum of terms (`hlformer_jax.losses`). A new term is a function there, an entry
in the family's `TERMS` and objective, and a weight in the fields of `config.loss`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax.config import family_of
from hlformer_jax.data.feed import Group
from hlformer_jax.models import Cost
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import devices
from hlformer_jax.training.hover import HOVER
from hlformer_jax.training.prvr import PRVR
from hlformer_jax.training.step import Feed, Loss


class Family(Protocol):
    """A family of models on its data, as the trainer, evaluation and sweeps want one.

    The trainer also uses, where a family has them: `summary() -> str`, the data in one line;
    `notes() -> list[str]`, lines on the data that an epoch has shown; `learning_rate(total_steps)`,
    the schedule that is logged; `program_constants() -> Hashable`, by which short runs share
    programs (`step.compile_steps`); and `any_length = True`, where no step depends on the number of
    epochs, so that a run may be made longer.
    """

    @property
    def fingerprint(self) -> str:
        """Identifies the data, so that a run does not resume on other data."""

    @property
    def num_examples(self) -> int:
        """Number of training examples, which the schedule orders."""

    def check_trainable(self) -> None:
        """Refuses a configuration that cannot be trained, before its data is opened."""

    def init_params(self) -> Any:
        """Initial parameters, a function of the configuration alone."""

    def project(self, params: Any) -> Any:
        """Moves parameters to where they satisfy their constraints; applied after every step."""

    def loss(self, steps_per_epoch: int) -> Loss:
        """The training loss."""

    def optimiser(self, total_steps: int) -> optax.GradientTransformation:
        """The optimiser of a run of so many steps."""

    def feed(self, groups: Sequence[Group]) -> Feed:
        """Brings the training batches of these groups of steps to the devices."""

    def describe(self) -> dict[str, Any]:
        """What a checkpoint must share with a configuration that evaluates it, as JSON has it."""

    def validate(self, params: Any) -> Result:
        """Metrics of the validation split."""

    def test(self, params: Any) -> Result:
        """Metrics of the test split."""

    def references(self) -> dict[str, Result]:
        """Test metrics of what the models are held against, by name; empty for none."""

    def close(self) -> None:
        """Gives back what validation keeps on the devices."""

    def meaning(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of `describe` in a form in which those of equal models are equal."""

    def test_scores(self, params: Any) -> tuple[Result, dict[str, Any]]:
        """Return test metrics and the arrays of a score file.

        The arrays are `scores` [Q, V], the names of their rows and columns, `queries` and
        `videos`, and `relevant`, the column of each query's own.
        """

    def test_embeddings(self, params: Any) -> dict[str, Any]:
        """Return the embeddings of the test split with the names of their rows."""

    def cost(self) -> Cost:
        """What the model costs: its parameters, and the operations of encoding."""


if not TYPE_CHECKING:
    # Where annotations are executed, to look at the properties of a family would open its data.
    Family = Any

FAMILIES: dict[str, Callable[[ConfigDict, Mesh], Family]] = {"prvr": PRVR, "hover": HOVER}
"""What makes a family of a configuration and devices; names as in `config`."""


def build(config: ConfigDict, mesh: Mesh | None = None) -> Family:
    """The family of models that a configuration asks for, on its data."""
    return FAMILIES[family_of(config)](config, devices.mesh() if mesh is None else mesh)
