"""Video files of a folder, recognised by their names or their first bytes."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.video import subtitles
from hlformer_jax.video.faults import explain, fault, name_errors

VIDEO_SUFFIXES = frozenset(
    ".3g2 .3gp .amv .apng .asf .avi .divx .dv .f4v .flv .gif .ivf .m1v .m2p .m2ts .m2v .m4v .mj2"
    " .mjpeg .mkv .mov .mp4 .mpe .mpeg .mpg .mpv .mts .mxf .nut .obu .ogm .ogv .qt .rm .rmvb .tod"
    " .ts .vob .vro .webm .wmv .wtv .y4m .h264 .264 .h265 .265 .hevc".split()
)
"""Suffixes of videos. A file with one is a video even if it is damaged, so that it is reported."""

_OTHER_SUFFIXES = subtitles.SUFFIXES | frozenset(
    ".txt .nfo .aac .aif .aiff .avif .cr3 .flac .heic .heif .jp2 .jpeg .jpg .m4a .m4b .m4p .mka"
    " .mp3 .oga .ogg .opus .png .spx .wav .weba .webp .wma".split()
)
"""Suffixes of files that are not read: subtitles, text, and sound and photographs, whose first
bytes may be as in videos."""

_PHOTOGRAPHS = (b"avif", b"avis", b"crx ", b"heic", b"heix", b"mif1", b"msf1", b"M4A ", b"M4B ")
"""Brands of ISO base media files that are not videos."""

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

_HEAD_BYTES = 192 * 4
"""Bytes that are read to recognise a file: four packets of a transport stream."""


PSEUDO_SYSTEMS = frozenset(
    "autofs binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl"
    " hugetlbfs mqueue nsfs proc pstore rpc_pipefs securityfs selinuxfs sysfs tracefs".split()
)
"""Types of the kernel's file systems, whose files may block a reader or change the machine."""


def find(
    folder: str | Path,
    report: Callable[[str], None] = lambda line: None,
    pulse: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Find the video files of a folder and all folders below it.

    A file is recognised by its suffix, or else by its first bytes. Names that begin with a dot are
    left out. So are folders that were listed under another name already, which ends circles of
    links, and the kernel's file systems (`PSEUDO_SYSTEMS`). Only regular files are opened.

    Args:
      folder: the folder.
      report: takes a line for each folder that cannot be listed or belongs to the kernel, and one
        line about all files that cannot be read and have no suffix of videos.
      pulse: called for every folder and file; an exception that it raises ends the search.

    Returns:
      Paths that begin with `folder`, sorted.

    Raises:
      VideoError: if the folder itself cannot be listed.
    """
    folder = Path(folder)
    with name_errors(folder):
        if not folder.is_dir():
            folder.stat()
            raise fault(folder, "is not a folder", "give the folder with the videos")
        with os.scandir(folder):
            pass

    pseudo = _pseudo_devices()
    videos: list[Path] = []
    unreadable: list[Path] = []
    for path in _walk(folder, pseudo, report, pulse):
        pulse()
        try:
            if is_video(path, pseudo):
                videos.append(path)
        except OSError:
            unreadable.append(path)
    if unreadable:
        report(_describe_unreadable(unreadable))
    return sorted(videos, key=os.fsencode)


def _walk(
    folder: Path,
    pseudo: Mapping[int, str],
    report: Callable[[str], None],
    pulse: Callable[[], None],
) -> Iterator[Path]:
    """Yield the files of a folder and all folders below it; see `find`.

    Args:
      folder: the folder.
      pseudo: the type of each device with a file system of the kernel.
      report: takes a line for each folder that is left out.
      pulse: called for every folder.
    """
    visited: set[tuple[int, int]] = set()  # devices and inodes of folders

    def refuse(error: OSError) -> None:
        report(str(fault(error.filename, *explain(error))))

    def is_new(place: str) -> bool:
        """Return whether a folder must be listed; report it if it cannot be."""
        try:
            about = os.stat(place)
        except OSError as error:  # it was deleted meanwhile
            refuse(error)
            return False
        system = pseudo.get(about.st_dev)
        if system is not None:
            report(str(fault(place, f"is of the kernel ({system})", "it is left out")))
            return False
        key = about.st_dev, about.st_ino
        if key in visited:
            return False
        visited.add(key)
        return True

    tops = [folder]
    for top in tops:  # links are appended, so that a folder is listed by its own path first
        for place, folders, names in os.walk(top, onerror=refuse):
            pulse()
            if not is_new(place):
                folders.clear()
                continue
            folders[:] = [name for name in folders if not name.startswith(".")]
            folders.sort(key=os.fsencode)
            subfolders = [Path(place, name) for name in folders]
            tops += [path for path in subfolders if path.is_symlink()]
            yield from (Path(place, name) for name in names if not name.startswith("."))


def _describe_unreadable(paths: Sequence[Path]) -> str:
    """Return a line about files that may be videos."""
    if len(paths) == 1:
        what, advice = "cannot be read", "whether it is a video is not known"
    else:
        what = f"and {len(paths) - 1} more files cannot be read"
        advice = "whether they are videos is not known"
    return str(fault(paths[0], what, advice))


def _pseudo_devices() -> dict[int, str]:
    """Return the type of each device with a file system of the kernel; empty except on Linux."""
    devices = {}
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/mountinfo", "rb") as file:
            lines = file.read().splitlines()
        for line in lines:
            fields, _, rest = line.partition(b" - ")
            system = rest.split()[0].decode(errors="replace")
            if system in PSEUDO_SYSTEMS:
                major, minor = map(int, fields.split()[2].split(b":"))
                devices[os.makedev(major, minor)] = system
    return devices


def is_video(path: Path, pseudo: Collection[int] = ()) -> bool:
    """Return whether a file is a video.

    Args:
      path: the path of the file.
      pseudo: devices of the kernel's file systems, whose files are not opened.

    Raises:
      OSError: if the suffix does not decide and the file cannot be read.
    """
    suffix = path.suffix.lower()
    if suffix in _OTHER_SUFFIXES:
        return False
    suffix_decides = suffix in VIDEO_SUFFIXES and suffix != ".ts"  # .ts may also be TypeScript
    try:
        about = path.stat()
        if about.st_dev in pseudo:  # the path is a link to such a file
            raise OSError(errno.EINVAL, "it is a file of the kernel", str(path))
        if suffix_decides or not stat.S_ISREG(about.st_mode):
            return suffix_decides
        # open_regular, because the file may have been replaced by a pipe in between.
        with open(files.open_regular(path), "rb", buffering=0) as file:
            head = file.read(_HEAD_BYTES)
    except (FileNotFoundError, NotADirectoryError):  # a link without a target, or deleted
        return suffix in VIDEO_SUFFIXES
    except OSError as error:
        if suffix in VIDEO_SUFFIXES and error.errno != errno.EINVAL:  # reading it will report this
            return True
        if error.errno == errno.ELOOP:
            return False
        raise
    if head[4:8] == b"ftyp":
        return head[8:12] not in _PHOTOGRAPHS
    if head[:4] == b"RIFF":
        return head[8:12] == b"AVI "
    if head[:1] == b"\x47" and len(head) > 188:  # a transport stream ...
        return head[188:189] == b"\x47" and head[376:377] in (b"\x47", b"")
    if head[4:5] == b"\x47" and head[196:197] == b"\x47":  # ... of Blu-ray
        return True
    return head.startswith(_BEGINNINGS) or head[4:8] in (b"moov", b"mdat", b"wide")
