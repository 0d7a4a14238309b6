"""Files that the page is given: by ids alone, and no longer than they are there."""

import asyncio
from types import SimpleNamespace

import pytest
from starlette.exceptions import HTTPException

from hlformer_jax.errors import UserError
from hlformer_jax.search.page import files


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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("error", [KeyError, IndexError, UserError])
def test_an_unknown_id_is_refused_without_what_the_library_says(error):
    def entry(id):
        raise error("/home/secret/index")

    with pytest.raises(HTTPException) as refused:
        files.find(SimpleNamespace(entry=entry), "x" * 1000)
    assert refused.value.status_code == 404 and "secret" not in refused.value.detail
    assert "'" + "x" * 80 + "'" in refused.value.detail


def test_types_are_those_of_videos_whatever_the_letters_of_a_suffix():
    assert files.media_type("a/b.MP4") == files.media_type("c.m4v") == "video/mp4"
    for name in ("x.html", "x.svg", "mp4", "x.mp4.js", ""):
        assert files.media_type(name) == "application/octet-stream"


@pytest.mark.parametrize("closed", [False, True], ids=["sent", "closed by the browser"])
def test_a_passing_file_is_deleted_whether_or_not_it_could_be_sent(tmp_path, closed):
    path, sent = tmp_path / "clip.mp4", []
    path.write_bytes(b"clip")

    async def receive():
        await asyncio.sleep(60)

    async def send(message):
        if closed:
            raise OSError("the connection was closed")
        sent.append(message.get("body", b""))

    scope = {"type": "http", "method": "GET", "headers": []}
    failed = False
    try:
        asyncio.run(files.Passing(path)(scope, receive, send))
    except* OSError:  # within a group, by the newer versions of Starlette
        failed = True
    assert failed == closed and b"".join(sent) == (b"" if closed else b"clip")
    assert not path.exists()
