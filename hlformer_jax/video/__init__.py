"""Reading and cutting of video files, by PyAV.

    listing   finding the videos of a folder
    read      opening, probing, seeking, and decoding frames with their times
    packets   seeking, and repair of wrong timestamps
    clocks    resets of a file's clock, as in joined recordings
    dates     dates of recording
    pixels    conversion of frames to upright RGB pictures of 8 bits
    sound     decoding of audio tracks as one continuous signal
    clips     clips with exact bounds, and thumbnails
    players   playback by browsers
    faults    errors that name the fault of a file, and what to do
    subtitles    cues of subtitle files, subtitle tracks and closed captions

```python
from hlformer_jax import video

frames = video.sample("a.mp4", fps=1.0, size=224)
for frame in frames:
    print(frame.time, frame.image.shape)
print(frames.warning)
```
"""

from hlformer_jax.video.clips import copy, cut, thumbnail
from hlformer_jax.video.faults import VideoError
from hlformer_jax.video.listing import find
from hlformer_jax.video.players import Playback, playback
from hlformer_jax.video.read import Frame, Info, Samples, probe, sample

__all__ = [
    "Frame", "Info", "Playback", "Samples", "VideoError", "copy", "cut", "find", "playback",
    "probe", "sample", "thumbnail",
]  # fmt: skip
