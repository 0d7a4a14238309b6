"""Evaluation of a library on captions: recalls of the videos, and of the first moment.

Every caption is asked over all indexed videos. Its rank is that of its video, as
`retrieval.ranking` counts. Where captions have times, the first moments of their own videos are
held against them (`retrieval.localisation`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from hlformer_jax.errors import suggestion
from hlformer_jax.retrieval import localisation, ranking
from hlformer_jax.retrieval.localisation import intersection_over_union
from hlformer_jax.search.captions import Caption
from hlformer_jax.search.errors import SearchError
from hlformer_jax.search.library import Library


def evaluate(
    library: Library,
    captions: Sequence[Caption],
    progress: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Asks every caption.

    Args:
      library: the library.
      captions: captions of its videos, at least one.
      progress: called after each caption.

    Returns:
      R@1, R@5, R@10, R@100 and SumR of the videos, and the metrics of localisation, all in percent;
      without the latter where no caption has times.

    Raises:
      SearchError: when a caption is of a video that is not indexed.
    """
    columns = {entry.video: i for i, entry in enumerate(library.ranked())}
    for caption in captions:
        if caption.video not in columns:
            raise SearchError(
                f"the captions name {caption.video!r}, which the index lacks"
                f"{suggestion(caption.video, columns)}: index the folder of the captions' videos"
            )
    scores, overlaps = [], []
    for caption in captions:
        every, hit = library.examine(caption.sentence, columns[caption.video])
        scores.append(every)
        if caption.start is not None and caption.end is not None:
            overlaps.append(intersection_over_union(hit.moments[0], caption.start, caption.end))
        progress()
    own = np.asarray([columns[caption.video] for caption in captions], np.int32)
    metrics = ranking.metrics(np.asarray(ranking.ranks(np.stack(scores), own)))
    return metrics | localisation.metrics(np.asarray(overlaps, np.float32))
