"""Search in one's own videos: a folder, a sentence, the moment.

    python -m hlformer_jax.search index FOLDER --index=DIR
    python -m hlformer_jax.search query "a person opens the fridge" --index=DIR

    index        an index: its database, embeddings, changes
    ingest       a folder into an index, once or as it changes
    signals      ways in which a video can match: visual and transcript; their rankers
    query        a query, its filters, the fusion of signals, results; library: all of them
    serve        the page in the browser, and an archive for programs that speak MCP
    export       moments for other programs: CSV, playlists, EDL, OpenTimelineIO
    evaluate     rankers on captions of one's own
    cli          the commands; demo: an archive to try them on

```python
from hlformer_jax import encoders, search

library = search.open("DIR")
for result in library.query("a person opens the fridge", k=5):
    for moment in result.moments:
        print(f"{result.video}: {moment.start:.1f} to {moment.end:.1f} s")
    assert result.times.shape == result.scores.shape  # the score of every frame, and its second

encoder = encoders.load("ENCODER")  # a folder, or a hub id: google/siglip-base-patch16-224
vectors = encoder.encode_texts(["a red circle", "a blue square"])  # float32, of unit length
print(vectors.shape, search.open("DIR", ranker="best_frame", encoder=encoder).ranker_name)
```

docs/search/ is the manual: scores, dates, the page, what a token is for, rankers side by side.
The package needs the extra `search`, a Ray cluster the extra `ray` and PostgreSQL the extra
`postgres`; importing it does not load JAX.
"""

from pathlib import Path

from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError, QueryError, SearchError
from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search.index import Entry, Index
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.query.results import Result, Results
from hlformer_jax.search.signals.postgres import Store

__all__ = [
    "DamagedError", "Entry", "Index", "Library", "Moment", "Query", "QueryError", "Result",
    "Results", "SearchError", "Store", "open",
]  # fmt: skip


def open(
    directory: str | Path,
    checkpoint: str | Path | None = None,
    ranker: str | None = None,
    encoder: Encoder | str | Path | None = None,
    store: str | Store | None = None,
    normalise: bool = False,
) -> Library:
    """Open an index for searching; the encoder and the embeddings are loaded at the first query.

    Args:
      directory: the directory of the index.
      checkpoint: the directory of a run that was trained on features of the same encoder: its model
        ranks.
      ranker: the name of a ranker without training (`rankers.RANKERS`). Without `checkpoint` too,
        the checkpoint that was given when the videos were indexed, or else "best_frame".
      encoder: an encoder, or where to load it from; None: from where it was when the videos were
        indexed.
      store: address of a PostgreSQL database, or a `Store`, that ranks; `Library.upload` brings it
        up to date with the index (see `hlformer_jax.search.signals.postgres`).
      normalise: whether to normalise the scores of a ranker without training by its scores for
        other texts (NNN, see `hlformer_jax.search.signals.rankers`).

    Returns:
      The library.

    Raises:
      SearchError: if the index is missing or its database damaged, or the ranker is unknown.
    """
    return Library(directory, checkpoint, ranker, encoder, store, normalise)
