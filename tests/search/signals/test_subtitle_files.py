"""Subtitle files: matching to videos, reading, and reports of unusable files."""

import errno
import json
import os
import time
import unicodedata

import archive
import av
import pytest
import videos

from hlformer_jax.search.__main__ import main
from hlformer_jax.search.cli import index as index_commands
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest import decoding, extract
from hlformer_jax.search.signals.transcript import sidecars, transcripts

SUFFIXES = frozenset({".srt", ".vtt", ".sub"})
VIDEO = archive.SUBTITLED._replace(
    texts=archive.SUBTITLED.texts._replace(suffixes=SUFFIXES, video_suffixes=frozenset({".film"}))
)


def owner(videos, file, **options):
    """Return the videos to which a file belongs, and why it is left out."""
    matches = sidecars.match(sidecars.VideoNames(videos), [file], SUFFIXES, **options)
    owners = [video for video, names in matches.of_video.items() if file in names]
    return owners, matches.left_out.get(file, "")


@pytest.mark.parametrize(
    ("video", "file"),
    [
        *(("a.mp4", f"a{words}.srt") for words in (
            "", ".en", ".English", ".sdh", ".en-US.forced", ".mp4", ".mp4.en", ".pt_BR", ".zh-Hans",
            ".es-419", ".eng.2", ".日本語", "_en", "-fr", " (English)", " - English", ".[ger]",
            ".Portuguese (Brazil)", ".en.hi", ".track3.eng", ".EN", ".fr.commentary", ".Français",
            ".turkce", ".yue", ".mul.forced",
        )),
        ("UP.mp4", "up.SRT"),
        ("up.MP4", "UP.en.srt"),
        ("Straße.mkv", "STRASSE.srt"),
        ("Trip. Day 1.mov", "Trip. Day 1.nl.srt"),
        ("a.b.c.mp4", "a.b.c.vtt"),
        (unicodedata.normalize("NFD", "Café.mp4"), unicodedata.normalize("NFC", "Café.de.srt")),
        ("100% [x] (1).mp4", "100% [x] (1).en.srt"),
    ],
)  # fmt: skip
def test_subtitle_name_belongs_to_its_video(video, file):
    assert owner([video, "other.mp4"], file) == ([video], "")


@pytest.mark.parametrize(
    ("videos", "file", "expected"),
    [
        (["holiday.mp4", "holiday.new.mp4"], "holiday.new.srt", "holiday.new.mp4"),
        (["holiday.mp4", "holiday.new.mp4"], "holiday.new.en.srt", "holiday.new.mp4"),
        (["GH01.mp4", "GH01.cut.mp4"], "GH01.cut.forced.srt", "GH01.cut.mp4"),
        (["a.mp4", "a.en.mp4"], "a.en.srt", "a.en.mp4"),
        (["a.mp4", "a.en.mp4"], "a.fr.srt", "a.mp4"),
        (["a.mp4", "a.mkv"], "a.mkv.srt", "a.mkv"),
        (["day 1.mp4", "day 1 (2).mp4"], "day 1 (2).srt", "day 1 (2).mp4"),
        (["A.mp4", "a.mp4"], "a.en.srt", "a.mp4"),
        (["1.mp4", "1-1.mp4"], "1-1_en.srt", "1-1.mp4"),
    ],
)
def test_longest_video_name_wins(videos, file, expected):
    assert owner(videos, file) == ([expected], "")


@pytest.mark.parametrize(
    "words",
    [
        ".new",
        ".may",
        ".2",
        ".part1",
        " en",
        "2",
        ".2024",
        ".original",
        ".mkv",
        ".final.cut",
    ],
)
def test_file_with_unknown_words_is_refused_with_a_reason(words):
    owners, reason = owner(["holiday.mp4"], f"holiday{words}.srt")
    assert owners == [] and reason
    assert words == "2" or words.strip(".- ")[:60] in reason


def test_videos_of_one_stem_share_a_file():
    assert owner(["a.mp4", "a.mkv"], "a.en.srt") == (["a.mkv", "a.mp4"], "")


def test_xml_without_a_video_is_not_named():
    names = sidecars.VideoNames(["a.mp4"])
    files = ["a.xml", "a.de.xml", "a.meta.xml", "b.xml"]
    matches = sidecars.match(names, files, frozenset({".xml"}))
    assert matches.of_video == {"a.mp4": ["a.de.xml", "a.xml"]} and not matches.left_out


def test_xml_without_cues_is_not_named(tmp_path):
    path = tmp_path.resolve() / "a.xml"
    path.write_text("<NonRealTimeMeta/>")
    task = transcripts.SubtitleTask(path, tmp_path / "a.mp4")
    result = decoding._read_subtitles(task, extract.real_video().texts)
    assert not result.cues and not result.problem


def test_pictures_and_unread_formats_are_named():
    pictures, coded = ["a.idx", "a.sub", "b.en.sup"], ["b.mcc"]
    matches = sidecars.match(
        sidecars.VideoNames(["a.mp4", "b.mp4"]),
        sidecars.subtitle_names([*pictures, *coded, "b.sub", "._b.srt"], SUFFIXES),
        SUFFIXES,
    )
    assert matches.of_video == {"b.mp4": ["b.sub"]}
    assert sorted(matches.left_out) == sorted([*pictures, *coded])
    assert "VobSub" in matches.left_out["a.sub"] and ".sup" in matches.left_out["b.en.sup"]
    for name, reason in matches.left_out.items():
        assert "convert it to SubRip (.srt)" in reason
        assert reason.endswith(" by OCR") == (name in pictures)


@pytest.mark.parametrize(
    "name",
    [
        "01.en" + "_ab" * 100_000 + " (1).srt",
        "01" + ".en" * 100_000 + ".srt",
        "01" + "." * 300_000 + "srt",
        "01.en-" + "ab-" * 100_000 + "!.srt",
        "01" + " (" * 100_000 + ".srt",
        "01." + "ß" * 300_000 + ".srt",
    ],
    ids=range(6),
)
def test_hostile_names_are_matched_in_linear_time(name):
    started = time.perf_counter()
    owners, reason = owner(["01.mp4", *(f"{'0' * n}1.mp4" for n in range(200))], name)
    assert (
        time.perf_counter() - started < 1
    )  # measured: 0.03 s; a pattern with backtracking needs years
    assert owners == [] and reason


def test_time_is_linear_in_the_files_of_a_folder():
    def seconds(count):
        names = sidecars.VideoNames(f"video {i}.mp4" for i in range(count))
        started = time.process_time()
        matches = sidecars.match(names, [f"video {i}.en.srt" for i in range(count)], SUFFIXES)
        assert len(matches.of_video) == count
        return time.process_time() - started

    few, many = min(seconds(500) for _ in range(3)), seconds(4000)
    assert many < 30 * few  # 8 if linear, 64 if quadratic


# In an index


def write(path, text="hello there"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([(1, 3, text)]))
    return path


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "films"
    for i, name in enumerate(("a.film", "holiday.film", "holiday.new.film")):
        archive.film(folder / name, ["red"] * (4 + i))
    return folder


def fill(index, **options):
    return archive.fill(Index.open(index.directory), **{"video": VIDEO, **options})[1]


def texts_by_video(index):
    """Return the texts of the cues of each video."""
    index = Index.open(index.directory)
    texts = {}
    for name, record in index.videos.items():
        transcript = transcripts.load(index, record.content) if record.content else None
        texts[name] = [text for *_, text in transcript.cues(name)] if transcript else []
    return texts


def test_folders_of_subtitles_are_read(tmp_path, root):
    write(root / "Subs" / "a.en.srt", "beside a")
    write(root / "Subs" / "holiday.new" / "2_English.srt", "of its folder")
    write(root / "Subs" / "holiday.cut.srt")
    write(root / "Subs" / "English.srt")  # three videos are beside it
    archive.film(root / "single" / "only.film", ["blue"])
    write(root / "single" / "subtitles" / "2_English.srt", "of the only video")
    index = archive.create(tmp_path / "index", root)
    lines = fill(index)
    assert texts_by_video(index) == {
        "a.film": ["beside a"],
        "holiday.film": [],
        "holiday.new.film": ["of its folder"],
        "single/only.film": ["of the only video"],
    }
    assert [line for line in lines if "Subs/holiday.cut.srt" in line]
    left_out = {problem.file for problem in transcripts.problems(index)}
    assert left_out == {"Subs/holiday.cut.srt", "Subs/English.srt"}


def test_useless_subtitle_files_are_reported_once_and_listed(tmp_path, root, capsys, monkeypatch):
    monkeypatch.setattr(index_commands, "reload_encoder", lambda *_: archive.Encoder())
    (root / "a.srt").write_text("[]")
    (root / "a.vtt").write_text("broken")
    write(root / "holiday.cut.srt")
    write(root / "unrelated.srt")
    index = archive.create(tmp_path / "index", root)
    lines = fill(index)
    line_by_file = {line.partition(":")[0]: line for line in lines}
    assert set(line_by_file) == {
        "a.srt",
        "a.vtt",
        "holiday.cut.srt",
    }  # `status` alone lists the last
    assert "no cue" in line_by_file["a.srt"] and "broken" in line_by_file["a.vtt"]
    assert fill(index) == []
    assert main(["status", f"--index={index.directory}"]) == 0
    output = capsys.readouterr().out
    assert "4 files" in output and all(name in output for name in (*line_by_file, "unrelated.srt"))
    assert main(["status", f"--index={index.directory}", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["subtitles"]
    assert {problem["file"] for problem in listed} == {*line_by_file, "unrelated.srt"}
    # A repaired file is read, and its problem is dropped.
    write(root / "a.srt", "repaired")
    (root / "a.vtt").unlink()
    assert fill(index) == [] and texts_by_video(index)["a.film"] == ["repaired"]
    assert len(transcripts.problems(index)) == 2
    for path in root.glob("*.srt"):
        path.unlink()
    fill(index)
    assert transcripts.problems(index) == []


def test_subtitles_of_failed_videos_are_kept(tmp_path, root):
    (root / "holiday.new.film").write_bytes(b"broken")
    write(root / "holiday.new.srt")
    write(root / "holiday.lost.srt")
    index = archive.create(tmp_path / "index", root)
    fill(index)
    assert texts_by_video(index)["holiday.film"] == []
    assert [problem.file for problem in transcripts.problems(index)] == ["holiday.lost.srt"]


def test_links_are_followed_only_below_the_root(tmp_path, root):
    secret = write(tmp_path / "elsewhere" / "secret.srt", "secret")
    (root / "a.srt").symlink_to(secret)
    (root / "Subs").symlink_to(secret.parent)
    os.link(secret, secret.parent / "a.en.srt")
    write(root / "texts" / "words.srt", "within")
    (root / "holiday.srt").symlink_to(root / "texts" / "words.srt")
    (root / "holiday.de.srt").symlink_to("nowhere.srt")
    index = archive.create(tmp_path / "index", root)
    output = "\n".join(fill(index))
    assert texts_by_video(index) == {
        "a.film": [],
        "holiday.film": ["within"],
        "holiday.new.film": [],
    }
    for name in ("a.srt", "Subs/a.en.srt"):
        assert f"{name}: it is a link out of the indexed folder" in output
    assert "holiday.de.srt: it is a link to a missing file" in output


SRT = "1\n00:00:01,000 --> 00:00:02,000\nHello\n"


def with_picture_track(path):
    """Write a video whose one track of subtitles is VobSub by its header."""
    source = path.with_suffix(".srt")
    source.write_text(SRT)
    film = videos.ordinary(path.parent)
    with av.open(str(film)) as pictures, av.open(str(source)) as words:
        with av.open(str(path), "w") as out:
            streams = [pictures.streams[0], words.streams[0]]
            copies = [out.add_stream_from_template(stream) for stream in streams]
            for stream, copy in zip(streams, copies, strict=True):
                for packet in stream.container.demux(stream):
                    if packet.dts is not None:
                        packet.stream = copy
                        out.mux(packet)
    film.unlink()
    source.unlink()
    # A string of Matroska may end with zeros.
    path.write_bytes(path.read_bytes().replace(b"S_TEXT/UTF8", b"S_VOBSUB\0\0\0"))
    return path


def test_tracks_of_pictures_matter_only_without_other_subtitles(tmp_path):
    root = tmp_path.resolve() / "films"
    root.mkdir()
    path = with_picture_track(root / "a.mkv")
    (root / "b.mkv").write_bytes(path.read_bytes())  # a copy
    index = archive.create(tmp_path / "index", root)
    real = extract.real_video()

    def listed():
        archive.fill(index, video=real)
        return [problem.file for problem in transcripts.problems(index)]

    assert listed() == ["a.mkv"]
    (root / "a.srt").write_text(SRT)
    assert listed() == ["b.mkv"]
    (root / "b.srt").write_text(SRT)
    assert listed() == []
    (root / "a.srt").unlink()
    assert listed() == ["a.mkv"]


def test_file_that_becomes_a_link_is_not_read(tmp_path, root):
    task = transcripts.SubtitleTask(write(root / "a.srt"), root / "a.film")
    [read] = decoding.SubtitleJob(VIDEO.texts).events(task)
    assert read.cues and not read.problem
    task.path.unlink()
    task.path.symlink_to(write(tmp_path / "secret.srt", "secret"))
    [read] = decoding.SubtitleJob(VIDEO.texts).events(task)
    assert read.cues == () and "now a link" in read.problem and not read.is_final


def test_special_files_are_never_opened(tmp_path, root):
    os.mkfifo(root / "a.srt")
    (root / "holiday.srt").mkdir()
    index = archive.create(tmp_path / "index", root)
    output = "\n".join(fill(index))
    assert "a.srt: it is a folder, pipe" in output and "holiday.srt: it is a folder, pipe" in output


def test_file_of_the_same_size_and_time_is_read_again(tmp_path, root):
    path = write(root / "a.srt", "first")
    index = archive.create(tmp_path / "index", root)
    fill(index)
    before = os.stat(path)
    time.sleep(0.02)  # a tick of the clock of files is 4 ms
    write(path, "FIRST")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_size == before.st_size
    fill(index)
    assert texts_by_video(index)["a.film"] == ["FIRST"]
    # Another file with the same dates that replaces it.
    replacement = write(root / "other", "third")
    os.utime(replacement, ns=(before.st_atime_ns, before.st_mtime_ns))
    replacement.replace(path)
    fill(index)
    assert texts_by_video(index)["a.film"] == ["third"]


def unreadable(monkeypatch, target, name="scandir"):
    """Let a call of `os` on a path fail with an I/O error; return a function that ends this."""
    call = getattr(os, name)

    def failing(path, *arguments, **options):
        if os.fspath(path) == os.fspath(target):
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return call(path, *arguments, **options)

    monkeypatch.setattr(os, name, failing)
    return lambda: monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("call", ["scandir", "lstat", "open"])
def test_io_error_keeps_the_cues_of_subtitles(tmp_path, root, monkeypatch, call):
    path = write(root / "a.srt", "kept")
    index = archive.create(tmp_path / "index", root)
    fill(index)
    os.utime(path)  # so that it must be read again
    file = _failing if call == "open" else VIDEO.texts.file
    end = unreadable(monkeypatch, root if call == "scandir" else path, call)
    lines = fill(index, video=VIDEO._replace(texts=VIDEO.texts._replace(file=file)))
    assert texts_by_video(index)["a.film"] == ["kept"]
    if call == "scandir":  # named by `find` of videos
        assert lines == [] == transcripts.problems(index)
    else:
        assert [line for line in lines if os.strerror(errno.EIO) in line]
        assert os.strerror(errno.EIO) in transcripts.problems(index)[0].reason
    end()
    write(path, "again")
    assert fill(index) == [] and texts_by_video(index)["a.film"] == ["again"]
    assert transcripts.problems(index) == []


def _failing(path, video=None):
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_subtitles_beside_an_absent_copy_stay(tmp_path, root, monkeypatch):
    disk = tmp_path / "disk"
    write(disk / "copy.srt", "beside the copy")
    (disk / "copy.film").write_bytes((root / "a.film").read_bytes())
    index = archive.create(tmp_path / "index", root)
    archive.fill(index, video=VIDEO, further=[disk])
    [copy] = (name for name in index.videos if name.endswith("copy.film"))
    assert (
        texts_by_video(index)[copy] == ["beside the copy"] and texts_by_video(index)["a.film"] == []
    )
    end = unreadable(monkeypatch, disk / "copy.film", "stat")
    fill(index)
    assert texts_by_video(index)[copy] == ["beside the copy"]
    end()
    disk.rename(tmp_path / "unplugged")
    fill(index)
    assert texts_by_video(index)[copy] == ["beside the copy"]
    (tmp_path / "unplugged" / "copy.srt").unlink()
    (tmp_path / "unplugged").rename(disk)
    fill(index)
    assert texts_by_video(index)[copy] == []


def test_unreadable_track_is_read_again(tmp_path, root, monkeypatch):
    index = archive.create(tmp_path / "index", root)
    reader = VIDEO.texts._replace(tracks=_failing)
    archive.fill(index, video=VIDEO._replace(texts=reader))
    assert len(transcripts.problems(index)) == 3
    reader = VIDEO.texts._replace(tracks=lambda path: [(0, 1, path.stem)])
    fill(index, video=VIDEO._replace(texts=reader))
    assert texts_by_video(index)["a.film"] == ["a"] and transcripts.problems(index) == []


def test_failed_subtitles_are_read_again_only_by_retry(tmp_path, root):
    (root / "a.srt").write_text("broken")
    index = archive.create(tmp_path / "index", root)
    fill(index)
    reads = []

    def file(path, video):
        reads.append(path.name)
        return [(0, 1, "now it is read")]

    video = VIDEO._replace(texts=VIDEO.texts._replace(file=file))
    fill(index, video=video)
    assert reads == []
    fill(index, video=video, retry=True)
    assert reads == ["a.srt"] and texts_by_video(index)["a.film"] == ["now it is read"]


@pytest.mark.parametrize("source", ["file", "tracks"])
def test_run_continues_if_a_video_is_removed_meanwhile(index, films, source):
    write(films / "a.srt", "beside a")
    write(films / "b.srt", "beside b")

    def read(path, video=None):
        if path.name.startswith("a."):
            Index.open(index.directory).remove(set(index.videos) & {"a.film"})
            raise archive.FilmError("it is broken")
        return []

    fill(index, video=VIDEO._replace(texts=VIDEO.texts._replace(**{source: read})))
    assert set(index.videos) == {"b.film", "trips/c.film"} and index.verify() == {}
    assert texts_by_video(index)["b.film"] == ["beside b"] * (source == "tracks")


def test_cues_after_the_end_of_a_video_are_dropped(index, films, capsys):
    late = [[0, 99, "beside b"], [20.5, 21, "last words"], [442_801, 442_805, "next film"]]
    (films / "b.srt").write_text(json.dumps(late))
    line = "b.srt: 1 of 3 cues begin after the end of the video (20.0 s) and are left out"
    assert fill(index) == [line] and fill(index) == []
    assert main(["status", f"--index={index.directory}"]) == 0
    assert f"subtitles: {line}" in capsys.readouterr().out
    content = index.videos["b.film"].content
    transcript = transcripts.load(index, content)
    assert transcript.cues("b.film") == [(0, 21, "beside b"), (20.5, 21, "last words")]
    # An update of an older index drops such cues, too.
    transcript.tracks.cues = [transcripts.Cue(500.0, 501.0, "too late")]
    with index.writing() as writer:
        transcripts.put(writer, content, transcript)
    assert "its subtitle tracks: 1 of 1 cues" in fill(index)[0]
    assert texts_by_video(index)["b.film"] == ["beside b", "last words"]


# In processes


def hostile(path, video=None):
    if "crash" in path.name:
        os.kill(os.getpid(), 9)
    if "hang" in path.name:
        time.sleep(600)
    return archive.beside(path)


HOSTILE = VIDEO._replace(texts=VIDEO.texts._replace(file=hostile))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("fault", ["crash", "hang"])
def test_crash_or_hang_loses_only_that_file(tmp_path, root, fault):
    write(root / "a.srt", "whole")
    archive.film(root / f"{fault}.film", ["green"])
    write(root / f"{fault}.srt")
    index = archive.create(tmp_path / "index", root)
    archive.fill(index, video=archive.VIDEO)
    lines = []
    with index.running():
        decoding.update_transcripts(index, HOSTILE, lines.append, workers=1, timeout=1.0)
    assert texts_by_video(index)["a.film"] == ["whole"]
    [problem] = transcripts.problems(index)
    assert {"crash": "died", "hang": "more than 1 s"}[fault] in problem.reason
    assert lines == [f"{fault}.srt: {problem.reason}"]


class Stop(Exception):
    pass


@pytest.mark.slow  # it takes seconds
def test_stop_reaches_the_reading_of_subtitles(tmp_path, root):
    archive.film(root / "hang.film", ["green"])
    write(root / "hang.srt")
    index = archive.create(tmp_path / "index", root)
    archive.fill(index, video=archive.VIDEO)
    started = time.monotonic()
    write(root / "a.srt", "whole")

    def pulse():
        transcript = transcripts.load(index, index.videos["a.film"].content)
        if transcript is not None:  # the second file hangs now, or soon
            pulses.append(time.monotonic())
        if len(pulses) > 1:
            raise Stop

    pulses = []
    with pytest.raises(Stop), index.running():
        decoding.update_transcripts(index, HOSTILE, print, workers=2, pulse=pulse)
    assert time.monotonic() - pulses[0] < 2 and time.monotonic() - started < 30
    assert texts_by_video(index)["a.film"] == ["whole"]


def test_stop_reaches_the_listing_of_a_folder(tmp_path, root, monkeypatch):
    monkeypatch.setattr(transcripts, "_PULSE_NAMES", 10)
    for i in range(50):
        (root / f"{i}.txt").touch()
    index = archive.create(tmp_path / "index", root)
    archive.fill(index, video=archive.VIDEO)
    pulses = []

    def pulse():
        pulses.append(None)
        if len(pulses) == 5:
            raise Stop

    with pytest.raises(Stop), index.running():
        decoding.update_transcripts(index, VIDEO, print, workers=0, pulse=pulse)
    assert transcripts.load(index, index.contents()[0]) is None  # the listing was stopped
