"""Subtitle files of broadcasters: EBU STL and Scenarist."""

import struct

import pytest

from hlformer_jax.video import VideoError
from hlformer_jax.video.subtitles import read_file


def header(code_page=b"00", programme=b"10000000", rate=b"25"):
    """Return the 1,024 bytes of a header of EBU STL."""
    content = bytearray(b" " * 1024)
    content[3:11] = b"STL%b.01" % rate
    content[12:14] = code_page
    content[256:264] = programme
    return bytes(content)


def block(text, start, end=(10, 0, 9, 0), part=0xFF, comment=0):
    """Return the 128 bytes of a block; times are hours, minutes, seconds and frames."""
    numbers = struct.pack("<BHBB4B4BBBB", 0, 1, part, 0, *start, *end, 20, 2, comment)
    return numbers + text.ljust(112, b"\x8f")


def read_stl(folder, *blocks, **options):
    path = folder / "a.stl"
    path.write_bytes(header(**options) + b"".join(blocks))
    return read_file(path)


def test_times_count_from_the_start_of_the_programme(tmp_path):
    blocks = (
        block(b"Not shown", (0, 0, 0, 0), (0, 0, 1, 0)),  # before the programme
        block(b"Guten Abend", (10, 0, 1, 5), (10, 0, 2, 20)),
        block(b"zwei", (10, 0, 3, 0)),
    )
    subtitles = read_stl(tmp_path, *blocks)
    assert list(subtitles) == [(1.2, 2.8, "Guten Abend"), (3.0, 9.0, "zwei")]
    assert subtitles.warnings == ("1 block could not be read",)
    assert (subtitles.format, subtitles.encoding) == ("stl", "iso6937")
    # Most subtitles are before the stated start, so the statement is wrong.
    [cue] = read_stl(tmp_path, block(b"a", (0, 1, 0, 0), (0, 1, 2, 0)))
    assert cue == (60.0, 62.0, "a")


def test_frames_of_the_american_rate_last_1001_thousandths(tmp_path):
    [cue] = read_stl(
        tmp_path, block(b"a", (1, 0, 0, 0), (1, 0, 0, 15)), rate=b"30", programme=b"00000000"
    )
    assert (cue.start, cue.end) == pytest.approx((3603.6, 3604.1005))


@pytest.mark.parametrize(
    ("code_page", "field", "text"),
    [
        (b"00", b"\xc8uber caf\xc2e \xcfC\xc1A \xe1\xfb \xa4 $", "über café ČÀ Æß $ ¤"),
        (b"00", b"\x0d\x0b\x0b\x03Ja\x8a\x8a\x80Nein\x81, wir\x0a\x0a\x8f\x8f", "Ja Nein, wir"),
        (b"00", b"\x02one\x07two", "one two"),  # a change of colour takes a place
        (b"01", "Привет".encode("iso8859-5"), "Привет"),
        (b"03", "Γειά".encode("iso8859-7"), "Γειά"),
    ],
)
def test_characters_of_code_pages_are_read(tmp_path, code_page, field, text):
    [cue] = read_stl(tmp_path, block(field, (10, 0, 1, 0)), code_page=code_page)
    assert cue.text == text


def test_parts_are_joined_and_comments_are_left_out(tmp_path):
    start = (10, 0, 1, 0)
    subtitles = read_stl(
        tmp_path, block(b"first ", start, part=0), block(b"and second", start),
        block(b"for the editor", (10, 0, 4, 0), comment=1),
        block(b"user data", (10, 0, 5, 0), part=0xFE),
    )  # fmt: skip
    assert [cue.text for cue in subtitles] == ["first and second"] and not subtitles.warnings


def test_only_damaged_blocks_are_lost(tmp_path):
    blocks = (
        block(b"one", (10, 0, 1, 0)), block(b"bad time", (10, 61, 0, 0)),
        block(b"two", (10, 0, 3, 0), (99, 99, 99, 99)), block(b"cut", (10, 0, 5, 0))[:60],
    )  # fmt: skip
    subtitles = read_stl(tmp_path, *blocks)
    assert list(subtitles) == [(1.0, 9.0, "one"), (3.0, 8.0, "two")]
    assert subtitles.warnings == ("2 blocks could not be read",)


@pytest.mark.parametrize(
    "content", [b"solid cube\n facet normal 0 0 1\n", bytes(300) + b"\x01" * 90]
)
def test_solid_model_is_not_subtitles(tmp_path, content):
    path = tmp_path / "a.stl"
    path.write_bytes(content)
    with pytest.raises(VideoError):
        read_file(path)


CAPTION = "94ae 94ae 9420 9420 9470 9470 c845 4c4c 4f80 942f 942f"
"""Loads HELLO into an erased memory, and shows it with the tenth pair."""


def read_scenarist(folder, *lines):
    path = folder / "a.scc"
    path.write_text("\r\n\r\n".join(["Scenarist_SCC V1.0", *lines, ""]))
    return read_file(path)


@pytest.mark.parametrize(
    ("mark", "frame"),
    # Drop-frame time leaves out two numbers a minute, but not in the minutes 0 and 10.
    [(":", 18_000), (";", 18_000 - 18)],
)
def test_pairs_of_a_line_follow_each_other(tmp_path, mark, frame):
    subtitles = read_scenarist(
        tmp_path, f"00:10:00{mark}00\t{CAPTION}", f"00:10:02{mark}00\t942c 942c"
    )
    [cue] = subtitles
    assert cue.text == "HELLO" and subtitles.format == "scc"
    times = (frame + 9) * 1001 / 30_000, (frame + 60) * 1001 / 30_000
    assert (cue.start, cue.end) == pytest.approx(times, abs=1e-3)  # in milliseconds


def test_bytes_without_parity_are_read(tmp_path):
    plain = bytes(value & 0x7F for value in bytes.fromhex(CAPTION)).hex(" ", 2)
    [cue] = read_scenarist(tmp_path, f"00:00:01:00 {plain}", "00:00:03:00 142c 142c")
    assert cue.text == "HELLO"


def test_unreadable_lines_are_counted(tmp_path):
    subtitles = read_scenarist(
        tmp_path, f"00:00:01:00\t{CAPTION}", "00:00:02:00\t94", "00:61:02:00\t942c", "damaged"
    )
    assert [cue.text for cue in subtitles] == ["HELLO"]
    assert subtitles.warnings == ("3 blocks could not be read",)
