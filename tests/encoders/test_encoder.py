import jax
import numpy as np
import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import encoder as module

AGREEMENT = 2e-6
"""Largest difference of unit vectors in float32; it is 4e-7 where the compiler optimises."""

ROUNDED = 2**-5
"""Largest difference of unit vectors in bfloat16.

Its 8 bits round an operand by 2**-9 at most. Some three dozen products in a row (9 a layer, up to 3
layers, a few around them) add up like a random walk to six of these, 0.012; the largest one seen is
0.015, and the bound is twice that.
"""


def inputs(encoder, pictures):
    return np.stack([encoder.preprocess(picture) for picture in pictures])


def distance(ours, theirs):
    return np.linalg.norm(ours - theirs, axis=-1).max()


def test_images_agree_with_transformers(encoder, expected, pictures):
    found = encoder.images(inputs(encoder, pictures))
    assert found.dtype == np.float32 and found.shape == (3, encoder.width)
    assert distance(found, expected.images) < AGREEMENT


def test_sentences_agree_with_transformers(encoder, expected, sentences):
    found = encoder.sentences(sentences)
    assert found.dtype == np.float32 and found.shape == (len(sentences), encoder.width)
    assert distance(found, expected.sentences) < AGREEMENT


def test_features_of_tokens_agree_with_transformers(encoder, expected, sentences):
    features = encoder.tokens(sentences[: len(expected.tokens)])
    _, real = encoder.tokenizer(sentences)
    for own, theirs, mask in zip(features, expected.tokens, real, strict=False):
        assert own.shape == (mask.sum(), encoder.token_width)
        # Hidden states are no unit vectors: relative to their norm.
        scale = np.linalg.norm(theirs[mask], axis=-1, keepdims=True)
        assert distance(own / scale, theirs[mask] / scale) < AGREEMENT


@pytest.mark.parametrize("kind", ["old_clip", "siglip"])
def test_bfloat16_stays_near(kind, expected, loaded, sentences, pictures):
    encoder = loaded(kind, "bfloat16")
    images, texts = encoder.images(inputs(encoder, pictures)), encoder.sentences(sentences)
    assert images.dtype == texts.dtype == np.float32
    apart = max(distance(images, expected.images), distance(texts, expected.sentences))
    assert 1e-4 < apart < ROUNDED
    np.testing.assert_allclose(np.linalg.norm(texts, axis=1), 1, atol=1e-6)


def test_what_fills_a_batch_up_changes_nothing(loaded, sentences):
    encoder = loaded("siglip")
    at_once = module.IMAGES_AT_ONCE["cpu"]
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2 * at_once + 3, 36, 36, 3), np.uint8)
    together = encoder.images(pixels)
    one_by_one = np.concatenate([encoder.images(pixels[i : i + 1]) for i in (0, 17, 34)])
    np.testing.assert_allclose(together[[0, 17, 34]], one_by_one, atol=5e-7)
    many = [f"{text} {i}" for i in range(9) for text in sentences]
    together = encoder.sentences(many)
    assert len(together) == len(many) > module.SENTENCES_AT_ONCE
    for i in (0, 31, 32, 44):
        np.testing.assert_allclose(encoder.sentences([many[i]])[0], together[i], atol=5e-7)
        own, among = encoder.tokens([many[i]])[0], encoder.tokens(many)[i]
        np.testing.assert_allclose(own, among, atol=5e-6)


def test_images_compile_once_and_sentences_twice(loaded, sentences):
    encoder = loaded("new_clip", "bfloat16")  # of which no other test has a program
    before = module._images._cache_size(), module._sentences._cache_size()
    for count in (1, 3, 16, 20):
        encoder.images(np.zeros((count, 36, 36, 3), np.uint8))
        encoder.sentences(sentences[:1] * count)
        encoder.tokens(sentences)
    assert module._images._cache_size() == before[0] + 1
    assert module._sentences._cache_size() == before[1] + 2


def test_nothing_in_is_nothing_out(loaded):
    encoder = loaded("siglip")
    assert encoder.images(np.zeros((0, 36, 36, 3), np.uint8)).shape == (0, 24)
    assert encoder.sentences([]).shape == (0, 24)
    assert encoder.tokens([]) == []


def test_facts_of_an_encoder(loaded):
    clip, siglip = loaded("old_clip"), loaded("siglip")
    assert (clip.name, clip.kind, siglip.kind) == ("old_clip", "clip", "siglip")
    assert loaded("siglip2").kind == "siglip2"
    assert (clip.width, clip.token_width, clip.max_tokens, clip.image_size) == (12, 16, 77, 32)
    assert siglip.max_tokens == 64 and siglip.image_size == 36
    assert siglip.scale == pytest.approx(np.exp(1.7)) and siglip.bias == pytest.approx(-2.3)
    assert clip.bias == 0.0
    assert siglip.preprocessing == "resize 36 bicubic, mean 0.5, std 0.5 v1"


def test_probability_is_the_sigmoid_of_the_trained_loss(loaded):
    siglip = loaded("siglip")
    cosines = np.array([-1.0, 0.0, 0.3, 1.0])
    logits = np.exp(1.7) * cosines - 2.3
    np.testing.assert_allclose(siglip.probability(cosines), 1 / (1 + np.exp(-logits)), rtol=1e-6)
    assert float(siglip.probability(0.3)) == pytest.approx(siglip.probability(cosines)[2])
    assert loaded("old_clip").probability(cosines) is None


@pytest.mark.usefixtures("unchecked")
def test_wrong_inputs_are_one_line(loaded):
    encoder = loaded("siglip")
    for call, part in [
        (lambda: encoder.images(np.zeros((1, 32, 32, 3), np.uint8)), "preprocess"),
        (lambda: encoder.images(np.zeros((1, 36, 36, 3), np.float32)), "float32"),
        (lambda: encoder.sentences("one string"), "a list of sentences"),
        (lambda: encoder.sentences(["a", 3]), "a sentence is a string, not 3"),
    ]:
        with pytest.raises(encoders.EncoderError, match=part) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_results_lie_on_the_host(loaded):
    found = loaded("siglip").sentences(["a"])
    assert isinstance(found, np.ndarray) and not isinstance(found, jax.Array)
