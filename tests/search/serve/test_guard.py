"""Access to the server: hosts, origins, tokens, slow connections; errors as lines of JSON."""

import contextlib
import json
import socket
import time

import page_library
import pytest
from page_library import raw

from hlformer_jax.search.serve import guard

TOKEN = "a-token-of-24-characters"


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        *(({"Host": host}, 400) for host in (
            "evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "192.168.1.5", "",
            "localhost:port",
        )),
        *(({"Origin": origin}, 403) for origin in (
            "https://evil.example", "null", "http://127.0.0.1:1",
        )),
        *(({"Sec_Fetch_Site": site}, 403) for site in ("cross-site", "same-site")),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}, 403),
    ],
)  # fmt: skip
def test_other_hosts_and_origins_are_refused(client, library, headers, refused):
    queries_before = len(library.queries)
    status, answered, body = raw(client, "/api/query?q=red", **headers)
    assert status == refused and list(json.loads(body)) == ["error"]
    assert answered["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answered and len(library.queries) == queries_before


def test_requests_of_the_page_and_links_to_it_are_answered(client):
    port = client.base_url.port
    host = f"localhost:{port}"
    assert raw(client, "/api/folders", Host=host, Origin=f"http://{host}")[0] == 200
    assert raw(client, "/api/folders", Host="[::1]", Sec_Fetch_Site="same-origin")[0] == 200
    assert raw(client, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


def test_every_response_has_security_headers(client, library):
    for path in ("/", "/page.js", "/api/status", f"/video/{library.id('garden')}", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_request_without_the_token_is_refused(library):
    with page_library.running(library, token=TOKEN) as url, page_library.client_of(url) as client:
        for path in ("/", "/page.js", "/api/status", f"/video/{library.id('garden')}", "/nothing"):
            for wrong in (
                {},
                {"Authorization": f"Bearer {TOKEN}x"},
                {"Authorization": TOKEN},
                {"Authorization": b"Bearer \xfc"},
                {"Cookie": f"hlformer-{client.base_url.port}=x"},
            ):
                answer = client.get(path, headers=wrong)
                assert answer.status_code == 401 and TOKEN not in answer.text, (path, wrong)
                assert answer.json()["code"] == "token" and "set-cookie" not in answer.headers
        for path in ("/?token=", "/?token=x", f"/api/status?token={TOKEN}"):
            assert client.get(path).status_code == 401, path
        browser = client.get("/?token=x", headers={"Accept": "text/html,*/*;q=0.8"})
        assert browser.status_code == 401 and browser.text.startswith("<!doctype html>")
        assert "open the address that it printed" in browser.text
        assert browser.headers["content-type"] == "text/html; charset=utf-8"


# ---- connections


def connected(client):
    return contextlib.closing(
        socket.create_connection((client.base_url.host, client.base_url.port), timeout=10)
    )


@pytest.mark.parametrize(
    "beginning",
    [
        pytest.param(b"", id="nothing", marks=pytest.mark.slow),
        pytest.param(b"GET /api/folders HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", id="headers"),
        pytest.param(
            b"GET /api/folders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
            id="body",
            marks=pytest.mark.slow,
        ),
        pytest.param(  # followed by another, slowly
            b"GET /api/folders HTTP/1.1\r\nHost: localhost\r\n\r\n", id="second request"
        ),
    ],
)
def test_slow_connection_is_closed(client, monkeypatch, beginning):
    monkeypatch.setattr(guard, "REQUEST_SECONDS", 0.6)
    with connected(client) as connection:
        connection.sendall(beginning)
        start = time.monotonic()
        connection.settimeout(0.1)
        while time.monotonic() - start < 8:
            try:
                if connection.recv(10_000) == b"":
                    break
            except ConnectionResetError:  # closed before the server read the last byte
                break
            except TimeoutError:
                pass
            with contextlib.suppress(ConnectionError):
                if beginning:
                    connection.send(b"a")  # a byte must not restart the time limit
        assert 0.4 < time.monotonic() - start < 4


@pytest.mark.slow  # it takes seconds
def test_connection_in_use_is_not_closed(client, monkeypatch):
    monkeypatch.setattr(guard, "REQUEST_SECONDS", 0.6)
    with connected(client) as connection:
        for _ in range(3):
            connection.sendall(b"GET /api/folders HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(10_000).startswith(b"HTTP/1.1 200")
            time.sleep(0.35)


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["words", "no host", "TLS", "bad chunk"],
)
def test_malformed_request_is_refused_in_json(client, request_, caplog):
    with connected(client) as connection:
        connection.sendall(request_)
        answer = b""
        while more := connection.recv(10_000):
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") and b"application/json" in head
    assert list(json.loads(body)) == ["error"] and "Traceback" not in caplog.text


# ---- errors


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/query", "q"), ("/api/query?q=%20%00%0a", "q"),
        ("/api/query?q=" + "a" * 501, "q"), ("/api/query?q=red&k=0", "k"),
        ("/api/query?q=red&k=1000000", "k"), ("/thumbnail/ID?t=nan", "t"),
        ("/thumbnail/ID?t=1&width=100000", "width"), ("/cut/ID?start=0&end=1e9", "end"),
        ("/cut/ID?start=1e18&end=1000000000000001024", "start"),
        ("/cut/ID?start=nan&end=1", "start"),
        ("/cut/ID?start=0&end=1&margin=1000", "margin"),
    ],
)  # fmt: skip
def test_parameter_out_of_bounds_is_named(client, library, path, name):
    answer = client.get(path.replace("ID", library.id("garden")))
    assert answer.status_code == 400 and answer.json()["error"].startswith(name)


def test_clip_that_ends_before_it_begins_is_refused(client, library):
    answer = client.get(f"/cut/{library.id('garden')}?start=5&end=2")
    assert answer.json() == {"error": "end: 2 s is not after start, 5 s"}


def test_error_is_one_line_and_crash_has_no_details(client, caplog):
    refused = client.get("/api/query", params={"q": "refuse"})
    assert (refused.status_code, refused.json()) == (422, {"error": "the text is refused"})
    crashed = client.get("/api/query", params={"q": "crash"})
    assert crashed.status_code == 500 and "secret" not in crashed.text
    assert crashed.json()["code"] == "server"
    assert "RuntimeError" in crashed.json()["error"] and "a secret" in caplog.text


def test_refused_method_lists_every_method_of_the_address(client, library):
    id = library.id("garden")
    for path, allowed in (
        ("/page.css", "GET, HEAD"),
        ("/api/query", "GET, POST"),
        ("/api/status", "GET"),
        (f"/video/{id}", "GET, HEAD"),
        (f"/api/tag/{id}", "POST"),
    ):
        answer = client.delete(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed), path


def test_every_error_is_one_line_of_json(client, library):
    garden = library.entry(library.id("garden"))
    video, size = f"/video/{garden.id}", garden.size
    for method, path, headers, status in (
        ("POST", "/api/status", {}, 405),
        ("OPTIONS", "/", {}, 405),
        ("GET", "/nothing", {}, 404),
        ("GET", video, {"Range": f"bytes={size}-"}, 416),
        ("GET", video, {"Range": "bytes=5-2"}, 400),
    ):
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == status, (method, path)
        assert answer.json().keys() <= {"error", "code", "values"}
        assert "\n" not in answer.json()["error"]
        assert answer.json()["error"] and str(library.entries[0].path.parent) not in answer.text
