"""Training: the interface of a family of models, and the choice of the family.

    prvr            the family of HLFormer and its ancestors, with its objective
    hover           the family of HOVER, with its objective
    step            the state, the step, and compiled chunks of steps
    optim           the released optimiser
    loop            chunks of steps, validation, early stopping, signals, the test; metric logging
    checkpoints     the checkpoints of a run
    run_directory   the directory of a run: its owner, settings and data
    loaded_run      a trained run: configuration, best parameters, evaluation, queries

A family defines data, parameters, loss and metrics. The trainer, which is the same for every
family, provides the order of the data, steps, checkpoints, logs, early stopping and signals.

A loss is a weighted sum of terms. To add a term, write a function in `hlformer_jax.losses`, and add
it to the family's `TERMS` and objective and its weight to the fields of `config.loss`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax.config import check, family_of
from hlformer_jax.data.feed import Group
from hlformer_jax.models import Cost
from hlformer_jax.retrieval.ranking import Result
from hlformer_jax.runtime import devices
from hlformer_jax.training.hover import HOVER
from hlformer_jax.training.prvr import PRVR
from hlformer_jax.training.step import Feed, Loss


class Family(Protocol):
    """A family of models on its data, for the trainer, the evaluation and sweeps.

    The trainer also uses these members if a family has them: `summary() -> str`, the data in one
    line; `notes() -> list[str]`, remarks on the data, after the first epoch and in evaluations;
    `learning_rate(total_steps)`, the schedule to log; `program_constants() -> Hashable`, for short
    runs that share programs (`step.compile_steps`), if the class itself defines it;
    `moments_fingerprint`, an identifier of the annotated times on which metrics depend, None
    without any; `subset_fingerprint`, an identifier of the training examples that a file lists,
    None without a file; and `any_length = True` if no step depends on the number of epochs, so that
    a run may be extended. A loaded checkpoint sets `trained_on`, the fingerprint of its data, with
    which `dataset.warn_of_other_data` compares.
    """

    @property
    def fingerprint(self) -> str:
        """Identifier of the data, so that a run does not resume on other data."""

    @property
    def num_examples(self) -> int:
        """Number of training examples."""

    def check_trainable(self) -> None:
        """Check that the configuration can be trained, before its data is opened.

        Raises:
          ConfigError: if it cannot.
        """

    def init_params(self) -> Any:
        """Return the initial parameters, which depend only on the configuration."""

    def project(self, params: Any) -> Any:
        """Return the parameters, changed to satisfy their constraints; applied after every step."""

    def loss(self, steps_per_epoch: int) -> Loss:
        """Return the training loss of a run with `steps_per_epoch` steps in an epoch."""

    def optimiser(self, total_steps: int) -> optax.GradientTransformation:
        """Return the optimiser of a run of `total_steps` steps."""

    def feed(self, groups: Sequence[Group]) -> Feed:
        """Return a feed that copies the training batches of groups of steps to the devices."""

    def describe(self) -> dict[str, Any]:
        """Return the fields that must agree between a checkpoint and its evaluation, as JSON."""

    def validate(self, params: Any) -> Result:
        """Return the metrics of the validation split."""

    def test(self, params: Any) -> Result:
        """Return the metrics of the test split."""

    def references(self) -> dict[str, Result]:
        """Return the test metrics of baselines, by name."""

    def close(self) -> None:
        """Release the memory of the validation on the devices."""

    def meaning(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of `describe` in a form that is equal for equal models."""

    def test_scores(self, params: Any) -> tuple[Result, dict[str, Any]]:
        """Return test metrics and the arrays of a score file.

        The arrays are `scores` [Q, V]; `queries` and `videos`, the names of rows and columns;
        `relevant`, the column of each query's target; `sentences`, the text of each query; and
        `data`, the fingerprint of the data.
        """

    def test_embeddings(self, params: Any) -> dict[str, Any]:
        """Return the embeddings of the test split with the names of their rows."""

    def cost(self) -> Cost:
        """Return the number of parameters and the operations of encoding."""


if not TYPE_CHECKING:
    # Tests execute annotations: a check of the protocol's properties would open the data.
    Family = Any

FAMILIES: dict[str, Callable[[ConfigDict, Mesh], Family]] = {"prvr": PRVR, "hover": HOVER}
"""Constructors of the families by name; the arguments are a configuration and the devices."""


def build(config: ConfigDict, mesh: Mesh | None = None) -> Family:
    """Return the family of models of a configuration, with its data.

    Args:
      config: the configuration.
      mesh: the devices; None for all devices.

    Raises:
      ConfigError: if a field of the configuration is missing, unknown or wrong.
    """
    check(config)
    return FAMILIES[family_of(config)](config, devices.mesh() if mesh is None else mesh)
