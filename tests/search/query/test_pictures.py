"""Pictures in queries: 16-bit values, transparent pixels, and modes that are refused."""

import io
import struct

import archive
import numpy as np
import pytest
from PIL import Image

from hlformer_jax.errors import QueryError
from hlformer_jax.search.query import pictures

GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


def encoded(image, kind="png", **options):
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def big_endian_tiff(values):
    """Encode 16-bit values as a TIFF that Pillow opens in mode I;16B."""
    data = values.astype(">u2").tobytes()
    height, width = values.shape
    tags = {256: width, 257: height, 258: 16, 259: 1, 262: 1, 273: 8, 277: 1, 278: height}
    tags |= {279: len(data), 339: 1}
    entries = b"".join(struct.pack(">HHLL", tag, 4, 1, value) for tag, value in tags.items())
    header = struct.pack(">HHL", 0x4D4D, 42, 8 + len(data))
    return header + data + struct.pack(">H", len(tags)) + entries + bytes(4)


def pixels(image):
    """Return the pixels of a picture that the encoder receives."""
    received = []
    encoder = archive.Encoder()
    encoder.preprocess = lambda image: received.append(image) or image
    pictures.embedding(encoder, image)
    assert received[0].dtype == np.uint8
    return received[0]


@pytest.mark.parametrize(
    ("mode", "content"),
    [
        ("I;16", encoded(Image.fromarray(GREY * np.uint16(257)))),
        ("I;16", encoded(Image.fromarray(GREY * np.uint16(257)), "tiff")),
        ("I;16B", big_endian_tiff(GREY * np.uint16(257))),
        ("I", encoded(Image.fromarray(GREY * np.int32(257)), "tiff")),
    ],
    ids=["png", "tiff", "big_endian", "32_bit"],
)
def test_16_bit_greyscale_equals_8_bit(mode, content):
    assert Image.open(io.BytesIO(content)).mode == mode
    np.testing.assert_array_equal(pixels(content), pixels(encoded(Image.fromarray(GREY))))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.full((2, 2), 0.5, np.float32), r"floats \(mode F\): convert it to 8 bits"),
        (np.full((2, 2), 65536, np.int32), r"integers .* \(mode I\): convert it to 8 bits"),
        (np.full((2, 2), -1, np.int32), r"integers .* \(mode I\): convert it to 8 bits"),
    ],
    ids=["float", "large", "negative"],
)
def test_pictures_without_a_defined_range_are_refused(values, reason, tmp_path):
    path = tmp_path / "depth.tiff"
    Image.fromarray(values).save(path)
    with pytest.raises(QueryError, match=f"image .*depth.tiff has {reason}"):
        pixels(path)
    with pytest.raises(QueryError, match=f"the picture has {reason}"):
        pixels(path.read_bytes())


def test_transparent_pixels_show_the_ground():
    colours = [[(255, 0, 0, 0), (255, 0, 0, 255), (255, 0, 0, 128)]]
    image = Image.fromarray(np.asarray(colours, np.uint8))
    expected = [[(128, 128, 128), (255, 0, 0), (192, 64, 64)]]
    np.testing.assert_allclose(pixels(encoded(image)), expected, atol=1)
    np.testing.assert_allclose(pixels(encoded(image.convert("LA")))[0, 0], 128)
    palette = Image.fromarray(np.asarray([[0, 1]], np.uint8)).convert("P")
    palette.putpalette([255, 0, 0, 0, 255, 0])
    for kind in ("png", "gif"):
        content = encoded(palette, kind, transparency=0)
        np.testing.assert_array_equal(pixels(content), [[(128, 128, 128), (0, 255, 0)]])


def test_transparent_value_of_16_bits_shows_the_ground():
    image = Image.fromarray(np.asarray([[0, 257 * 9, 257 * 9 + 1]], np.uint16))
    content = encoded(image, transparency=257 * 9)
    np.testing.assert_array_equal(pixels(content)[0, :, 0], [0, 128, 9])
