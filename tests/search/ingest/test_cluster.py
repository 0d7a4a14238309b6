"""Extraction on Ray: the same index as without it, failures, resuming and refusals."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import archive
import processes
import pytest

from hlformer_jax.errors import MissingExtra, SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest import cluster
from hlformer_jax.search.ingest.decoding import Failed, VideoJob

# Ray Data warns of settings that it makes itself, and leaves its log files open.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TESTS = processes.ROOT / "tests"


@pytest.fixture(scope="module")
def ray():
    """Ray on this machine, started once for all tests."""
    module = pytest.importorskip("ray", reason="the extra ray is not installed")
    pytest.importorskip("ray.data", reason="the extra ray is not installed")
    patch = pytest.MonkeyPatch()
    # The actors import the functions of the archive, too.
    patch.setenv("PYTHONPATH", processes.environment()["PYTHONPATH"])
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    module.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
    yield module
    module.shutdown()
    patch.undo()


@pytest.fixture
def films(tmp_path):
    films = archive.folder(tmp_path / "films")
    for i in range(3):
        archive.random_film(films / f"{i}.film", 30 + 20 * i, seed=i)
    return films


def source(index, **options):
    return cluster.source("local", index, options.pop("load", archive.Encoder), **options)


def records(index):
    """Return the record of every video."""
    return Index.open(index.directory).videos


@pytest.mark.parametrize("address", ["ray://me:cret@127.0.0.1:1", "ray://me:s cret@", "me:cret@h"])
def test_address_of_a_cluster_does_not_show_its_password(address):
    with pytest.raises(SearchError) as refused:
        cluster._check_address(address)
    assert "cret" not in str(refused.value)


@pytest.mark.slow
def test_ray_makes_the_same_index_byte_for_byte(ray, films, tmp_path):
    (films / "bad.film").write_bytes(b"broken")
    archive.film(films / "killer.film", ["red"] * 3)
    archive.film(films / os.fsdecode(b"no text \xff.film"), ["red"] * 40)
    without, index = (archive.create(tmp_path / name, films) for name in ("without", "index"))
    expected = archive.fill(without, workers=1)
    encoder = archive.Encoder()
    report, lines = archive.fill(index, encoder, source=source(index, workers=1))
    assert archive.vectors(index) == archive.vectors(without)
    assert records(index) == records(without)
    assert report._replace(elapsed=0) == expected[0]._replace(elapsed=0)
    assert sorted(lines) == sorted(expected[1])
    assert "killer.film: its decoding process died (status -9)" in lines
    assert encoder.seen == 0  # this process encoded nothing

    # Indexed videos stay unchanged; failed ones are tried again on request.
    assert archive.fill(index, source=source(index))[0].skipped == 2
    archive.film(films / "new.film", ["blue"] * 5)
    (films / "bad.film").write_bytes((films / "new.film").read_bytes() + b" ")
    (films / "killer.film").unlink()
    again, _ = archive.fill(index, source=source(index), retry=True)
    assert (again.indexed, again.unchanged, again.forgotten) == (2, 7, 1)
    assert index.verify() == {}


@pytest.mark.slow
def test_actor_with_another_encoder_ends_the_run(ray, films, tmp_path):
    index = archive.create(tmp_path / "index", films)
    with pytest.raises(SearchError, match=f"^{socket.gethostname()}: .* another fingerprint"):
        archive.fill(index, source=source(index, load=ForeignEncoder))
    with pytest.raises(SearchError, match=f"^{socket.gethostname()}: the encoder is missing$"):
        archive.fill(index, source=source(index, load=no_encoder))
    assert index.contents() == []


class ForeignEncoder(archive.Encoder):
    def __init__(self):
        super().__init__("0" * 64)


def no_encoder():
    raise SearchError("the encoder\nis missing")


def test_missing_or_different_file_names_the_machine(tmp_path):
    path = archive.film(tmp_path / "a.film", ["red"] * 3)
    job = VideoJob(archive.VIDEO, 1.0, None, archive.preprocess)
    actor = cluster._Extractor(archive.Encoder, lambda encoder: None, job, 0)

    def extract(path, size):
        return actor._videos([{"path": os.fsencode(path), "size": size}])[0]

    missing = tmp_path / "missing.film"
    where = f"on {socket.gethostname()}, a machine of the cluster"
    assert extract(path, 1) == [Failed(path, f"it is another file {where}")]
    assert extract(missing, 7) == [Failed(missing, f"it is missing {where}")]
    events = extract(path, path.stat().st_size)
    assert [type(event).__name__ for event in events] == ["Opened", "EncodedFrames", "Done"]


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


def test_each_actor_has_a_gpu_or_else_a_machine():
    assert cluster._share([node(CPU=8.0), node(CPU=6.0), node(CPU=4.0, alive=False)]) == (2, 6, 0)
    gpus = [node(CPU=64.0, GPU=8.0), node(CPU=16.0, GPU=1.0), node(CPU=4.0)]
    assert cluster._share(gpus) == (9, 8, 1)
    assert cluster._share([node(CPU=2.0, GPU=4.0)]) == (4, 1, 1)
    with pytest.raises(SearchError, match="no machine of the Ray cluster has a free core"):
        cluster._share([node(memory=1.0), node(CPU=0.0)])


class NoCluster(SimpleNamespace):
    """Ray without a connection; refuses to connect."""

    def is_initialized(self):
        return False

    def init(self, **options):
        raise ConnectionError("Could not find any running instance.\nAnd much more.")


def test_address_that_does_not_answer_is_refused():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address, reason in {
        f"ray://127.0.0.1:{port}": "Connection refused",
        "host:many": "is not an address",
        "auto": "Could not find any running instance",
    }.items():
        with pytest.raises(SearchError, match=f"^ray {address}:? .*{reason}"):
            with cluster._connected(NoCluster(), address):
                pass


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path, films):
    monkeypatch.setitem(sys.modules, "ray", None)
    index = archive.create(tmp_path / "index", films)
    with pytest.raises(MissingExtra, match=r"pip install .*\[ray\]"):
        source(index)


@pytest.fixture
def folder(tmp_path):
    """A folder of three videos and a broken one."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    import videos

    folder = tmp_path / "videos"
    folder.mkdir()
    for i, frames in enumerate((30, 60, 400)):
        videos.write(folder / f"{i}.mp4", frames=frames)
    (folder / "bad.mp4").write_bytes(b"broken")
    return folder


def command(folder, index, *flags):
    encoder = TESTS / "encoders" / "golden" / "siglip2"
    return processes.command(
        "search", "index", folder, f"--index={index}", f"--encoder={encoder}", *flags
    )


def assert_equal_indexes(*directories):
    first, second = map(Index.open, directories)
    assert archive.vectors(first) == archive.vectors(second)
    assert records(first) == records(second)


def has_video(directory):
    """Return whether a run has stored a video."""
    try:
        return bool(Index.open(directory).contents())
    except SearchError:  # not an index yet
        return False


@pytest.mark.slow
def test_killed_run_by_ray_continues(folder, tmp_path):
    index = tmp_path / "killed"
    process = subprocess.Popen(
        command(folder, index, "--ray=local"), env=processes.environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not has_video(index):
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL  # it was not complete
    done = processes.finish(command(folder, index, "--ray=local"))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "3 indexed" not in done.stdout  # a complete video is not indexed again
    assert processes.finish(command(folder, tmp_path / "expected")).returncode == 0
    assert_equal_indexes(index, tmp_path / "expected")


@pytest.mark.slow
def test_videos_of_a_lost_machine_are_taken_over(tmp_path, monkeypatch):
    utils = pytest.importorskip("ray.cluster_utils", reason="the extra ray is not installed")
    folder = tmp_path / "videos"
    folder.mkdir()
    import videos

    for i in range(9):
        videos.write(folder / f"{i}.mp4", frames=100 + 50 * i)
    for name, value in processes.environment().items():
        monkeypatch.setenv(name, value)
    machine = {"num_cpus": 1, "object_store_memory": 100_000_000}
    three = utils.Cluster(initialize_head=True, head_node_args=machine)
    try:
        added_machines = [three.add_node(**machine) for _ in range(2)]
        index = tmp_path / "index"
        process = subprocess.Popen(
            command(folder, index, f"--ray={three.address}"), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=processes.environment(), text=True,
        )  # fmt: skip
        while process.poll() is None and not has_video(index):
            time.sleep(0.02)
        assert process.poll() is None  # it is not complete
        three.remove_node(added_machines[0], allow_graceful=False)
        output, errors = process.communicate(timeout=300)
    finally:
        three.shutdown()
    assert process.returncode == 0, errors
    assert "9 indexed" in output
    assert processes.finish(command(folder, tmp_path / "expected")).returncode == 0
    assert_equal_indexes(index, tmp_path / "expected")
