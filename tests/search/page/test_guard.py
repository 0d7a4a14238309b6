"""Who may ask: hosts, origins, and the headers of every answer."""

import pytest
from page_library import raw

from hlformer_jax.search.page import guard


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


@pytest.mark.usefixtures("unchecked")
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
