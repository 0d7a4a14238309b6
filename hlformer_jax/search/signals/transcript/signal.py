"""The signal `transcript`: videos with passages that match the text of a query."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search.index import Index
from hlformer_jax.search.signals.protocol import (
    Archive,
    Evidence,
    Group,
    Scope,
    SignalQuery,
)
from hlformer_jax.search.signals.rankers import ScoreKind
from hlformer_jax.search.signals.transcript import passages
from hlformer_jax.search.signals.transcript.passages import (
    Passage,
    PassageIndex,
    RankedContents,
)


class TranscriptSignal:
    """Signal of passages of subtitles, speech and OCR, by their words and their embeddings."""

    name = "transcript"

    def __init__(self, archive: Archive) -> None:
        self.passages = PassageIndex(archive.index, archive.encoder)
        self.notes = self.passages.notes
        self._directory = archive.index.directory

    @staticmethod
    def update(
        index: Index, encoder: Encoder, report: Callable[[str], None], pulse: Callable[[], None]
    ) -> None:
        """Encode the passages that have no embedding; see `Signal`."""
        passages.embed_passages(index, encoder, report, pulse)

    def accepts(self, query: SignalQuery) -> bool:
        """Return whether the query is a single text and nothing else; see `Signal`."""
        return query.single_text is not None

    def explain_empty(self) -> str:
        """Return why there are no passages to search; "" if there are some; see `Signal`."""
        if self.passages.count:
            return ""
        return "; ".join(self.notes) or (
            f"{self._directory} has no subtitles: put .srt, .vtt or .ass files beside the"
            " videos, and index the folder again"
        )

    def search(self, query: SignalQuery) -> "PassageMatches":
        """Return the passages that match the text by words or by embedding; see `Signal`."""
        text = query.single_text or ""
        by_words = self.passages.search_words(text)
        if not self.passages.has_embeddings:
            return PassageMatches(passages.fuse(by_words), self.passages.varied)
        by_meaning = self.passages.search_embeddings(query.embed(text))
        return PassageMatches(passages.fuse(by_words, by_meaning), self.passages.varied)


class PassageMatches(NamedTuple):
    """The contents with passages that match, best first.

    Attributes:
      contents: the contents.
      varied: contents whose copies have different passages.
    """

    contents: RankedContents
    varied: Collection[str]
    score_kind: ScoreKind | None = "rank_fusion"
    is_selective: bool = True

    def rank(self, count: int, scope: Scope) -> list[Group]:
        """Return the groups of videos with the same passages; see `Matches`."""
        allowed = scope.allowed_contents()
        numbers = {content: i for i, content in enumerate(scope.contents) if allowed[i]}
        groups = (
            self._groups(scope, numbers[content], content)
            for content in self.contents.scores
            if content in numbers
        )
        return list(itertools.islice(itertools.chain.from_iterable(groups), count))

    def _groups(self, scope: Scope, number: int, content: str) -> Iterable[Group]:
        """Return the groups of the allowed videos of a content, best first."""
        if content in self.varied:
            return _varied_groups(scope, number, self.contents.load(content))
        group = scope.group(number, self.contents.scores[content])
        return [group._replace(certainty=self.contents.shares[content])]

    def evidence(self, group: Group, scope: Scope, count: int) -> Evidence | None:
        """Return the passages of a group, which are its moments; see `Matches`."""
        video = scope.videos[group.position]
        if video.content not in self.contents.scores:
            return None
        passages = self.contents.load(video.content)
        best = tuple([passage for passage in passages if video.video in passage.copies][:count])
        if not best:
            return None
        moments = [
            Moment(passage.start, passage.end, passage.start, passage.score) for passage in best
        ]
        return Evidence(is_match=True, score=best[0].score, moments=moments, passages=best)


def _varied_groups(scope: Scope, content: int, passages: Sequence[Passage]) -> Iterator[Group]:
    """Yield groups of the allowed videos of a content that have the same passages, best first."""
    positions = {scope.videos[i].video: i for i in scope.positions(content)}
    videos_by_texts: dict[tuple[Any, ...], list[str]] = {}
    best: dict[tuple[Any, ...], int] = {}
    for video in positions:
        numbers = [i for i, passage in enumerate(passages) if video in passage.copies]
        if numbers:
            key = tuple((passages[i].start, passages[i].end, passages[i].text) for i in numbers)
            videos_by_texts.setdefault(key, []).append(video)
            best[key] = numbers[0]
    for key in sorted(videos_by_texts, key=lambda key: best[key]):
        first, *equal = videos_by_texts[key]
        passage = passages[best[key]]
        yield Group(positions[first], passage.score, tuple(equal), passage.share)
