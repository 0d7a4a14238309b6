"""Video files: what they are, their frames with true times, and clips cut out of them, by PyAV.

    probe       length, size, rate and codec of a file
    sampling    frames at a constant rate, upright, with their times
    cutting     a clip of exact bounds
    thumbnail   one frame as JPEG
    listing     the video files of a folder
    errors      `VideoError`, one line: which file, what is wrong with it, what to do

    opening     the stream that is the video, and second 0
    decoding    frames with their times; damaged packets passed over, needless ones not decoded
    clock       timestamps, and what stands in for bad ones
    picture     rotation, shape of pixels, size
    tones       HDR (PQ, HLG) in the standard range
    seeking     frames from a second on, without decoding all before it

Seconds count from where a player has 0: where the first stream begins. What can be decoded of a
file that is cut off or damaged is used, and a warning says what could not.

```python
from hlformer_jax import video

frames = video.sample("a.mp4", fps=1.0, size=224)
for frame in frames:
    print(frame.time, frame.image.shape)
print(frames.warning)
```
"""

from hlformer_jax.video.cutting import container_of as container_of
from hlformer_jax.video.cutting import cut as cut
from hlformer_jax.video.errors import VideoError as VideoError
from hlformer_jax.video.listing import find as find
from hlformer_jax.video.probe import Info as Info
from hlformer_jax.video.probe import probe as probe
from hlformer_jax.video.sampling import Frame as Frame
from hlformer_jax.video.sampling import Samples as Samples
from hlformer_jax.video.sampling import sample as sample
from hlformer_jax.video.thumbnail import thumbnail as thumbnail
