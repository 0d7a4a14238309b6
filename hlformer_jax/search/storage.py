"""What lies on the disk of an index, and what is trusted of it.

    .hlformer-index          marks the directory as an index; holds the settings once more
    manifest.json            settings and records, under a digest
    manifest.previous.json   those before, which stand in for a damaged one
    videos/DIGEST.npz        the vectors of one content, named by its digest; no pickles

Each is rewritten whole. The manifests and the mark are JSON whose first field is the SHA-256 of all
behind it. A file of vectors ends with its own digest, in the comment of its archive; beside the
vectors it has facts: the format, the content's digest, the encoder, the rate, and the paths that
have this content. So nothing is lost with both manifests but the reasons of failures.

A video is known by the SHA-256 of all its bytes, computed where its file is new or its stamp has
changed. A processor with instructions for it reads 1.6 GB a second, one without about 0.4: seconds
beside the minutes for which a video of that size is decoded and encoded.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.errors import command_line
from hlformer_jax.search.errors import DamagedError, SearchError

_SEAL = re.compile(rb'\{\n  "digest": "([0-9a-f]{64})",')


def seal(content: Mapping[str, Any]) -> bytes:
    """The text of a JSON object whose first field is the SHA-256 of all behind it."""
    rest = json.dumps(content, indent=2, allow_nan=False).encode()[1:] + b"\n"
    return b'{\n  "digest": "' + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest


def unseal(text: bytes) -> dict[str, Any]:
    """The object of a text that `seal` made.

    Raises:
      ValueError: saying what is wrong, where it is not what was written.
    """
    if not text.strip(b"\0 \n"):
        raise ValueError("it is empty")
    match = _SEAL.match(text)
    if match is None:
        raise ValueError("it has no digest")
    rest = text[match.end() :]
    if hashlib.sha256(rest).hexdigest().encode() != match[1]:
        raise ValueError("its digest is another")
    content = strict_json(b"{" + rest)
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    return content


def strict_json(text: str | bytes) -> Any:
    """JSON, whose numbers are finite.

    Raises:
      ValueError: when it is none.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(name: str) -> Any:
    raise ValueError(f"it holds {name}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {text[:20]}")
    return value


class Stamp(NamedTuple):
    """What a file has when its content is the same as before.

    Attributes:
      size: bytes.
      modified_ns: time of its last modification in nanoseconds since the epoch.
      changed_ns: time of the last change of its content, its name or its rights.
    """

    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        """The stamp of a file from its status."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def fingerprint(path: Path) -> str:
    """The digest of a file's content.

    Args:
      path: the file, wherever it lies and whatever it is called.

    Returns:
      64 hexadecimal digits.

    Raises:
      OSError: when it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_DIGEST = 64
"""Length of the digest in bytes."""


class VideoArrays(NamedTuple):
    """The vectors of one video.

    Attributes:
      times: seconds of the frames from the video's start, float64, rising.
      vectors: unit vectors of the frames, float16.
      spans: start and end of every interval in seconds, float64; see `segments`.
      segments: vectors of the intervals, float32.
      duration: seconds of the video, float64.
      warning: what of the video could not be used, in one line; "" where all could.
      recorded: when the video was recorded, seconds since the epoch; 0 where the file does not say.
    """

    times: Float[np.ndarray, " F"]
    vectors: Float[np.ndarray, "F d"]
    spans: Float[np.ndarray, "I 2"]
    segments: Float[np.ndarray, "I d"]
    duration: Float[np.ndarray, ""]
    warning: str = ""
    recorded: float = 0.0


class VectorFile(NamedTuple):
    """The file of a video.

    Attributes:
      arrays: the vectors.
      facts: what they were made of, and by what; see the module.
      digest: the file's own.
      size: its bytes.
    """

    arrays: VideoArrays
    facts: dict[str, Any]
    digest: str
    size: int


def write_vectors(path: Path, arrays: VideoArrays, facts: Mapping[str, Any]) -> VectorFile:
    """Writes the file of a video, whole or not at all.

    Raises:
      OSError: when it cannot be written, on a full disk say.
    """
    buffer = io.BytesIO()
    fields = {name: np.asarray(value) for name, value in arrays._asdict().items()}
    fields["facts"] = np.asarray(json.dumps(facts, sort_keys=True, allow_nan=False))
    np.savez(buffer, **fields)  # type: ignore[arg-type]
    with zipfile.ZipFile(buffer, "a") as file:
        file.comment = bytes(_DIGEST)
    content = buffer.getvalue()[:-_DIGEST]
    digest = hashlib.sha256(content).hexdigest()
    files.write_bytes(path, content + digest.encode())
    return VectorFile(arrays, dict(facts), digest, len(content) + _DIGEST)


def read_vectors(path: Path) -> VectorFile:
    """Reads the file of a video.

    Raises:
      DamagedError: when it is missing, cannot be read, or is not what was written.
    """
    try:
        raw = files.read_bytes(path)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing: index the folder again to make it anew") from None
    except OSError as error:
        raise DamagedError(
            f"{path} cannot be read ({error.strerror or error}): index the folder again to make it"
            " anew"
        ) from None
    digest = hashlib.sha256(memoryview(raw)[:-_DIGEST]).hexdigest()
    try:
        if raw[-_DIGEST:] != digest.encode():
            raise ValueError
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise ValueError("we write none, and a few bytes of it would fill the memory")
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            arrays = VideoArrays(*(file[name] for name in VideoArrays._fields))
            facts = strict_json(str(file["facts"]))
        arrays = arrays._replace(warning=str(arrays.warning), recorded=float(arrays.recorded))
        _check_arrays(arrays)
        if not isinstance(facts, dict):
            raise ValueError
    except Exception:  # whatever NumPy and zipfile raise of what others made, MemoryError too
        raise DamagedError(f"{path} is damaged: index the folder again to make it anew") from None
    return VectorFile(arrays, facts, digest, len(raw))


def _check_arrays(arrays: VideoArrays) -> None:
    """Refuses what cannot be the vectors of a video."""
    frames, width = arrays.vectors.shape
    intervals = len(arrays.spans)
    wanted = {
        "times": (np.float64, (frames,)),
        "vectors": (np.float16, (frames, width)),
        "spans": (np.float64, (intervals, 2)),
        "segments": (np.float32, (intervals, width)),
        "duration": (np.float64, ()),
    }
    for name, (dtype, shape) in wanted.items():
        one = getattr(arrays, name)
        if one.dtype != dtype or one.shape != shape or not np.isfinite(one).all():
            raise ValueError(name)
    if not (frames and intervals and math.isfinite(arrays.recorded)):
        raise ValueError("empty")


MANIFEST, PREVIOUS, MARK = "manifest.json", "manifest.previous.json", ".hlformer-index"
FORMAT = 3
"""The version of the files of an index; another one is refused."""

DTYPE = "float16"
"""Of the frames' vectors on the disk."""

VECTORS = re.compile(r"([0-9a-f]{64})\.npz")
"""Names of files of vectors."""

PACKED = re.compile(r"(segments|best_frame|trained)-[0-9a-f]{32}(\.[0-9a-z-]+)?\.(npy|npz|json)")
"""Names of files of packed rows."""

OWN = {
    "": re.compile("|".join(map(re.escape, (MANIFEST, PREVIOUS, MARK)))),
    "videos": VECTORS,
    "packed": PACKED,
}
"""Names of the files of an index in each of its folders; drafts of no others are deleted."""

_MARKED = b"The index of a video search by hlformer_jax; its files are its own.\n"


@dataclasses.dataclass(frozen=True)
class EncoderFacts:
    """What identifies an encoder.

    Attributes:
      name: a hub id, or the base name of a folder.
      fingerprint: fingerprint of its weights, tokenizer and preprocessing.
      preprocessing: how an image is brought to its size.
      width: d, the width of its vectors.
      places: where it can be loaded from, a hub id or folders; the first that is there is taken.
    """

    name: str
    fingerprint: str
    preprocessing: str
    width: int
    places: tuple[str, ...] = ()

    @classmethod
    def of(cls, encoder: Any, places: tuple[str, ...] = ()) -> "EncoderFacts":
        """The facts of an encoder of `hlformer_jax.encoders`."""
        facts = encoder.name, encoder.fingerprint, encoder.preprocessing, int(encoder.width)
        return cls(*facts, places)


@dataclasses.dataclass(frozen=True)
class Record:
    """What an index knows of one path.

    Attributes:
      id: 16 hexadecimal digits, unique in the index.
      content: digest of the content, which names the file of its vectors; "" if unreadable.
      size, modified_ns, changed_ns: the video's stamp (`fingerprint.Stamp`).
      state: "indexed" or "failed".
      reason: why it failed, or what of it could not be used.
      duration: seconds.
      frames: number F of frames.
      intervals: number I of intervals of the ranker `segments`.
      digest: that of the file of its vectors; "" where there is none.
      bytes: size of that file.
      recorded: when it was recorded, seconds since the epoch; 0 where the file does not say.
    """

    id: str
    content: str
    size: int
    modified_ns: int
    changed_ns: int
    state: str
    reason: str = ""
    duration: float = 0.0
    frames: int = 0
    intervals: int = 0
    digest: str = ""
    bytes: int = 0
    recorded: float = 0.0

    @property
    def indexed(self) -> bool:
        """Whether there are vectors."""
        return self.state == "indexed"

    @property
    def stamp(self) -> Stamp:
        """The stamp of the video."""
        return Stamp(self.size, self.modified_ns, self.changed_ns)


@dataclasses.dataclass
class Manifest:
    """The content of manifest.json.

    Attributes:
      root: the folder that is indexed, absolute; "" where that is not known any more.
      encoder: what made the vectors.
      fps: frames a second.
      checkpoint: the directory of the trained model that ranks by default; "" for none.
      videos: records by path relative to the root.
      excluded: paths that were removed, and stay out until they are added.
    """

    root: str
    encoder: EncoderFacts
    fps: float
    checkpoint: str = ""
    videos: dict[str, Record] = dataclasses.field(default_factory=dict)
    excluded: set[str] = dataclasses.field(default_factory=set)

    @property
    def key(self) -> str:
        """Identifies what made the vectors: encoder, preprocessing, rate, dtype, format."""
        encoder = self.encoder
        parts = (encoder.fingerprint, encoder.preprocessing, encoder.width, self.fps, DTYPE, FORMAT)
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()

    def settings(self) -> dict[str, Any]:
        """All but the records."""
        return {
            "format": FORMAT,
            "dtype": DTYPE,
            "root": self.root,
            "encoder": vars(self.encoder),
            "fps": self.fps,
            "checkpoint": self.checkpoint,
            "excluded": sorted(self.excluded),
        }

    def facts(self, content: str, paths: Mapping[str, Record]) -> dict[str, Any]:
        """What the file of a content's vectors says beside them."""
        own = {name: {"id": one.id, "stamp": list(one.stamp)} for name, one in paths.items()}
        made = {key: self.settings()[key] for key in ("format", "dtype", "encoder", "fps")}
        return made | {"content": content, "paths": own}

    def write(self, directory: Path, keep: bool) -> None:
        """Writes the mark and the manifest, each whole or not at all.

        Args:
          directory: the directory of the index.
          keep: whether the manifest that is there is whole, and to be kept as the one before.

        Raises:
          OSError: when one cannot be written.
        """
        text = _MARKED + seal(self.settings())
        if _bytes(directory / MARK) != text:
            files.write_bytes(directory / MARK, text)
        if keep:
            with files.whole(directory / PREVIOUS) as draft:
                try:
                    os.link(directory / MANIFEST, draft)
                except OSError:  # a disk without hard links
                    shutil.copyfile(directory / MANIFEST, draft)
        videos = {name: vars(self.videos[name]) for name in sorted(self.videos)}
        files.write_bytes(directory / MANIFEST, seal(self.settings() | {"videos": videos}))


def mark(directory: Path) -> None:
    """Marks a new directory as an index; makes it where there is none."""
    files.write_bytes(directory / MARK, _MARKED)


def check_place(directory: Path) -> None:
    """Refuses a directory that is neither new or empty nor an index.

    Raises:
      SearchError: saying what it holds.
      OSError: when it cannot be listed.
    """
    try:
        children = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise SearchError(f"{directory} is no directory: choose another --index") from None
    foreign = [name for name in children if not _begun(directory, name)]
    if foreign and not _is_index(directory):
        raise SearchError(
            f"{directory} holds other things ({foreign[0]}) and is no index: choose another --index"
        )


def _begun(directory: Path, name: str) -> bool:
    """Whether a file is what a writer leaves that was killed before it marked the directory."""
    if name == ".lock":
        return (directory / name).is_file() and not (directory / name).stat().st_size
    return files.drafted(name) == MARK


def _is_index(directory: Path) -> bool:
    if (_bytes(directory / MARK) or b"").startswith(_MARKED):
        return True
    for name in (MANIFEST, PREVIOUS):
        try:
            _parse(directory / name)
        except DamagedError:
            continue
        except SearchError:  # of another format
            pass
        return True
    return any(True for _ in whole_files(directory))


def whole_files(directory: Path) -> Iterator[tuple[str, VectorFile]]:
    """The content and the file of all vectors that are whole, in the order of their names."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory / "videos")):
            if match := VECTORS.fullmatch(name):
                with contextlib.suppress(DamagedError):
                    file = read_vectors(directory / "videos" / name)
                    if file.facts.get("content") == match[1]:
                        yield match[1], file


def read_manifest(directory: Path) -> tuple[Manifest, list[str]]:
    """Reads the manifest of an index, or the one before where that is damaged.

    Args:
      directory: the directory of the index.

    Returns:
      The manifest, and a line where it is not the newest.

    Raises:
      SearchError: when there is none, or it is of another format.
      DamagedError: when both are damaged.
    """
    try:
        return _parse(directory / MANIFEST), []
    except DamagedError as error:
        begun = any((directory / name).exists() for name in (MANIFEST, PREVIOUS, MARK))
        if not begun and not any(True for _ in whole_files(directory)):
            raise SearchError(
                f"{directory} holds no index: make one with"
                f" {command_line('search', 'index', 'FOLDER', f'--index={directory}')}"
            ) from None
        try:
            manifest = _parse(directory / PREVIOUS)
        except DamagedError:
            raise error from None
        newest = _of_mark(directory)
        if newest is not None and newest.key == manifest.key:
            there = manifest.videos.items()
            newest.videos = {name: one for name, one in there if name not in newest.excluded}
            manifest = newest
        return manifest, [f"{error}: the one before is used"]


def rebuilt(directory: Path) -> Manifest | None:
    """The settings of an index whose manifests are lost, from its mark or its vectors.

    Returns:
      A manifest without records; None where nothing is known of what the index was.
    """
    if (settings := _of_mark(directory)) is not None:
        return settings
    for _, file in whole_files(directory):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            return _settings({"root": "", "checkpoint": "", "excluded": [], **file.facts})
    return None


def _of_mark(directory: Path) -> Manifest | None:
    """The settings of the mark, which are at least as new as those of any manifest."""
    text = _bytes(directory / MARK) or b""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        return _settings(unseal(text.removeprefix(_MARKED)))
    return None


def paths_of(facts: Mapping[str, Any]) -> dict[str, tuple[str, Stamp]]:
    """The paths that a file of vectors names, with the id and the stamp of each.

    Raises:
      ValueError, KeyError, TypeError, AttributeError: when they are none.
    """
    known = {}
    for name, own in facts["paths"].items():
        stamp = Stamp(*own["stamp"])
        record = Record(own["id"], facts["content"], *stamp, "failed")
        _check_record(name, record)
        known[name] = own["id"], stamp
    return known


def same_maker(manifest: Manifest, facts: Mapping[str, Any]) -> bool:
    """Whether vectors of these facts were made as those of an index are."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        own = _settings({"root": "", "checkpoint": "", "excluded": [], **facts})
        return own.key == manifest.key
    return False


def _bytes(path: Path) -> bytes | None:
    try:
        return files.read_bytes(path)
    except OSError:
        return None


def _parse(path: Path) -> Manifest:
    try:
        text = files.read_bytes(path)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror or error})") from None
    try:
        content = unseal(text)
    except ValueError as error:
        _refuse_older(path, text)
        raise DamagedError(f"{path} is damaged ({error})") from None
    if content.get("format") != FORMAT:
        raise _other_format(path, content.get("format"))
    try:
        manifest = _settings(content)
        for name, fields in content["videos"].items():
            manifest.videos[name] = record = _typed(Record, fields)
            _check_record(name, record)
        if len({one.id for one in manifest.videos.values()}) != len(manifest.videos):
            raise ValueError("two videos have one id")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split())
        raise DamagedError(f"{path} is damaged ({type(error).__name__} {why})") from None
    return manifest


def check_replaced(directory: Path) -> None:
    """Refuses to write where the manifest's name is another program's, beside a copied mark say.

    Raises:
      SearchError: when a file of that name is whole JSON that is nothing of ours.
    """
    try:
        content = json.loads(_bytes(directory / MANIFEST) or b"")
    except (ValueError, RecursionError):  # damage
        return
    ours = isinstance(content, dict) and content.keys() & {"digest", "format", "fps"}
    if content and not ours:
        raise SearchError(
            f"{directory / MANIFEST} is another program's: move it away, or choose another --index"
        )


def _refuse_older(path: Path, text: bytes) -> None:
    """Refuses a manifest of the time before they had digests."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(content, dict) and content.get("format") == 2 and "videos" in content:
        raise _other_format(path, 2)


def _other_format(path: Path, number: Any) -> SearchError:
    return SearchError(
        f"{path} is of format {number!r}, this version reads {FORMAT}: make a new index by another"
        " --index; this one stays as it is"
    )


def _settings(content: Mapping[str, Any]) -> Manifest:
    if (content["format"], content["dtype"]) != (FORMAT, DTYPE):
        raise ValueError(f"format {content['format']!r}, dtype {content['dtype']!r}")
    facts = dict(content["encoder"])
    encoder = _typed(EncoderFacts, facts | {"places": tuple(facts["places"])})
    if not 0 < encoder.width < 2**20 or not all(isinstance(one, str) for one in encoder.places):
        raise ValueError("the encoder")
    fps = content["fps"]
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 1000:
        raise ValueError(f"fps is {fps!r}")
    excluded = content["excluded"]
    texts = [content["root"], content["checkpoint"], *excluded]
    if not isinstance(excluded, list) or not all(isinstance(one, str) for one in texts):
        raise TypeError("root, checkpoint or excluded is no text")
    return Manifest(content["root"], encoder, float(fps), content["checkpoint"],
                    excluded=set(excluded))  # fmt: skip


def _check_record(name: str, record: Record) -> None:
    """Refuses a record that no index writes."""
    path = PurePosixPath(name)
    good = (
        name not in ("", ".") and "\0" not in name and not path.is_absolute()
        and ".." not in path.parts
        and re.fullmatch(r"[0-9a-f]{16}", record.id)
        and re.fullmatch(r"([0-9a-f]{64})?", record.content)
        and record.state in ("indexed", "failed")
        and min(record.size, record.frames, record.intervals, record.bytes) >= 0
        and max(record.size, record.frames, record.intervals, record.bytes) < 2**48
        and 0 <= record.duration < 2**40 and abs(record.recorded) < 2**40
        and max(map(abs, record.stamp)) < 2**63
        and (not record.indexed or (
            record.content and re.fullmatch(r"[0-9a-f]{64}", record.digest)
            and min(record.frames, record.intervals) > 0
        ))
    )  # fmt: skip
    if not good:
        raise ValueError(f"the record of {name[:80]!r}")


def _typed(kind: Any, fields: Mapping[str, Any]) -> Any:
    """A dataclass whose fields have their types; a whole number may stand for a real one."""
    known = {field.name: field.type for field in dataclasses.fields(kind)}
    if fields.keys() != known.keys():
        raise KeyError(*(fields.keys() ^ known.keys()))
    wanted: Any = {str: str, int: int, float: (int, float)}
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, wanted.get(known[name], tuple)):
            raise TypeError(f"{name} is {str(value)[:80]!r}")
    return kind(**fields)
