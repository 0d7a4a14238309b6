"""What an index keeps of one video's content, as one .npz without pickles.

The file ends with a digest, in the comment of its archive: of every byte before, of the content the
arrays were made of and of the key of the index (encoder, rate, dtype). So what is damaged, or was
made by another encoder, is found whether or not a manifest knows of it, and after a killed run the
files that are whole are taken as they are.
"""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from hlformer_jax import files
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


def write(path: Path, arrays: VideoArrays, content: str, key: str) -> None:
    """Writes the file of a video, whole or not at all.

    Args:
      path: the file.
      arrays: the vectors.
      content: fingerprint of the video.
      key: key of the index.

    Raises:
      OSError: when it cannot be written, on a full disk say.
    """
    buffer = io.BytesIO()
    fields = {name: np.asarray(value) for name, value in arrays._asdict().items()}
    np.savez(buffer, **fields)  # type: ignore[arg-type]
    with zipfile.ZipFile(buffer, "a") as file:
        file.comment = bytes(_DIGEST)
    whole = buffer.getvalue()[:-_DIGEST]
    files.write_bytes(path, whole + _digest(whole, content, key))


def read(path: Path, content: str, key: str) -> VideoArrays:
    """Reads the file of a video.

    Args:
      path: the file.
      content: fingerprint of the video.
      key: key of the index.

    Returns:
      The vectors, as they were written.

    Raises:
      DamagedError: when the file is missing, damaged, or of another video or index.
      OSError: when it cannot be read.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing: index the folder again") from None
    whole, digest = raw[:-_DIGEST], raw[-_DIGEST:]
    if digest != _digest(whole, content, key):
        raise DamagedError(
            f"{path} is damaged, or not of this index: index the folder again to make it anew"
        )
    with np.load(io.BytesIO(raw), allow_pickle=False) as file:
        # An older file has no date.
        found = VideoArrays(**{name: file[name] for name in VideoArrays._fields if name in file})
    return found._replace(warning=str(found.warning), recorded=float(found.recorded))


def _digest(whole: bytes, content: str, key: str) -> bytes:
    digest = hashlib.sha256(f"{key}\0{content}\0".encode())
    digest.update(whole)
    return digest.hexdigest().encode()
