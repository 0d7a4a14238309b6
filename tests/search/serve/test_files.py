"""Answers of the server: folders, finite scores, curves, indexed files only, their schemas."""

import asyncio
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import page_library
import pytest
from archive import Encoder
from processes import ROOT
from starlette.exceptions import HTTPException

from hlformer_jax import search
from hlformer_jax.errors import DamagedError, UserError
from hlformer_jax.files import jsonable
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.serve import files, redaction, schemas

NAME = os.fsdecode(b"caf\xe9.mp4")
"""A name that is not UTF-8."""


def test_folder_of_folders_can_be_chosen():
    entries = [SimpleNamespace(video=video) for video in ("a/b/c.mp4", "a/d.mp4", "e.mp4")]
    assert schemas.folders(entries) == ["a", "a/b"]


def test_values_that_json_lacks_become_null():
    encoded = jsonable({"a": np.float32("nan"), "b": [math.inf, 0.5], 3: {1}, NAME: NAME})
    assert encoded == {"a": None, "b": [None, 0.5], "3": "{1}", "caf\ufffd.mp4": "caf\ufffd.mp4"}


def test_numbers_keep_six_digits():
    assert jsonable([1.23456789e-7, 0.123456789]) == [1.23457e-7, 0.123457]
    assert jsonable([12345.123456789, -3.0]) == [12345.123457, -3.0]


def test_long_curve_keeps_its_peaks():
    times = np.arange(10_000) / 2
    scores = np.zeros(10_000)
    scores[[0, 7_777, 9_999]] = 1, 3, 2
    scores[5_000] = math.nan
    thin_times, thin_scores = schemas.thin(times, scores, 100)
    assert (
        len(thin_times) == len(thin_scores) == 100
        and thin_times == sorted(thin_times)
        and not np.isnan(thin_scores).any()
    )
    curve = dict(zip(thin_times, thin_scores, strict=True))
    assert curve.items() >= {7_777 / 2: 3.0, 9_999 / 2: 2.0, 0.0: 1.0}.items()
    assert schemas.thin(times[:7], scores[:7], 100) == (times[:7].tolist(), scores[:7].tolist())


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("/srv/my films/a.mp4 is damaged", "a.mp4 is damaged"),
        ("'/srv/my films' is gone: see /srv/my films", "'my films' is gone: see my films"),
        ("'/home/o b/x y.mp4' and --index=/var/i", "'x y.mp4' and --index=i"),
        ("file:/srv/my films/a.mp4: no such file", "file:a.mp4: no such file"),
        ("see http://host:6333/name and 1/2 or and/or", None),
        ("2020/videos/a.mp4 and 'Rome (1)/b.mp4' and trips//videos/c.mp4 are damaged", None),
        ("/videos-2/x/a.mp4 and /videos.old/b.mp4 (/videos/c/d.mp4)", "a.mp4 and b.mp4 (c/d.mp4)"),
    ],
)
def test_absolute_paths_are_shortened_to_their_last_name(line, shown):
    summary = {"folder": "/srv/my films", "folders": {"more": "/videos"}, "videos": 3}
    assert redaction.without_paths(line, summary) == (shown or line)


def test_relative_paths_of_the_index_are_shortened_too(index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    directory = index.directory.relative_to(tmp_path.parent)
    library = search.open(directory, encoder=Encoder())
    summary = redaction.summarise(library, clips=Path("some/clips"))
    for line, shown in {
        f"{directory}/index.db is damaged: see --index={directory}":
            "index.db is damaged: see --index=index",
        f"some/clips/a.mp4 exists, not x/{directory} or {directory}-1":
            f"a.mp4 exists, not x/{directory} or {directory}-1",
    }.items():  # fmt: skip
        assert redaction.without_paths(line, summary) == shown
    assert schemas.status(library, False, Query("newest"))["index"]["index"] == "index"

    def fail(*_):
        raise DamagedError(f"{directory}/index.db and {directory} are damaged")

    monkeypatch.setattr(library, "query", fail)
    monkeypatch.setattr(library, "status", fail)
    with page_library.running(library) as url, page_library.client_of(url) as client:
        refused = client.get("/api/query?q=red")
    assert refused.json() == {"error": "index.db and index are damaged"}


# ---- files: only the indexed ones


@pytest.fixture
def archive(tmp_path):
    """A folder and its library; `add` adds a file to both as if it was indexed now."""
    root = tmp_path / "root"
    (root / "trips").mkdir(parents=True)
    entries = {}

    def add(video, state="indexed", content=b"film"):
        path = root / video
        path.write_bytes(content)
        about = path.stat()
        entries[video] = SimpleNamespace(
            id=video, video=video, path=path, state=state, size=about.st_size,
            modified=about.st_mtime_ns / 1e9,
        )  # fmt: skip
        return path

    return SimpleNamespace(root=root, add=add, entry=entries.__getitem__, outside=tmp_path)


def refusal(archive, id):
    with pytest.raises(HTTPException) as refused:
        files.open_video(archive, id)
    assert str(archive.root) not in refused.value.detail
    return refused.value.status_code


@pytest.mark.usefixtures("unchecked")
def test_served_file_is_the_indexed_file(archive):
    path = archive.add("trips/a.mp4", content=b"one")
    file = files.open_video(archive, "trips/a.mp4")
    path.unlink()
    path.write_bytes(b"two")  # the open file keeps the former content
    assert file.path.read_bytes() == b"one" and file.media_type == "video/mp4"
    assert refusal(archive, "trips/a.mp4") == 410
    descriptor = file._descriptor
    del file
    with pytest.raises(OSError):
        os.fstat(descriptor)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", ["link", "folder link", "pipe", "folder", "other", "nothing"])
def test_replaced_file_is_refused(archive, kind):
    path = archive.add("trips/a.mp4")
    secret = archive.outside / "a.mp4"
    path.rename(secret)  # with the same size and time
    if kind == "link":
        path.symlink_to(secret)
    elif kind == "folder link":
        path.parent.rmdir()
        path.parent.symlink_to(archive.outside)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "other":
        path.write_bytes(b"not the film")
    assert refusal(archive, "trips/a.mp4") == (403 if "link" in kind else 410)


@pytest.mark.usefixtures("unchecked")
def test_file_of_a_second_folder_is_served_from_it(archive):
    path = archive.add("trips/a.mp4")
    entry = archive.entry("trips/a.mp4")
    entry.video = "disk//a.mp4"
    assert files.open_video(archive, "trips/a.mp4").path.read_bytes() == b"film"
    path.rename(archive.root / "a.mp4")
    path.symlink_to(archive.root / "a.mp4")  # out of the second folder, trips
    assert refusal(archive, "trips/a.mp4") == 403


@pytest.mark.usefixtures("unchecked")
def test_link_in_the_folder_is_followed_but_not_a_loop(archive):
    path = archive.add("a.mp4")
    path.rename(archive.root / "trips" / "kept.mp4")
    path.symlink_to("trips/kept.mp4")
    assert files.open_video(archive, "a.mp4").path.read_bytes() == b"film"
    path.unlink()
    path.symlink_to("a.mp4")
    assert refusal(archive, "a.mp4") == 410


@pytest.mark.usefixtures("unchecked")
def test_unknown_id_is_refused_without_details():
    def entry(id):
        raise UserError("/home/secret/index")

    with pytest.raises(HTTPException) as refused:
        files.open_video(SimpleNamespace(entry=entry), "x")
    assert refused.value.status_code == 404 and "secret" not in refused.value.detail


def test_html_file_is_never_served_as_a_page(client, replaced, tmp_path):
    path = tmp_path / "x.HTML"
    path.write_text("<script>alert(1)</script>")
    id = replaced("garden", path, video=path.name)
    assert client.get(f"/video/{id}").headers["content-type"] == "application/octet-stream"
    failed = client.get(f"/thumbnail/{id}")
    assert failed.status_code == 422 and str(tmp_path) not in failed.text


def test_file_name_that_is_not_text_is_addressed_by_id(rendered):
    library = page_library.Library(rendered)
    entry = library.entries[0]
    path = entry.path.with_name(NAME)
    os.link(entry.path, path)
    library.change(entry.id, video=NAME, folder=NAME[:-4], path=path)
    library.change(library.entries[-1].id, video=NAME, reason=NAME)
    library.colours[NAME] = library.colours["garden.mp4"]
    shown = "caf\ufffd.mp4"
    try:
        with page_library.running(library) as url, page_library.client_of(url) as client:
            status = client.get("/api/status").json()
            assert status["failed"][0]["video"] == status["failed"][0]["reason"] == shown
            assert shown in [video["video"] for video in status["recent"]]
            hits = client.get("/api/query?q=green").json()["results"]
            assert (hits[0]["video"], hits[0]["id"]) == (shown, entry.id)
            assert client.get("/api/folders").status_code == 200
            assert client.get(f"/video/{entry.id}", headers={"Range": "bytes=0-9"}).is_success
            assert client.get(f"/thumbnail/{entry.id}").is_success
            cut = client.get(f"/cut/{entry.id}?start=0&end=1")
            assert "caf%EF%BF%BD" in cut.headers["content-disposition"]
            path.unlink()
            assert shown in client.get(f"/video/{entry.id}").json()["error"]
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("closed", [False, True], ids=["sent", "closed by the browser"])
def test_temporary_file_is_deleted_even_after_an_error(tmp_path, closed):
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
        asyncio.run(files.TemporaryFileResponse(path)(scope, receive, send))
    except* OSError:  # within a group, by the newer versions of Starlette
        failed = True
    assert failed == closed and b"".join(sent) == (b"" if closed else b"clip")
    assert not path.exists()


@pytest.mark.parametrize(
    ("address", "form"),
    [
        ("/api/query?q=captain%20red", schemas.Results),
        ("/api/query?q=nothing", schemas.Results),
        ("/api/status", schemas.Status),
        ("/api/folders", schemas.Folders),
        ("/api/query", schemas.Problem),
        ("/api/job", schemas.Problem),  # this client may not change the index
    ],
)
def test_answer_matches_its_schema(client, address, form):
    answer = client.get(address)
    form.model_validate_json(answer.content, strict=True)
    schema = client.get("/api/openapi.json").json()
    described = schema["paths"][address.partition("?")[0]]["get"]["responses"]
    described = described.get(str(answer.status_code), described["default"])
    assert described["content"]["application/json"]["schema"]["$ref"].endswith(f"/{form.__name__}")


def test_manual_names_every_field_of_a_query():
    manual = (ROOT / "docs" / "search" / "programs.md").read_text(encoding="utf-8")
    forms = (schemas.Results, schemas.Result, schemas.Moment, schemas.Passage)
    assert not {x for form in forms for x in form.model_fields if f'"{x}"' not in manual}


@pytest.mark.parametrize(
    "address", ["/video/{id}", "/thumbnail/{id}", "/cut/{id}", "/api/job/events"]
)
def test_schemas_of_files_and_events_have_only_errors(client, address):
    schema = client.get("/api/openapi.json").json()
    described = schema["paths"][address]["get"]["responses"]
    assert "content" not in described.pop("200")
    [error] = described.values()
    [(form, reference)] = error["content"].items()
    assert form == "application/json" and reference["schema"]["$ref"].endswith("/Problem")
    assert "HTTPValidationError" not in schema["components"]["schemas"]


def test_picture_of_a_query_has_a_schema(client):
    query = client.get("/api/openapi.json").json()["paths"]["/api/query"]
    assert "image/*" in query["post"]["requestBody"]["content"]
    assert "requestBody" not in query["get"]
