"""A video's moments, as annotators marked them: times, and a sentence each."""

from typing import NamedTuple


class AnnotatedMoment(NamedTuple):
    """A moment of a video, as an annotator marked it.

    Attributes:
      moment_id: key of its word features, unique in its split.
      start: second at which it begins.
      end: second at which it ends.
      text: its sentence, as it was written: ActivityNet's begin with the blank that parts them, and
        a few have line breaks.
    """

    moment_id: str
    start: float
    end: float
    text: str


class TimedVideo(NamedTuple):
    """A video and its moments.

    Attributes:
      video: its id.
      duration: its length in seconds.
      moments: its moments, in the order of the annotations.
    """

    video: str
    duration: float
    moments: tuple[AnnotatedMoment, ...]
