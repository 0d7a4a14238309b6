"""Uploads an index into a store: new videos are added, moved ones renamed, lost ones deleted."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from hlformer_jax.search.index import Index
from hlformer_jax.search.store import points
from hlformer_jax.search.store.client import Store
from hlformer_jax.search.store.maxsim import MaxSim


class Uploaded(NamedTuple):
    """What an upload did, in numbers of videos.

    Attributes:
      sent: whose vectors were sent.
      renamed: videos whose path or date has changed.
      kept: that were there as they are.
      removed: that are no longer in the index.
      damaged: whose vectors are damaged, and were not sent.
    """

    sent: int = 0
    renamed: int = 0
    kept: int = 0
    removed: int = 0
    damaged: int = 0


def upload(
    store: Store,
    index: Index,
    form: MaxSim,
    progress: Callable[[int, int], None] = lambda done, total: None,
    damaged: Collection[str] = (),
) -> Uploaded:
    """Brings a store up to date with an index; makes the collection where there is none.

    Args:
      store: the store.
      index: the index.
      form: how its ranker's score is one MaxSim.
      progress: is called with the numbers of videos that are done, and of all.
      damaged: contents whose vectors are damaged, and not sent; what is there of them stays.

    Raises:
      SearchError: when the collection is of another archive, encoder or ranker, or the server
        does not answer.
      DamagedError: when a file of the index was damaged meanwhile.
    """
    records = index.manifest.videos
    entries = [entry for entry in index.entries() if entry.state != "failed"]
    whole = [one for one in contents(index) if one not in damaged]
    number = {one: i for i, one in enumerate(whole)}
    count = dict.fromkeys(Uploaded._fields, 0)
    store.prepare(index, form)
    there = store.payloads()
    gone = set(there)
    waiting: list[dict[str, Any]] = []
    rows = 0  # of those that wait
    for done, entry in enumerate(entries, 1):
        content = records[entry.video].content
        payload = points.payload(entry, content)
        own = points.known(there, entry.id, content)
        if content in damaged:
            count["damaged"] += 1
        elif not own:
            made = points.make(entry.id, payload, form, number[content], index.read(content))
            for point in made:
                rows += len(point["vector"])
                if waiting and rows * form.width > points.MOST:
                    store.put(waiting)
                    waiting, rows = [], len(point["vector"])
                waiting.append(point)
                own.append(point["id"])
            count["sent"] += 1
        elif any(there[one].get(key) != payload[key] for one in own for key in payload):
            store.tell(own, payload)
            count["renamed"] += 1
        else:
            count["kept"] += 1
        gone -= set(own)
        progress(done, len(entries))
    store.put(waiting)
    store.delete(sorted(gone))
    count["removed"] = len({there[one].get("id") for one in gone})
    return Uploaded(**count)


def contents(index: Index) -> list[str]:
    """The contents that are indexed, in the order in which rankers are given them."""
    return sorted({one.content for one in index.manifest.videos.values() if one.indexed})
