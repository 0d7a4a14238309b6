"""Which videos each step sees, and which steps are computed in one go.

There is no state in the order of the data: the videos of epoch e follow a permutation drawn from
(seed, e), and the batch of a step is a function of the step. A run that knows its step
resumes there.
"""

import itertools
from typing import NamedTuple

import numpy as np


class Schedule(NamedTuple):
    """Which videos each step of a run sees.

    Attributes:
      num_videos: number of videos of the training split.
      batch_size: number of videos of a batch; the last of an epoch may hold fewer.
      seed: seed of the permutations.
    """

    num_videos: int
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, the last incomplete one included."""
        return -(-self.num_videos // self.batch_size)

    def order(self, epoch: int) -> np.ndarray:
        """The order of the videos in an epoch, a function of (seed, epoch) alone."""
        return np.random.default_rng((self.seed, epoch)).permutation(self.num_videos)

    def groups(self, epochs: int, longest: int) -> list["Group"]:
        """All steps of a run in groups that are computed without looking up.

        Args:
          epochs: the number of epochs of the run.
          longest: the most steps of a group; one ends where a multiple of it, or the epoch, does.

        Returns:
          The groups in order; a function of the arguments alone.
        """
        groups = []
        for epoch in range(epochs):
            order, first = self.order(epoch), epoch * self.steps_per_epoch
            starts = range(0, self.num_videos, self.batch_size)
            steps = [order[start : start + self.batch_size] for start in starts]
            cut = longest - first % longest
            bounds = [0, *range(cut, len(steps), longest), len(steps)]
            groups += [Group(first + a, steps[a:b]) for a, b in itertools.pairwise(bounds) if a < b]
        return groups


class Group(NamedTuple):
    """Consecutive steps of one epoch.

    Attributes:
      first: index of the first step in the run.
      steps: for each step, the indices of its videos, at most a batch.
    """

    first: int
    steps: list[np.ndarray]

    @property
    def end(self) -> int:
        """Index of the step after the last."""
        return self.first + len(self.steps)

    def after(self, step: int) -> "Group":
        """The steps from that index on."""
        skipped = min(max(step - self.first, 0), len(self.steps))
        return Group(self.first + skipped, self.steps[skipped:])


def in_order(num_videos: int, batch_size: int, longest: int) -> list[Group]:
    """All videos in their order, in batches, and those in groups of at most `longest`."""
    videos = np.arange(num_videos)
    steps = [videos[start : start + batch_size] for start in range(0, num_videos, batch_size)]
    return [Group(a, steps[a : a + longest]) for a in range(0, len(steps), longest)]
