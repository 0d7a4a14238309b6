"""The family of HLFormer and its ancestors, as the trainer wants one (see `family.Family`)."""

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from hlformer_jax import models, parallel
from hlformer_jax.config import ConfigError
from hlformer_jax.data.dataset import Data, open_data
from hlformer_jax.data.feed import Group, KeptFeed, VideoFeed, fits
from hlformer_jax.data.split import Split
from hlformer_jax.models.cost import Cost, cost
from hlformer_jax.models.description import meaning
from hlformer_jax.retrieval import baseline, ranking
from hlformer_jax.retrieval.evaluator import Evaluator
from hlformer_jax.retrieval.results import Result
from hlformer_jax.training import objective, optim
from hlformer_jax.training.objective import Objective


class PRVR:
    """Partially relevant video retrieval: videos with all their captions.

    Attributes:
      model: the model of the configuration.
      evaluator: encodes and ranks splits.
    """

    def __init__(self, config: ConfigDict, mesh: Mesh) -> None:
        """Builds the model; the data is opened when it is asked for.

        Raises:
          ConfigError: when the model's options make no sense.
        """
        self._config, self._mesh = config, mesh
        self.model = models.build(config)
        self.evaluator = Evaluator(self.model, config, mesh)
        self._validation = KeptFeed(lambda: self._whole(self.data.val))

    @functools.cached_property
    def data(self) -> Data:
        """The splits; prepared on first use.

        Raises:
          DataError: when the data is missing or wrong.
        """
        with parallel.first_alone("data"):
            return open_data(self._config)

    @property
    def fingerprint(self) -> str:
        """Identifies the data; see `Family`."""
        return self.data.fingerprint

    @property
    def num_examples(self) -> int:
        """Number of training videos; see `Family`."""
        return len(self.data.train)

    def check_trainable(self) -> None:
        """Refuses what cannot be trained; see `Family`."""
        check_trainable(self._config, self._mesh.size)

    def init_params(self) -> Any:
        """Initial parameters; see `Family`."""
        return models.init_params(self.model, self._config)

    def project(self, params: Any) -> Any:
        """Learned curvatures and scales within their bounds; see `Family`."""
        return models.project(params, self._config)

    def loss(self, steps_per_epoch: int) -> Objective:
        """The objective; see `Family`."""
        most_captions = int(self.data.train.captions_per_video.max())
        return objective.build(self._config, self.model, steps_per_epoch, most_captions)

    def optimiser(self, total_steps: int) -> optax.GradientTransformation:
        """The released optimiser; see `Family`."""
        return optim.build(self._config, total_steps)

    def feed(self, groups: Sequence[Group]) -> VideoFeed:
        """Training batches, on the devices where they fit; see `Family`."""
        train, batch_size = self.data.train, self._config.train.batch_size
        resident = fits(train, self._mesh, self._config)
        return VideoFeed(train, groups, self._mesh, batch_size, resident)

    def describe(self) -> dict[str, Any]:
        """The fields that make the model; see `Family`."""
        return models.describe(self._config)

    def meaning(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields with a width for each block; see `ConfiguredFamily`."""
        return meaning(fields)

    def cost(self) -> Cost:
        """Its parameters, and the operations of encoding a video and a caption."""
        return cost(self._config)

    def validate(self, params: Any) -> Result:
        """Metrics of the validation split, which stays on the devices; see `Family`."""
        return self.evaluator.evaluate(params, self._validation.get())

    def test(self, params: Any) -> Result:
        """Metrics of the test split; see `Family`."""
        with contextlib.closing(self.evaluator.feed(self.data.test)) as test:
            return self.evaluator.evaluate(params, test)

    def test_scores(self, params: Any) -> tuple[Result, dict[str, Any]]:
        """Metrics of the test split, and its scores with the ids of their rows and columns."""
        split = self.data.test
        with contextlib.closing(self.evaluator.feed(split)) as test:
            encoded = self.evaluator.encode(params, test)
        scores = self.evaluator.score(*encoded, split)
        arrays = {"scores": scores, "queries": split.caption_ids(), "videos": split.video_ids}
        return self.evaluator.rank(*encoded, split), arrays

    def references(self) -> dict[str, Result]:
        """The mean-pooled linear baseline and chance, where they are asked for."""
        if not self._config.train.baseline:
            return {}
        data = self.data
        scores = baseline.mean_pooled_scores(data.train, data.val, data.test)
        linear = self.evaluator.result(scores, data.test)
        return {"mean-pooled linear baseline": linear, "chance": _chance(linear)}

    def close(self) -> None:
        """Makes room on the devices; see `Family`."""
        self._validation.close()

    def _whole(self, split: Split) -> VideoFeed:
        return self.evaluator.feed(split, fits(split, self._mesh, self._config))


def check_trainable(config: ConfigDict, num_devices: int) -> None:
    """Refuses a configuration that cannot be trained, before anything is prepared for it.

    Args:
      config: the whole configuration.
      num_devices: number of devices.

    Raises:
      ConfigError: when the model or the losses make no sense, or so many devices cannot train them;
        says what to change.
    """
    model = models.build(config)
    objective.active_terms(config, model)
    size, parts = config.train.batch_size, config.train.encode_parts
    if parts > 1 and parallel.round_up(size, num_devices) % (parts * num_devices):
        raise ConfigError(
            f"config.train.batch_size is {size}: it must be a multiple of"
            f" config.train.encode_parts times the number of devices, {parts} x {num_devices}"
        )


def _chance(linear: Result) -> Result:
    """Expected metrics of a random ranking of the same videos."""
    recalls = {f"R@{k}": 100.0 * float(np.minimum(k / linear.videos, 1)) for k in ranking.RECALLS}
    return Result(recalls | {"SumR": sum(recalls.values())}, linear.queries, linear.videos)
