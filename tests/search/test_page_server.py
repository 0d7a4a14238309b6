"""The server of the page: what it answers, whom it refuses, and that it stays awake."""

import contextlib
import http.client
import io
import itertools
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime
from types import SimpleNamespace

import httpx
import numpy as np
import page_library
import pytest
from PIL import Image

from hlformer_jax.search.page import answers, guard, server

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return page_library.Library(tmp_path_factory.mktemp("videos"))


@pytest.fixture(scope="module")
def client(library):
    with page_library.running(library) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


def raw(client, path, **headers):
    """Status, headers and body of a request whose path is sent as it stands."""
    url = client.base_url
    connection = http.client.HTTPConnection(url.host, url.port, timeout=10)
    with contextlib.closing(connection):
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def test_a_query_answers_with_videos_moments_and_curves(client, library):
    answer = client.get("/api/query", params={"q": "a blue scene", "k": 2}).json()
    first, second = answer["hits"]
    assert first["video"] == "trips/lake/boat ride.mp4" and first["folder"] == "trips/lake"
    assert first["id"] == library.id("boat") and first["duration"] == 12
    assert [(m["start"], m["end"]) for m in first["moments"]] == [(8, 11), (2, 4)]
    assert first["times"] == list(range(12))
    assert first["score"] == max(first["scores"]) == pytest.approx(first["moments"][0]["score"])
    assert second["score"] < first["score"] and answer["seconds"] >= 0


def test_filters_reach_the_library_as_a_folder_and_as_the_bounds_of_whole_days(client, library):
    filters = {"folder": "trips", "since": "2026-06-15", "until": "2026-06-15"}
    answer = client.get("/api/query", params={"q": "grey", **filters}).json()
    assert [hit["video"] for hit in answer["hits"]] == ["trips/lake/boat ride.mp4"]
    _, _, folder, since, until, _ = library.asked[-1]
    assert folder == "trips" and since == datetime(2026, 6, 15).timestamp()
    assert since + 86399 < until < since + 86400


def test_the_status_counts_what_is_there_and_names_what_failed(client):
    status = client.get("/api/status").json()
    assert status["encoder"] == "colours-by-name"
    assert (status["videos"], status["failures"], status["seconds"]) == (3, 1, 36)
    assert status["failed"] == [{"video": "broken.mp4", "reason": "holds no video"}]
    assert [entry["video"][:8] for entry in status["recent"]] == [
        "trips/Kü",
        "trips/la",
        "garden.m",
    ]
    assert status["index"]["age"] is None and status["index"]["rate"] == 1
    assert client.get("/api/folders").json() == {"folders": ["trips", "trips/lake"]}


def test_a_folder_that_holds_only_folders_can_be_chosen_too():
    entries = [SimpleNamespace(video=video) for video in ("a/b/c.mp4", "a/d.mp4", "e.mp4")]
    assert answers.folders(entries) == ["a", "a/b"]


def test_numbers_that_json_lacks_are_null():
    found = answers.finite({"a": np.float32("nan"), "b": [math.inf, -math.inf, 0.5], 3: {1}})
    assert found == {"a": None, "b": [None, None, 0.5], "3": "{1}"}


def test_a_long_curve_keeps_its_peaks():
    times = np.arange(10_000) / 2
    scores = np.zeros(10_000)
    scores[[0, 7_777, 9_999]] = 1, 3, 2
    scores[5_000] = math.nan
    few, kept = answers.thin(times, scores, 100)
    assert len(few) == len(kept) == 100 and few == sorted(few) and not np.isnan(kept).any()
    assert {7_777 / 2: 3.0, 9_999 / 2: 2.0, 0.0: 1.0}.items() <= dict(
        zip(few, kept, strict=True)
    ).items()
    assert answers.thin(times[:7], scores[:7], 100) == (times[:7].tolist(), scores[:7].tolist())


def test_a_video_is_sent_whole_or_in_ranges(client, library):
    content = library.entry(library.id("garden")).path.read_bytes()
    address = f"/video/{library.id('garden')}"
    whole = client.get(address)
    assert whole.content == content and whole.headers["content-type"] == "video/mp4"
    assert whole.headers["accept-ranges"] == "bytes"
    for asked, expected in (("5-9", content[5:10]), ("100-", content[100:]), ("-7", content[-7:])):
        part = client.get(address, headers={"Range": f"bytes={asked}"})
        assert part.status_code == 206 and part.content == expected
        assert part.headers["content-range"].endswith(f"/{len(content)}")
    beyond = client.get(address, headers={"Range": f"bytes={len(content)}-"})
    assert beyond.status_code == 416
    head = client.head(address)
    assert head.headers["content-length"] == str(len(content)) and head.content == b""


@pytest.mark.parametrize(
    "path",
    [
        "/video/../../../../etc/passwd",
        "/video/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/video/%2e%2e/%2e%2e/etc/passwd",
        "/video//etc/passwd",
        "/video/%2fetc%2fpasswd",
        "/video/garden.mp4",
        "/video/%00",
        "/video/%ff%fe",
        "/thumbnail/..%2f..%2fetc%2fpasswd",
        "/cut/..%2fgarden.mp4?start=0&end=1",
        "/page.css/../server.py",
        "/server.py",
        "/%2e%2e/server.py",
        "/openapi.json",
        "/docs",
    ],
)
def test_no_path_leads_to_a_file(client, path):
    status, headers, body = raw(client, path)
    assert status == 404 and headers["content-type"] == "application/json"
    assert b'{"error":"' in body and b"root:" not in body and b"\\n" not in body


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": "192.168.1.5"},
        {"Host": ""},
        {"Host": "localhost:port"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},
    ],
)
def test_other_hosts_and_origins_are_refused(client, library, headers):
    asked = len(library.asked)
    status, answered, body = raw(client, "/api/query?q=red", **headers)
    assert status == 403 and b'{"error":"' in body
    assert answered["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answered and len(library.asked) == asked


def test_its_own_page_and_links_to_it_are_answered(client):
    port = client.base_url.port
    own = f"localhost:{port}"
    assert raw(client, "/api/folders", Host=own, Origin=f"http://{own}")[0] == 200
    assert raw(client, "/api/folders", Host="[::1]", Sec_Fetch_Site="same-origin")[0] == 200
    assert raw(client, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


def test_a_server_on_all_addresses_is_asked_by_any_address_but_not_by_any_name():
    open_to_all = guard.Guard(None, {"studio"}, addresses=True)
    for host, refused in (
        ("192.168.1.5:8000", False),
        ("[fe80::1]:8000", False),
        ("STUDIO", False),
        ("evil.example", True),
    ):
        scope = {"type": "http", "path": "/", "headers": [(b"host", host.encode())]}
        assert bool(open_to_all.refusal(scope)) == refused, host


def test_every_answer_says_that_nothing_of_another_site_may_be_used(client, library):
    for path in ("/", "/page.js", "/api/status", f"/video/{library.id('garden')}", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/query", "q"),
        ("/api/query?q=", "q"),
        ("/api/query?q=%20%00%0a", "q"),
        ("/api/query?q=" + "a" * 501, "q"),
        ("/api/query?q=red&k=0", "k"),
        ("/api/query?q=red&k=1000000", "k"),
        ("/api/query?q=red&k=many", "k"),
        ("/api/query?q=red&since=yesterday", "since"),
        ("/api/query?q=red&until=9999-12-31", "until"),
        ("/api/query?q=red&until=0001-01-01", "until"),
        ("/thumbnail/ID?t=nan", "t"),
        ("/thumbnail/ID?t=-1", "t"),
        ("/thumbnail/ID?t=1&width=100000", "width"),
        ("/cut/ID?start=2&end=2", "end"),
        ("/cut/ID?start=0&end=1e9", "end"),
        ("/cut/ID?start=0&end=inf", "end"),
        ("/cut/ID?start=0&end=1&margin=1000", "margin"),
    ],
)
def test_a_parameter_out_of_bounds_is_refused_by_its_name(client, library, path, name):
    answer = client.get(path.replace("ID", library.id("garden")))
    assert answer.status_code == 400 and answer.json()["error"].startswith(f"{name}: ")


def test_an_error_of_the_library_is_one_line_and_a_crash_keeps_its_secrets(client, caplog):
    refused = client.get("/api/query", params={"q": "refuse"})
    assert (refused.status_code, refused.json()) == (422, {"error": "the sentence is refused"})
    crashed = client.get("/api/query", params={"q": "crash"})
    assert crashed.status_code == 500 and "secret" not in crashed.text
    assert "RuntimeError" in crashed.json()["error"] and "a secret" in caplog.text
    assert client.post("/api/query").json() == {"error": "use GET"}


def test_what_was_deleted_or_is_no_video_any_more_is_gone(client, library, tmp_path):
    gone = SimpleNamespace(id="a1", video="gone.mp4", folder="", path=tmp_path / "gone.mp4")
    folder = SimpleNamespace(id="a2", video="folder.mp4", folder="", path=tmp_path)
    script = SimpleNamespace(id="a3", video="x.html", folder="", path=tmp_path / "x.html")
    script.path.write_text("<script>alert(1)</script>")
    library.entries += [gone, folder, script]
    try:
        for path in ("/video/a1", "/video/a2", "/thumbnail/a1", "/cut/a1?start=0&end=1"):
            answer = client.get(path)
            assert answer.status_code == 410 and "was deleted" in answer.json()["error"], path
        # A file of any name can be indexed: none is ever a page of this server.
        assert client.get("/video/a3").headers["content-type"] == "application/octet-stream"
    finally:
        del library.entries[-3:]


def test_a_busy_server_answers_others_and_refuses_more_than_it_can_queue(library):
    video = library.id("garden")
    limits = httpx.Limits(max_connections=40)
    with (
        page_library.running(library) as url,
        httpx.Client(base_url=url, timeout=20, limits=limits) as client,
        ThreadPoolExecutor(25) as others,
    ):
        ask = lambda: client.get("/api/query", params={"q": "red"})
        library.gate.clear()
        try:
            waiting = [others.submit(ask) for _ in range(25)]
            # One runs and sixteen wait; those beyond are told so at once.
            refused = [done.result() for done in itertools.islice(as_completed(waiting, 10), 8)]
            begun = time.monotonic()
            assert client.get("/api/status").status_code == 200
            assert client.get(f"/video/{video}", headers={"Range": "bytes=0-9"}).status_code == 206
            assert client.get(f"/thumbnail/{video}?t=8.5").content[:2] == b"\xff\xd8"
            assert time.monotonic() - begun < 5 and sum(done.done() for done in waiting) == 8
        finally:
            library.gate.set()
        assert [answer.status_code for answer in refused] == [503] * 8
        assert refused[0].headers["retry-after"] == "1" and "too many" in refused[0].text
        assert [done.result().status_code for done in waiting].count(200) == 17


def test_a_search_that_nobody_waits_for_is_dropped(library):
    with page_library.running(library) as url, httpx.Client(base_url=url, timeout=20) as client:
        library.gate.clear()
        library.inside.clear()
        try:
            first = threading.Thread(target=client.get, args=("/api/query?q=first",))
            first.start()
            assert library.inside.wait(10)
            with pytest.raises(httpx.ReadTimeout):
                client.get("/api/query?q=overtaken", timeout=0.3)
            time.sleep(0.5)  # the server looks whether anybody is there every tenth of a second
        finally:
            library.gate.set()
        first.join()
        assert client.get("/api/query?q=last").status_code == 200
    sentences = [asked[0] for asked in library.asked]
    assert "overtaken" not in sentences and sentences[-2:] == ["first", "last"]


def test_a_thumbnail_shows_the_second_that_is_asked_for_and_is_made_once(library):
    made = []
    count = lambda path, at, width: made.append(at) or page_library.thumbnail(path, at, width)
    video = SimpleNamespace(thumbnail=count, cut=page_library.cut)
    with page_library.running(library, video) as url:
        address = f"{url}/thumbnail/{library.id('garden')}?t=8.5&width=64"
        first, second = (httpx.get(address) for _ in range(2))
    assert first.headers["content-type"] == "image/jpeg" and len(made) == 1
    picture = Image.open(io.BytesIO(second.content))
    red, green, _ = picture.getpixel((2, 2))
    assert picture.size == (64, 36) and red > 150 and green < 90


def test_a_cut_is_a_download_with_a_name_and_leaves_nothing_behind(library, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def cut(path, start, end, out, margin):
        if start == 3:
            out.write_bytes(b"half")
            raise page_library.QueryError(f"{path.name} cannot be cut")
        page_library.cut(path, start, end, out, margin)

    video = SimpleNamespace(thumbnail=page_library.thumbnail, cut=cut)
    with page_library.running(library, video) as url:
        answer = httpx.get(f"{url}/cut/{library.id('Herd')}?start=66&end=69.5&margin=2")
        failed = httpx.get(f"{url}/cut/{library.id('Herd')}?start=3&end=4")
        left = [file for folder in tmp_path.iterdir() for file in folder.iterdir()]
    assert answer.content == "Küche & <b>Herd.mp4 66.0 69.5 2.0".encode()
    disposition = answer.headers["content-disposition"]
    assert disposition.startswith("attachment; filename*=utf-8''K%C3%BCche%20")
    assert disposition.endswith("%201m06s-1m09s.mp4")
    assert (failed.status_code, failed.json()) == (
        422,
        {"error": "Küche & <b>Herd.mp4 cannot be cut"},
    )
    assert left == [] and list(tmp_path.iterdir()) == []


def test_the_page_needs_nothing_from_elsewhere_and_its_files_are_installed():
    page = ROOT / "hlformer_jax/search/page"
    names = {name for name, _ in server.STATIC.values()}
    for name in names:
        text = (page / name).read_text()
        assert not re.search(r"""(src|href|url|import|fetch)\W{1,3}(https?:)?//""", text), name
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(declared["package-data"]["hlformer_jax.search.page"]) == names


def test_a_port_that_is_taken_is_one_line(library):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(server.ServeError, match=f"port {port} of 127.0.0.1 .*--port"):
            server.serve(library, port, video=page_library.VIDEO)
    with pytest.raises(server.ServeError, match="port 70000 of"):
        server.serve(library, 70000, video=page_library.VIDEO)


def test_serve_says_where_it_is_answers_there_and_ends_with_ctrl_c():
    program = (
        "import types; from hlformer_jax.search.page.server import serve\n"
        "library = types.SimpleNamespace(videos=list)\n"
        "serve(library, 0, tell=lambda line: print(line, flush=True), video=types)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    )
    with process:
        try:
            url = process.stdout.readline().split()[4]
            assert url.startswith("http://127.0.0.1:")
            assert httpx.get(url + "api/folders", timeout=20).json() == {"folders": []}
            process.send_signal(signal.SIGINT)
            assert process.wait(15) == 0 and process.stdout.read() == "stopped\n"
        finally:
            process.kill()
