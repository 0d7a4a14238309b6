"""Search in one's own videos: a folder, a sentence, the moment.

    python -m hlformer_jax.search index FOLDER --index=DIR
    python -m hlformer_jax.search query "a person opens the fridge" --index=DIR

    index, manifest, arrays    what lies on the disk; the files of an index
    fingerprint                what makes a file the same one elsewhere
    extract, decoding, report  a folder into an index; decoding in processes; what was done
    segments                   intervals of a video, without training
    rankers                    scores of videos and of their frames, without training
    packed, quantised          the rows they multiply; those of 8 bits that large archives have
    trained, model             those of a trained model
    cluster                    extraction on several machines, by Ray
    store, maxsim              search in Qdrant; rankers' scores as what it computes
    library, filters           an archive that is asked
    encoding                   encoders by name
    captions, evaluation       sentences of which the answer is known; recalls
    features                   captioned videos into a data set to train on
    commands                   the command line, a file for each command

```python
from hlformer_jax import encoders, search

library = search.open("DIR")
for hit in library.query("a person opens the fridge", k=5):
    for moment in hit.moments:
        print(f"{hit.video}: {moment.start:.1f} to {moment.end:.1f} s, score {moment.score:.3f}")
    assert hit.times.shape == hit.scores.shape  # the score of every frame, and its second

encoder = encoders.load("ENCODER")  # a folder, or a hub id: google/siglip-base-patch16-224
vectors = encoder.sentences(["a red circle", "a blue square"])  # float32, of unit length
print(vectors.shape, search.open("DIR", ranker="best_frame", encoder=encoder).ranker_name)
```

docs/search.md is the manual: scores, dates, the page, what a token is for, rankers side by side.
The package needs the extra `search`, `cluster` the extra `ray` and `store` the extra `qdrant`;
importing it does not load JAX.
"""

from pathlib import Path
from typing import Any

from hlformer_jax.retrieval.localisation import Moment
from hlformer_jax.search.errors import DamagedError, SearchError
from hlformer_jax.search.index import Entry, Index
from hlformer_jax.search.library import Hit, Library
from hlformer_jax.search.store import Store

__all__ = [
    "DamagedError", "Entry", "Hit", "Index", "Library", "Moment", "SearchError", "Store", "open",
]  # fmt: skip


def open(
    directory: str | Path,
    checkpoint: str | Path | None = None,
    ranker: str | None = None,
    encoder: Any = None,
    store: str | Store | None = None,
) -> Library:
    """Opens an index to search in it; reads its manifest alone.

    Args:
      directory: the directory of the index.
      checkpoint: the directory of a run that was trained on features of the same encoder: its model
        ranks.
      ranker: "segments" or "best_frame", without training. With neither, the checkpoint that was
        given when the videos were indexed, or else "segments".
      encoder: an encoder, or where to load it from; None: from where it was when the videos were
        indexed.
      store: address of a Qdrant server, or a `Store`, that ranks; `Library.upload` brings it up to
        date with the index (see `hlformer_jax.search.store`).

    Returns:
      The library.

    Raises:
      SearchError: when there is no index, its manifest is damaged, or the ranker is unknown.
    """
    return Library(directory, checkpoint, ranker, encoder, store)
