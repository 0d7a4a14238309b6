"""Signals: the ways in which a video can match a query.

A signal searches the videos of an index and returns ranked results with moments and a match
threshold. The rankings of all signals that take part in a query are fused (`query.fusion`). A new
signal is a class with the protocol `Signal` and an entry in `signals.SIGNALS`.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from hlformer_jax.encoders.protocol import Encoder, single_embedding
from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search.index import Entry, Index
from hlformer_jax.search.index.records import Record
from hlformer_jax.search.signals.rankers import Ranker, ScoreKind
from hlformer_jax.search.signals.transcript.passages import Passage

DEFAULT_WITHIN = 60.0
"""Default of the longest gap between consecutive events, in seconds."""


@dataclasses.dataclass(frozen=True)
class SignalQuery:
    """A query in the form in which signals search for it."""

    encoder: Encoder
    texts: Sequence[str] = ()
    """Texts that a video should match, in any order."""
    then: Sequence[str] = ()
    """Texts of the events that should follow, in this order."""
    without: Sequence[str] = ()
    """Texts of things that should not be visible in the same frames."""
    within: float = DEFAULT_WITHIN
    """Longest gap between consecutive events, in seconds."""
    picture: np.ndarray | None = None
    """Embedding of a picture that frames should resemble."""

    _embeddings: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, compare=False)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, compare=False)

    def embed(self, text: str) -> Float[np.ndarray, " d"]:
        """Return the embedding of a text, which is encoded once for all signals.

        Raises:
          EncoderError: if the encoder returns anything but a unit vector.
        """
        with self._lock:
            if text not in self._embeddings:
                vectors = self.encoder.encode_texts([text])
                self._embeddings[text] = single_embedding(self.encoder, vectors)
            return self._embeddings[text]

    @property
    def single_text(self) -> str | None:
        """The text of a query that is one text and nothing else."""
        has_more = len(self.texts) > 1 or self.then or self.without or self.picture is not None
        return self.texts[0] if self.texts and not has_more else None


class Group(NamedTuple):
    """Videos of equal content that match equally, and are one result."""

    position: int
    """Position in `Scope.videos` of the first video, which represents the group."""
    score: float | None
    """Score by a signal; None if that signal has not ranked the group."""
    copies: tuple[str, ...] = ()
    """Names (`Entry.video`) of the other videos."""
    certainty: float | None = None
    """Share of the query that matches, 0 to 1, which decides between groups of equal rank."""


@dataclasses.dataclass(frozen=True)
class Scope:
    """The videos that a query may return."""

    videos: Sequence[Entry]
    contents: Sequence[str]
    """Contents of the videos, each once."""
    content_of: Int[np.ndarray, " V"]
    """Position in `contents` of each video's content."""
    allowed: Bool[np.ndarray, " V"]
    """Videos that pass the filters and can be read."""

    def allowed_contents(self) -> Bool[np.ndarray, " C"]:
        """Return which contents have an allowed video."""
        mask = np.zeros(len(self.contents), bool)
        mask[self.content_of[self.allowed]] = True
        return mask

    def positions(self, content: int) -> list[int]:
        """Return the positions of the allowed videos of a content."""
        return self._positions.get(content, [])

    @functools.cached_property
    def _positions(self) -> dict[int, list[int]]:
        """The positions of the allowed videos of each content that has one."""
        positions: dict[int, list[int]] = {}
        allowed = np.flatnonzero(self.allowed)
        for content, position in zip(
            self.content_of[allowed].tolist(), allowed.tolist(), strict=True
        ):
            positions.setdefault(content, []).append(position)
        return positions

    def group(self, content: int, score: float) -> Group:
        """Return all allowed videos of a content as one group."""
        first, *copies = self.positions(content)
        return Group(first, score, tuple(self.videos[copy].video for copy in copies))


class Evidence(NamedTuple):
    """Why a video is a result, by one signal."""

    is_match: bool | None
    """Whether its score reaches the match threshold; None without a threshold."""
    score: float | None
    moments: list[Moment]
    """Best moments, best first."""
    passages: tuple[Passage, ...] = ()
    """Passages of the transcript that match."""
    times: Float[np.ndarray, " F"] = np.zeros(0)
    """Seconds of the frames, for a signal that scores them."""
    scores: Float[np.ndarray, " F"] = np.zeros(0, np.float32)


@runtime_checkable
class Matches(Protocol):
    """The results of one signal for a query, before filters are applied."""

    @property
    def is_selective(self) -> bool:
        """True if only videos that match are ranked; False if all videos are."""

    @property
    def score_kind(self) -> ScoreKind | None:
        """The kind of the scores; None if they only order videos."""

    def rank(self, count: int, scope: Scope) -> list[Group]:
        """Return the best groups of allowed videos, best first, at most `count`."""

    def evidence(self, group: Group, scope: Scope, count: int) -> Evidence | None:
        """Return why the videos of a group are a result; None if they do not match.

        Args:
          group: the group; its score is None if this signal has not ranked it.
          scope: the videos that the query may return.
          count: the largest number of moments.
        """


@dataclasses.dataclass(frozen=True)
class Archive:
    """A snapshot of an index that signals search."""

    index: Index
    records: Sequence[Record]
    """A record of each content with intact embeddings."""
    encoder: Encoder
    ranker: Ranker
    """Ranks the contents of `records` by their frames."""
    ranker_label: str
    """Name of the ranker, under which its match threshold is stored."""


@runtime_checkable
class Signal(Protocol):
    """A way in which videos can match a query; an instance searches one snapshot of an index.

    Attributes:
      name: the name of the signal in queries.
      notes: lines on what cannot be searched, such as damaged files.
    """

    name: str
    notes: list[str]

    def __init__(self, archive: Archive) -> None:
        """Prepare to search a snapshot of an index."""

    @staticmethod
    def update(
        index: Index, encoder: Encoder, report: Callable[[str], None], pulse: Callable[[], None]
    ) -> None:
        """Update the stored data of the signal for new and changed videos.

        Args:
          index: the index; the caller holds its lock.
          encoder: the index's encoder.
          report: takes lines about the progress and about videos that were left out.
          pulse: called often; an exception that it raises ends the update.
        """

    def accepts(self, query: SignalQuery) -> bool:
        """Return whether the signal can search for this query."""

    def explain_empty(self) -> str:
        """Return why the index has nothing for this signal to search; "" if it has something."""

    def search(self, query: SignalQuery) -> Matches:
        """Search for a query that the signal accepts."""
