"""The manifest: what is damaged in it is one line."""

import json

import pytest

from hlformer_jax.search import manifest
from hlformer_jax.search.errors import DamagedError
from hlformer_jax.search.index import Index


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"format": 2}', b"\xff\xfe", '{"format": 2, "root": 3}'],
)
def test_a_damaged_manifest_is_one_line(index, text):
    path = index.directory / manifest.NAME
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DamagedError, match=r"manifest.json is damaged .*index the folder again"):
        Index.open(index.directory)


@pytest.mark.parametrize(
    ("field", "value"), [("content", "../../x"), ("size", "big"), ("state", "?"), ("stamp", [1])]
)
def test_a_record_that_cannot_be_is_refused(index, field, value):
    path = index.directory / manifest.NAME
    content = json.loads(path.read_text())
    content["videos"]["a.film"][field] = value
    path.write_text(json.dumps(content))
    with pytest.raises(DamagedError, match="is damaged"):
        Index.open(index.directory)
