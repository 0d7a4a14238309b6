"""The described addresses and forms are those that the server has and answers."""

import re

import pytest
from fastapi import FastAPI

from hlformer_jax.search.page import description


@pytest.mark.parametrize(
    ("address", "form"),
    [
        ("/api/query?q=captain%20red", description.Hits),
        ("/api/query?q=nothing", description.Hits),
        ("/api/status", description.Status),
        ("/api/folders", description.Folders),
        ("/api/query", description.Problem),
    ],
)
def test_an_answer_has_the_described_form(client, address, form):
    answer = client.get(address)
    form.model_validate_json(answer.content, strict=True)
    schema = client.get("/api/openapi.json").json()
    described = schema["paths"][address.partition("?")[0]]["get"]["responses"]
    reference = described[str(answer.status_code)]["content"]["application/json"]["schema"]["$ref"]
    assert reference.endswith(f"/{form.__name__}")


def test_the_page_names_every_address_and_parameter_and_needs_no_other_server(client):
    page = client.get("/api/docs")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    for path, methods in client.get("/api/openapi.json").json()["paths"].items():
        assert path in page.text
        for name in (one["name"] for one in methods["get"].get("parameters", ())):
            assert f"<b>{name}</b>" in page.text
    assert not re.search("<script|https?://|style=", page.text)


def test_names_are_escaped():
    server = FastAPI()
    server.get("/x/<b>", responses=description.answers(description.Folders))(lambda: None)
    assert "/x/&lt;b&gt;" in description.page(server)
