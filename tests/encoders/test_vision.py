import jax
import numpy as np

from hlformer_jax.encoders import vision
from hlformer_jax.encoders.config import Vision

AGREEMENT = 2e-6
"""Largest difference in float32, relative to a position's norm."""


def test_hidden_states_of_patches_agree_with_transformers(encoder, expected, pictures):
    preparation = encoder.preparation
    pixels = encoder.preprocess(pictures[0])[None].astype(np.float32)
    normal = (pixels - np.float32(preparation.shift)) * np.float32(preparation.scale)
    found = np.asarray(vision.states(encoder.params["vision"], encoder.config, normal))
    scale = np.linalg.norm(expected.patches, axis=-1, keepdims=True)
    apart = np.linalg.norm(found / scale - expected.patches / scale, axis=-1)
    assert apart.max() < AGREEMENT


def test_patches_are_cut_row_by_row_and_what_fills_none_is_left_out():
    sizes = Vision(8, 8, 1, 1, "gelu", 1e-5, image_size=7, patch_size=3)
    pixels = np.random.default_rng(0).random((2, 7, 7, 3), np.float32)
    found = np.asarray(vision.patches(pixels, sizes))
    assert found.shape == (2, 4, 27)
    for place, (row, column) in enumerate([(0, 0), (0, 3), (3, 0), (3, 3)]):
        cell = pixels[:, row : row + 3, column : column + 3]
        np.testing.assert_array_equal(found[:, place], cell.reshape(2, 27))


def test_a_clip_pools_its_class_position_alone_and_a_siglip_all_patches(loaded):
    for kind, alone in (("old_clip", True), ("siglip", False)):
        encoder = loaded(kind)
        sizes = encoder.config.vision
        rng = np.random.default_rng(0)
        hidden = rng.normal(size=(1, sizes.grid**2 + alone, sizes.width)).astype(np.float32)
        pool = jax.jit(lambda x, e=encoder: vision.pool(e.params["vision"], e.config, x))
        before = pool(hidden)
        assert before.shape == (1, encoder.width)
        changed = rng.normal(size=hidden.shape).astype(np.float32)
        changed[:, 0] = hidden[:, 0]
        assert np.array_equal(before, pool(changed)) == alone


def test_pixels_are_shifted_before_they_are_scaled_each_channel_by_its_own(loaded):
    encoder = loaded("siglip")
    params, config = encoder.params["vision"], encoder.config
    encode = jax.jit(lambda *inputs: vision.encode(params, config, *inputs))
    pixels = np.random.default_rng(0).integers(30, 120, (2, 36, 36, 3), np.uint8)
    shift, scale = np.array([10, 20, 30], np.uint8), np.float32([0.01, 0.02, 0.03])
    found = encode(pixels, np.float32(shift), 2 * scale)
    expected = encode(2 * (pixels - shift), np.zeros(3, np.float32), scale)
    np.testing.assert_allclose(found, expected, atol=AGREEMENT)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
