"""Playback of video files by browsers, whose clocks and tracks differ from those of `read`."""

from pathlib import Path
from typing import NamedTuple

from hlformer_jax.video.read import NO_FILM, opened


class Playback(NamedTuple):
    """The clock and the track of a browser that plays a video file."""

    start: float
    """The player's time at second 0, in seconds.

    Browsers show the timestamps of the file, which may begin later than 0.
    """
    is_same_track: bool
    """True if the browser plays the video track that `read` reads.

    Browsers may play the first track, although another one is the default.
    """


def playback(path: str | Path) -> Playback:
    """Return the clock and the track of a browser that plays a file, without decoding it.

    Raises:
      VideoError: if the file has no video that can be decoded, with the reason.
    """
    with opened(path) as video:
        tracks = [x for x in video.container.streams.video if not x.disposition & NO_FILM]
        return Playback(float(video.start or 0), tracks[0].index == video.stream.index)
