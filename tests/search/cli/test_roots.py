"""Roots of an index that are moved, offline, unreadable or added."""

import json
import os
from pathlib import Path

import archive
import pytest

from hlformer_jax.search.index import Index


def test_another_folder_is_refused_unless_the_root_is_moved(ask, films, tmp_path):
    films.rename(tmp_path / "elsewhere")
    for folder in (tmp_path / "elsewhere", tmp_path):
        done = ask("index", folder)
        assert done.status == 1 and "--move-root" in done.errors[0]
    offline = ask("query", "red")
    assert offline.status == 0 and "moved root" in offline.errors[0]
    moved = ask("index", tmp_path / "elsewhere", "--move-root")
    assert moved.status == 0 and "3 unchanged" in moved.out
    assert not ask("query", "red").errors


def test_available_root_is_not_moved(ask, films, index, tmp_path):
    archive.folder(tmp_path / "copy")
    before = Index.open(index).roots
    done = ask("index", tmp_path / "copy", "--move-root")
    assert done.status == 1 and str(films) in done.errors[0] and len(done.errors) == 1
    archive.film(tmp_path / "disk" / "d.film", ["blue"] * 7)
    ask("add", tmp_path / "disk")
    done = ask("index", tmp_path / "copy", "--move-root")
    assert done.status == 1 and str(tmp_path / "disk") in done.errors[0]
    assert Index.open(index).roots == before | {"disk": tmp_path / "disk"}


def test_unreadable_root_is_not_moved(ask, films, index, tmp_path, monkeypatch):
    archive.folder(tmp_path / "copy")
    listing = os.scandir

    def failing(place):
        if Path(place) == films:
            raise OSError(5, "Input/output error")
        return listing(place)

    monkeypatch.setattr(os, "scandir", failing)
    assert ask("index", tmp_path / "copy", "--move-root").status == 1
    assert Index.open(index).root == films


def forbid(monkeypatch, folder):
    """Refuse every access to a folder, as for a user without the right to read it."""
    for name in ("stat", "scandir", "open"):
        monkeypatch.setattr(os, name, _refusing(getattr(os, name), f"/{folder}"))


def _refusing(call, folder):
    def refusing(place, *values, **options):
        if folder in str(place):
            raise PermissionError(13, "Permission denied", str(place))
        return call(place, *values, **options)

    return refusing


def test_unreadable_folder_is_not_called_offline(ask, films, index, monkeypatch):
    (films / "b.film").unlink()
    forbid(monkeypatch, "trips")
    done = ask("index", films)
    assert "1 offline (kept; prune drops them), 1 unreadable (kept)" in done.out
    assert not done.errors  # only the real `find` names the folder
    status = ask("status").out
    assert "offline   1 video " in status and "not read  1 video " in status
    offline, unreadable, *_ = ask("query", "red").errors
    assert "1 of 3 videos is offline and left out ('b.film')" in offline
    assert "1 of 3 videos is unreadable and left out ('trips/c.film')" in unreadable


def test_query_of_an_open_library_survives_a_forbidden_folder(index, monkeypatch):
    opened = archive.opened(Index.open(index))
    assert len(opened.query("red")) == 3
    forbid(monkeypatch, "trips")
    results = opened.query("red")
    assert len(results) == 2 and "unreadable" in results.warnings[0]
    forbid(monkeypatch, "my films")
    assert "unreadable" in opened.query("red").warnings[0]


def test_prune_keeps_unreadable_videos(ask, films, index, monkeypatch):
    (films / "b.film").unlink()
    forbid(monkeypatch, "trips")
    done = ask("prune", "--yes")
    assert done.status == 0 and "trips/c.film" in done.errors[0]
    monkeypatch.undo()
    assert set(Index.open(index).videos) == {"a.film", "trips/c.film"}


@pytest.fixture
def disk(ask, tmp_path):
    """A second folder of the index with two films, one named like a film of the first."""
    disk = tmp_path / "disk"
    archive.film(disk / "a.film", ["yellow"] * 4)
    archive.film(disk / "trips" / "d.film", ["blue"] * 7)
    done = ask("add", disk)
    assert done.status == 0 and "2 indexed" in done.out and "'disk'" in done.errors[0]
    return disk


def test_videos_of_two_folders_stay_distinct(ask, films, index, disk, tmp_path):

    def result_names(*arguments):
        return [hit["video"] for hit in json.loads(ask("query", *arguments, "--json").out)]

    assert result_names("yellow", "--k=1") == ["disk//a.film"]
    assert result_names("red", "--k=1") == ["a.film"]
    assert result_names("blue", "--folder=disk/trips") == ["disk//trips/d.film"]
    assert result_names("--like=disk//a.film@1", "--k=1") != ["disk//a.film"]
    for path, name in ((films / "a.film", "a.film"), (disk / "a.film", "disk//a.film")):
        assert Index.open(index).name_of(str(path)) == name
        [entry] = [entry for entry in Index.open(index).entries() if entry.video == name]
        assert entry.path == path and entry.folder == ("disk" if "//" in name else "")
    done = ask("query", "red", f"--export={disk}/a.film.csv")
    assert done.status == 0 and f"{disk}/a.film" in (disk / "a.film.csv").read_text()
    archive.film(disk / "e.film", ["green"] * 9)
    for folders in ([films], [disk], []):
        done = ask("index", *folders)
        assert done.status == 0, done
    assert "6 unchanged" in done.out
    assert ask("remove", "disk//e.film").status == 0
    assert "5 unchanged" in ask("index", films).out
    assert str(disk) in ask("status").out
    assert "removed 2 of 5" in ask("remove", disk).out
    assert Index.open(index).roots == {"": films} and (disk / "a.film").exists()
    assert len(Index.open(index).contents()) == 3


@pytest.mark.parametrize("is_empty", [False, True], ids=["missing", "empty"])
def test_offline_folder_keeps_all_videos(ask, films, index, disk, tmp_path, is_empty):
    (disk / "broken.film").write_bytes(b"broken")
    assert "1 failed" in ask("index", films).out
    before = Index.open(index).videos
    disk.rename(tmp_path / "elsewhere")
    if is_empty:  # like a disk that is not mounted
        disk.mkdir()
    (films / "copy.film").write_bytes((tmp_path / "elsewhere" / "a.film").read_bytes())
    done = ask("index")
    assert done.status == 0 and "2 offline" in done.out
    assert any(f"{disk} is missing" in line for line in done.errors) != is_empty
    assert "missing: 0 videos" in ask("prune").out
    assert "dropped 0" in ask("prune", "--yes").out
    after = Index.open(index).videos

    def facts(record):
        return record.id, record.content, record.stamp, record.state, record.reason

    assert after.keys() - before.keys() == {"copy.film"}
    assert all(facts(after[name]) == facts(record) for name, record in before.items())
    done = ask("query", "yellow", "--k=1", "--json")
    assert [hit["video"] for hit in json.loads(done.out)] == ["copy.film"]
    assert any(("is missing" in line) != is_empty for line in done.errors)
    done = ask("index", tmp_path / "elsewhere", "--move-root")
    assert f"{disk} is now {tmp_path / 'elsewhere'}" in done.errors
    assert done.status == 0 and "6 unchanged" in done.out
    assert Index.open(index).videos == after
    done = ask("index", tmp_path / "third", "--move-root")
    assert done.status == 1


def test_offline_videos_are_kept_until_they_are_pruned(ask, films, index, tmp_path, calls):
    (films / "trips").rename(tmp_path / "away")
    done = ask("index", films)
    assert done.status == 0 and "1 offline" in done.out
    assert "offline   1" in ask("status").out
    listed = ask("prune")
    assert listed.status == 0 and "trips/c.film" in listed.out and "--yes" in listed.out
    frames_before = calls.encoder.seen
    (tmp_path / "away").rename(films / "trips")
    assert "3 unchanged" in ask("index", films).out
    assert calls.encoder.seen == frames_before
    (films / "trips" / "c.film").unlink()
    assert "dropped 1 video; left: 2" in ask("prune", "--yes").out
    assert len(Index.open(index).contents()) == 2
    assert ask("prune", "--yes").status == 0
    films.rename(tmp_path / "unmounted")
    refused = ask("prune", "--yes")
    assert refused.status == 1 and len(Index.open(index).contents()) == 2


def test_prune_keeps_videos_of_a_disk_that_goes_offline(ask, films, index, tmp_path, monkeypatch):
    listed = Index.offline

    def unmounted(self):
        if films.exists():
            films.rename(tmp_path / "unmounted")
        return listed(self)

    monkeypatch.setattr(Index, "offline", unmounted)
    done = ask("prune", "--yes")
    assert done.status == 0 and "cannot read 3 videos, kept" in done.errors[0]
    assert len(Index.open(index).videos) == 3
