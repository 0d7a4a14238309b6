"""The server of the page: what its addresses answer, and how it begins and ends."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from datetime import datetime
from types import SimpleNamespace

import httpx
import page_library
import processes
import pytest
from PIL import Image

from hlformer_jax.search.page import server


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
    status, headers, body = page_library.raw(client, path)
    assert status == 404 and headers["content-type"] == "application/json"
    assert b'{"error":"' in body and b"root:" not in body and b"\\n" not in body


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
    page = processes.ROOT / "hlformer_jax/search/page"
    names = {name for name, _ in server.STATIC.values()}
    for name in names:
        text = (page / name).read_text()
        assert not re.search(r"""(src|href|url|import|fetch)\W{1,3}(https?:)?//""", text), name
    declared = tomllib.loads((processes.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
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
        "import signal, types\n"
        # Ours may have been started in the background, where it is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from hlformer_jax.search.page.server import serve\n"
        "library = types.SimpleNamespace(videos=list)\n"
        "serve(library, 0, tell=lambda line: print(line, flush=True), video=types)"
    )
    environment = os.environ | {"PYTHONPATH": str(processes.ROOT)}
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
