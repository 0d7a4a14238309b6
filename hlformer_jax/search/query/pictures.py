"""Pictures in a query: a file, or the content of one, to the embedding of the picture."""

import io
import warnings
from pathlib import Path

import numpy as np
from jaxtyping import Float

from hlformer_jax import files
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import QueryError

PICTURE_FORMATS = "JPEG", "PNG", "WEBP", "GIF", "AVIF", "TIFF", "BMP"
"""Formats of pictures in a query; Pillow tries no other format on their bytes."""


def embedding(encoder: Encoder, image: Path | bytes) -> Float[np.ndarray, " d"]:
    """Return the float32 embedding of a picture, which is first rotated as its EXIF data say.

    Args:
      encoder: the encoder.
      image: path of the picture's file, or the content of such a file.

    Raises:
      QueryError: if Pillow cannot read it as a picture, or it has more pixels than Pillow accepts.
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
                pixels = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    except UnidentifiedImageError:
        listed = ", ".join(PICTURE_FORMATS)
        raise _refused(f"{name} is not an image: give one of {listed}", image) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _refused(f"{name} has too many pixels: give a smaller image", image) from None
    except (OSError, ValueError, SyntaxError) as error:  # raised by Pillow for damaged files
        line = f"{name} is damaged ({{problem}}): give another image"
        raise _refused(line, image, problem=error) from None
    vector: np.ndarray = np.asarray(encoder.encode_images(encoder.preprocess(pixels)[None])[0])
    return vector.astype(np.float32)


def _refused(line: str, image: Path | bytes, **values: object) -> QueryError:
    """Return the error for a picture that cannot be used."""
    path = image if isinstance(image, Path) else None
    return QueryError(line, field="image", allowed=PICTURE_FORMATS, path=path, **values)
