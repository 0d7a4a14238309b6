"""Extraction on several machines, by Ray Data: actors decode and encode, this process writes.

docs/search.md has the command, and what the machines need. An actor does with its videos what a run
without Ray does, in the same batches; processors of another kind round float32 differently, by
which coordinates in float16 may differ in their last bit. A video that is not there or has another
size fails and names the machine; another encoder ends the run. A machine that is lost has its
videos done by the others. The index is written a few videos of an actor at a time; what was
complete when a run ended is not done again.
"""

import contextlib
import logging
import os
import pickle
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hlformer_jax.errors import SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.index.storage import Manifest
from hlformer_jax.search.ingest import decoding
from hlformer_jax.search.ingest.decoding import Event, Failed, Frames, Job, Opened, Source
from hlformer_jax.text import without_passwords

VIDEOS_AT_ONCE = 4
"""Videos for each decoding process that an actor is given, and gives back, together."""

MAX_WORKERS = 8
"""Decoding processes of an actor, at most, where their number is not asked for."""

SECONDS = 10.0
"""How long a cluster may take to answer the first call."""


def source(
    address: str, index: Index, load: Callable[[], Any], workers: int | None = None
) -> Source:
    """What decodes and encodes on a cluster, for `extract.index_folder`.

    Args:
      address: address of a Ray cluster, or "local". A program that has connected to Ray already
        keeps its connection.
      index: the index; an actor whose encoder is not its own refuses to work.
      load: loads the encoder, on any machine; it is pickled.
      workers: decoding processes of an actor; None: half of its cores.

    Raises:
      MissingExtra: when Ray is not installed.
      SearchError: of the source, when the cluster does not answer, an actor refuses, or Ray ends
        the run.
    """
    # Ray would send statistics of its use to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    optional("ray.data", "ray")
    ray = optional("ray", "ray")
    known = index.manifest
    # Without the records, which grow with the archive.
    bare = Index(index.directory, Manifest(known.root, known.encoder, known.fps))

    def events(paths: Sequence[Path], job: Job) -> Generator[Event, None, None]:
        with _connected(ray, address):
            share = _share(ray.nodes())
            actors = min(share.actors, len(paths))
            own = min(max(share.cpus // 2, 1), MAX_WORKERS) if workers is None else workers
            at_once = min(VIDEOS_AT_ONCE * max(own, 1), -(-len(paths) // actors))
            asked = [{"path": os.fsencode(path), "size": _size(path)} for path in paths]
            items = ray.data.from_items(asked, override_num_blocks=-(-len(paths) // at_once))
            results = items.map_batches(
                _Extractor, fn_constructor_args=(load, bare.check_encoder, job, own),
                batch_format="pyarrow", batch_size=None,  # a block
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
                num_cpus=share.cpus, num_gpus=share.gpus,
            )  # fmt: skip
            try:
                for table in results.iter_batches(batch_format="pyarrow", batch_size=None):
                    for pickled in table["events"].to_pylist():
                        if isinstance(video := pickle.loads(pickled), _Refusal):
                            raise SearchError(video.reason)
                        yield from video
            except ray.exceptions.RayError as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                raise SearchError(
                    f"Ray ended the extraction ({lines[-1]}): what was complete is kept, and the"
                    " same command goes on"
                ) from None

    return events


class _Refusal(NamedTuple):
    """An actor cannot work at all, and why."""

    reason: str


class _Extractor:
    """An actor: does with its videos what a run without Ray does."""

    def __init__(
        self, load: Callable[[], Any], check: Callable[[Any], None], job: Job, workers: int
    ) -> None:
        self._job, self._workers, self._refusal = job, workers, ""
        try:
            self._encoder = load()
            check(self._encoder)
        except Exception as error:  # Ray would start the actor again, for ever
            self._refusal = f"{socket.gethostname()}: {' '.join(str(error).split())}"

    def __call__(self, batch: Any) -> Any:
        import pyarrow

        refused = [_Refusal(self._refusal)]
        results: list[Any] = refused if self._refusal else self._videos(batch.to_pylist())
        # As between the processes of one machine.
        rows = pyarrow.array([pickle.dumps(events) for events in results], pyarrow.large_binary())
        return pyarrow.table({"events": rows})

    def _videos(self, asked: list[dict[str, Any]]) -> list[list[Event]]:
        """The events of each video, its frames encoded."""
        events_of: dict[Path, list[Event]] = {}
        for one in asked:
            path = Path(os.fsdecode(one["path"]))
            events_of[path] = []
            if what := _difference(path, one["size"]):
                where = f"on {socket.gethostname()}, a machine of the cluster"
                events_of[path].append(Failed(path, f"it {what} {where}"))
        here = [path for path, events in events_of.items() if not events]
        for event in decoding.decode(here, self._job, self._workers):
            if isinstance(event, Frames):
                event = decoding.encode(self._encoder, event)
            if isinstance(event, Opened):
                events_of[event.path].clear()
            events_of[event.path].append(event)
        return list(events_of.values())


class _Share(NamedTuple):
    """How many actors a cluster has, and the cores and GPUs (1 or none) of each."""

    actors: int
    cpus: int
    gpus: int


def _share(nodes: Sequence[dict[str, Any]]) -> _Share:
    """An actor for each GPU, or else for each machine; its cores by the machine with the fewest."""
    known = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = [int(one.get("GPU", 0)) for one in known]
    actors = gpus if any(gpus) else [int(one.get("CPU", 0) >= 1) for one in known]
    if not any(actors):
        raise SearchError("no machine of the Ray cluster has a core to work on")
    cpus = min(
        int(one.get("CPU", 0)) // count for one, count in zip(known, actors, strict=True) if count
    )
    return _Share(sum(actors), max(cpus, 1), int(any(gpus)))


def _size(path: Path) -> int | None:
    """Return the size of a file in bytes; None if it is not known here."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _difference(path: Path, size: int | None) -> str:
    """Return why the file here is not that of another machine; "" if it may be."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "is not there"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "is another file" if size is not None and status.st_size != size else ""


@contextlib.contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """A connection to a cluster, with which everything that it started ends."""
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    _answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise SearchError(
            f"--ray={without_passwords(address, [address])}: Ray does not connect"
            f" ({without_passwords(lines[0])}); give HOST:PORT of a cluster that runs, or local"
        ) from None
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised
        yield
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """Refuses an address where nothing listens, for which Ray would try for minutes."""
    if address in ("local", "auto"):
        return
    try:
        parts = urlsplit(address if "://" in address else f"ray://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise SearchError(
            f"--ray={without_passwords(address, [address])} is no address: give HOST:PORT of a Ray"
            " cluster, auto or local"
        )
    try:
        socket.create_connection((host, port), SECONDS).close()
    except OSError as error:
        raise SearchError(
            f"--ray={without_passwords(address, [address])}: no cluster answers there"
            f" ({error.strerror or error}); start it by `ray start --head`, or give local"
        ) from None
