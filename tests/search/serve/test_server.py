"""The server of the page: its answers, its queue, its start and its end."""

import errno
import gc
import io
import itertools
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed

import httpx
import page_library
import processes
import pytest
from PIL import Image
from starlette.testclient import TestClient

from hlformer_jax.errors import QueryError
from hlformer_jax.search.cli.options import FIELD_FLAGS
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.serve import app, guard, server


def test_query_returns_videos_moments_and_curves(client, library):
    answer = client.get("/api/query", params={"q": "a blue scene", "k": 2}).json()
    first, second = answer["results"]
    assert first["video"] == "trips/lake/boat ride.mp4" and first["folder"] == "trips/lake"
    assert first["id"] == library.id("boat") and first["duration"] == 12
    assert [(m["start"], m["end"]) for m in first["moments"]] == [(8, 11), (2, 4)]
    assert first["times"] == list(range(12))
    assert first["score"] == max(first["scores"]) == pytest.approx(first["moments"][0]["score"])
    assert second["score"] < first["score"] and answer["seconds"] >= 0


def test_filters_of_folder_and_dates_reach_the_library(client, library):
    filters = {"folder": "trips", "since": "2026-06", "until": "20260615"}
    answer = client.get("/api/query", params={"q": "grey", **filters}).json()
    [hit] = answer["results"]
    assert hit["video"] == "trips/lake/boat ride.mp4"
    assert hit["date"].startswith("2026-06-15T12:00:00") and hit["date_of"] == "file"
    query = library.queries[-1]
    assert (query.folder, query.since, query.until) == ("trips", "2026-06", "20260615")


def test_video_is_tagged_and_filtered_by_tags(client, library):
    garden = library.id("garden")
    tagged = client.post(f"/api/tag/{garden}?add=favourite&add=b").json()
    assert tagged == {"tags": ["b", "favourite"]}
    assert client.post(f"/api/tag/{garden}", params={"drop": "b"}).json() == {"tags": ["favourite"]}
    params = {"q": "grey", "tag": "favourite", "longer": 1, "shorter": 60}
    [hit] = client.get("/api/query", params=params).json()["results"]
    assert hit["id"] == garden and hit["tags"] == ["favourite"]
    assert (library.queries[-1].longer, library.queries[-1].shorter) == (1, 60)
    assert client.get("/api/folders").json()["tags"] == ["favourite"]
    assert client.post("/api/tag/nowhere?add=x").status_code == 404
    crossing = {"Origin": "http://elsewhere.example"}
    assert client.post(f"/api/tag/{garden}?add=x", headers=crossing).status_code == 403
    assert client.get(f"/api/tag/{garden}?add=x").status_code == 405
    for body in ({"json": {"add": ["x"]}}, {"data": {"add": "x"}}, {"content": iter([b"add=x"])}):
        refused = client.post(f"/api/tag/{garden}", **body)
        assert (
            refused.status_code == 400 and "(add, drop) in the address" in refused.json()["error"]
        )
    client.post(f"/api/tag/{garden}?drop=favourite")


def test_frame_of_a_video_is_a_query(client, library):
    like = f"{library.id('garden')}@8.5"
    hits = client.get("/api/query", params={"like": like}).json()["results"]
    assert hits[0]["video"] == "trips/Küche & <b>Herd.mp4" and len(hits) == 2
    assert library.queries[-1].like == (library.id("garden"), 8.5)
    for wrong in ("x", "x@", "@1", "x@-1", "x@1e400"):
        answer = client.get("/api/query", params={"like": wrong})
        assert answer.status_code == 400 and "\n" not in answer.json()["error"]
    assert client.get("/api/query").status_code == 400


def test_sent_picture_is_searched_and_a_huge_one_refused(client, monkeypatch):
    picture = io.BytesIO()
    Image.new("RGB", (8, 8), page_library.COLOURS["violet"]).save(picture, "png")
    content = picture.getvalue()
    hits = client.post("/api/query", content=content).json()["results"]
    assert hits[0]["video"] == "trips/Küche & <b>Herd.mp4"
    assert [(m["start"], m["end"]) for m in hits[0]["moments"]] == [(13, 14)]
    monkeypatch.setattr(app, "MAX_PICTURE_BYTES", len(content) - 1)
    refused = client.post("/api/query", content=content)
    assert refused.status_code == 413 and "\n" not in refused.json()["error"]
    strange = {"Origin": "http://elsewhere.example"}
    assert client.post("/api/query", content=content, headers=strange).status_code == 403


def test_transcript_of_a_video_is_returned(client, library):
    cues = client.get(f"/api/transcript/{library.id('garden')}").json()["cues"]
    assert cues[1] == {"start": 4, "end": 6, "text": "the captain's ship"}
    assert client.get(f"/api/transcript/{library.id('boat')}").json() == {"cues": []}


@pytest.mark.parametrize(
    "address",
    ["/api/transcript/{}", "/api/video/{}", "/api/query?q=a&like={}@1", "/video/{}",
     "/thumbnail/{}", "/cut/{}?start=0&end=1"],
)  # fmt: skip
def test_unknown_or_failed_video_is_refused_with_its_code(client, address):
    for id in ("0" * 16, "f" * 16, "garden.mp4"):
        refused = client.get(address.format(id))
        assert (refused.status_code, refused.json()["code"]) == (404, "video.unknown")


def test_parts_of_a_query_reach_the_library(client, library):
    parts = {"q": "grey", "then": "green", "not": ["red", "blue"], "within": "30", "min_score": "0"}
    answer = client.get("/api/query", params={**parts, "offset": 1, "k": 1}).json()
    assert len(answer["results"]) == 1 and answer["good"] is True
    assert answer["verdict"] == ""
    assert library.queries[-1] == Query(
        "grey", k=1, moments=5, then="green", without=["red", "blue"], within=30, min_score=0,
        offset=1,
    )  # fmt: skip
    wrong = {
        "within": "0", "min_score": "nan", "offset": "-1", "signals": "smell", "then": "x" * 501,
        "not": ["red", " "], "since": "yesterday",
    }  # fmt: skip
    for name, value in wrong.items():
        refused = client.get("/api/query", params={"q": "red", name: value})
        assert refused.status_code == 400 and name in refused.json()["error"]
    assert "visual" in client.get("/api/query?q=red&signals=smell").json()["error"]


def test_unknown_or_repeated_parameter_is_refused(client, library):
    cut = f"/cut/{library.id('garden')}?start=0&end=1"
    for address, error in {
        "/api/query?q=red&tags=sea": "tags: there is no such parameter; did you mean 'tag'?",
        "/api/query?q=red&without=sea": "without: there is no such parameter",
        "/api/query?q=red&k=3&k=5": "k: give it once, not 2 times",
        f"{cut}&margins=3": "margins: there is no such parameter; did you mean 'margin'?",
        "/api/folders?videos=9": "videos: there is no such parameter: give none",
    }.items():
        refused = client.get(address)
        assert refused.status_code == 400 and error in refused.json()["error"]
    tags = client.post(f"/api/tag/{library.id('garden')}?add=a&remove=b")
    assert tags.status_code == 400 and "remove" in tags.json()["error"]
    assert client.get("/api/query?q=red&tag=a&tag=b").status_code == 200
    assert client.get("/?utm=1").status_code == 200


def test_status_counts_videos_and_names_failures(client):
    status = client.get("/api/status").json()
    assert status["encoder"] == "colours-by-name"
    assert (status["videos"], status["failures"], status["seconds"]) == (3, 1, 36)
    failed = {"id": "f" * 16, "video": "broken.mp4", "reason": "holds no video"}
    assert status["failed"] == [failed]
    recent = [entry["video"][:8] for entry in status["recent"]]
    assert recent == ["trips/Kü", "trips/la", "garden.m"]
    assert status["index"] == {"age": None, "rate": 1, "path": "garden.mp4"}
    assert client.get("/api/folders").json() == {
        "folders": ["trips", "trips/lake"], "tags": [], "signals": ["visual", "transcript"],
    }  # fmt: skip


def test_newest_videos_pass_the_filters(client):
    def recent(**filters):
        status = client.get("/api/status", params=filters).json()
        assert status["videos"] == 3  # of the whole index
        return [entry["video"] for entry in status["recent"]]

    [boat] = recent(folder="TRIPS", since="2026-06", until="2026-06-15")
    assert boat == "trips/lake/boat ride.mp4"
    assert recent(folder="trips", longer=13) == ["trips/Küche & <b>Herd.mp4"]
    assert recent(shorter=10) == ["garden.mp4"] and recent(shorter=9) == []
    for name, value, status in (("tag", "sea", 422), ("folder", "x", 422), ("since", "soon", 400)):
        refused = client.get("/api/status", params={name: value})
        assert refused.status_code == status and value in refused.json()["error"]


def test_video_is_sent_completely_or_in_ranges(client, library):
    content = library.entry(library.id("garden")).path.read_bytes()
    address = f"/video/{library.id('garden')}"
    complete = client.get(address)
    assert complete.content == content and complete.headers["content-type"] == "video/mp4"
    assert complete.headers["accept-ranges"] == "bytes"
    for byte_range, expected in (
        ("5-9", content[5:10]),
        ("100-", content[100:]),
        ("-7", content[-7:]),
    ):
        part = client.get(address, headers={"Range": f"bytes={byte_range}"})
        assert part.status_code == 206 and part.content == expected
        assert part.headers["content-range"].endswith(f"/{len(content)}")
    # HTTP ignores a range of an unknown unit, and any range of a HEAD (RFC 9110, 14.2).
    assert client.get(address, headers={"Range": "lines=1-2"}).content == content
    head = client.head(address, headers={"Range": "bytes=5-9"})
    assert head.status_code == 200 and head.content == b""
    assert head.headers["content-length"] == str(len(content))
    page = client.head("/")
    assert page.status_code == 200 and page.content == b""
    assert page.headers["content-length"] == str(len(client.get("/").content))


def test_content_that_the_browser_has_is_not_sent_again(client, library):
    for path in ("/", "/page.css", f"/video/{library.id('garden')}"):
        complete = client.get(path)
        tag = complete.headers["etag"]
        for tags in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            answer = client.get(path, headers={"If-None-Match": tags})
            assert (answer.status_code, answer.content) == (304, b""), (path, tags)
            assert answer.headers["etag"] == tag
        changed = client.get(path, headers={"If-None-Match": '"other"'})
        assert (changed.status_code, changed.content) == (200, complete.content)


@pytest.mark.parametrize(
    "path",
    [
        "/video/../../../../etc/passwd", "/video/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/video/%2e%2e/%2e%2e/etc/passwd", "/video//etc/passwd", "/video/%2fetc%2fpasswd",
        "/video/garden.mp4", "/video/%00", "/video/%ff%fe", "/thumbnail/..%2f..%2fetc%2fpasswd",
        "/cut/..%2fgarden.mp4?start=0&end=1", "/page.css/../server.py", "/server.py",
        "/%2e%2e/server.py", "/openapi.json", "/docs",
    ],
)  # fmt: skip
def test_paths_in_requests_open_no_file(client, path):
    status, headers, body = page_library.raw(client, path)
    assert status == 404 and headers["content-type"] == "application/json"
    assert b'{"error":"' in body and b"root:" not in body and b"\\n" not in body


def test_thumbnail_shows_its_second_and_is_cached(client, library, monkeypatch):
    drawn, draw = [], app.video.thumbnail

    def record(path, at, width):
        drawn.append(at)
        return draw(path, at, width)

    monkeypatch.setattr(app.video, "thumbnail", record)
    address = f"/thumbnail/{library.id('garden')}?t=8.5&width=64"
    first, second = (client.get(address) for _ in range(2))
    assert first.headers["content-type"] == "image/jpeg" and len(drawn) == 1
    picture = Image.open(io.BytesIO(second.content))
    red, green, _ = picture.getpixel((2, 2))
    assert picture.size == (64, 36) and red > 150 and green < 90


def test_cut_is_a_named_download_and_leaves_no_file(library, tmp_path, monkeypatch):
    clips, clip = tmp_path / "clips", tmp_path / "clip.mp4"
    clips.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(clips))
    cut, partial_names = app.video.cut, []

    def fail(path, start, end, out, margin, pulse):
        cut(path, start, end, out, margin, pulse=pulse)
        partial_names.append(out.name)
        raise page_library.RefusedError(f"{str(path)!r} cannot be cut into {str(out)!r}")

    with page_library.running(library) as url:
        address = f"{url}/cut/{library.id('Herd')}"
        answer = httpx.get(f"{address}?start=6&end=9.5&margin=2")
        monkeypatch.setattr(app.video, "cut", fail)
        failed = httpx.get(f"{address}?start=3&end=4")
        remaining = [file for folder in clips.iterdir() for file in folder.iterdir()]
    clip.write_bytes(answer.content)
    assert app.video.probe(clip).duration == pytest.approx(7.5, abs=0.05)
    disposition = answer.headers["content-disposition"]
    assert disposition.startswith("attachment; filename*=utf-8''K%C3%BCche%20")
    assert disposition.endswith("%200m06s-0m09s.mp4")
    assert (failed.status_code, failed.json()) == (
        422,
        {"error": f"'trips/Küche & <b>Herd.mp4' cannot be cut into '{partial_names[0]}'"},
    )
    assert remaining == [] and list(clips.iterdir()) == []


@pytest.mark.parametrize("ended_first", ["client", "server"])
def test_cut_ends_with_its_client_or_its_server(library, monkeypatch, ended_first):
    has_started, has_ended = threading.Event(), threading.Event()

    def cut(path, start, end, out, margin, pulse):
        out.write_bytes(b"a clip")
        clips.append(out)
        has_started.set()
        page_library.work(pulse, lambda seconds_left: has_ended.set())

    clips = []
    monkeypatch.setattr(app.video, "cut", cut)
    address = f"/cut/{library.id('garden')}?start=0&end=5"
    with page_library.running(library) as url, httpx.Client(base_url=url) as client:
        if ended_first == "client":
            with pytest.raises(httpx.ReadTimeout):
                client.get(address, timeout=0.3)
            assert has_ended.wait(5)
        else:
            threading.Thread(target=httpx.get, args=(url + address,), daemon=True).start()
            assert has_started.wait(5)
    assert has_ended.wait(5) and not clips[0].exists()


def test_page_loads_only_from_its_own_server():
    names = {name for name, _ in app.STATIC_FILES.values()}
    for name in names:
        text = (app.STATIC / name).read_text()
        assert not re.search(r"""(src|href|url|import|fetch)\W{1,3}(https?:)?//""", text), name
    declared = tomllib.loads((processes.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert declared["package-data"]["hlformer_jax.search.serve"] == ["static/*"]
    assert {path.name for path in app.STATIC.iterdir()} == names


def test_busy_server_refuses_more_than_its_queue_holds(library):
    video = library.id("garden")
    limits = httpx.Limits(max_connections=40)
    with (
        page_library.running(library) as url,
        httpx.Client(base_url=url, timeout=20, limits=limits) as client,
        ThreadPoolExecutor(25) as threads,
    ):

        def ask():
            return client.get("/api/query", params={"q": "red"})

        library.gate.clear()
        try:
            waiting = [threads.submit(ask) for _ in range(25)]
            # One runs and sixteen wait; further ones are refused at once.
            refused = [done.result() for done in itertools.islice(as_completed(waiting, 10), 8)]
            start = time.monotonic()
            assert client.get("/api/status").status_code == 200
            assert client.get(f"/video/{video}", headers={"Range": "bytes=0-9"}).status_code == 206
            assert client.get(f"/thumbnail/{video}?t=8.5").content[:2] == b"\xff\xd8"
            assert time.monotonic() - start < 5 and sum(done.done() for done in waiting) == 8
        finally:
            library.gate.set()
        assert [answer.status_code for answer in refused] == [503] * 8
        assert refused[0].headers["retry-after"] == "1" and "too many" in refused[0].text
        assert [done.result().status_code for done in waiting].count(200) == 17


@pytest.mark.slow  # it takes seconds
def test_abandoned_search_is_cancelled(library):
    with page_library.running(library) as url, httpx.Client(base_url=url, timeout=20) as client:
        library.gate.clear()
        library.inside.clear()
        try:
            first = threading.Thread(target=client.get, args=("/api/query?q=first",))
            first.start()
            assert library.inside.wait(10)
            with pytest.raises(httpx.ReadTimeout):
                client.get("/api/query?q=overtaken", timeout=0.3)
            time.sleep(0.5)  # the server checks for a disconnection every tenth of a second
        finally:
            library.gate.set()
        first.join()
        assert client.get("/api/query?q=last").status_code == 200
    sentences = ["".join(query.text) for query in library.queries]
    assert "overtaken" not in sentences and sentences[-2:] == ["first", "last"]


def test_occupied_port_is_one_line(library):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(server.ServeError, match=f"port {port} "):
            server.serve(library, port)
    with pytest.raises(server.ServeError, match="70000"):
        server.serve(library, 70000)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "another host"),
        (UnicodeError("label too long"), "another host"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"), "another host"),
        (PermissionError(errno.EACCES, "Permission denied"), "a port from 1024 on"),
        (OSError(errno.EADDRINUSE, "Address already in use"), "another port"),
    ],
)
def test_error_of_listening_has_fitting_advice(library, monkeypatch, error, advice):
    def bind(listener, address):
        raise error

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(server.ServeError, match=rf"of nohost\.invalid \(.+\): choose {advice}"):
        server.serve(library, 80, "nohost.invalid")


@pytest.fixture
def served(library, monkeypatch, capsys):
    """Calls `serve` with a server that does not run; returns its lines, its URL and a client."""
    configs = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: configs.append(self.config))

    def call(**options):
        server.serve(library, 0, **options)
        lines = capsys.readouterr().out.splitlines()
        assert configs[-1].http is guard.Protocol and configs[-1].ws == "none"
        url = re.search(r"http://\S+", lines[0])[0]
        return lines, url, TestClient(configs[-1].app, url.partition("?")[0])

    return call


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_local_server_needs_no_token(served, host):
    lines, url, client = served(host=host)
    assert len(lines) == 1 and "token" not in url
    assert client.get("/api/folders").status_code == 200


def test_serving_closes_no_logging_handler(served, monkeypatch):
    handler, closed = logging.StreamHandler(), []
    monkeypatch.setattr(handler, "close", lambda: closed.append(handler))
    served()
    assert closed == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0"])
def test_server_for_other_machines_prints_a_token(served, host):
    _, url, client = served(host=host, allow_hosts=["nas.local", "*.home.arpa"])
    _, second_url, _ = served(host=host)
    token = url.partition("?token=")[2]
    assert len(token) >= 32 and token not in second_url
    assert client.get("/api/folders").status_code == 401
    header = {"Authorization": f"Bearer {token}"}
    accepted = "nas.local", "NAS.local", "tv.home.arpa:80", "192.168.1.5:8000", "[fe80::1]:8000"
    for name in (*accepted, "evil.example", "192.168.1.5.evil.example", "[fe80::1"):
        answer = client.get("/api/folders", headers={"Host": name, **header})
        assert answer.status_code == (200 if name in accepted else 400), name
    assert "set-cookie" not in client.get("/", headers=header).headers
    page = client.get(url)
    assert page.status_code == 200 and "<!doctype html>" in page.text
    cookie = page.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert client.get("/api/folders").status_code == 200  # the client keeps it, as browsers do


def test_token_may_be_in_a_file_or_absent(served, tmp_path):
    lines, url, client = served(host="0.0.0.0", no_token=True)
    assert "token=" not in url and "without a token" in lines[2]
    other_machines = f"http://{socket.gethostname()}:{url.rpartition(':')[2]}"
    assert lines[1] == f"on other machines it is at {other_machines}"
    assert client.get("/api/folders").status_code == 200
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    for host in ("0.0.0.0", "127.0.0.1"):
        _, url, client = served(host=host, token_file=file)
        assert url.endswith("?token=0123456789abcdef")
        assert client.get("/api/folders").status_code == 401
        assert client.get(url).status_code == 200


@pytest.mark.parametrize(("mode", "open_to_others"), [(0o644, True), (0o602, True), (0o600, False)])
def test_token_file_that_others_can_read_is_reported(tmp_path, capsys, mode, open_to_others):
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    file.chmod(mode)
    assert server._read_token(file) == "0123456789abcdef"
    assert (str(file) in capsys.readouterr().err) == open_to_others


@pytest.mark.parametrize(
    ("options", "is_allowed"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"manage": False}, False),
        ({"allow_hosts": ["nas.local"]}, False),  # for example, the name of a proxy
        ({"allow_hosts": ["nas.local"], "manage": True}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "no_token": True}, False),
        ({"host": "0.0.0.0", "manage": True}, True),
    ],
)
def test_changes_need_this_machine_or_manage(served, options, is_allowed):
    lines, url, client = served(**options)
    client.get(url)  # for the cookie
    assert client.get("/api/status").json()["manage"] is is_allowed
    assert client.get("/api/job").status_code == (200 if is_allowed else 403)
    if "host" in options and options["host"] == "0.0.0.0":
        assert ("any folder of this machine" in lines[-1]) == is_allowed


def test_bad_token_or_host_name_is_one_line(served, tmp_path):
    files = {"empty": b"", "short": b"123", "lines": b"0123456789abcdef\n0", "bytes": b"\xff" * 20}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    wrong = [{"token_file": tmp_path / name} for name in (*files, "missing")]
    wrong += [{"token_file": tmp_path / "short", "no_token": True}, {"host": ""}]
    wrong += [{"host": host, "no_token": True, "manage": True} for host in ("0.0.0.0", "::1")]
    wrong += [{"allow_hosts": [name]} for name in ("*", "http://nas", "nas:80", "", "a b")]
    public = "*.com", "*.co.uk", "*.CO.UK.", "*.github.io", "*.ts.net", "*.local", "*.1"
    wrong += [{"allow_hosts": ["nas.local", name]} for name in public]
    served(allow_hosts=["*.home.arpa", "*.example.com", "*.tail1.ts.net", "com"])
    for options in wrong:
        with pytest.raises(QueryError) as error:
            served(**options)
        assert "\n" not in str(error.value) and "--" not in str(error.value)
        assert error.value.field in options
        assert FIELD_FLAGS[error.value.field] in error.value.phrased(FIELD_FLAGS)


@pytest.mark.slow  # it takes seconds
def test_serve_prints_its_address_and_ends_with_ctrl_c():
    program = (
        "import signal, types\n"
        # A test in the background may have inherited that SIGINT is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from hlformer_jax.search.serve.server import serve\n"
        "library = types.SimpleNamespace(videos=list)\n"
        "serve(library, 0)"
    )
    environment = os.environ | {"PYTHONPATH": str(processes.ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip
    with process:
        try:
            url = process.stdout.readline().split()[4]
            assert url.startswith("http://127.0.0.1:")
            answer = httpx.get(url + "api/folders", timeout=20).json()
            assert (answer["folders"], answer["tags"]) == ([], [])
            place = httpx.URL(url)
            with socket.create_connection((place.host, place.port)) as unfinished:
                unfinished.sendall(b"POST /api/query HTTP/1.1\r\nHost: localhost\r\n")
                unfinished.sendall(b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n")
                assert unfinished.recv(100).startswith(b"HTTP/1.1 100")  # the request has begun
                process.send_signal(signal.SIGINT)
                assert process.wait(15) == 0 and process.stdout.read() == "stopped\n"
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_discarded_server_removes_its_folder_of_clips(library, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = app.build_app(library)
    assert [folder.name.startswith("hlformer-cuts-") for folder in tmp_path.iterdir()] == [True]
    del server  # it has never started, for example because its port was taken
    gc.collect()  # a ResourceWarning would fail the test
    assert not list(tmp_path.iterdir())
    with TestClient(app.build_app(library), "http://localhost"):
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # it takes seconds
def test_hangup_ends_the_server_and_removes_its_folder_of_clips(tmp_path):
    program = (
        "import signal, types\n"
        # A test under nohup may have inherited that SIGHUP is ignored.
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "from hlformer_jax.search.serve.server import serve\n"
        "library = types.SimpleNamespace(videos=list)\n"
        "serve(library, 0)"
    )
    environment = os.environ | {"PYTHONPATH": str(processes.ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = process.stdout.readline().split()[4]
            assert httpx.get(url + "api/folders", timeout=20).is_success  # it has started
            assert len(list(tmp_path.glob("hlformer-cuts-*"))) == 1
            process.send_signal(signal.SIGHUP)
            assert process.wait(15) == -signal.SIGTERM
            assert not list(tmp_path.glob("hlformer-cuts-*"))
        finally:
            process.kill()
