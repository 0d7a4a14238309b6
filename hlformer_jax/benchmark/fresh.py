"""The first result of a fresh process: `python -m hlformer_jax.benchmark.fresh INDEX START`.

START is when the process was begun, by the system's clock. Prints the seconds of each part as JSON.
"""

import json
import sys
import time

SENTENCE = "a person opens the fridge"

PARTS = ("start and imports", "opening", "encoder's first sentence", "query", "the next query")


def main(directory: str, start: float) -> None:
    """Opens the index, asks it twice, and prints what took how long."""
    from hlformer_jax import search
    from hlformer_jax.search import encoding

    encoding.extra("encoders")
    marks = [start, time.time()]
    library = search.open(directory)
    marks.append(time.time())
    library.encoder.sentences([SENTENCE])
    marks.append(time.time())
    for _ in range(2):
        library.query(SENTENCE)
        marks.append(time.time())
    seconds = [end - begin for begin, end in zip(marks[:-1], marks[1:], strict=True)]
    print(json.dumps(dict(zip(PARTS, seconds, strict=True))))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
