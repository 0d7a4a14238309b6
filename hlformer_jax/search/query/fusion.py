"""Fusion of the rankings of several signals into one.

Reciprocal rank fusion (Cormack, Clarke, Büttcher, SIGIR 2009): a group of videos scores 1 / (60 +
rank) in each ranking. The contributions of several rankings are added, but for those of a ranking
of all videos beyond its first `window`, where a rank says little: of these, only the largest
counts, if it exceeds the sum of the others.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from hlformer_jax.search.signals.protocol import Group, Scope
from hlformer_jax.search.signals.transcript.said import RRF

UNCERTAIN = 1 - 1e-6
"""Certainty of a group that states none: a share of all words is 1 up to rounding."""


class Ranking(NamedTuple):
    """The groups that a signal ranks, best first."""

    groups: Sequence[Group]
    is_selective: bool
    """Whether only videos that match are ranked; otherwise all are."""


def fuse(rankings: Sequence[Ranking], window: int) -> list[Group]:
    """Fuse rankings whose groups have been split (`split`).

    Args:
      rankings: the rankings; of a group in several, the first one's entry is returned.
      window: how many of the first groups of a ranking of all videos count in full.

    Returns:
      The groups, best first. At a tie, the group that states the largest certainty comes first;
      then those of selective rankings, then those of the others.
    """
    sums: dict[int, float] = {}
    largest: dict[int, float] = {}
    certainty: dict[int, float] = {}
    selective_first = sorted(rankings, key=lambda ranking: not ranking.is_selective)
    for ranking in selective_first:
        for rank, group in enumerate(ranking.groups, 1):
            score = 1 / (RRF + rank)
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
        return -score, -certainty.get(position, UNCERTAIN)

    return [groups[position] for position in sorted(groups, key=order)]


def split(rankings: Sequence[Ranking], scope: Scope) -> list[Ranking]:
    """Split groups so that all rankings have the same ones.

    Copies of one content that match differently in one signal, as those with subtitles of their
    own do, are results of their own in every ranking.
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
    """Split one group by what its videos match, best matches first, those without any last."""
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
