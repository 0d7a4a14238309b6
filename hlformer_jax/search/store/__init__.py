"""Search in Qdrant: the vectors of an index in a server that may be many, sharded and replicated.

    python -m hlformer_jax.search upload --index=DIR --store=http://HOST:6333/COLLECTION
    python -m hlformer_jax.search query "a person opens the fridge" --index=DIR --store=…

A collection holds one archive for one ranker: a point a video (a few for a video of hours, as a
point holds less than 2²⁰ numbers), its rows one multivector, and the score one MaxSim (`maxsim`),
computed exactly, without an index that approximates. So the ranking is that without a store but for
videos whose scores differ by rounding: of float32, with a trained model of sums up to 4. MS-SL's
score has no such form and is refused. Filters run in the store. The moments of the videos found are
computed here, from their files in the index, and with a trained model from their vectors in the
store; this machine needs DIR and the encoder, and holds no vectors of the others.

An upload brings the collection up to date: what is there is left alone, as its id is made of its
content; what is new is added, the payload of what has moved is changed, what is gone is deleted.
An interrupted upload resumes where it stopped; until it is complete, a search finds the videos that
were uploaded and are still in the index.

The payload of a point:

    id, video, folder, folders   the entry's id and path; its folder, and all that hold it
    date, date_of                seconds since the epoch; of the "recording" or of the "file"
    duration                     of the video in seconds
    times                        seconds of each row of `best_frame`, of both ends of each of
                                 `segments`, of each frame with a trained model
    content, part, parts         fingerprint of the content; the part's number, from 0, of how many

QDRANT_API_KEY in the environment is sent as the key. Tried with the client's own store in memory
(`MEMORY`), which is exact; a server was not at hand. Qdrant's client can also keep vectors in a
folder by itself: as pickles, which whoever writes there can have executed, so a path is refused.
"""

from hlformer_jax.search.store.client import MEMORY, Store
from hlformer_jax.search.store.ranker import Stored
from hlformer_jax.search.store.upload import Uploaded

__all__ = ["MEMORY", "Store", "Stored", "Uploaded"]
