"""Fusion of the rankings of several signals into one.

Reciprocal rank fusion (Cormack, Clarke, Büttcher, SIGIR 2009): each ranking contributes 1 / (60 +
rank) to the score of a group of videos, and the contributions are added. Late ranks in a ranking of
all videos are meaningless, so such a ranking adds contributions only for its first `window` groups.
The fused score is this sum, or the largest single contribution if that is greater.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from hlformer_jax.search.signals.protocol import Group, Scope
from hlformer_jax.search.signals.transcript.passages import RRF_CONSTANT

DEFAULT_CERTAINTY = 1 - 1e-6
"""Certainty of a group without one. A certainty of 1, up to rounding errors, exceeds it."""


class Ranking(NamedTuple):
    """The groups that a signal ranks, best first."""

    groups: Sequence[Group]
    is_selective: bool
    """Whether only videos that match are ranked; otherwise all videos are."""


def fuse(rankings: Sequence[Ranking], window: int) -> list[Group]:
    """Fuse rankings whose groups have been split (`split`).

    Args:
      rankings: the rankings. A group that several rankings contain is returned as it is in the
        first of them.
      window: number of first groups whose contributions are added in a ranking of all videos.

    Returns:
      The groups, best first. At a tie, groups with larger certainty come first, then groups of
      selective rankings, then all others.
    """
    sums: dict[int, float] = {}
    largest: dict[int, float] = {}
    certainty: dict[int, float] = {}
    selective_first = sorted(rankings, key=lambda ranking: not ranking.is_selective)
    for ranking in selective_first:
        for rank, group in enumerate(ranking.groups, 1):
            score = 1 / (RRF_CONSTANT + rank)
            if ranking.is_selective or rank <= window:
                sums[group.position] = sums.get(group.position, 0.0) + score
            largest[group.position] = max(largest.get(group.position, 0.0), score)
            if group.certainty is not None:
                stated = certainty.get(group.position, 0.0)
                certainty[group.position] = max(stated, group.certainty)
    groups: dict[int, Group] = {}
    for ranking in selective_first:
        for group in ranking.groups:
            groups.setdefault(group.position, group)
    for ranking in reversed(rankings):
        groups.update((group.position, group) for group in ranking.groups)

    def order(position: int) -> tuple[float, float]:
        score = max(sums.get(position, 0.0), largest[position])
        return -score, -certainty.get(position, DEFAULT_CERTAINTY)

    return [groups[position] for position in sorted(groups, key=order)]


def split(rankings: Sequence[Ranking], scope: Scope) -> list[Ranking]:
    """Split groups so that all rankings have the same groups.

    Copies of one content can match differently, for example if they have different subtitle files.
    They are then separate groups in every ranking, and so separate results.

    Args:
      rankings: the rankings of all signals.
      scope: the videos that the query may return.

    Returns:
      The rankings with split groups, in the same order.
    """
    positions = {entry.video: i for i, entry in enumerate(scope.videos)}
    matched: dict[int, list[tuple[int, int]]] = {}  # selective rankings and ranks of each video
    for number, ranking in enumerate(rankings):
        for rank, group in enumerate(ranking.groups if ranking.is_selective else ()):
            for position in _members(group, positions):
                matched.setdefault(position, []).append((number, rank))

    def split_groups(groups: Sequence[Group]) -> list[Group]:
        parts = (_parts(group, scope, positions, matched) for group in groups)
        return list(itertools.chain.from_iterable(parts))

    return [ranking._replace(groups=split_groups(ranking.groups)) for ranking in rankings]


def _members(group: Group, positions: dict[str, int]) -> list[int]:
    """Return the positions of the videos of a group."""
    return [group.position, *(positions[copy] for copy in group.copies)]


def _parts(
    group: Group,
    scope: Scope,
    positions: dict[str, int],
    matched: dict[int, list[tuple[int, int]]],
) -> list[Group]:
    """Split a group by the matches of its videos in the selective rankings.

    Args:
      group: the group.
      scope: the videos that the query may return.
      positions: position of each video by its name.
      matched: the number of the ranking and the rank of each match, by position of the video.

    Returns:
      The parts: the best matches first, videos without a match last.
    """
    parts: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for position in _members(group, positions):
        parts.setdefault(tuple(matched.get(position, ())), []).append(position)
    if len(parts) == 1:
        return [group]
    order = sorted(parts, key=lambda key: (not key, key))
    return [
        group._replace(
            position=parts[key][0],
            copies=tuple(scope.videos[copy].video for copy in parts[key][1:]),
        )
        for key in order
    ]
