"""Extraction on several machines by Ray Data: actors decode and encode, this process writes.

docs/search/scale.md has the command and the requirements of the machines. An actor processes its
videos as a run without Ray does, in the same batches. Different kinds of processors round float32
differently, so float16 coordinates may differ in their last bit. A video that is missing or has
another size on a machine fails with a reason that names the machine. An actor with another encoder
ends the run. If a machine is lost, the other machines take over its videos. The index is written
after every few videos of an actor, and the next run does not process complete videos again.
"""

import contextlib
import functools
import logging
import os
import pickle
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from hlformer_jax.errors import QueryError, SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest import decoding
from hlformer_jax.search.ingest.decoding import Event, EventSource, Failed, Frames, Opened, VideoJob
from hlformer_jax.text import without_passwords

VIDEOS_AT_ONCE = 4
"""Number of videos in a batch of an actor, for each of its decoding processes."""

MAX_WORKERS = 8
"""Largest default number of decoding processes of an actor."""

CONNECT_SECONDS = 10.0
"""Time limit of the first connection to a cluster."""


def source(
    address: str, index: Index, load: Callable[[], Any], workers: int | None = None
) -> EventSource:
    """Return a source for `extract.index_folder` that decodes and encodes on a cluster.

    Args:
      address: address of a Ray cluster, or "local". An existing connection of this program to Ray
        is kept.
      index: the index; an actor with another encoder refuses to work.
      load: loads the encoder; it is pickled and called on every machine.
      workers: number of decoding processes of an actor; None: half of its cores, at most
        `MAX_WORKERS`.

    Returns:
      The source. It raises a SearchError if the cluster does not answer, an actor refuses to work,
      or Ray ends the run.

    Raises:
      MissingExtra: if Ray is not installed.
    """
    # Otherwise Ray sends usage statistics to its developers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    optional("ray.data", "ray")
    ray = optional("ray", "ray")
    check = functools.partial(index.encoder.check, directory=index.directory)

    def events(paths: Sequence[Path], job: VideoJob) -> Generator[Event, None, None]:
        with _connected(ray, address):
            share = _share(ray.nodes())
            actors = min(share.actors, len(paths))
            processes = min(max(share.cpus // 2, 1), MAX_WORKERS) if workers is None else workers
            at_once = min(VIDEOS_AT_ONCE * max(processes, 1), -(-len(paths) // actors))
            rows = [{"path": os.fsencode(path), "size": _size(path)} for path in paths]
            items = ray.data.from_items(rows, override_num_blocks=-(-len(paths) // at_once))
            results = items.map_batches(
                _Extractor, fn_constructor_args=(load, check, job, processes),
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
                    f"Ray ended the extraction ({lines[-1]}): complete videos are kept; run the"
                    " same command again to go on"
                ) from None

    return events


class _Refusal(NamedTuple):
    """The reason why an actor cannot work at all."""

    reason: str


class _Extractor:
    """An actor, which processes its videos as a run without Ray does."""

    def __init__(
        self, load: Callable[[], Any], check: Callable[[Any], None], job: VideoJob, workers: int
    ) -> None:
        self._job, self._workers, self._refusal = job, workers, ""
        try:
            self._encoder = load()
            check(self._encoder)
        except Exception as error:  # if it were raised, Ray would restart the actor forever
            self._refusal = f"{socket.gethostname()}: {' '.join(str(error).split())}"

    def __call__(self, batch: Any) -> Any:
        import pyarrow

        refused = [_Refusal(self._refusal)]
        results: list[Any] = refused if self._refusal else self._videos(batch.to_pylist())
        # Pickled, because Arrow has no type for events.
        rows = pyarrow.array([pickle.dumps(events) for events in results], pyarrow.large_binary())
        return pyarrow.table({"events": rows})

    def _videos(self, rows: list[dict[str, Any]]) -> list[list[Event]]:
        """Return the events of each video, with its frames encoded."""
        events_of: dict[Path, list[Event]] = {}
        for row in rows:
            path = Path(os.fsdecode(row["path"]))
            events_of[path] = []
            if problem := _difference(path, row["size"]):
                machine = f"on {socket.gethostname()}, a machine of the cluster"
                events_of[path].append(Failed(path, f"it {problem} {machine}"))
        available = [path for path, events in events_of.items() if not events]
        for event in decoding.decode(available, self._job, self._workers):
            if isinstance(event, Frames):
                event = decoding.encode(self._encoder, event)
            if isinstance(event, Opened):
                events_of[event.path].clear()
            events_of[event.path].append(event)
        return list(events_of.values())


class _Share(NamedTuple):
    """The number of actors, and the cores and the GPUs (1 or 0) of each actor."""

    actors: int
    cpus: int
    gpus: int


def _share(nodes: Sequence[dict[str, Any]]) -> _Share:
    """Divide a cluster among actors: one for each GPU, or without GPUs one for each machine.

    All actors have as many cores as there are on the machine with the fewest cores for an actor.

    Raises:
      SearchError: if no machine has a core.
    """
    machines = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = [int(machine.get("GPU", 0)) for machine in machines]
    actors = gpus if any(gpus) else [int(machine.get("CPU", 0) >= 1) for machine in machines]
    if not any(actors):
        raise SearchError("no machine of the Ray cluster has a free core")
    cpus = min(
        int(machine.get("CPU", 0)) // count
        for machine, count in zip(machines, actors, strict=True)
        if count
    )
    return _Share(sum(actors), max(cpus, 1), int(any(gpus)))


def _size(path: Path) -> int | None:
    """Return the size of a file in bytes; None if this machine cannot read it."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _difference(path: Path, size: int | None) -> str:
    """Return how a file differs from the main machine's file; "" if it does not."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return "is another file" if size is not None and status.st_size != size else ""


@contextlib.contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Connect to a cluster until the block ends, unless this program is connected already.

    Raises:
      QueryError: if the address is wrong, or the cluster does not answer.
    """
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise QueryError(
            "{ray} {address}: Ray does not connect ({reason}); give HOST:PORT of a running cluster,"
            " or local",
            field="ray",
            address=without_passwords(address, [address]),
            reason=without_passwords(lines[0]),
        ) from None
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its errors are raised as well
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Check that something listens at an address, because Ray would retry for minutes.

    Raises:
      QueryError: if it is not an address, or nothing listens there.
    """
    if address in ("local", "auto"):
        return
    try:
        parts = urlsplit(address if "://" in address else f"ray://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise QueryError(
            "{ray} {address} is not an address: give HOST:PORT of a Ray cluster, auto or local",
            field="ray",
            address=without_passwords(address, [address]),
        )
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise QueryError(
            "{ray} {address}: no cluster answers there ({reason}); start it by `ray start --head`,"
            " or give local",
            field="ray",
            address=without_passwords(address, [address]),
            reason=error.strerror or error,
        ) from None
