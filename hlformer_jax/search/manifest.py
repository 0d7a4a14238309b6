"""The manifest of an index: what made its vectors, and what it knows of every path.

`manifest.json` is rewritten whole. It names no vectors that are not on the disk already, and what
it does not name yet is found again by the content's fingerprint; so nothing is lost with it but
the time to read the beginnings of some files.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.errors import command_line
from hlformer_jax.search.errors import DamagedError, SearchError

NAME = "manifest.json"
FORMAT = 2
"""The version of the files of an index; another one is refused."""

DTYPE = "float16"
"""Of the frames' vectors on the disk."""


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
      content: fingerprint of the content, which names the file of its vectors; "" if unreadable.
      size: bytes of the video.
      modified_ns: its time of modification in nanoseconds since the epoch.
      state: "indexed" or "failed".
      reason: why it failed, or what of it could not be used.
      duration: seconds.
      frames: number F of frames.
      intervals: number I of intervals of the ranker `segments`.
      stamp: size and time of modification in nanoseconds of the file of its vectors.
      recorded: when it was recorded, seconds since the epoch; 0 where the file does not say.
    """

    id: str
    content: str
    size: int
    modified_ns: int
    state: str
    reason: str = ""
    duration: float = 0.0
    frames: int = 0
    intervals: int = 0
    stamp: tuple[int, int] = (0, 0)
    recorded: float = 0.0

    @property
    def indexed(self) -> bool:
        """Whether there are vectors."""
        return self.state == "indexed"


@dataclasses.dataclass
class Manifest:
    """The content of manifest.json.

    Attributes:
      root: the folder that is indexed, absolute.
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

    def write(self, directory: Path) -> None:
        """Writes manifest.json into the directory of the index, whole or not at all.

        Raises:
          OSError: when it cannot be written.
        """
        content = {
            "format": FORMAT,
            "dtype": DTYPE,
            "root": self.root,
            "encoder": vars(self.encoder),
            "fps": self.fps,
            "checkpoint": self.checkpoint,
            "videos": {name: vars(self.videos[name]) for name in sorted(self.videos)},
            "excluded": sorted(self.excluded),
        }
        files.write_json(directory / NAME, content)


def read(directory: Path) -> Manifest:
    """Reads the manifest of an index.

    Args:
      directory: the directory of the index.

    Returns:
      The manifest.

    Raises:
      SearchError: when there is none, or it is of another format.
      DamagedError: when it is damaged.
    """
    path = directory / NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise SearchError(
            f"{directory} holds no index: make one with"
            f" {command_line('search', 'index', 'FOLDER', f'--index={directory}')}"
        ) from None
    except UnicodeDecodeError:
        raise _damaged(path, "it is no text") from None
    try:
        content = files.parse_json(text)
    except ValueError:
        raise _damaged(path, "it is no JSON") from None
    if not isinstance(content, dict):
        raise _damaged(path, "it is no JSON object")
    if content.get("format", FORMAT) != FORMAT:
        raise SearchError(
            f"{path} is of format {content['format']!r}, this version reads {FORMAT}: choose"
            " another --index"
        )
    try:
        return _parse(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"{type(error).__name__} {error}") from None


def _damaged(path: Path, why: str) -> DamagedError:
    return DamagedError(
        f"{path} is damaged ({why}): index the folder again; vectors that are whole are kept"
    )


def _parse(content: Mapping[str, Any]) -> Manifest:
    if content["dtype"] != DTYPE:
        raise ValueError(f"dtype is {content['dtype']!r}")
    facts = dict(content["encoder"])
    encoder = _typed(EncoderFacts, facts | {"places": tuple(facts["places"])})
    videos = {}
    for name, fields in content["videos"].items():
        size, modified = fields["stamp"]
        record = _typed(Record, {"recorded": 0.0, **fields, "stamp": (size, modified)})
        if record.content.strip("0123456789abcdef") or record.state not in ("indexed", "failed"):
            raise ValueError(f"the record of {name!r}")
        videos[name] = record
    manifest = Manifest(content["root"], encoder, content["fps"], content["checkpoint"], videos)
    manifest.excluded = set(content["excluded"])
    for value, kind in (
        (manifest.root, str),
        (manifest.fps, int | float),
        (manifest.checkpoint, str),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r}")
    return manifest


def _typed(kind: Any, fields: dict[str, Any]) -> Any:
    """A dataclass whose fields have their types; a whole number may stand for a real one."""
    for field in dataclasses.fields(kind):
        wanted: Any = {str: str, int: int, float: (int, float)}.get(field.type, tuple)  # type: ignore[arg-type]
        if not isinstance(fields[field.name], wanted):
            raise TypeError(f"{field.name} is {fields[field.name]!r}")
    return kind(**fields)
