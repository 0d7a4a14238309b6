"""The signal `visual`: videos whose frames show what a query describes.

    a text               its embedding q
    a picture            the embedding p of an image, or of a frame of an indexed video
    a picture and a text unit(p + q): frames x rank by ⟨p, x⟩ + ⟨q, x⟩

Cosines of two pictures are larger, and spread more, than those of a picture and a text. In the sum,
the picture therefore selects the subject, and the text selects a variant of it.

A frame whose score reaches the match threshold may show what the query describes. For one text the
threshold is a margin above the `baseline`, calibrated by captions (`search.evaluate`). Without
calibration it is a choice. For a text and an encoder with learned probabilities it is the cosine
with probability `MIN_PROBABILITY`. In all other cases it is `SPREADS` spreads above the median of
the archive's cosines with the query, where a spread is the distance from the 0.1587 quantile to the
median: the standard deviation of a normal distribution. Cosines with absent things are about
normally distributed, and the few frames that show a thing stand out above them. This fails if most
frames show it.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from hlformer_jax.data.transforms import unit
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.records import Threshold
from hlformer_jax.search.signals.composition import ComposedQuery, SingleQuery
from hlformer_jax.search.signals.protocol import (
    Archive,
    Evidence,
    Group,
    Scope,
    SignalQuery,
)
from hlformer_jax.search.signals.rankers import Ranker, ScoreKind, UntrainedRanker

MIN_PROBABILITY = 0.01
"""Probability above which a frame may show what a text describes (docs/search/scores.md)."""

SPREADS = 4.0
"""Threshold without calibration, in spreads above the median of an archive's cosines."""

MIN_FRAMES_FOR_THRESHOLD = 1000
"""Number of frames below which the distribution of an archive's cosines cannot be estimated."""


Probability = Callable[[Any], Any]
"""Function that takes cosines of a text and frames, and returns their learned probabilities."""


def learned_probability(ranker: Ranker, encoder: Encoder) -> Probability | None:
    """Return the function that converts a ranker's scores of a text; None if there is none."""
    is_learned = ranker.calibrated and encoder.probability(0.0) is not None
    return encoder.probability if is_learned else None


def chosen_threshold(
    ranker: UntrainedRanker, vector: Float[np.ndarray, " d"], probability: Probability | None
) -> float:
    """Return the match threshold of an embedding without calibration; see the module's docstring.

    Args:
      ranker: the ranker, whose rows are sampled.
      vector: the embedding of a text or a picture.
      probability: converts the scores to probabilities, if the embedding has learned ones.

    Returns:
      The cosine from which on a frame may match.
    """
    if probability is not None:
        grid = np.linspace(-1, 1, 20_001)
        place = int(np.searchsorted(probability(grid), MIN_PROBABILITY))
        return float(grid[min(place, len(grid) - 1)])
    lower, median = np.quantile(ranker.sample(vector[None])[0], [0.1587, 0.5])
    return float(median + SPREADS * (median - lower))


def baseline(ranker: Ranker, vector: Float[np.ndarray, " d"], encoder: Encoder) -> float:
    """Return the median of the archive's products with a text; calibrated margins start from it.

    It is 0 if the encoder has learned probabilities, because then cosines with different texts are
    comparable. It is also 0 for a trained model and for a store.
    """
    if not isinstance(ranker, UntrainedRanker) or encoder.probability(0.0) is not None:
        return 0.0
    return float(np.median(ranker.sample(vector[None])[0]))


class VisualSignal:
    """Signal of the frames, ranked without training, by a trained model, or by a store."""

    name = "visual"

    def __init__(self, archive: Archive) -> None:
        self.index, self.ranker = archive.index, archive.ranker
        self.notes: list[str] = []
        self._contents = [record.content for record in archive.records]
        self.calibrated: Threshold | None = None  # stores and trained models have no threshold
        if isinstance(self.ranker, UntrainedRanker):
            self.calibrated = archive.index.thresholds.get(archive.ranker_label)

    @staticmethod
    def update(
        index: Index, encoder: Encoder, report: Callable[[str], None], pulse: Callable[[], None]
    ) -> None:
        """Do nothing: frames are encoded when a video is indexed."""

    def accepts(self, query: SignalQuery) -> bool:
        """Return True: frames can be searched for any query."""
        return True

    def explain_empty(self) -> str:
        """Return "": a library refuses an index without frames before it searches."""
        return ""

    def search(self, query: SignalQuery) -> "VisualMatches":
        """Encode a query, and find its match threshold; see `Signal`."""
        ranker, encoder = self.ranker, query.encoder
        texts = (*query.texts, *query.then, *query.without)
        vectors = [
            ranker.encode(encoder, text) if ranker.is_trained else query.embed(text)
            for text in texts
        ]
        if query.picture is not None and query.texts:
            vectors[0] = unit(vectors[0] + query.picture).astype(np.float32)
        elif query.picture is not None:
            vectors.insert(0, query.picture)
        learned = learned_probability(ranker, encoder)
        # The probabilities hold for a text and an image, so not for a query with a picture.
        probability = learned if query.picture is None else None
        if not isinstance(ranker, UntrainedRanker):
            return VisualMatches(self, SingleQuery(ranker, vectors[0]), probability)
        has_parts = len(query.texts) > 1 or bool(query.then or query.without)
        required_count = len(vectors) - len(query.without)
        calibrated = self.calibrated if query.picture is None else None
        thresholds = self._thresholds(query, vectors, has_parts, calibrated, learned)
        # A difference of cosines has no threshold without calibration.
        can_choose = not ranker.normalised and (
            ranker.count >= MIN_FRAMES_FOR_THRESHOLD or probability is not None
        )
        has_threshold = can_choose or calibrated and not has_parts
        threshold = float(np.mean(thresholds[:required_count])) if has_threshold else None
        if not has_parts:
            single = SingleQuery(ranker, vectors[0])
            return VisualMatches(self, single, probability, threshold, calibrated)
        rows = np.stack(vectors)
        composed = ComposedQuery(
            ranker,
            functools.cache(self._times),
            rows[:required_count],
            rows[required_count:],
            np.asarray(thresholds[required_count:], np.float32),
            query.within if query.then else None,
        )
        return VisualMatches(self, composed, probability, threshold)

    def _thresholds(
        self,
        query: SignalQuery,
        vectors: Sequence[np.ndarray],
        has_parts: bool,
        calibrated: Threshold | None,
        learned: Probability | None,
    ) -> list[float]:
        """Return the match threshold of each part of a query.

        A calibrated threshold holds for the score of one text. The mean of several scores has
        another distribution, so the thresholds of the required parts of a composed query are not
        calibrated.
        """
        assert isinstance(self.ranker, UntrainedRanker)
        required_count = len(vectors) - len(query.without)
        thresholds = []
        for i, vector in enumerate(vectors):
            if calibrated is not None and not (has_parts and i < required_count):
                centre = baseline(self.ranker, vector, query.encoder)
                thresholds.append(centre + calibrated.margin)
            else:
                is_picture = i == 0 and query.picture is not None
                probability = None if is_picture else learned
                thresholds.append(chosen_threshold(self.ranker, vector, probability))
        return thresholds

    def _times(self, content: int) -> Float[np.ndarray, " F"]:
        return self.index.read(self._contents[content]).times


@dataclasses.dataclass(frozen=True)
class VisualMatches:
    """All videos, ranked by their frames."""

    signal: VisualSignal
    query: SingleQuery | ComposedQuery
    probability: Probability | None = None
    """Converts scores to the probabilities that are shown; None to show the scores."""
    threshold: float | None = None
    """Match threshold; None if there is none."""
    calibrated: Threshold | None = None
    """Calibration of the threshold; None if it is not calibrated, or if there is none."""
    is_selective = False

    @property
    def score_kind(self) -> ScoreKind | None:
        """Return the kind of the scores."""
        return "probability" if self.probability else self.signal.ranker.score_kind

    def rank(self, count: int, scope: Scope) -> list[Group]:
        """Return the best contents; see `Matches`."""
        positions = np.flatnonzero(scope.allowed)
        if not len(positions):
            return []
        contents, first = np.unique(scope.content_of[positions], return_index=True)
        scores = self.query.best(count, scope.allowed_contents())[contents]
        order = np.lexsort((first, -scores))[:count]
        # A video that was not uploaded to a store yet scores -inf.
        ranked = [i for i in order if scores[i] > -np.inf]
        return [scope.group(int(contents[i]), float(scores[i])) for i in ranked]

    def evidence(self, group: Group, scope: Scope, count: int) -> Evidence:
        """Return the moments and the scores of all frames; see `Matches`."""
        video, content = scope.videos[group.position], int(scope.content_of[group.position])
        index = self.signal.index
        arrays = index.read(video.content)
        frame_scores, moments = self.query.locate(content, arrays, index.period, count)
        # The period of the last frame may extend beyond the end of the video.
        end = max(video.duration, float(arrays.times[-1]))
        moments = [moment._replace(end=min(moment.end, end)) for moment in moments]
        is_match = None
        if self.threshold is not None:
            is_match = group.score is not None and group.score >= self.threshold
        scores = np.asarray(self._shown(frame_scores), np.float32)
        moments = [moment._replace(score=self._shown(moment.score)) for moment in moments]
        score = None if group.score is None else self._shown(group.score)
        return Evidence(is_match, score, moments, times=arrays.times, scores=scores)

    def _shown(self, scores: Any) -> Any:
        """Return scores as they are shown: probabilities, cosines, or unchanged; keep scalars."""
        if self.signal.ranker.score_kind == "cosine":
            scores = np.minimum(scores, 1)  # rounded to float16, a row may be longer than 1
        if self.probability is not None:
            scores = self.probability(np.asarray(scores, np.float32))
        return float(scores) if np.ndim(scores) == 0 else np.asarray(scores)
