"""Indexing of a folder with every kind of bad video, on the command line."""

import errno
import json
import os
import shutil
import sys
import threading
from types import SimpleNamespace

import archive
import numpy as np
import pytest
import videos

from hlformer_jax.search.__main__ import main
from hlformer_jax.search.ingest import extract
from hlformer_jax.text import legible, printable

NAMES = [
    'it\'s "quoted".mp4',
    "two\nlines\t.mp4",
    "\x1b[31mred\x1b[0m.mp4",
    "Фильм 映画 🎬 é.mp4",
    "-i --retry.mp4",
    os.fsdecode(b"latin\xe9.mp4"),
]
"""Names of good videos."""

HDR = {"x265-params": "log-level=none:colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc"}
ODD = {
    "interlaced.ts": ("libx264", {"options": {"x264-params": "interlaced=1:log=-1"}}),
    "hdr.mp4": ("libx265", {"pixels": "yuv420p10le", "options": HDR}),
    "odd dimensions.mkv": ("ffv1", {"paint": lambda _: np.zeros((47, 63, 3), np.uint8)}),
    "negative.nut": ("libx264", {"times": [-3 + k / 12 for k in range(36)]}),
    "no timestamps.h264": ("libx264", {}),
    "one frame.mp4": ("libx264", {"frames": 1}),
}
"""Good videos with unusual properties."""

UNLISTED = {"song with a cover", "animated WebP", "folder", "not there"} | {
    kind for kind in videos.PLAYLISTS if kind.endswith("by its suffix")
}
"""Kinds of `videos.REFUSED` that a scan of a folder ignores."""

IN_A_FOLDER = {
    "pipe": "is a pipe, socket or device",
    "dangling link": "is a link to a missing file",
}
"""Reasons that differ in a folder, where the file is not opened."""


def coloured(path, colours):
    """Write a video with a second of each colour."""
    seconds = [np.full((48, 64, 3), archive.COLOURS[colour], np.uint8) for colour in colours]
    return videos.write(path, frames=12 * len(colours), paint=lambda k: seconds[k // 12])


@pytest.fixture
def folder(tmp_path):
    """A folder, with the expected lines for files that fail and for those used in part."""
    root = tmp_path / "videos"
    failed, warned = {}, {}
    for kind, (make, *_, reason) in [*videos.REFUSED.items(), *videos.USED.items()]:
        place = root / kind
        place.mkdir(parents=True)
        name = make(place).relative_to(root).as_posix()
        if kind in videos.USED:
            warned |= {name: reason} if reason != "^$" else {}
        elif kind not in UNLISTED:
            failed[name] = IN_A_FOLDER.get(kind, reason)
    for kind in ("huge_picture", "standing_still", "photograph"):
        (root / kind).mkdir()
        getattr(videos, kind)(root / kind)
    warned["standing_still/a.mkv"] = "2 frames come too late"
    (root / "good").mkdir()
    for name, (codec, settings) in ODD.items():
        videos.write(root / "good" / name, codec, **settings)
    videos.turned(shutil.copy(root / "good" / "one frame.mp4", root / "t.mp4"), (0, 1, -1, 0))
    coloured(root / "good" / "red.mp4", ["black", "red", "black"])
    coloured(root / "good" / "blue.mp4", ["black", "black", "blue"])
    for name in NAMES:
        shutil.copy(root / "good" / "blue.mp4", root / name)
    shutil.copy(root / "good" / "red.mp4", root / "wrong suffix.doc")
    (root / "good" / "loop").symlink_to(root)
    for name in ("forbidden.mp4", "vanishing.mp4", "growing.mp4"):
        shutil.copy(root / "good" / "red.mp4", root / name)
        with open(root / name, "ab") as file:
            file.write(name.encode())  # a content that no other file has
    failed["forbidden.mp4"] = "Permission denied"
    failed["vanishing.mp4"] = "is not there any more"
    failed["growing.mp4"] = "it changed while it was read"
    (root / "forbidden.mp4").chmod(0)
    return SimpleNamespace(root=root, failed=failed, warned=warned)


@pytest.fixture
def search(monkeypatch, capfd):
    """Return a function that runs a command; it returns the status, output and error lines."""
    fake = SimpleNamespace(load=lambda name, report: archive.Encoder())
    monkeypatch.setitem(sys.modules, "hlformer_jax.encoders.hub", fake)

    def call(*arguments):
        capfd.readouterr()
        status = main([*map(str, arguments)])
        out, err = capfd.readouterr()
        return SimpleNamespace(status=status, out=out, lines=err.splitlines())

    return call


def unexpected_lines(lines, reasons):
    """Check that each file has one line with its reason; return the lines of no such file."""
    remaining = list(lines)
    for name, reason in reasons.items():
        matching = [line for line in remaining if line.startswith(f"{printable(name)}: ")]
        assert len(matching) == 1, (name, matching, remaining)
        assert matching[0].isprintable() and videos.says(matching[0], reason), (matching, reason)
        remaining.remove(matching[0])
    return remaining


@pytest.mark.slow  # dozens of videos, several times
def test_each_bad_file_is_reported_and_good_files_are_found(folder, search, monkeypatch, tmp_path):
    root, directory = folder.root, tmp_path / "index"

    def index(*options):
        return search("index", root, f"--index={directory}", *options)

    def query(text):
        options = ["--json", "--k=99", "--ranker=best_frame"]
        return json.loads(search("query", text, f"--index={directory}", *options).out)

    def paths(result):
        return {result["video"], *result["copies"]}

    def all_paths(results):
        return {path for result in results for path in paths(result)}

    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", archive.fail_on_full_disk)
        stopped = index("--workers=0")
    assert stopped.status == 1
    assert stopped.lines[-1] == (
        f"error: the disk of {directory} is full: make room, and repeat the command"
    )
    done = threading.Event()

    def grow():
        while not done.wait(0.005):
            with open(root / "growing.mp4", "ab") as file:
                file.write(b"more")

    def disturbed(path, pulse):
        content = digest(path)
        if path.name == "vanishing.mp4":
            path.unlink()
        if path.name == "forbidden.mp4":  # the superuser may read any file
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return content

    digest = extract.digest
    monkeypatch.setattr(extract, "digest", disturbed)
    recorder = threading.Thread(target=grow)
    recorder.start()
    try:
        first = index("--workers=2", "--retry")
    finally:
        done.set()
        recorder.join()
    assert first.status == 0
    assert not unexpected_lines(first.lines, {**folder.failed, **folder.warned})

    status = json.loads(search("status", f"--index={directory}", "--json").out)
    listed = {failure["video"]: failure["reason"] for failure in status["failures"]}
    assert listed.keys() == folder.failed.keys()
    assert all(videos.says(listed[name], reason) for name, reason in folder.failed.items())
    printed = search("status", f"--index={directory}").out.splitlines()
    assert sum(line.startswith("  failed: ") for line in printed) == len(listed)

    red, blue = query("red"), query("blue")
    assert len(all_paths(red)) == len(all_paths(blue)) == status["videos"]
    assert paths(red[0]) == {"good/red.mp4", "wrong suffix.doc"}
    assert paths(blue[0]) == {"good/blue.mp4", *map(legible, NAMES)}
    for result, start in ((red[0], 1), (blue[0], 2)):
        assert result["score"] > 0.98
        [moment] = result["moments"]
        assert moment["start"] == pytest.approx(start, abs=1e-3)
        assert moment["end"] == pytest.approx(start + 1, abs=1e-2)
    assert all_paths(red) >= {f"good/{name}" for name in ODD}

    second = index("--workers=0", "--retry")
    assert second.status == 0
    reasons = dict(folder.failed)
    del reasons["vanishing.mp4"], reasons["growing.mp4"]  # missing now, and complete now
    assert not unexpected_lines(second.lines, reasons)
    assert (
        f"1 indexed, {status['videos']} unchanged, 1 missing (failed before), {len(reasons)} failed"
        in second.out
    )
    last = index("--workers=0")
    assert last.status == 0 and last.lines == []
    assert f"{len(reasons)} failed before (retry tries them again)" in last.out
    assert search("verify", f"--index={directory}").status == 0
