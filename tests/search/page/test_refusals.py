"""Errors as the page takes them: one line, and whose fault."""

import pytest


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
