"""The search for one query by all signals: ranked candidates, their scores and results."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from hlformer_jax.search.query import fusion
from hlformer_jax.search.query.fusion import Ranking
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.query.results import MatchThreshold, Result
from hlformer_jax.search.signals.protocol import Evidence, Group, Matches, Scope
from hlformer_jax.search.signals.visual import VisualMatches, VisualSignal

WINDOW = 100
"""Largest number of groups of a ranking of all videos whose contributions the fusion adds."""


class Candidate(NamedTuple):
    """A group of videos that may become a result."""

    group: Group
    by_signal: Mapping[str, Group]
    """The same group in the ranking of each signal that ranks it."""
    scored: Mapping[str, Group] = {}
    """The same group with the score of each signal of all videos that ranks it too late."""


class Search(NamedTuple):
    """The signals that search for a query, and their matches."""

    names: tuple[str, ...]
    """Names of the signals that rank."""
    visual: VisualMatches
    matches: Mapping[str, Matches]
    """Matches of these signals, and of the visual signal, whose frame scores are always shown."""

    @property
    def match_threshold(self) -> MatchThreshold | None:
        """The calibration of the visual match threshold."""
        return MatchThreshold.from_index(self.visual.calibrated)

    def rank(self, query: Query, scope: Scope) -> list[Candidate]:
        """Return the best candidates of a query, best first, with those that its offset skips."""
        end = query.offset + query.k
        selective = {
            name: self.matches[name].rank(len(scope.videos), scope)
            for name in self.names
            if self.matches[name].is_selective
        }
        count = max(end, WINDOW) if any(selective.values()) else end
        rankings = {
            name: Ranking(selective[name], is_selective=True) if name in selective
            else Ranking(self.matches[name].rank(count, scope), is_selective=False)
            for name in self.names
        }  # fmt: skip
        if sum(bool(ranking.groups) for ranking in rankings.values()) > 1:
            # In a small archive a rank of, say, 50 is meaningless, so the window is at most a tenth
            # of the contents.
            tenth = math.ceil(np.count_nonzero(scope.allowed_contents()) / 10)
            parts = fusion.split([*rankings.values()], scope)
            groups = fusion.fuse(parts, min(WINDOW, tenth))
            rankings = dict(zip(rankings, parts, strict=True))
        else:
            groups = [group for ranking in rankings.values() for group in ranking.groups]
        by_signal: dict[int, dict[str, Group]] = {}
        for name, ranking in rankings.items():
            for group in ranking.groups:
                by_signal.setdefault(group.position, {})[name] = group
        return [Candidate(group, by_signal[group.position]) for group in groups[:end]]

    def add_scores(self, candidates: Sequence[Candidate], scope: Scope) -> list[Candidate]:
        """Add the scores of signals that rank all videos, but have cut off some candidates.

        Otherwise the score of a result would depend on the number of results.
        """
        scored: list[dict[str, Group]] = [{} for _ in candidates]
        for name in self.names:
            late = [i for i, candidate in enumerate(candidates) if name not in candidate.by_signal]
            if self.matches[name].is_selective or not late:
                continue
            allowed = np.zeros(len(scope.videos), bool)
            allowed[[candidates[i].group.position for i in late]] = True
            groups = self.matches[name].rank(len(late), dataclasses.replace(scope, allowed=allowed))
            scores = {scope.content_of[group.position]: group.score for group in groups}
            for i in late:
                group = candidates[i].group
                score = scores.get(scope.content_of[group.position])  # None: not in the store
                if score is not None:
                    scored[i][name] = group._replace(score=score)
        return [
            candidate._replace(scored=new)
            for candidate, new in zip(candidates, scored, strict=True)
        ]

    def results(self, candidates: Sequence[Candidate], scope: Scope, moments: int) -> list[Result]:
        """Make the results of candidates; threads read and check the embeddings of the videos."""
        with ThreadPoolExecutor() as threads:
            return list(threads.map(lambda x: self.result(x, scope, moments), candidates))

    def result(self, candidate: Candidate, scope: Scope, moments: int) -> Result:
        """Make the result of a candidate from the evidence of all signals.

        Args:
          candidate: the candidate.
          scope: the videos that the query may return.
          moments: largest number of moments.
        """
        video = scope.videos[candidate.group.position]
        groups = {**candidate.by_signal, **candidate.scored}
        evidence: dict[str, Evidence] = {}
        for name, matches in self.matches.items():
            group = groups.get(name) or candidate.group._replace(score=None)
            shown = matches.evidence(group, scope, moments)
            if shown is not None:
                evidence[name] = shown
        ranked = [
            name for name in self.names
            if name in candidate.by_signal or name in evidence and evidence[name].is_match
        ]  # fmt: skip
        matching = [name for name in ranked if evidence[name].is_match]
        is_refused = any(shown.is_match is False for shown in evidence.values())
        possible = [name for name in ranked if evidence[name].is_match is not False]
        best = [*matching, *possible, *ranked][0]
        first = self.names[0]
        frames = evidence[VisualSignal.name]
        return Result(
            video.id, video.video, video.folder, video.path,
            score=evidence[first].score if first in groups else None,
            score_kind=self.matches[first].score_kind if first in groups else None,
            moments=evidence[best].moments,
            times=frames.times, scores=frames.scores,
            duration=video.duration, date=video.date, date_of=video.date_of,
            is_match=True if matching else False if is_refused else None,
            signals=tuple(matching),
            copies=candidate.group.copies,
            passages=tuple(itertools.chain(*(shown.passages for shown in evidence.values()))),
            tags=video.tags,
        )  # fmt: skip

    def reaches(self, result: Result, min_score: float | None) -> bool:
        """Return whether a result reaches a score, or a signal other than the first matches it."""
        if min_score is None or set(result.signals) - {self.names[0]}:
            return True
        return result.score is not None and result.score >= min_score
