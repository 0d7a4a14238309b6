"""What an index keeps of one video's content, as one .npz without pickles.

Beside the vectors the file has facts, a JSON object: the format, the content's digest, the encoder,
the rate, and the paths that have this content. So an index whose manifest is lost is made again of
these files alone. The file ends with its own digest, in the comment of its archive: SHA-256 of
every byte before.
"""

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.search import sealed
from hlformer_jax.search.errors import DamagedError

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


def write(path: Path, arrays: VideoArrays, facts: Mapping[str, Any]) -> VectorFile:
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


def read(path: Path) -> VectorFile:
    """Reads the file of a video.

    Raises:
      DamagedError: when it is missing, cannot be read, or is not what was written.
    """
    try:
        raw = path.read_bytes()
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
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            found = VideoArrays(*(file[name] for name in VideoArrays._fields))
            facts = sealed.parse(str(file["facts"]))
        found = found._replace(warning=str(found.warning), recorded=float(found.recorded))
        _check(found)
        if not isinstance(facts, dict):
            raise ValueError
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile):
        raise DamagedError(f"{path} is damaged: index the folder again to make it anew") from None
    return VectorFile(found, facts, digest, len(raw))


def _check(found: VideoArrays) -> None:
    """Refuses what cannot be the vectors of a video."""
    frames, width = found.vectors.shape
    intervals = len(found.spans)
    wanted = {
        "times": (np.float64, (frames,)),
        "vectors": (np.float16, (frames, width)),
        "spans": (np.float64, (intervals, 2)),
        "segments": (np.float32, (intervals, width)),
        "duration": (np.float64, ()),
    }
    for name, (dtype, shape) in wanted.items():
        one = getattr(found, name)
        if one.dtype != dtype or one.shape != shape or not np.isfinite(one).all():
            raise ValueError(name)
    if not (frames and intervals and math.isfinite(found.recorded)):
        raise ValueError("empty")
