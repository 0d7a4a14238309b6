"""Pictures in queries: 16-bit values, transparent pixels, and modes that are refused."""

import io
import struct
import zlib

import archive
import numpy as np
import pytest
from PIL import Image, ImageCms, TiffImagePlugin

from hlformer_jax.errors import QueryError
from hlformer_jax.search.query import pictures

GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


def encoded(image, kind="png", **options):
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def tiff(values, order="<", bits=16, white=1, channels=1):
    """Encode grey values as a TIFF; `white` is 0 if the value 0 is white, or else 1."""
    if bits == 12:
        data = "".join(f"{value:012b}" for value in values.flat).encode()
        data = bytes(int(data[i : i + 8].ljust(8, b"0"), 2) for i in range(0, len(data), 8))
    else:
        data = values.astype(f"{order}u{bits // 8}").tobytes()
    height, width = values.shape[0], values.shape[1] // channels
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: white, 273: 8, 277: channels}
    tags |= {278: height, 279: len(data), 339: 1}
    entries = b"".join(struct.pack(f"{order}HHLL", tag, 4, 1, value) for tag, value in tags.items())
    mark = b"II" if order == "<" else b"MM"
    header = mark + struct.pack(f"{order}HL", 42, 8 + len(data))
    return header + data + struct.pack(f"{order}H", len(tags)) + entries + bytes(4)


def png(depth, kind, row, transparent):
    """Encode two pixels, as `row`, with a transparent value; Pillow cannot write these kinds."""
    header = struct.pack(">LLBBBBB", 2, 1, depth, kind, 0, 0, 0)
    parts = {
        b"IHDR": header,
        b"tRNS": transparent,
        b"IDAT": zlib.compress(b"\0" + row),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">L", len(data)) + name + data + struct.pack(">L", zlib.crc32(name + data))
        for name, data in parts.items()
    )


def pixels(image):
    """Return the pixels of a picture that the encoder receives."""
    received = []

    class RecordingEncoder(archive.Encoder):
        def preprocess(self, image):
            received.append(image)
            return image

    pictures.embedding(RecordingEncoder(), image)
    assert received[0].dtype == np.uint8
    return received[0]


@pytest.mark.parametrize(
    ("mode", "content"),
    [
        ("I;16", encoded(Image.fromarray(GREY * np.uint16(257)))),
        ("I;16", encoded(Image.fromarray(GREY * np.uint16(257)), "tiff")),
        ("I;16B", tiff(GREY * np.uint16(257), ">")),
        ("I", encoded(Image.fromarray(GREY * np.int32(257)), "tiff")),
    ],
    ids=["png", "tiff", "big_endian", "32_bit"],
)
def test_16_bit_greyscale_equals_8_bit(mode, content):
    assert Image.open(io.BytesIO(content)).mode == mode
    np.testing.assert_array_equal(pixels(content), pixels(encoded(Image.fromarray(GREY))))


def test_colour_profile_is_applied():
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exchanged = srgb.replace(b"rXYZ", b"____").replace(b"gXYZ", b"rXYZ").replace(b"____", b"gXYZ")
    red, green = (Image.new("RGB", (4, 4), colour) for colour in ("#ff0000", "#00ff00"))
    for picture in (red, red.quantize(), red.convert("RGBA")):
        changed = pixels(encoded(picture, icc_profile=exchanged)).astype(int)
        np.testing.assert_allclose(changed, np.asarray(green), atol=1)  # lcms rounds
    for profile in (b"damaged", srgb.replace(b"RGB XYZ", b"GRAYXYZ")):
        image = pixels(encoded(red, icc_profile=profile))
        np.testing.assert_array_equal(image, np.asarray(red))
    text_tag = TiffImagePlugin.ImageFileDirectory_v2()
    text_tag.tagtype[34675], text_tag[34675] = 2, "a text instead of a profile"
    image = pixels(encoded(red, "TIFF", tiffinfo=text_tag))
    np.testing.assert_array_equal(image, np.asarray(red))


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


def test_transparent_pixels_become_grey():
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


def test_transparent_value_of_16_bits_becomes_grey():
    image = Image.fromarray(np.asarray([[0, 257 * 9, 257 * 9 + 1]], np.uint16))
    content = encoded(image, transparency=257 * 9)
    np.testing.assert_array_equal(pixels(content)[0, :, 0], [0, 128, 9])


def test_12_bit_tiff_is_scaled():
    content = tiff(np.asarray([[0, 1024, 2048, 4095]]), bits=12)
    np.testing.assert_array_equal(pixels(content)[0, :, 0], [0, 64, 128, 255])


@pytest.mark.parametrize("bits", [8, 16])
def test_tiff_in_which_zero_is_white_is_inverted(bits):
    values = np.asarray([[0, 64, 255]]) * (257 if bits == 16 else 1)
    content = tiff(values, bits=bits, white=0)
    np.testing.assert_array_equal(pixels(content)[0, :, 0], [255, 191, 0])


@pytest.mark.parametrize(
    "content",
    [
        tiff(GREY * np.uint16(257), ">", white=0),
        tiff(np.asarray([[0, 4095]]), bits=12, white=0),
        tiff(GREY, bits=8, white=0, channels=2),
        encoded(Image.fromarray(GREY), "jpeg")[:20],
    ],
    ids=["16 bits", "12 bits", "alpha", "cut"],
)
def test_kinds_that_pillow_cannot_read_are_refused(content):
    with pytest.raises(QueryError, match="is damaged, or (TIFF|JPEG) that Pillow cannot read"):
        pixels(content)


def test_other_formats_are_refused_with_the_allowed_ones():
    image = Image.fromarray(GREY)
    for content in (encoded(image, "jpeg2000"), encoded(image, "ppm"), b"\0\0\0\x18ftypheic", b""):
        with pytest.raises(QueryError, match="format that is read: give one of JPEG, PNG"):
            pixels(content)


@pytest.mark.parametrize(
    ("content", "colour"),
    [
        (png(4, 0, b"\x5f", b"\0\x05"), [255, 255, 255]),
        (png(2, 0, b"\x70", b"\0\x01"), [255, 255, 255]),
        (png(16, 2, bytes(6) + b"\0\0\x80\0\xff\xff", bytes(6)), [0, 128, 255]),
    ],
    ids=["4_bits", "2_bits", "rgb_of_16_bits"],
)
def test_transparent_value_of_any_depth_becomes_grey(content, colour):
    np.testing.assert_array_equal(pixels(content), [[(128, 128, 128), colour]])
