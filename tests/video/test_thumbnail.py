"""Thumbnails: the right frame, of the right size."""

import io

import numpy as np
import pytest
import videos
from PIL import Image

from hlformer_jax import video


def opened(content):
    image = Image.open(io.BytesIO(content))
    assert image.format == "JPEG"
    return np.asarray(image)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.avi", "a.h264"])
@pytest.mark.parametrize(
    ("time", "number"), [(-1, 0), (0, 0), (1.0, 12), (1.99, 23), (2.5, 30), (2.99, 35), (60, 35)]
)
def test_the_frame_is_the_one_shown_then(tmp_path, name, time, number):
    path = videos.write(tmp_path / name, gop_size=9)
    assert videos.number(opened(video.thumbnail(path, time, 64))) == number


def test_the_width_is_that_wanted_but_never_more_than_the_videos(tmp_path):
    path = videos.write(tmp_path / "a.mp4")
    assert opened(video.thumbnail(path, 0, 32)).shape == (24, 32, 3)
    assert opened(video.thumbnail(path, 0, 640)).shape == (48, 64, 3)
    videos.turned(path, (0, 1, -1, 0))
    assert opened(video.thumbnail(path, 0, 24)).shape == (32, 24, 3)


@pytest.mark.parametrize(("time", "width"), [(float("nan"), 32), (0, 0)])
def test_a_senseless_time_or_width_is_refused(tmp_path, time, width):
    with pytest.raises(ValueError, match="finite time"):
        video.thumbnail(tmp_path / "a.mp4", time, width)
