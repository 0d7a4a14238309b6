"""Search in one's own videos: a folder, a sentence, the moment.

    python -m hlformer_jax.search index FOLDER --index=DIR
    python -m hlformer_jax.search query "a person opens the fridge" --index=DIR

    index        the index: its database, its embeddings and their changes
    ingest       indexing of a folder, once or whenever it changes
    signals      ways in which a video can match: visual and transcript; their rankers
    query        queries, filters, fusion of signals, results, and the library that answers
    serve        the web page, and a server for programs that use MCP
    export       moments for other programs: CSV, playlists, EDL, OpenTimelineIO
    evaluate     measuring rankers on your own captions
    cli          the commands
    demo         a small archive to try the commands on

```python
from hlformer_jax import encoders, search

library = search.open("DIR")
for result in library.query("a person opens the fridge", k=5):
    for moment in result.moments:
        print(f"{result.video}: {moment.start:.1f} to {moment.end:.1f} s")
    assert result.times.shape == result.scores.shape  # the second and the score of every frame

encoder = encoders.load("ENCODER")  # a folder, or a hub id: google/siglip-base-patch16-224
vectors = encoder.encode_texts(["a red circle", "a blue square"])  # float32, of unit length
print(vectors.shape, search.open("DIR", ranker="best_frame", encoder=encoder).ranker_name)
```

docs/search/ is the manual. The package needs the extra `search`; a Ray cluster needs `ray` and
PostgreSQL needs `postgres`. Importing the package does not load JAX.
"""

import os

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
    directory: str | os.PathLike[str],
    checkpoint: str | os.PathLike[str] | None = None,
    ranker: str | None = None,
    encoder: Encoder | str | os.PathLike[str] | None = None,
    store: str | Store | None = None,
    normalise: bool = False,
) -> Library:
    """Open an index for searching; the encoder and the embeddings are loaded at the first query.

    Args:
      directory: the directory of the index.
      checkpoint: the directory of a run whose model ranks the videos; it must have been trained on
        features of the index's encoder.
      ranker: the name of a ranker without training (`rankers.RANKERS`). If neither `checkpoint` nor
        `ranker` is given, the checkpoint that the index records is used, or else "best_frame".
      encoder: an encoder, or the hub id or folder to load it from. None: the place it was loaded
        from when the videos were indexed.
      store: a PostgreSQL database that ranks the videos, as its address or as a `Store`.
        `Library.upload` brings it up to date with the index (see
        `hlformer_jax.search.signals.postgres`).
      normalise: whether to normalise the scores of a ranker without training by its scores for
        other texts (NNN, see `hlformer_jax.search.signals.rankers`).

    Returns:
      The library.

    Raises:
      SearchError: if the directory has no index, or one of another format.
      DamagedError: if the database of the index and its copy are damaged.
      QueryError: if the ranker is unknown, the address is wrong, or arguments exclude each other.
      MissingExtra: if a store is given and the extra `postgres` is not installed.
    """
    return Library(directory, checkpoint, ranker, encoder, store, normalise)
