"""Images as an encoder wants them: resized and cropped as `preprocessor_config.json` says.

The reference is the image processor of transformers that works with Pillow (its "slow" one), to the
bit; the "fast" ones, of torchvision, differ from it by the rounding of their filters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from hlformer_jax.encoders.config import EncoderError

VERSION = 1
"""Counts changes of what `Preprocessing.apply` computes; an index keeps it."""

_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_CLIP = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_SIGLIP = {
    "size": {"height": 224, "width": 224},
    "do_center_crop": False,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_BOTH = {
    "do_resize": True,
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}
_MAX_PIXELS = 2**24
"""Pixels of a resized image; the ends of a longer one, which the crop leaves out, are cut first."""


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes an input: resized, cropped, (pixels · factor − mean) / std."""

    size: int  # height and width of the input, in pixels
    edge: int | None  # shorter side before the crop; None: resized to `size`, whatever the ratio
    filter: str  # of Pillow's resampling
    factor: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __str__(self) -> str:
        how = f"{self.edge} crop {self.size}" if self.edge is not None else f"{self.size}"
        short = lambda values: ",".join(
            f"{x:.4g}" for x in (values[:1] if len(set(values)) == 1 else values)
        )
        return (
            f"resize {how} {self.filter}, mean {short(self.mean)}, std {short(self.std)} v{VERSION}"
        )

    @property
    def shift(self) -> tuple[float, ...]:
        """What is subtracted from pixels of 0 to 255, of each channel."""
        return tuple(mean / self.factor for mean in self.mean)

    @property
    def scale(self) -> tuple[float, ...]:
        """What the difference is multiplied by, of each channel."""
        return tuple(self.factor / std for std in self.std)

    def apply(self, image: UInt8[np.ndarray, "height width 3"]) -> UInt8[np.ndarray, "S S 3"]:
        """An image, red, green and blue of 0 to 255, resized and cropped."""
        image = np.asarray(image)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise EncoderError(
                f"an image is an array [height, width, 3] of uint8, not {list(image.shape)} of"
                f" {image.dtype}"
            )
        height, width = image.shape[:2]
        if self.edge is None:
            if (height, width) == (self.size, self.size):
                return image
            return self._resize(image, self.size, self.size)
        if height <= width:
            tall, wide = self.edge, int(self.edge * width / height)
        else:
            tall, wide = int(self.edge * height / width), self.edge
        if tall * wide > _MAX_PIXELS:
            return self.apply(_middle(image, _MAX_PIXELS / self.edge**2))
        if (tall, wide) != (height, width):
            image = self._resize(image, tall, wide)
        return _centre(image, self.size)

    def _resize(self, image: np.ndarray, tall: int, wide: int) -> np.ndarray:
        filter_ = Image.Resampling[self.filter.upper()]
        return np.asarray(Image.fromarray(image).resize((wide, tall), filter_))


def read(content: Mapping[str, Any], family: str, where: str) -> Preprocessing:
    """The preprocessing in a `preprocessor_config.json`, what it lacks by the family's default.

    Raises:
      EncoderError: naming the file (`where`), when a value makes no sense or images are not square.
    """
    fields = _BOTH | (_CLIP if family == "clip" else _SIGLIP)
    fields |= {name: value for name, value in content.items() if value is not None}
    if not fields["do_resize"]:
        raise EncoderError(f"{where}: do_resize is false; an encoder of one size cannot do without")
    height, width, edge = _size(fields["size"], family, f"{where}: size")
    if fields["do_center_crop"]:
        crop_height, crop_width, _ = _size(fields.get("crop_size", 224), "", f"{where}: crop_size")
        # A crop of exactly what is resized to changes nothing.
        if edge is None and (crop_height, crop_width) != (height, width):
            raise EncoderError(f"{where}: crop_size differs from a size of fixed height and width")
        height, width = crop_height, crop_width
    elif edge is not None:
        raise EncoderError(f"{where}: size keeps the ratio of sides, and nothing crops a square")
    if height != width or height is None:
        raise EncoderError(f"{where}: images of {height} x {width} pixels; only squares are read")
    if fields["resample"] not in _FILTERS:
        raise EncoderError(f"{where}: resample {fields['resample']!r} is no number of 0 to 5")
    factor = fields["rescale_factor"] if fields["do_rescale"] else 1.0
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0:
        raise EncoderError(f"{where}: rescale_factor {factor!r} is no positive number")
    normal = fields["do_normalize"]
    mean = _channels(fields["image_mean"] if normal else 0.0, f"{where}: image_mean")
    std = _channels(fields["image_std"] if normal else 1.0, f"{where}: image_std")
    if min(std) <= 0:
        raise EncoderError(f"{where}: image_std has a value that is not positive")
    return Preprocessing(height, edge, _FILTERS[fields["resample"]], float(factor), mean, std)


def write(preprocessing: Preprocessing) -> dict[str, Any]:
    """The content of a `preprocessor_config.json` of a SigLIP, which `read` reads back."""
    return {
        **_BOTH,
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": preprocessing.size, "width": preprocessing.size},
        "resample": next(k for k, name in _FILTERS.items() if name == preprocessing.filter),
        "rescale_factor": preprocessing.factor,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_convert_rgb": True,
    }


def _middle(image: np.ndarray, ratio: float) -> np.ndarray:
    """The middle of an image whose sides have a larger ratio than that."""
    short, axis = min(image.shape[:2]), int(np.argmax(image.shape[:2]))
    length = int(short * ratio)
    start = (image.shape[axis] - length) // 2
    return image[:, start : start + length] if axis else image[start : start + length]


def _centre(image: np.ndarray, size: int) -> np.ndarray:
    """The middle of an image, filled up with black where it is smaller."""
    height, width = image.shape[:2]
    if height < size or width < size:
        tall, wide = max(height, size), max(width, size)
        # An odd row or column of black goes above or to the left, as in transformers.
        top, left = (tall - height + 1) // 2, (wide - width + 1) // 2
        whole = np.zeros((tall, wide, 3), np.uint8)
        whole[top : top + height, left : left + width] = image
        image, height, width = whole, tall, wide
    top, left = (height - size) // 2, (width - size) // 2
    return np.ascontiguousarray(image[top : top + size, left : left + size])


def _size(value: Any, family: str, where: str) -> tuple[Any, Any, int | None]:
    """Height, width and shorter side of a size; a number alone is CLIP's shorter side."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"shortest_edge": value} if family == "clip" else {"height": value, "width": value}
    if isinstance(value, Mapping):
        sides = [value.get(name) for name in ("height", "width", "shortest_edge")]
        numbers = [x for x in sides if x is not None]
        whole = all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in numbers)
        if whole and (sides[2] is None) != (sides[0] is None or sides[1] is None):
            return sides[0], sides[1], sides[2]
    raise EncoderError(f"{where} is {value!r}: neither height and width nor shortest_edge alone")


def _channels(value: Any, where: str) -> tuple[float, float, float]:
    """Three numbers, or one for all channels."""
    values = value if isinstance(value, list | tuple) else [value] * 3
    number = lambda x: isinstance(x, int | float) and not isinstance(x, bool)
    if len(values) != 3 or not all(map(number, values)):
        raise EncoderError(f"{where} is {value!r}: no three numbers")
    red, green, blue = map(float, values)
    return red, green, blue
