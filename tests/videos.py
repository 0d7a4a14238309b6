"""Writes the small videos that tests read: the grey of a frame tells which it is."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

WIDTH, HEIGHT = 64, 48
_STEP = 6
"""Greys between two frames: more than a lossy codec takes away."""


def grey(number: int) -> np.ndarray:
    """The picture of a frame."""
    return np.full((HEIGHT, WIDTH, 3), 8 + number % 40 * _STEP, np.uint8)


def number(image: np.ndarray) -> int:
    """Which frame, of the first forty, a picture is."""
    return round((float(image.mean()) - 8) / _STEP)


def quadrants(_: int) -> np.ndarray:
    """Red, green / blue, white: tells how a picture is turned."""
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[: HEIGHT // 2, : WIDTH // 2] = (255, 0, 0)
    image[: HEIGHT // 2, WIDTH // 2 :] = (0, 255, 0)
    image[HEIGHT // 2 :, : WIDTH // 2] = (0, 0, 255)
    image[HEIGHT // 2 :, WIDTH // 2 :] = (255, 255, 255)
    return image


def write(
    path: Path,
    codec: str = "libx264",
    *,
    frames: int = 36,
    rate: int = 12,
    times: list[float] | None = None,
    paint=grey,
    pixels: str = "yuv420p",
    matrix: int | None = None,
    options: dict[str, str] | None = None,
    sound: tuple[float, float] | None = None,
    **settings,
) -> Path:
    """Writes a video by PyAV.

    Args:
      path: the file; its suffix tells the container, or `format` in settings.
      codec: FFmpeg's name of the encoder.
      frames: number of frames.
      rate: frames a second.
      times: seconds of frames, in milliseconds at the finest; by the rate when None.
      paint: the picture of a frame's number, of 8 or 16 bit.
      pixels: pixel format.
      matrix: FFmpeg's number of the colours' matrix; its default when None.
      options: options of the encoder.
      sound: seconds from and until which a 440 Hz tone sounds.
      settings: `format` of the container; fields of the codec context, such as max_b_frames.
    """
    tick = Fraction(1, rate) if times is None else Fraction(1, 1000)
    with av.open(f"file:{path}", "w", format=settings.pop("format", None)) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        height, width, _ = paint(0).shape
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        stream.codec_context.time_base = tick
        for name, value in settings.items():
            setattr(stream.codec_context, name, value)
        tone = container.add_stream("aac", rate=8000, layout="mono") if sound else None
        for index in range(frames):
            image = paint(index)
            kind = "rgb24" if image.dtype == np.uint8 else "rgb48le"
            frame = av.VideoFrame.from_ndarray(image, kind)
            if matrix is not None:
                frame = frame.reformat(format=pixels, dst_colorspace=matrix)
            frame.pts = index if times is None else round(times[index] * 1000)
            frame.time_base = tick
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if tone is not None:
            start, end = (round(second * 8000) for second in sound)
            wave = np.sin(2 * np.pi * 440 * np.arange(end - start) / 8000)
            piece = av.AudioFrame.from_ndarray(wave[None].astype(np.float32), "fltp", "mono")
            piece.sample_rate, piece.pts, piece.time_base = 8000, start, Fraction(1, 8000)
            container.mux(tone.encode(piece))
            container.mux(tone.encode(None))
    return path


def turned(path: Path, matrix: tuple[int, int, int, int]) -> Path:
    """Sets the display matrix a, b, c, d of an MP4 file's first track."""
    content = bytearray(path.read_bytes())
    place = content.index(b"tkhd") + 4 + 40  # version 0
    values = [matrix[0], matrix[1], 0, matrix[2], matrix[3], 0, 0, 0]
    packed = b"".join((value << 16).to_bytes(4, "big", signed=True) for value in values)
    content[place : place + 32] = packed
    path.write_bytes(bytes(content))
    return path
