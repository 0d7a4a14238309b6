"""One frame of a video as JPEG."""

import io
import math
from fractions import Fraction
from pathlib import Path

from PIL import Image

from hlformer_jax.video.errors import named
from hlformer_jax.video.opening import opened
from hlformer_jax.video.picture import Painter
from hlformer_jax.video.seeking import frames_from

_QUALITY = 80


def thumbnail(path: str | Path, time: float, width: int) -> bytes:
    """The frame shown at a second, small.

    Args:
      path: the video file.
      time: seconds from its start; outside of the video, the first or the last frame is taken.
      width: pixels; a narrower video keeps its own.

    Returns:
      The bytes of a JPEG file.

    Raises:
      ValueError: when the time is not finite or the width below 1.
      VideoError: when the file cannot be read or no frame of it be decoded.
    """
    if not math.isfinite(time) or width < 1:
        raise ValueError(f"thumbnail wants a finite time and width >= 1, not {time} and {width}")
    with named(path), opened(path) as video:
        painter = Painter(video, width)
        _, _, frame = next(frames_from(video, Fraction(max(time, 0))))
        image = Image.fromarray(painter.paint(frame))
    if image.width > width:
        height = max(round(image.height * width / image.width), 1)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=_QUALITY)
    return buffer.getvalue()
