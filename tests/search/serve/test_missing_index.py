"""A server whose index is deleted or moved while it runs."""

import asyncio

import pytest
from starlette.testclient import TestClient

from hlformer_jax.errors import SearchError
from hlformer_jax.search.index import Index, MissingIndexError
from hlformer_jax.search.serve.app import build_app

ADDRESSES = [
    "api/query?q=red", "api/query?like={id}@1", "api/status", "api/folders", "api/transcript/{id}",
    "api/roots", "api/video/{id}", "video/{id}", "thumbnail/{id}", "cut/{id}?start=1&end=2",
]  # fmt: skip
CHANGES = ["api/tag/{id}?add=x", "api/remove?id={id}", "api/remove?folder=x", "api/retry/{id}"]

MISSING = "the index index is no longer there: it was deleted or moved"


@pytest.fixture
def client(changing):
    with TestClient(build_app(changing, manage=True), "http://localhost") as client:
        yield client


@pytest.fixture(params=["moved", "emptied"])
def vanish(request, index):
    """Moves the directory of the index away; an unmounted disk leaves an empty directory."""

    def move():
        index.directory.rename(index.directory.with_name("elsewhere"))
        if request.param == "emptied":
            index.directory.mkdir()

    return move


def test_every_address_says_that_the_index_is_missing(client, changing, index, vanish):
    id = client.get("/api/query?q=red").json()["results"][0]["id"]
    vanish()
    for ask, addresses in ((client.get, ADDRESSES), (client.post, CHANGES)):
        for address in addresses:
            answer = ask("/" + address.format(id=id))
            assert answer.status_code == 503, (address, answer.text)
            assert answer.json()["error"].startswith(MISSING)
            assert answer.json()["code"] == "index.missing"
            assert answer.json()["values"] == {"index": "index"}
    assert not (index.directory.exists() and list(index.directory.iterdir()))
    if index.directory.exists():
        index.directory.rmdir()
    index.directory.with_name("elsewhere").rename(index.directory)
    assert len(client.get("/api/query?q=red").json()["results"]) == 3


def test_job_says_that_the_index_is_missing(client, changing, vanish):
    vanish()
    client.post("/api/index")
    for _ in range(400):
        job = client.get("/api/job").json()
        if job["state"] != "running":
            break
    assert job["state"] == "failed" and "is no longer there" in job["line"]


def test_agents_get_an_error_about_the_missing_index(changing, vanish):
    mcp = pytest.importorskip("hlformer_jax.search.serve.mcp")
    tools = mcp.build_server(changing)
    changing.query("red")
    id = changing.videos()[0].id
    vanish()
    for name, arguments in (("search", {"text": "red"}), ("show", {"id": id, "time": 1})):
        with pytest.raises(Exception, match=MISSING):
            asyncio.run(tools.call_tool(name, arguments))


def test_library_says_that_the_index_is_missing(changing, index, vanish):
    changing.query("red")
    open_index = Index.open(index.directory)
    vanish()
    actions = [
        lambda: changing.query("red"), changing.videos, changing.status, changing.ranked,
        lambda: changing.tag("a.film", ["x"]), open_index.summary, lambda: open_index.remove(["x"]),
    ]  # fmt: skip
    for act in actions:
        with pytest.raises(MissingIndexError, match=f"the index {index.directory} is no longer"):
            act()
    with pytest.raises(SearchError, match="is no longer there"), open_index.running():
        pass
    assert not (index.directory.exists() and list(index.directory.iterdir()))
