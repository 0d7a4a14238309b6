"""Video files, by PyAV.

    listing   the videos of a folder
    read      opened, probed, and their frames with true times
    packets   sought, with the timestamps that can be believed
    dates     of the recording
    pixels    frames as upright pictures of 8 bit
    sound     audio tracks, decoded as one continuous signal
    clips     clips of exact bounds, thumbnails
    subtitles    subtitle files and tracks, and captions in the pictures, as cues

```python
from hlformer_jax import video

frames = video.sample("a.mp4", fps=1.0, size=224)
for frame in frames:
    print(frame.time, frame.image.shape)
print(frames.warning)
```
"""

from hlformer_jax.video.clips import copy, cut, thumbnail
from hlformer_jax.video.listing import find
from hlformer_jax.video.read import Frame, Info, Samples, VideoError, probe, sample

__all__ = [
    "Frame", "Info", "Samples", "VideoError", "copy", "cut", "find", "probe", "sample", "thumbnail",
]  # fmt: skip
