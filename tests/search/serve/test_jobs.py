"""Changes of an index by the page: rights, jobs, their events and their end."""

import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import archive
import page_library
import pytest
from starlette.testclient import TestClient

from hlformer_jax import files
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest import decoding, extract
from hlformer_jax.search.serve import jobs
from hlformer_jax.search.serve.app import build_app
from hlformer_jax.video import listing

CHANGES = ["index", "retry/0", "add?path=/x", "remove?id=0", "stop"]
READ = ["roots", "job", "job/events"]


@pytest.fixture
def library(changing):
    return changing


@pytest.fixture
def client(library):
    with TestClient(build_app(library, manage=None), "http://localhost") as client:
        yield client


@pytest.fixture
def live(library):
    """A client of a running server, which answers during a stream."""
    with page_library.running(library, manage=None) as url, page_library.client_of(url) as client:
        yield client


def ended(client):
    """Wait for the end of the job and return its state."""
    for _ in range(400):
        job = client.get("/api/job").json()
        if job["state"] not in ("running", "stopping"):
            return job
        time.sleep(0.02)
    raise AssertionError(job)


def change(client, address):
    started = client.post(f"/api/{address}")
    assert started.status_code == 200, started.text
    return ended(client)


def names(client):
    return [hit["video"] for hit in client.get("/api/query?q=red&k=50").json()["results"]]


def start_job(client, library, films):
    """Starts a job, which waits in the encoder at the first of two videos."""
    archive.film(films / "new.film", ["red"] * 40)
    archive.film(films / "newer.film", ["blue"] * 40)
    library.encoder.gate.clear()
    assert client.post("/api/index").json()["state"] == "running"
    assert library.encoder.inside.wait(10)


@contextlib.contextmanager
def under_way(client, library, films):
    """Run a job that waits until the block ends."""
    start_job(client, library, films)
    try:
        yield
    finally:
        library.encoder.gate.set()


def test_invalid_picture_is_refused_by_its_field(client):
    refused = client.post("/api/query", content=b"no picture")
    assert (refused.status_code, refused.json()["code"]) == (422, "query.image")


# Rights


@pytest.mark.parametrize("manage", [None, False])
def test_server_without_manage_refuses_all_changes(library, films, manage):
    passed_on = {"X-Forwarded-For": "203.0.113.9"} if manage is None else {}
    before = archive.everything(films.parent)
    with TestClient(build_app(library, manage=manage), "http://localhost") as client:
        for address in CHANGES + READ:
            ask = client.post if address in CHANGES else client.get
            refused = ask(f"/api/{address}", headers=passed_on)
            assert refused.status_code == 403 and "--manage" in refused.json()["error"], address
        assert client.get("/api/status", headers=passed_on).json()["manage"] is False
        if manage is None:
            assert client.get("/api/status").json()["manage"] is True
    assert archive.everything(films.parent) == before


def test_requests_of_other_sites_cannot_change_the_index(library):
    app = build_app(library, manage=True, token="t" * 32)
    with TestClient(app, "http://localhost") as client:
        token = {"Authorization": f"Bearer {'t' * 32}"}
        for wrong, status in (
            ({}, 401),
            (token | {"Origin": "http://elsewhere.example"}, 403),
            (token | {"Origin": "null"}, 403),
            (token | {"Sec-Fetch-Site": "cross-site"}, 403),
            (token | {"Host": "elsewhere.example"}, 400),
        ):
            for address in CHANGES:
                assert client.post(f"/api/{address}", headers=wrong).status_code == status
        for address in CHANGES:  # a link or an image of another site can only GET
            assert client.get(f"/api/{address}", headers=token).status_code == 405
        assert client.get("/api/job", headers=token).json()["state"] == "none"
        assert client.post("/api/index", headers=token).status_code == 200
        passed_on = token | {"X-Forwarded-For": "203.0.113.9"}  # --manage was given
        assert client.get("/api/job", headers=passed_on).status_code == 200


# Jobs


def test_updated_index_is_queried_without_restart(client, films):
    assert "new.film" not in names(client)
    archive.film(films / "new.film", ["red"] * 9)
    job = change(client, "index")
    assert (job["kind"], job["state"]) == ("index", "done")
    assert job["line"] == "the index: 1 indexed, 3 unchanged"
    assert "new.film" in names(client)


def test_second_folder_is_added_listed_and_removed(client, films, tmp_path):
    folder = tmp_path / "photos"
    archive.film(folder / "d.film", ["red"] * 7)
    (folder / "bad.film").write_bytes(b"broken")
    job = change(client, f"add?path={folder}")
    assert job["state"] == "done" and job["line"] == "the index: 1 indexed, 1 failed"
    assert job["notes"] == [
        f"{folder} is a further folder of the index, 'photos'",
        "photos//bad.film: is not a film: copy it again",
    ]
    first, second = client.get("/api/roots").json()["roots"]
    assert first == {"name": "", "path": str(films), "available": True, "videos": 3, "failed": 0}
    assert second == {
        "name": "photos", "path": str(folder), "available": True, "videos": 1, "failed": 1,
    }  # fmt: skip
    assert "photos//d.film" in names(client)
    before = archive.everything(folder) | archive.everything(films)
    job = change(client, "remove?folder=photos")
    assert job["line"] == "removed 1 of 4 videos and 1 failed file"
    assert "photos//d.film" not in names(client)
    assert len(client.get("/api/roots").json()["roots"]) == 1
    assert archive.everything(folder) | archive.everything(films) == before


def test_videos_are_removed_by_id_and_a_file_is_added(client, films):
    ids = {hit["video"]: hit["id"] for hit in client.get("/api/query?q=red").json()["results"]}
    content = archive.everything(films)
    assert change(client, f"remove?id={ids['a.film']}&id={ids['b.film']}")["state"] == "done"
    assert names(client) == ["trips/c.film"] and archive.everything(films) == content
    assert change(client, f"add?path={films / 'a.film'}")["state"] == "done"
    assert sorted(names(client)) == ["a.film", "trips/c.film"]


def test_refused_add_leaves_the_index_unchanged(client, index, films, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("x")
    before = archive.everything(index.directory)
    for path, part in (
        (films.parent, "have files in common"),
        (tmp_path / "missing", "does not exist"),
        (tmp_path / "empty", "holds no video"),
        (tmp_path / "note.txt", "add the folder that contains it"),
    ):
        job = change(client, f"add?path={path}")
        assert job["state"] == "failed" and part in job["line"] and "\n" not in job["line"]
    for wrong in ("", "films", "../x", "~nobody-of-this-name", "/a%00b"):
        assert client.post(f"/api/add?path={wrong}").status_code == 400, wrong
    assert "/home/ann/Videos" in client.post("/api/add?path=films").json()["error"]  # an example
    assert archive.everything(index.directory) == before


def test_video_outside_the_index_cannot_be_removed_or_retried(client):
    for address in ("remove?id=0", "remove?folder=", "remove?folder=x", "retry/0"):
        assert client.post(f"/api/{address}").status_code == 404, address
    assert client.post("/api/remove").status_code == 400
    assert client.get("/api/job").json()["state"] == "none"


def test_one_failure_or_all_are_retried(client, films):
    for name in ("x.film", "y.film"):
        (films / name).write_bytes(b"broken")
    assert change(client, "index")["line"] == "the index: 3 unchanged, 2 failed"
    failed = {video["video"]: video["id"] for video in client.get("/api/status").json()["failed"]}
    assert change(client, "index")["line"] == "the index: 3 unchanged, 2 failed before"
    job = change(client, f"retry/{failed['x.film']}")
    assert (job["kind"], job["line"]) == ("retry", "the index: 1 failed")
    assert change(client, "index?retry=true")["line"] == "the index: 3 unchanged, 2 failed"
    archive.film(films / "x.film", ["red"] * 5)
    assert change(client, f"retry/{failed['x.film']}")["line"] == "the index: 1 indexed"
    failed = client.get("/api/status").json()["failed"]
    assert [video["video"] for video in failed] == ["y.film"]


# Events and the end of jobs


def events(stream):
    """Yield the states and the comments of a stream of server-sent events."""
    for line in stream.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
        elif line:
            yield line


def test_events_follow_a_job_to_its_end(live, library, films):
    with under_way(live, library, films), live.stream("GET", "/api/job/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        states = events(stream)
        first = next(states)  # as for a page that is loaded again
        assert (first["kind"], first["state"], first["total"]) == ("index", "running", 2)
        assert first["video"] == "new.film" and first["done"] == 0
        library.encoder.gate.set()
        followed = [first, *states]  # the stream ends with the job
    assert followed[-1]["state"] == "done" and followed[-1]["line"].startswith(
        "the index: 2 indexed"
    )
    assert (followed[-1]["done"], followed[-1]["total"], followed[-1]["failed"]) == (2, 2, 0)
    assert [state["done"] for state in followed] == sorted(state["done"] for state in followed)


def test_stream_without_a_job_ends(client):
    [state] = events(client.get("/api/job/events"))
    assert state["state"] == "none"


def test_stream_has_a_heartbeat_and_ends_with_its_client(live, library, films, monkeypatch):
    monkeypatch.setattr(jobs, "HEARTBEAT_SECONDS", 0.05)
    is_closed, stream_events = threading.Event(), jobs.Jobs.events

    async def watched(self):
        try:
            async for event in stream_events(self):
                yield event
        finally:
            is_closed.set()

    monkeypatch.setattr(jobs.Jobs, "events", watched)
    with under_way(live, library, films):
        with live.stream("GET", "/api/job/events") as stream:
            states = events(stream)
            assert next(states)["state"] == "running" and next(states) == ":"
            assert not is_closed.is_set()
        assert is_closed.wait(10)
        assert live.get("/api/job").json()["state"] == "running"


def test_one_job_runs_at_a_time_beside_queries(live, library, films):
    with under_way(live, library, films):
        for address in ("index", f"add?path={films}"):
            refused = live.post(f"/api/{address}")
            assert refused.status_code == 409 and "wait" in refused.json()["error"]
        assert "a.film" in names(live)
    assert ended(live)["state"] == "done"


def test_stopped_job_keeps_complete_videos(live, library, films):
    with under_way(live, library, films):
        assert live.post("/api/stop").json()["state"] == "stopping"
    job = ended(live)
    assert job["state"] == "stopped" and "kept" in job["line"]
    assert len(Index.open(library.directory).contents()) < 5
    assert change(live, "index")["state"] == "done"
    assert len(Index.open(library.directory).contents()) == 5
    assert live.post("/api/stop").json()["state"] == "done"  # there is nothing to stop


def test_stop_ends_decoding_processes(index, films, monkeypatch):
    archive.film(films / "hanging.film", ["red"] * 9)
    monkeypatch.setattr(decoding, "PULSE_SECONDS", 0.05)
    pulses = iter(range(15))  # more often than there are files and events

    def pulse():
        if next(pulses, None) is None:
            raise jobs._Stopped

    with pytest.raises(jobs._Stopped):
        extract.index_folder(
            index, archive.Encoder(), workers=1, timeout=9, video=archive.VIDEO, report=print,
            pulse=pulse,
        )  # fmt: skip
    with index.running():  # the lock is free again
        assert "hanging.film" not in index.videos


@pytest.mark.slow  # it takes seconds
def test_job_beside_another_writer_fails_with_one_line(client, library):
    with files.lock(library.directory):
        job = change(client, "index")
    assert job["state"] == "failed" and "another process is writing" in job["line"]
    assert change(client, "index")["state"] == "done"


def test_unexpected_failure_of_a_job_is_one_line(client, library, monkeypatch):
    def fail(pixels):
        raise TypeError

    monkeypatch.setattr(library.encoder, "encode_images", fail)
    archive.film(library.directory.parent / "films" / "new.film", ["red"] * 3)
    job = change(client, "index")
    assert job["state"] == "failed" and "TypeError" in job["line"]


def test_server_stops_its_job_when_it_ends(library, films, monkeypatch):
    stop = jobs.Jobs.stop

    def stop_and_open(self):
        stop(self)
        library.encoder.gate.set()

    monkeypatch.setattr(jobs.Jobs, "stop", stop_and_open)
    with TestClient(build_app(library, manage=True), "http://localhost") as client:
        start_job(client, library, films)
    assert not any(thread.name == "job" for thread in threading.enumerate())
    assert len(Index.open(library.directory).contents()) < 5


def test_forwarded_request_cannot_change_the_index(client):
    assert client.get("/api/job").status_code == 200
    for header in (
        "CF-Connecting-IP", "CF-Ray", "True-Client-IP", "X-Client-IP", "X-Real-IP", "Via",
        "Forwarded", "Tailscale-User-Login", "X-Forwarded-Proto", "X-Original-Host",
        "X-Cluster-Client-Ip", "Fastly-Client-IP",
    ):  # fmt: skip
        assert client.get("/api/job", headers={header: "x"}).status_code == 403, header
        assert client.post("/api/index", headers={header.lower(): ""}).status_code == 403, header


def test_concurrent_tag_changes_wait_for_each_other(live, library):
    id = library.videos()[0].id

    def add_tag(i):
        return live.post(f"/api/tag/{id}", params={"add": f"tag {i}"}).status_code

    with ThreadPoolExecutor(30) as threads:
        assert list(threads.map(add_tag, range(30))) == [200] * 30
    assert len(library.entry(id).tags) == 30


def test_equal_tags_in_different_spellings_are_merged(client, library):
    id = library.videos()[0].id

    def tag(**changes):
        return client.post(f"/api/tag/{id}", params=changes).json()["tags"]

    assert tag(add="Favourite") == ["Favourite"]
    assert tag(add="favourite") == ["favourite"] and tag(drop="FAVOURITE") == []
    decomposed, composed = "Cafe\u0301", "CAF\u00c9"
    tag(add=decomposed)
    assert tag(add=composed) == [composed]
    assert client.get("/api/query", params={"q": "red", "tag": decomposed}).json()["results"]
    assert tag(drop=decomposed.upper()) == []


def many_files(folder):
    """Fill a folder whose listing takes long, and return it."""
    for i in range(20):
        (folder / f"{i}").mkdir(parents=True)
        for j in range(20):
            (folder / f"{i}" / f"{j}").write_bytes(b"x")
    return folder


def test_job_can_be_stopped_while_it_lists_a_folder(live, monkeypatch, tmp_path):
    folder = many_files(tmp_path / "many")
    is_listing, look = threading.Event(), listing.is_video

    def slow(path, pseudo):
        is_listing.set()
        time.sleep(0.05)
        return look(path, pseudo)

    monkeypatch.setattr(listing, "is_video", slow)
    monkeypatch.setattr(extract, "real_video", lambda: archive.VIDEO._replace(find=listing.find))
    live.post("/api/add", params={"path": str(folder)})
    assert is_listing.wait(10)
    stopped = time.monotonic()
    live.post("/api/stop")
    assert ended(live)["state"] == "stopped" and time.monotonic() - stopped < 2


def test_job_can_be_stopped_while_it_reads_a_large_file(live, films, monkeypatch):
    is_reading = threading.Event()
    with (films / "large.film").open("wb") as file:
        file.truncate(2**36)
    digest = files.digest

    def watched(path, pulse):
        is_reading.set()
        return digest(path, pulse)

    monkeypatch.setattr(extract, "digest", watched)
    live.post("/api/index")
    assert is_reading.wait(10)
    stopped = time.monotonic()
    live.post("/api/stop")
    assert ended(live)["state"] == "stopped" and time.monotonic() - stopped < 2


def test_undecodable_name_is_shown_with_replacements(client, films):
    (films / os.fsdecode(b"caf\xe9.film")).write_bytes(b"broken")
    job = change(client, "index")
    assert job["notes"] == ["caf\ufffd.film: is not a film: copy it again"]
