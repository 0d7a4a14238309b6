"""The video files of a folder."""

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hlformer_jax.video.errors import explained, fault, named

SUFFIXES = frozenset(
    ".3g2 .3gp .amv .asf .avi .divx .dv .f4v .flv .gif .ivf .m1v .m2p .m2ts .m2v .m4v .mj2 .mjpeg"
    " .mkv .mov .mp4 .mpe .mpeg .mpg .mpv .mts .mxf .nut .obu .ogm .ogv .qt .rm .rmvb .tod .ts .vob"
    " .vro .webm .wmv .wtv .y4m .h264 .264 .h265 .265 .hevc".split()
)
"""Names that end so are videos, whatever is in the file: a broken one is to be told of."""

_OTHERS = frozenset(
    ".aac .aif .aiff .avif .cr3 .flac .heic .heif .jp2 .jpeg .jpg .m4a .m4b .m4p .mka .mp3 .oga"
    " .ogg .opus .png .spx .wav .weba .webp .wma".split()
)
"""Names of sound and photographs, whose files may begin as those of videos do."""

_PHOTOGRAPHS = (b"avif", b"avis", b"crx ", b"heic", b"heix", b"mif1", b"msf1", b"M4A ", b"M4B ")
"""Kinds of ISO files that are no videos."""

_HEAD = 192 * 4
"""Bytes that tell what a file is: four packets of a transport stream."""


def find(folder: str | Path, tell: Callable[[str], None] | None = None) -> list[Path]:
    """The video files of a folder and all folders below it.

    A file is a video by its name, or else by its first bytes (`SUFFIXES`, `looks_like_video`).
    Names that begin with a dot are left out, as are folders that were seen under another name, so
    that links in a circle do no harm.

    Args:
      folder: the folder.
      tell: called with one line for each folder below that cannot be listed.

    Returns:
      Paths that begin with `folder`, sorted.

    Raises:
      VideoError: when the folder itself cannot be listed.
    """
    folder = Path(folder)
    with named(folder):
        if not folder.is_dir():
            folder.stat()
            raise fault(folder, "is no folder", "give the folder with the videos")
        os.listdir(folder)
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    waiting = deque([folder])
    while waiting:
        place = waiting.popleft()
        try:
            about = place.stat()
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            entries = sorted(os.scandir(place), key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            if tell is not None:
                tell(str(fault(place, *explained(error))))
            continue
        real = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = place / entry.name
            if not path.is_dir():
                if _is_video(path):
                    found.append(path)
            elif entry.is_symlink():
                waiting.append(path)  # last, so that a folder is found by its own name
            else:
                real.append(path)
        waiting.extendleft(reversed(real))
    return sorted(found, key=os.fsencode)


def _is_video(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix in _OTHERS:
        return False
    if suffix in SUFFIXES and suffix != ".ts":  # which TypeScript has too
        return True
    try:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return suffix in SUFFIXES
    return looks_like_video(head)


def looks_like_video(head: bytes) -> bool:
    """Whether a file that begins so is of a kind that holds videos.

    Args:
      head: its first bytes, a few hundred of them.
    """
    if head[4:8] == b"ftyp":
        return head[8:12] not in _PHOTOGRAPHS
    if head[:4] == b"RIFF":
        return head[8:12] == b"AVI "
    if head[:1] == b"\x47" and len(head) > 188:
        return head[188:189] == b"\x47" and head[376:377] in (b"\x47", b"")
    if head[4:5] == b"\x47" and head[196:197] == b"\x47":
        return True
    return head.startswith(_BEGINNINGS) or head[4:8] in (b"moov", b"mdat", b"wide")


_BEGINNINGS = (
    b"\x1a\x45\xdf\xa3",  # Matroska, WebM
    b"\x00\x00\x01\xba",  # MPEG programme stream
    b"\x00\x00\x01\xb3",  # MPEG-1 and MPEG-2 video
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11",  # ASF: WMV
    b"FLV\x01",
    b"OggS",
    b".RMF",
    b"GIF8",
    b"YUV4MPEG2",
    b"\x06\x0e\x2b\x34\x02\x05\x01\x01\x0d\x01\x02",  # MXF
)
