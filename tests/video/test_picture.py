"""Frames as pictures: upright, of square pixels, and no larger than wanted."""

import itertools

import bad_videos
import pytest
import videos

from hlformer_jax import video


@pytest.mark.parametrize(
    ("matrix", "corners"),
    [
        ((1, 0, 0, 1), "rgbw"),
        ((0, 1, -1, 0), "brwg"),  # a quarter clockwise
        ((-1, 0, 0, -1), "wbgr"),
        ((0, -1, 1, 0), "gwrb"),
        ((-1, 0, 0, 1), "grwb"),  # mirrored
        ((1, 0, 0, -1), "bwrg"),
        ((0, 1, 1, 0), "rbgw"),
        ((0, -1, -1, 0), "wgbr"),
    ],
)
def test_pictures_are_turned_and_mirrored_as_the_file_asks(tmp_path, matrix, corners):
    path = videos.turned(videos.write(tmp_path / "a.mp4", paint=videos.quadrants, frames=2), matrix)
    image = next(iter(video.sample(path))).image
    height, width, _ = image.shape
    assert (width, height) == ((64, 48) if matrix[0] else (48, 64))
    names = {(1, 0, 0): "r", (0, 1, 0): "g", (0, 0, 1): "b", (1, 1, 1): "w"}
    places = itertools.product((height // 4, 3 * height // 4), (width // 4, 3 * width // 4))
    assert "".join(names[tuple(image[place] // 128)] for place in places) == corners
    assert video.probe(path)[1:3] == (width, height)


def test_pixels_that_are_not_square_become_square(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=2, sample_aspect_ratio=2)
    assert next(iter(video.sample(path))).image.shape == (48, 128, 3)


def test_the_shorter_side_is_scaled_down_and_never_up(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=2)
    assert next(iter(video.sample(path, size=24))).image.shape == (24, 32, 3)
    assert next(iter(video.sample(path, size=100))).image.shape == (48, 64, 3)


def test_a_huge_picture_is_scaled_without_a_huge_copy(tmp_path):
    (frame,) = video.sample(bad_videos.huge_picture(tmp_path), size=100)
    assert frame.image.shape == (100, 100, 3)
    assert abs(frame.image.mean() - 200) < 3
