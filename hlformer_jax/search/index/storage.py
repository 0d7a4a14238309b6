"""Files of embeddings: one for each content, `videos/DIGEST.npz`, which ends with its own SHA-256.

The digest stands in the comment of the archive. Beside the arrays the file has the content hash and
the key of the encoder (`Index.key`), so that no other index's file is taken for it.
"""

import errno
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hlformer_jax import files
from hlformer_jax.errors import DamagedError, UnreadableError
from hlformer_jax.search.index.records import MAX_SECONDS, ArraysError, VideoArrays


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
            "duration": arrays.duration,
            "frames": len(arrays.times),
            "digest": self.digest,
            "bytes": self.size,
            "recorded": arrays.recorded,
        }


_DIGEST = 64
"""Length of the digest in bytes."""


def write_vectors(path: Path, arrays: VideoArrays, facts: Mapping[str, Any]) -> VectorFile:
    """Writes the file of a video, whole or not at all.

    Raises:
      ArraysError: when `read_vectors` would refuse the arrays; names the first that is wrong.
      OSError: when the file cannot be written.
    """
    try:
        _check_arrays(arrays)
    except ValueError as error:
        raise ArraysError(f"its {error} cannot be kept: not finite, or of a wrong shape") from None
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
        arrays = arrays._replace(
            duration=float(arrays.duration),
            warning=str(arrays.warning),
            recorded=float(arrays.recorded),
        )
        _check_arrays(arrays)
        if not isinstance(facts, dict):
            raise ValueError
    except Exception:  # whatever NumPy and zipfile raise of what others made, MemoryError too
        raise DamagedError(f"{path} is damaged") from None
    return VectorFile(arrays, facts, digest, len(raw))


def _read(path: Path) -> bytes:
    try:
        return files.read_bytes(path)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        # EINVAL: a directory or a pipe has its place.
        kind = DamagedError if error.errno == errno.EINVAL else UnreadableError
        raise kind(f"{path} cannot be read ({error.strerror or error})") from None


def _check_arrays(arrays: VideoArrays) -> None:
    """Refuses what cannot be the vectors of a video."""
    frames, width = arrays.vectors.shape
    wanted = {
        "times": (np.float64, (frames,)),
        "vectors": (np.float16, (frames, width)),
    }
    for name, (dtype, shape) in wanted.items():
        one = getattr(arrays, name)
        if one.dtype != dtype or one.shape != shape or not np.isfinite(one).all():
            raise ValueError(name)
    if not frames:
        raise ValueError("list of frames")
    if not 0 <= arrays.duration < MAX_SECONDS:
        raise ValueError("duration")
    if not abs(arrays.recorded) < MAX_SECONDS:
        raise ValueError("date of recording")


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
    "videos": VECTORS,
    "texts": re.compile(f"{TEXTS.pattern}|{PARTIAL_TEXT.pattern}"),
    "packed": PACKED,
}
"""Names of the files of an index in each of its folders; drafts of no others are deleted."""
