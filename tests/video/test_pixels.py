"""Frames as pictures: upright, with square pixels, in standard range."""

import io
import itertools

import numpy as np
import pytest
import videos
from av.sidedata.sidedata import SideDataContainer
from av.video.reformatter import Colorspace
from PIL import Image

from hlformer_jax import video
from hlformer_jax.video import pixels


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
def test_display_matrix_turns_and_mirrors_pictures(tmp_path, matrix, corners):
    path = videos.turned(videos.write(tmp_path / "a.mp4", paint=videos.quadrants, frames=2), matrix)
    image = next(iter(video.sample(path))).image
    height, width, _ = image.shape
    assert (width, height) == ((64, 48) if matrix[0] else (48, 64))
    names = {(1, 0, 0): "r", (0, 1, 0): "g", (0, 0, 1): "b", (1, 1, 1): "w"}
    places = itertools.product((height // 4, 3 * height // 4), (width // 4, 3 * width // 4))
    assert "".join(names[tuple(image[place] // 128)] for place in places) == corners
    assert video.probe(path)[1:3] == (width, height)


@pytest.mark.parametrize("matrix", [(1, 0, 0, 1), (0, 1, -1, 0), (-1, 0, 0, -1), (0, -1, 1, 0)])
def test_frame_with_data_unknown_to_pyav_is_turned(tmp_path, monkeypatch, matrix):
    """PyAV cannot list the data of frames of spatial videos."""

    def refuse(self, frame):
        raise ValueError("29 is not a valid Type")

    path = videos.turned(videos.write(tmp_path / "a.mp4", paint=videos.quadrants, frames=2), matrix)
    expected = next(iter(video.sample(path))).image
    monkeypatch.setattr(SideDataContainer, "__init__", refuse)
    np.testing.assert_array_equal(next(iter(video.sample(path))).image, expected)


def test_pixels_that_are_not_square_become_square(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=2, sample_aspect_ratio=2)
    assert next(iter(video.sample(path))).image.shape == (48, 128, 3)


def test_palette_in_the_first_packet_colours_later_frames(tmp_path):
    path = videos.write(tmp_path / "a.mov", "qtrle", pixels="gray", gop_size=12)
    for second in (0, 2):
        picture = Image.open(io.BytesIO(video.thumbnail(path, second, 64)))
        assert videos.number(np.asarray(picture)) == 12 * second


def test_shorter_side_is_scaled_down_but_never_up(tmp_path):
    path = videos.write(tmp_path / "a.mp4", frames=2)
    assert next(iter(video.sample(path, size=24))).image.shape == (24, 32, 3)
    assert next(iter(video.sample(path, size=100))).image.shape == (48, 64, 3)


@pytest.mark.slow
def test_huge_picture_is_scaled_without_a_huge_copy(tmp_path):
    (frame,) = video.sample(videos.huge_picture(tmp_path), size=100)
    assert frame.image.shape == (100, 100, 3)
    assert abs(frame.image.mean() - 200) < 3


def to_bt709():
    """Return the matrix from linear BT.2020 to linear BT.709 by the primaries and D65."""

    def to_xyz(*primaries):
        columns = np.asarray([[x / y, 1, (1 - x - y) / y] for x, y in primaries]).T
        white = np.asarray([0.3127 / 0.3290, 1, (1 - 0.3127 - 0.3290) / 0.3290])
        return columns * np.linalg.solve(columns, white)

    bt2020 = to_xyz((0.708, 0.292), (0.170, 0.797), (0.131, 0.046))
    bt709 = to_xyz((0.640, 0.330), (0.300, 0.600), (0.150, 0.060))
    return np.linalg.solve(bt709, bt2020)


def linear(code):
    return np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)


def pq(light):
    """Return the PQ codes of light in cd/m²."""
    power = (light / 10_000) ** (2610 / 16384)
    return ((3424 / 4096 + 2413 / 128 * power) / (1 + 2392 / 128 * power)) ** (2523 / 32)


def hlg(light):
    """Return the HLG codes of light in cd/m² on a display of 1,000 cd/m²."""
    luminance = light @ [0.2627, 0.6780, 0.0593]
    scene = light / 1000 * (np.maximum(luminance, 1e-9)[..., None] / 1000) ** (1 / 1.2 - 1)
    return np.where(
        scene <= 1 / 12,
        np.sqrt(3 * scene),
        0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073,
    )


def coded(picture, transfer):
    """Return an 8-bit sRGB picture in HDR, with the same brightness of white paper."""
    light = 203 * linear(picture / 255) @ np.linalg.inv(to_bt709()).T
    return np.rint(65_535 * {pixels.PQ: pq, pixels.HLG: hlg}[transfer](light)).astype(np.uint16)


@pytest.mark.parametrize("transfer", [pixels.PQ, pixels.HLG])
def test_light_below_the_knee_is_unchanged(transfer):
    # sRGB's 224 is light of 0.745.
    picture = np.random.default_rng(0).integers(0, 225, (40, 50, 3), np.uint8)
    shown = pixels.to_standard(coded(picture, transfer), transfer, pixels.BT2020)
    # A difference of 1 is rounding; the standard's matrix is rounded too.
    assert np.abs(shown.astype(int) - picture).max() <= 1


@pytest.mark.parametrize(("transfer", "paper"), [(pixels.PQ, 0.5807), (pixels.HLG, 0.75)])
def test_reference_white_and_brighter_light(transfer, paper):
    """Compare with the codes of 203 cd/m² in ITU-R BT.2408."""
    codes = np.linspace(0, 65_535, 999).astype(np.uint16)
    image = np.broadcast_to(codes[None, :, None], (1, 999, 3))
    shown = pixels.to_standard(image, transfer, pixels.BT2020)[0, :, 0].astype(int)
    assert (np.diff(shown) >= 0).all() and shown[0] == 0 and shown[-1] == 255
    white = np.full((1, 1, 3), round(paper * 65_535), np.uint16)
    assert 240 <= pixels.to_standard(white, transfer, pixels.BT2020).min() < 250


def test_highlight_keeps_its_hue():
    light = 203 * np.asarray([4.0, 2.0, 1.0]) @ np.linalg.inv(to_bt709()).T
    image = np.rint(65_535 * pq(light)).astype(np.uint16)[None, None]
    shown = linear(pixels.to_standard(image, pixels.PQ, pixels.BT2020)[0, 0] / 255)
    assert shown / shown[0] == pytest.approx([1, 0.5, 0.25], abs=0.01)


@pytest.mark.parametrize(
    ("transfer", "name"), [(pixels.PQ, "smpte2084"), (pixels.HLG, "arib-std-b67")]
)
def test_hdr_video_is_shown_in_standard_range(tmp_path, transfer, name):
    picture = np.clip(videos.quadrants(0), 60, 200)
    colours = f"colorprim=bt2020:transfer={name}:colormatrix=bt2020nc"
    path = videos.write(
        tmp_path / "a.mp4",
        "libx265",
        # With two frames, which the encoder returns when it is flushed, PyAV's MP4 sometimes has a
        # damaged header.
        frames=36,
        paint=lambda _: coded(picture, transfer),
        pixels="yuv420p10le",
        matrix=Colorspace.BT2020,
        options={"x265-params": f"log-level=none:crf=4:{colours}", "preset": "ultrafast"},
    )
    image = next(iter(video.sample(path))).image
    for rows in (slice(4, 20), slice(28, 44)):
        for columns in (slice(4, 28), slice(36, 60)):
            # Ten bits and the codec round.
            difference = image[rows, columns].astype(int) - picture[rows, columns]
            assert np.abs(difference).max() <= 4
