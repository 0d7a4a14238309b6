"""What lies on the disk of an index, and what is trusted of it.

    .hlformer-index          marks the directory as an index; holds the settings once more
    manifest.json            settings and records, under a digest
    manifest.previous.json   those before, which stand in for a damaged one
    videos/DIGEST.npz        the vectors of one content, named by its digest; no pickles

Each is rewritten whole. The manifests and the mark are JSON whose first field is the SHA-256 of all
behind it. A file of vectors ends with its own digest, in the comment of its archive; beside the
vectors it has facts: the format, the content's digest, the encoder, the rate, and the paths that
have this content. So nothing is lost with both manifests but the reasons of failures.
"""

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
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
from hlformer_jax.cli import command_line
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import DamagedError, SearchError, UnreadableError

_SEAL = re.compile(rb'\{\n  "digest": "([0-9a-f]{64})",')
_WRONG = AttributeError, KeyError, TypeError, ValueError
"""Exceptions of reading fields of JSON that is not as it is written here."""


def seal(content: Mapping[str, Any]) -> bytes:
    """The text of a JSON object whose first field is the SHA-256 of all behind it."""
    rest = json.dumps(content, indent=2, allow_nan=False).encode()[1:] + b"\n"
    return b'{\n  "digest": "' + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest


def unseal(text: bytes) -> dict[str, Any]:
    """The object of a text that `seal` made.

    Raises:
      ValueError: saying what is wrong, where it is not what was written.
    """
    content: dict[str, Any] = files.parse_json(b"{" + check_seal(text), finite=True)
    return content


def check_seal(text: bytes) -> bytes:
    """Check a text that `seal` made, and return what is behind its digest, without parsing it.

    Raises:
      ValueError: saying what is wrong, if it is not what was written.
    """
    if not text.strip(b"\0 \n"):
        raise ValueError("it is empty")
    match = _SEAL.match(text)
    if match is None:
        raise ValueError("it has no digest")
    rest = text[match.end() :]
    if hashlib.sha256(rest).hexdigest().encode() != match[1]:
        raise ValueError("its digest is another")
    return rest


MAX_TIME_NS = 2**63 - 1
"""Largest time of a file, in nanoseconds since the epoch: 11 April 2262."""

MAX_BYTES = 2**48 - 1
"""Largest size of a file: 256 TiB."""

MAX_SECONDS = 2**40
"""Lengths and dates of recordings are below, in seconds."""


class Stamp(NamedTuple):
    """What a file has when its content is the same as before; times in nanoseconds.

    Times beyond `MAX_TIME_NS` are kept as that.
    """

    size: int
    modified_ns: int
    changed_ns: int  # of its content, its name or its rights

    @classmethod
    def of(cls, status: os.stat_result) -> "Stamp":
        """Return the stamp of a file from its status."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns).clipped()

    def clipped(self) -> "Stamp":
        """Return the stamp with both times within `MAX_TIME_NS` of the epoch."""
        times = (max(-MAX_TIME_NS, min(time, MAX_TIME_NS)) for time in self[1:])
        return Stamp(self.size, *times)


class VideoArrays(NamedTuple):
    """The vectors of one video; times in seconds from its start."""

    times: Float[np.ndarray, " F"]  # of the frames, float64, rising
    vectors: Float[np.ndarray, "F d"]  # unit vectors of the frames, float16
    spans: Float[np.ndarray, "I 2"]  # start and end of every interval, float64 (`segments`)
    segments: Float[np.ndarray, "I d"]  # vectors of the intervals, float32
    duration: Float[np.ndarray, ""]
    warning: str = ""  # what of the video could not be used, in one line
    recorded: float = 0.0  # when, seconds since the epoch; 0 where the file does not say


class VectorFile(NamedTuple):
    """The file of a video: its vectors, the facts beside them, its digest and its bytes."""

    arrays: VideoArrays
    facts: dict[str, Any]
    digest: str
    size: int

    @property
    def about(self) -> dict[str, Any]:
        """What a record says of it: fields of `Record`."""
        arrays = self.arrays
        return {
            "reason": arrays.warning,
            "duration": float(arrays.duration),
            "frames": len(arrays.times),
            "intervals": len(arrays.spans),
            "digest": self.digest,
            "bytes": self.size,
            "recorded": arrays.recorded,
        }


_DIGEST = 64
"""Length of the digest in bytes."""


def write_vectors(path: Path, arrays: VideoArrays, facts: Mapping[str, Any]) -> VectorFile:
    """Writes the file of a video, whole or not at all.

    Raises:
      SearchError: when `read_vectors` would refuse the arrays; names the first that is wrong.
      OSError: when the file cannot be written.
    """
    try:
        _check_arrays(arrays)
    except ValueError as error:
        raise SearchError(f"its {error} cannot be kept: not finite, or of a wrong shape") from None
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
    raw = _read(path)
    digest = hashlib.sha256(memoryview(raw)[:-_DIGEST]).hexdigest()
    try:
        if raw[-_DIGEST:] != digest.encode():
            raise ValueError
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise ValueError("we write none, and a few bytes of it would fill the memory")
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            arrays = VideoArrays(*(file[name] for name in VideoArrays._fields))
            facts = files.parse_json(str(file["facts"]), finite=True)
        arrays = arrays._replace(warning=str(arrays.warning), recorded=float(arrays.recorded))
        _check_arrays(arrays)
        if not isinstance(facts, dict):
            raise ValueError
    except Exception:  # whatever NumPy and zipfile raise of what others made, MemoryError too
        raise DamagedError(f"{path} is damaged") from None
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
    if not (frames and intervals):
        raise ValueError("list of frames")
    if not 0 <= arrays.duration < MAX_SECONDS:
        raise ValueError("duration")
    if not abs(arrays.recorded) < MAX_SECONDS:
        raise ValueError("date of recording")


MANIFEST, PREVIOUS, MARK = "manifest.json", "manifest.previous.json", ".hlformer-index"
FORMAT = 3
"""The version of the files of an index; another one is refused."""

DTYPE = "float16"
"""Dtype of the frames' vectors on the disk."""

VECTORS = re.compile(r"([0-9a-f]{64})\.npz")
"""Names of files of vectors."""

TEXTS = re.compile(r"[0-9a-f]{64}((\.copy|\.damaged-[0-9]+)?\.json|\.vectors)|problems\.list")
"""Names of the files of transcripts (`transcripts`), and of the embeddings of their passages."""

PARTIAL_TEXT = re.compile(r"[0-9a-f]{64}\.partial")
"""Names of files of what was recognised in a part of a video (`recognition`)."""

PACKED = re.compile(
    r"(segments|best_frame|trained|said|bank)-[0-9a-f]{32}(\.[0-9a-z-]+)?\.(npy|npz|json|db)"
)
"""Names of files of packed rows."""

OWN = {
    "": re.compile("|".join(map(re.escape, (MANIFEST, PREVIOUS, MARK)))),
    "videos": VECTORS,
    "texts": re.compile(f"{TEXTS.pattern}|{PARTIAL_TEXT.pattern}"),
    "packed": PACKED,
}
"""Names of the files of an index in each of its folders; drafts of no others are deleted."""

_MARKED = b"The index of a video search by hlformer_jax; its files are its own.\n"


@dataclasses.dataclass(frozen=True)
class EncoderFacts:
    """What identifies an encoder."""

    name: str  # a hub id, or the base name of a folder
    fingerprint: str  # of its weights, tokenizer and preprocessing
    preprocessing: str  # how an image is brought to its size
    width: int  # d, of its vectors
    places: tuple[str, ...] = ()  # hub id or folders; the first that is there is loaded

    @classmethod
    def of(cls, encoder: Encoder, places: tuple[str, ...] = ()) -> "EncoderFacts":
        """The facts of an encoder of `hlformer_jax.encoders`."""
        facts = encoder.name, encoder.fingerprint, encoder.preprocessing, int(encoder.width)
        return cls(*facts, places)


@dataclasses.dataclass(frozen=True)
class Record:
    """What an index knows of one path."""

    id: str  # 16 hexadecimal digits, unique in the index
    content: str  # digest of the video, which names the file of its vectors; "" if unreadable
    size: int
    modified_ns: int
    changed_ns: int
    state: str  # "indexed" or "failed"
    reason: str = ""  # why it failed, or what of it could not be used
    duration: float = 0.0  # seconds
    frames: int = 0
    intervals: int = 0  # of the ranker `segments`
    digest: str = ""  # of the file of its vectors; "" where there is none
    bytes: int = 0  # of that file
    recorded: float = 0.0  # when, seconds since the epoch; 0 where the video does not say

    @property
    def indexed(self) -> bool:
        """Whether there are vectors."""
        return self.state == "indexed"

    @property
    def stamp(self) -> Stamp:
        """The stamp of the video."""
        return Stamp(self.size, self.modified_ns, self.changed_ns)


@dataclasses.dataclass(frozen=True)
class Level:
    """A level of a good match that captions have calibrated; see `evaluation`."""

    above: float  # the score, above the centre of a query
    false_alarms: float  # percent
    captions: int
    frames: int  # of the archive then


def split_name(video: str) -> tuple[str, str]:
    """The folder of a video's name, "" for the first, and the path below it; see `Manifest`."""
    folder, _, below = video.rpartition("//")
    return folder, below


@dataclasses.dataclass
class Manifest:
    """The content of manifest.json.

    A video of the first folder is named by its path below that, one of a further folder by the
    folder's name, two slashes, which no path has, and its path below it.
    """

    root: str  # the folder that is indexed, absolute; "" where that is not known any more
    encoder: EncoderFacts
    fps: float
    checkpoint: str = ""  # directory of the trained model that ranks by default; "" for none
    videos: dict[str, Record] = dataclasses.field(default_factory=dict)  # by path below the root
    roots: dict[str, str] = dataclasses.field(default_factory=dict)  # further folders by name
    tags: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # by content
    excluded: set[str] = dataclasses.field(default_factory=set)  # removed, until they are added
    excluded_contents: dict[str, str] = dataclasses.field(default_factory=dict)  # those, by path
    levels: dict[str, Level] = dataclasses.field(default_factory=dict)  # by ranker, if calibrated

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
            "roots": self.roots,
            "tags": self.tags,
            "encoder": vars(self.encoder),
            "fps": self.fps,
            "checkpoint": self.checkpoint,
            "excluded": sorted(self.excluded),
            "excluded_contents": dict(sorted(self.excluded_contents.items())),
            "levels": {name: vars(one) for name, one in self.levels.items()},
        }

    def facts(self, content: str, paths: Mapping[str, Record]) -> dict[str, Any]:
        """What the file of a content's vectors says beside them."""
        own = {name: {"id": one.id, "stamp": list(one.stamp)} for name, one in paths.items()}
        made = {key: self.settings()[key] for key in ("format", "dtype", "encoder", "fps")}
        return made | {"content": content, "paths": own}

    def copy(self) -> "Manifest":
        """Return a manifest that later changes of this one leave as it is."""
        return dataclasses.replace(
            self, videos=dict(self.videos), roots=dict(self.roots), tags=dict(self.tags),
            excluded=set(self.excluded), excluded_contents=dict(self.excluded_contents),
            levels=dict(self.levels),
        )  # fmt: skip

    def write(self, directory: Path, keep: bool) -> None:
        """Writes the mark and the manifest, each whole or not at all.

        With `keep` the manifest that is there is whole, and kept as the one before.

        Raises:
          SearchError: when a reader would refuse the settings; `check_record` checks the records.
        """
        try:
            _settings(self.settings())
        except _WRONG as error:
            raise SearchError(
                f"{directory / MANIFEST} cannot hold these settings: {error}"
            ) from None
        text = _MARKED + seal(self.settings())
        if _bytes(directory / MARK) != text:
            files.write_bytes(directory / MARK, text)
        if keep:
            with files.atomic_write(directory / PREVIOUS) as draft:
                try:
                    os.link(directory / MANIFEST, draft)
                except OSError:  # a disk without hard links
                    shutil.copyfile(directory / MANIFEST, draft)
        videos = {name: vars(self.videos[name]) for name in sorted(self.videos)}
        files.write_bytes(directory / MANIFEST, seal(self.settings() | {"videos": videos}))


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
    return files.draft_target(name) == MARK


def _is_index(directory: Path) -> bool:
    if _is_marked(directory):
        return True
    manifests = (directory / name for name in (MANIFEST, PREVIOUS))
    return any(map(_is_manifest, manifests)) or any(True for _ in _whole_files(directory))


def _is_manifest(path: Path) -> bool:
    try:
        _parse(path)
    except DamagedError:
        return False
    except SearchError:  # of another format
        pass
    return True


def index_around(path: Path) -> Path | None:
    """Return the index in whose directory a path lies once links are followed, or None."""
    real = Path(os.path.realpath(path))
    marked = (place for place in (real, *real.parents) if _is_marked(place))
    return next(marked, None)


def _is_marked(directory: Path) -> bool:
    return (_bytes(directory / MARK) or b"").startswith(_MARKED)


def check_readable(directory: Path) -> None:
    """Refuse to write where a manifest or the mark cannot be read just now.

    What stands in for it is older, and would replace it.

    Raises:
      UnreadableError: naming the file.
    """
    for name in (MANIFEST, MARK):
        try:
            _read(directory / name)
        except UnreadableError as error:
            raise UnreadableError(f"{error}: nothing is changed, try again") from None
        except DamagedError:
            pass


def check_replaced(directory: Path) -> None:
    """Refuses to write where the manifest's name is another program's, beside a copied mark say.

    Raises:
      SearchError: when a file of that name is whole JSON that is nothing of ours.
    """
    content = _json(_bytes(directory / MANIFEST) or b"")
    ours = isinstance(content, dict) and content.keys() & {"digest", "format", "fps"}
    if content and not ours:
        raise SearchError(
            f"{directory / MANIFEST} is another program's: move it away, or choose another --index"
        )


def read_manifest(directory: Path) -> tuple[Manifest, str]:
    """Reads the manifest of an index, or what stands in for a damaged one.

    That is the manifest before, with the settings of the mark where they are newer; or else the
    settings of the mark or of any vectors, without records.

    Returns:
      The manifest, and a line where it is not the newest.

    Raises:
      SearchError: when there is none, or it is of another format.
      DamagedError: when nothing is known of what the index was.
    """
    try:
        return _parse(directory / MANIFEST)
    except DamagedError as error:
        settings = _of_mark(directory)
        begun = any((directory / name).exists() for name in (MANIFEST, PREVIOUS, MARK))
        if not begun and not any(True for _ in _whole_files(directory)):
            raise SearchError(
                f"{directory} holds no index: make one with"
                f" {command_line('search', 'index', 'FOLDER', f'--index={directory}')}"
            ) from None
        with contextlib.suppress(DamagedError):
            before, _ = _parse(directory / PREVIOUS)
            if settings is not None and settings.key == before.key:
                there = before.videos.items()
                settings.videos = {n: one for n, one in there if n not in settings.excluded}
                before = settings
            return before, f"{error}: the one before is used"
        of_vectors = (_settings_of(file.facts) for file in _whole_files(directory))
        settings = settings or next(filter(None, of_vectors), None)
        if settings is None:
            raise
        return settings, f"{error}: what the vectors say is used"


def contents(directory: Path) -> list[str]:
    """The contents whose files of vectors are there, whole or not, sorted."""
    try:
        names = os.listdir(directory / "videos")
    except OSError:
        return []
    return sorted(match[1] for match in map(VECTORS.fullmatch, names) if match)


def _whole_files(directory: Path) -> Iterator[VectorFile]:
    """The files of vectors that are whole."""
    for content in contents(directory):
        with contextlib.suppress(DamagedError):
            file = read_vectors(directory / "videos" / f"{content}.npz")
            if file.facts.get("content") == content:
                yield file


def _of_mark(directory: Path) -> Manifest | None:
    """The settings of the mark, which are at least as new as those of any manifest."""
    text = _bytes(directory / MARK) or b""
    with contextlib.suppress(ValueError):
        return _settings_of(unseal(text.removeprefix(_MARKED)))
    return None


def _settings_of(facts: Mapping[str, Any]) -> Manifest | None:
    """A manifest without records of what the mark or vectors say; None where that is wrong."""
    with contextlib.suppress(*_WRONG):
        return _settings({"root": "", "checkpoint": "", "excluded": [], **facts})
    return None


def same_maker(manifest: Manifest, facts: Mapping[str, Any]) -> bool:
    """Whether vectors of these facts were made as those of an index are."""
    own = _settings_of(facts)
    return own is not None and own.key == manifest.key


def paths_of(facts: Mapping[str, Any]) -> dict[str, tuple[str, Stamp]]:
    """The paths that a file of vectors names, with the id and the stamp of each; none of wrong."""
    known = {}
    with contextlib.suppress(*_WRONG):
        for name, own in facts["paths"].items():
            stamp = Stamp(*own["stamp"]).clipped()
            check_record(name, Record(own["id"], facts["content"], *stamp, "failed"))
            known[name] = own["id"], stamp
        return known
    return {}


def _bytes(path: Path) -> bytes | None:
    try:
        return files.read_bytes(path)
    except OSError:
        return None


def _read(path: Path) -> bytes:
    try:
        return files.read_bytes(path)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        # EINVAL: a directory or a pipe has its place.
        kind = DamagedError if error.errno == errno.EINVAL else UnreadableError
        raise kind(f"{path} cannot be read ({error.strerror or error})") from None


def _json(text: bytes) -> Any:
    try:
        return files.parse_json(text)
    except ValueError:
        return None


def _parse(path: Path) -> tuple[Manifest, str]:
    """Read a manifest.

    Returns:
      The manifest without the records that are wrong, and a line about these; "" for none.

    Raises:
      DamagedError: when it cannot be read, or more than records is wrong.
      SearchError: when it is of another format.
    """
    text = _read(path)
    try:
        content = unseal(text)
    except ValueError as error:
        content = _json(text)  # of the time before manifests had digests
        if not (isinstance(content, dict) and content.get("format") == 2 and "videos" in content):
            raise DamagedError(f"{path} is damaged ({error})") from None
    if content.get("format") != FORMAT:
        raise SearchError(
            f"{path} is of format {content.get('format')!r}, this version reads {FORMAT}: make a"
            " new index by another --index; this one stays as it is"
        )
    try:
        manifest = _settings(content)
        listed = content["videos"].items()
    except _WRONG as error:
        raise DamagedError(f"{path} is damaged ({_described(error)})") from None
    wrong, ids = [], set()
    for name, fields in listed:
        try:
            record = _typed(Record, fields)
            if record.stamp != record.stamp.clipped():
                wrong.append(f"the date of {name[:80]!r} is out of range")
                _, modified, changed = record.stamp.clipped()
                record = dataclasses.replace(record, modified_ns=modified, changed_ns=changed)
            check_record(name, record)
            if record.id in ids:
                raise ValueError(f"the id of {name[:80]!r} is that of another video")
        except _WRONG as error:
            wrong.append(_described(error))
            continue
        ids.add(record.id)
        manifest.videos[name] = record
    if not wrong:
        return manifest, ""
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return manifest, f"{path} is damaged ({wrong[0]}{more}): index the folder again to mend it"


def _described(error: Exception) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())}"


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
    # These an older index lacks.
    roots, tags, levels = (content.get(name, {}) for name in ("roots", "tags", "levels"))
    removed = content.get("excluded_contents", {})
    known = {name: _typed(Level, fields) for name, fields in levels.items()}
    texts = [content["root"], content["checkpoint"], *excluded, *roots.values()]
    texts += [tag for own in tags.values() for tag in own]
    if not all(_CONTENT.fullmatch(digest) for digest in removed.values()):
        raise ValueError("the content of a removed video")
    if not isinstance(excluded, list) or not all(isinstance(one, str) for one in texts):
        raise TypeError("root, checkpoint, excluded or a tag is no text")
    if not all(name and "/" not in name for name in roots):
        raise ValueError("the name of a folder")
    for one in known.values():
        positive = min(one.captions, one.frames) > 0
        if not (abs(one.above) < 2**40 and 0 < one.false_alarms < 100 and positive):
            raise ValueError("a level")
    return Manifest(
        content["root"], encoder, float(fps), content["checkpoint"], excluded=set(excluded),
        excluded_contents=dict(removed), roots=dict(roots), tags=dict(tags), levels=known,
    )  # fmt: skip


_CONTENT = re.compile(r"[0-9a-f]{64}")


def check_record(name: str, record: Record) -> None:
    """Refuse a record that no index writes, before it is written and when it is read.

    Raises:
      ValueError: naming the video.
    """
    path = PurePosixPath(name)
    counts = record.size, record.frames, record.intervals, record.bytes
    good = (
        name not in ("", ".") and "\0" not in name and not path.is_absolute()
        and ".." not in path.parts
        and re.fullmatch(r"[0-9a-f]{16}", record.id)
        and (not record.content or _CONTENT.fullmatch(record.content))
        and record.state in ("indexed", "failed")
        and min(counts) >= 0 and max(counts) <= MAX_BYTES
        and 0 <= record.duration < MAX_SECONDS and abs(record.recorded) < MAX_SECONDS
        and record.stamp == record.stamp.clipped()
        and (not record.indexed or (
            record.content and _CONTENT.fullmatch(record.digest)
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
