import numpy as np
import pytest
from PIL import Image

from hlformer_jax.encoders import EncoderError, images

CLIP = {"size": 32, "crop_size": 32}
SIGLIP = {"size": {"height": 32, "width": 32}}


def test_inputs_agree_with_transformers(encoder, expected, pictures):
    preparation = encoder.preparation
    pixels = np.stack([encoder.preprocess(picture) for picture in pictures])
    assert pixels.dtype == np.uint8
    normal = (pixels - np.array(preparation.shift)) * np.array(preparation.scale)
    np.testing.assert_allclose(
        normal.transpose(0, 3, 1, 2)[:, :, ::3], expected.pixels, atol=1e-6, rtol=0
    )


def test_an_image_of_the_right_size_stays():
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    for content, family in ((CLIP, "clip"), (SIGLIP, "siglip")):
        np.testing.assert_array_equal(images.read(content, family, "f").apply(image), image)


def test_an_image_smaller_than_the_crop_is_framed_in_black():
    clip = images.read({"size": 20, "crop_size": 23}, "clip", "f")
    found = clip.apply(np.full((20, 20, 3), 9, np.uint8))
    # transformers puts the odd row above and the odd column to the left
    assert found.shape == (23, 23, 3) and found.sum() == 20 * 20 * 3 * 9
    assert found[2:22, 2:22].min() == 9


@pytest.mark.parametrize("shape", [(31, 500, 3), (500, 31, 3), (1, 300, 3)])
def test_a_long_image_is_cropped_where_transformers_crops_it(shape):
    """Its processor that works with Pillow: resized whole, sides rounded down, the middle taken."""
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    tall, wide = (int(32 * side / min(shape[:2])) for side in shape[:2])
    whole = np.asarray(Image.fromarray(image).resize((wide, tall), Image.Resampling.BICUBIC))
    top, left = (tall - 32) // 2, (wide - 32) // 2
    found = images.read(CLIP, "clip", "f").apply(image)
    np.testing.assert_array_equal(found, whole[top : top + 32, left : left + 32])


@pytest.mark.parametrize("shape", [(1, 50_000, 3), (50_000, 1, 3), (3, 200_000, 3)])
def test_a_thread_of_an_image_takes_no_gigabytes(shape, monkeypatch):
    sizes = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, size, *rest: sizes.append(size) or resize(self, size)
    )
    found = images.read(CLIP, "clip", "f").apply(np.full(shape, 77, np.uint8))
    assert found.shape == (32, 32, 3) and (found == 77).all()
    assert max(tall * wide for tall, wide in sizes) <= 2**24


@pytest.mark.usefixtures("unchecked")
def test_what_an_image_is():
    siglip = images.read(SIGLIP, "siglip", "f")
    for wrong in (
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ):
        with pytest.raises(EncoderError, match="array"):
            siglip.apply(wrong)


def test_the_text_of_a_preparation():
    assert str(images.read({}, "clip", "f")) == (
        "resize 224 crop 224 bicubic, mean 0.4815,0.4578,0.4082, std 0.2686,0.2613,0.2758 v1"
    )
    assert str(images.read({"resample": 2}, "siglip", "f")) == (
        "resize 224 bilinear, mean 0.5, std 0.5 v1"
    )


def test_without_rescaling_or_normalising():
    found = images.read({"do_rescale": False, "do_normalize": False}, "siglip", "f")
    assert (found.factor, found.mean, found.std) == (1.0, (0.0,) * 3, (1.0,) * 3)
    assert found.scale == (1.0,) * 3 and found.shift == (0.0,) * 3


def test_written_and_read_again():
    found = images.read({"size": 40, "image_mean": [0.1, 0.2, 0.3]}, "siglip", "f")
    assert images.read(images.write(found), "siglip", "f") == found


@pytest.mark.parametrize(
    ("content", "family", "part"),
    [
        ({"size": {"height": 20, "width": 30}}, "siglip", "only squares"),
        ({"size": {"longest_edge": 20}}, "siglip", "neither height and width"),
        ({"size": {"height": "20", "width": 20}}, "siglip", "neither height and width"),
        ({"size": 20, "do_center_crop": False}, "clip", "nothing crops a square"),
        ({"size": {"height": 40, "width": 40}, "crop_size": 20}, "clip", "crop_size differs"),
        ({"do_resize": False}, "clip", "do_resize is false"),
        ({"resample": 9}, "clip", "resample 9"),
        ({"rescale_factor": -1}, "clip", "rescale_factor -1"),
        ({"image_mean": [0.5, 0.5]}, "clip", "no three numbers"),
        ({"image_std": [0.5, 0.5, 0]}, "clip", "not positive"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(content, family, part):
    with pytest.raises(EncoderError, match=part) as caught:
        images.read(content, family, "f/preprocessor_config.json")
    assert str(caught.value).startswith("f/preprocessor_config.json: ")
