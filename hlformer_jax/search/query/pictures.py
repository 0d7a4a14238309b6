"""Pictures in a query: a file, or the content of one, to the embedding of the picture."""

import contextlib
import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, UInt8

from hlformer_jax import files
from hlformer_jax.encoders.protocol import Encoder, single_embedding
from hlformer_jax.errors import QueryError

if TYPE_CHECKING:
    from PIL import Image

PICTURE_FORMATS = "JPEG", "PNG", "WEBP", "GIF", "AVIF", "TIFF", "BMP"
"""Formats of pictures in a query; Pillow tries no other format on their bytes."""

GROUND = 128, 128, 128
"""Colour behind transparent pixels: mid grey, on which black and white drawings are visible."""


_TIFF_BITS, _TIFF_PHOTOMETRIC = 258, 262
"""Tags of TIFF: the bits of each channel, and whether 0 is white (0) or black (1)."""

_GREY_STEPS = {"L;2": 85, "L;4": 17}
"""Differences of neighbouring grey values of 2 and of 4 bits, when Pillow has scaled them."""


def embedding(encoder: Encoder, image: Path | bytes) -> Float[np.ndarray, " d"]:
    """Return the float32 embedding of a picture, which is first rotated as its EXIF data say.

    Args:
      encoder: the encoder.
      image: path of the picture's file, or the content of such a file.

    Raises:
      QueryError: if Pillow cannot read it as a picture, it has more pixels than Pillow accepts, or
        its pixels have neither 8, 12 nor 16 bits.
      OSError: if the file cannot be read.
    """
    # Imported here, because Pillow is only installed with the extra `search`.
    from PIL import Image, ImageOps, UnidentifiedImageError

    name = "{image} {path}" if isinstance(image, Path) else "the picture"
    content = io.BytesIO(files.read_bytes(image) if isinstance(image, Path) else image)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            Image.init()  # loads the readers; AVIF is not in every build
            formats = [name for name in PICTURE_FORMATS if name in Image.OPEN]
            with Image.open(content, formats=formats) as opened:
                white, is_negative = _grey_range(opened)
                _scale_transparent_value(opened)
                upright = ImageOps.exif_transpose(opened)
                pixels = _convert_to_rgb(upright, white, is_negative, image, name)
    except QueryError:
        raise
    except UnidentifiedImageError:
        prefix = content.getvalue()[:16]
        accepts = {kind: Image.OPEN[kind][1] for kind in formats}
        kind = next((kind for kind, accept in accepts.items() if accept and accept(prefix)), "")
        if kind:
            line = f"{name} is damaged, or {{kind}} that Pillow cannot read: save it as 8-bit PNG"
            raise _refused(line, image, kind=kind) from None
        listed = ", ".join(PICTURE_FORMATS)
        line = f"{name} is not an image in a format that is read: give one of {listed}"
        raise _refused(line, image) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _refused(f"{name} has too many pixels: give a smaller image", image) from None
    except (OSError, ValueError, SyntaxError) as error:  # raised by Pillow for damaged files
        line = f"{name} is damaged ({{problem}}): give another image"
        raise _refused(line, image, problem=error) from None
    return single_embedding(encoder, encoder.encode_images(encoder.preprocess(pixels)[None]))


def _grey_range(opened: "Image.Image") -> tuple[int, bool]:
    """Return the value that is white in a picture of 16-bit values, and whether 0 is white instead.

    Pillow widens 12-bit values of TIFF to 16 bits without scaling them, and inverts TIFF whose 0 is
    white only up to 8 bits.
    """
    tags = getattr(opened, "tag_v2", {})
    bits = tags.get(_TIFF_BITS, (16,))[0]
    is_negative = tags.get(_TIFF_PHOTOMETRIC) == 0 and opened.mode.startswith("I;16")
    return 4095 if bits == 12 else 65535, is_negative


def _scale_transparent_value(opened: "Image.Image") -> None:
    """Scale the transparent value of a PNG to 8 bits, as Pillow scales the pixels."""
    value = opened.info.get("transparency")
    tiles = getattr(opened, "tile", ())
    layout = tiles[0].args if opened.format == "PNG" and tiles else None
    if layout in _GREY_STEPS and isinstance(value, int):
        opened.info["transparency"] = value * _GREY_STEPS[layout]
    elif layout == "RGB;16B" and isinstance(value, tuple):
        opened.info["transparency"] = tuple(channel >> 8 for channel in value)


def _convert_to_rgb(
    picture: "Image.Image", white: int, is_negative: bool, image: Path | bytes, name: str
) -> UInt8[np.ndarray, "height width 3"]:
    """Return the sRGB pixels of a picture, with `GROUND` behind its transparent pixels.

    Args:
      picture: the picture, in any mode of Pillow.
      white: the value of white, if the mode has integers of more than 8 bits.
      is_negative: whether 0 is white and `white` is black.
      image: path or content of its file, for errors.
      name: the picture's name in errors.

    Raises:
      QueryError: if its pixels are floats, or integers outside 0 to 65535.
    """
    from PIL import Image, ImageCms

    profile = picture.info.get("icc_profile")
    if picture.mode == "F" or picture.mode.startswith("I"):
        values = np.asarray(picture)
        if picture.mode == "F" or values.size and not 0 <= values.min() <= values.max() <= 65535:
            values_of = "floats" if picture.mode == "F" else "integers outside 0 to 65535"
            line = f"{name} has {values_of} (mode {{mode}}): convert it to 8 bits per channel"
            raise _refused(line, image, mode=picture.mode)
        # Pillow would clip 16-bit values at 255.
        scaled = (values.astype(np.uint32) * 255 + white // 2) // white
        grey = Image.fromarray((255 - scaled if is_negative else scaled).astype(np.uint8))
        transparent_value = picture.info.get("transparency")
        if isinstance(transparent_value, int):
            grey.putalpha(Image.fromarray(np.uint8(255) * (values != transparent_value)))
        picture = grey
    if picture.has_transparency_data:
        ground = Image.new("RGBA", picture.size, GROUND)
        picture = Image.alpha_composite(ground, picture.convert("RGBA"))
    rgb = picture.convert("RGB")
    # The frames of videos are in sRGB, pictures of phones in Display P3. A damaged TIFF has a text.
    if isinstance(profile, bytes):
        with contextlib.suppress(ImageCms.PyCMSError):  # damaged, or of grey or CMYK
            srgb = ImageCms.createProfile("sRGB")
            ImageCms.profileToProfile(rgb, io.BytesIO(profile), srgb, inPlace=True)
    return np.asarray(rgb)


def _refused(line: str, image: Path | bytes, **values: object) -> QueryError:
    """Return the error for a picture that cannot be used."""
    path = image if isinstance(image, Path) else None
    return QueryError(line, field="image", allowed=PICTURE_FORMATS, path=path, **values)
