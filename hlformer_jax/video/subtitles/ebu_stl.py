"""EBU STL (EBU Tech 3264), the binary subtitle format of European broadcasters.

A file has a header of 1,024 bytes and blocks of 128 bytes, each a subtitle or a part of one. The
library ttconv was tried: it stops at a damaged block, and shows comments.
"""

import re
import struct
import unicodedata

from hlformer_jax.video.subtitles.formats import Parsed, count_frames
from hlformer_jax.video.subtitles.text import Block

_HEADER_BYTES, _BLOCK_BYTES = 1024, 128
_RATES = {b"23": 24_000 / 1001, b"24": 24.0, b"25": 25.0, b"30": 30_000 / 1001, b"50": 50.0}
"""Frames a second by the digits in the header; ttconv reads 30 in the same way."""

_BLOCK = struct.Struct("<BHBB4B4BBBB112s")
_LAST, _USER_DATA = 0xFF, 0xF0
"""Numbers of a block within its subtitle: the last one, and the first that is not text."""

_NEW_LINE, _UNUSED = 0x8A, 0x8F

_CODE_PAGES = {b"01": "iso8859-5", b"02": "iso8859-6", b"03": "iso8859-7", b"04": "iso8859-8"}
"""Python's names of the code pages in the header; any other is ISO 6937."""

_ISO_6937 = {
    0x24: "¤", **dict(enumerate("\xa0¡¢£$¥#§¤‘“«←↑→↓°±²³×µ¶·÷’”»¼½¾¿", 0xA0)),
    **dict(enumerate("―¹®©™♪¬¦", 0xD0)), **dict(enumerate("⅛⅜⅝⅞ΩÆĐªĦ", 0xDC)),
    **dict(enumerate("ĲĿŁØŒºÞŦŊŉĸæđðħ", 0xE6)), **dict(enumerate("ıĳŀłøœßþŧŋ\xad", 0xF5)),
}  # fmt: skip
"""Characters of ISO 6937 that differ from ASCII."""

_ACCENTS = dict(zip(range(0xC1, 0xD0), "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308"
                    "\u0308\u030a\u0327\u0332\u030b\u0328\u030c", strict=True))  # fmt: skip
"""Combining accents, which precede their letters in ISO 6937."""


def is_ebu_stl(content: bytes) -> bool:
    """Return whether the content of a file is EBU STL."""
    return re.match(rb".{3}STL\d\d\.", content, re.DOTALL) is not None


def read_stl(content: bytes) -> tuple[Parsed, str]:
    """Read the subtitles of a file.

    Times count from the start of the programme that the header states, unless most subtitles are
    before it.

    Returns:
      The blocks, and the name of the text encoding.
    """
    rate = _RATES.get(content[6:8], 25.0)
    encoding = _CODE_PAGES.get(content[12:14], "iso6937")
    blocks: list[Block] = []
    skipped = 0
    text = b""
    for place in range(_HEADER_BYTES, len(content), _BLOCK_BYTES):
        part = content[place : place + _BLOCK_BYTES]
        if len(part) < _BLOCK_BYTES:
            skipped += 1
            break
        _, _, number, _, *codes, _, _, is_comment, field = _BLOCK.unpack(part)
        if is_comment or _USER_DATA <= number < _LAST:
            continue
        text += field.rstrip(bytes([_UNUSED]))
        if number != _LAST:
            continue
        start, end = _seconds(codes[:4], rate), _seconds(codes[4:], rate)
        if start is None:
            skipped += 1
        else:
            blocks.append(Block(start, end, _decode(text, encoding)))
        text = b""
    skipped += bool(text)
    programme = content[256:264]
    zero = None
    if programme.isdigit():
        zero = _seconds([int(programme[i : i + 2]) for i in range(0, 8, 2)], rate)
    if zero and 2 * sum(block.start >= zero for block in blocks) >= len(blocks):
        blocks = [
            Block(start - zero, None if end is None else end - zero, shown)
            for start, end, shown in blocks
        ]
    return Parsed(blocks, skipped, "plain"), encoding


def _seconds(code: list[int], rate: float) -> float | None:
    """Return the seconds of hours, minutes, seconds and frames; None if they are not a time."""
    hours, minutes, seconds, frames = code
    if hours > 23 or minutes > 59 or seconds > 59 or frames >= round(rate):
        return None
    return count_frames(3600 * hours + 60 * minutes + seconds, frames, round(rate)) / rate


def _decode(field: bytes, encoding: str) -> str:
    """Return the text of a field; codes of colours and boxes are blanks, as on a screen."""
    text = ""
    accent = ""
    for code in field:
        if code in _ACCENTS and encoding == "iso6937":
            accent = _ACCENTS[code]
            continue
        if code == _NEW_LINE:
            character = "\n"
        elif code < 0x20 or 0x7F <= code < 0xA0:  # italics and underlines take no place
            character = "" if 0x80 <= code <= 0x83 else " "
        elif encoding == "iso6937":
            character = _ISO_6937.get(code, chr(code) if code < 0x80 else "\ufffd")
        else:
            character = bytes([code]).decode(encoding, errors="replace")
        text += character + accent
        accent = ""
    return unicodedata.normalize("NFC", text)
