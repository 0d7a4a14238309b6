"""Resizing and cropping of images, with the settings of a `preprocessor_config.json`.

The results are equal, bit for bit, to the results of the "slow" image processors of transformers,
which use Pillow. The "fast" image processors use torchvision, whose filters round differently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from hlformer_jax.encoders.config import EncoderError

VERSION = 1
"""Version of `Preprocessing.apply`, which indexes record: increase it if the results change."""

_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_DEFAULTS = {
    "do_resize": True,
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}
_MAX_PIXELS = 2**24
"""Largest number of pixels of a resized image. If there would be more, the ends of the image, which
the crop would remove, are cut off before resizing."""


@dataclass(frozen=True)
class Preprocessing:
    """Settings for resizing, cropping and the normalisation (pixels · factor − mean) / std."""

    size: int  # height and width of the encoder's input, in pixels
    # Shorter side of the resized image, before the crop. None: resize to a square of `size`,
    # without keeping the ratio of the sides.
    edge: int | None
    filter: str  # name of Pillow's resampling filter
    factor: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __str__(self) -> str:
        size = f"{self.edge} crop {self.size}" if self.edge is not None else f"{self.size}"
        mean, std = map(_abbreviate, (self.mean, self.std))
        return f"resize {size} {self.filter}, mean {mean}, std {std} v{VERSION}"

    @property
    def shift(self) -> tuple[float, ...]:
        """The number to subtract from pixels of 0 to 255, for each channel."""
        return tuple(mean / self.factor for mean in self.mean)

    @property
    def scale(self) -> tuple[float, ...]:
        """The factor by which to multiply the pixels after the subtraction, for each channel."""
        return tuple(self.factor / std for std in self.std)

    def apply(self, image: UInt8[np.ndarray, "height width 3"]) -> UInt8[np.ndarray, "S S 3"]:
        """Resize and crop an image; its channels are red, green and blue, from 0 to 255.

        Raises:
          EncoderError: if the image has another shape or dtype.
        """
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
            new_height, new_width = self.edge, int(self.edge * width / height)
        else:
            new_height, new_width = int(self.edge * height / width), self.edge
        if new_height * new_width > _MAX_PIXELS:
            return self.apply(_cut_ends(image, _MAX_PIXELS / self.edge**2))
        if (new_height, new_width) != (height, width):
            image = self._resize(image, new_height, new_width)
        return _crop_centre(image, self.size)

    def _resize(self, image: np.ndarray, height: int, width: int) -> np.ndarray:
        resampling = Image.Resampling[self.filter.upper()]
        return np.asarray(Image.fromarray(image).resize((width, height), resampling))


def _abbreviate(channels: tuple[float, ...]) -> str:
    """Format the numbers of the channels, separated by commas; one number if all are equal."""
    return ",".join(f"{x:.4g}" for x in (channels[:1] if len(set(channels)) == 1 else channels))


def read(content: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> Preprocessing:
    """Read the content of a `preprocessor_config.json`.

    Args:
      content: the JSON object.
      defaults: the architecture's values for missing keys (`ImageTextFamily.image_settings`).
      where: the file's name, for errors.

    Raises:
      EncoderError: if a value is invalid or the preprocessed images would not be square.
    """
    fields = {**_DEFAULTS, **defaults}
    # In a flag, null means false.
    fields |= {k: value for k, value in content.items() if value is not None or k.startswith("do_")}
    if not fields["do_resize"]:
        raise EncoderError(f"{where}: do_resize is false, but an encoder needs images of one size")
    if fields.get("use_square_size"):
        raise EncoderError(f"{where}: use_square_size is true, but must be false or missing")
    number_is_edge = not fields.get("default_to_square")
    height, width, edge = _read_size(fields["size"], f"{where}: size", number_is_edge)
    if fields["do_center_crop"]:
        crop = fields.get("crop_size", 224)
        crop_height, crop_width, _ = _read_size(crop, f"{where}: crop_size", number_is_edge=False)
        # A resized image of fixed height and width could only be cropped to the same size.
        if edge is None and (crop_height, crop_width) != (height, width):
            raise EncoderError(
                f"{where}: crop_size must equal size if size has a height and a width"
            )
        height, width = crop_height, crop_width
    elif edge is not None:
        raise EncoderError(f"{where}: do_center_crop is false, so images are not square")
    if height != width or height is None:
        raise EncoderError(f"{where}: images have {height} x {width} pixels, but must be square")
    if fields["resample"] not in _FILTERS:
        raise EncoderError(f"{where}: resample {fields['resample']!r} is not a number from 0 to 5")
    factor = fields["rescale_factor"] if fields["do_rescale"] else 1.0
    if not _is_number(factor) or not factor > 0:
        raise EncoderError(f"{where}: rescale_factor {factor!r} is not a positive number")
    normalised = fields["do_normalize"]
    mean = _read_channels(fields["image_mean"] if normalised else 0.0, f"{where}: image_mean")
    std = _read_channels(fields["image_std"] if normalised else 1.0, f"{where}: image_std")
    if min(std) <= 0:
        raise EncoderError(f"{where}: image_std has a value that is not positive")
    return Preprocessing(height, edge, _FILTERS[fields["resample"]], float(factor), mean, std)


def write(preprocessing: Preprocessing, processor: str) -> dict[str, Any]:
    """Return the content of a `preprocessor_config.json`, which transformers can read too.

    Args:
      preprocessing: the settings.
      processor: the class of transformers that reads the file.
    """
    square = {"height": preprocessing.size, "width": preprocessing.size}
    crop = {
        "size": {"shortest_edge": preprocessing.edge},
        "do_center_crop": True,
        "crop_size": square,
    }
    return {
        **_DEFAULTS,
        "image_processor_type": processor,
        **({"size": square} if preprocessing.edge is None else crop),
        "resample": next(k for k, name in _FILTERS.items() if name == preprocessing.filter),
        "rescale_factor": preprocessing.factor,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_convert_rgb": True,
    }


def _cut_ends(image: np.ndarray, ratio: float) -> np.ndarray:
    """Cut off the ends of an image, so that its longer side is at most `ratio` shorter sides."""
    shorter, axis = min(image.shape[:2]), int(np.argmax(image.shape[:2]))
    length = int(shorter * ratio)
    start = (image.shape[axis] - length) // 2
    return image[:, start : start + length] if axis else image[start : start + length]


def _crop_centre(image: np.ndarray, size: int) -> np.ndarray:
    """Return the square in the middle of an image, with a black border if the image is smaller."""
    missing = [max(size - side, 0) for side in image.shape[:2]]
    if any(missing):
        # If the number of black rows or columns is odd, the additional one is at the top or on the
        # left, as in transformers.
        rows, columns = (((count + 1) // 2, count // 2) for count in missing)
        image = np.pad(image, (rows, columns, (0, 0)))
    row, column = ((side - size) // 2 for side in image.shape[:2])
    return np.ascontiguousarray(image[row : row + size, column : column + size])


def _read_size(value: Any, where: str, number_is_edge: bool) -> tuple[Any, Any, int | None]:
    """Return height, width and shortest edge; None for those that the value does not have."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"shortest_edge": value} if number_is_edge else {"height": value, "width": value}
    if isinstance(value, Mapping):
        height, width, edge = (value.get(name) for name in ("height", "width", "shortest_edge"))
        numbers = [x for x in (height, width, edge) if x is not None]
        are_sizes = all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in numbers)
        if are_sizes and (edge is None) != (height is None or width is None):
            return height, width, edge
    raise EncoderError(f"{where} is {value!r}: give height and width, or shortest_edge alone")


def _read_channels(value: Any, where: str) -> tuple[float, float, float]:
    """Return the numbers of the three channels; a single number is used for all of them."""
    values = value if isinstance(value, list | tuple) else [value] * 3
    if len(values) != 3 or not all(map(_is_number, values)):
        raise EncoderError(f"{where} is {value!r}: give one number or three")
    red, green, blue = map(float, values)
    return red, green, blue


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
