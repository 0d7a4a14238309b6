"""Training of a small SigLIP on drawings."""

import jax
import numpy as np
import pytest
from PIL import Image, ImageDraw

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError
from hlformer_jax.encoders import train as module
from hlformer_jax.encoders.images import Preprocessing

COLOURS = {"red": (220, 40, 40), "green": (40, 180, 60), "blue": (50, 80, 220)}
SHAPES = ("square", "triangle")
PLACES = {"left": 14, "right": 34}
SIZE = module.Size(width=64, layers=1, heads=2, tokens=8)
SCHEDULE = {"steps": 400, "batch": 32, "learning_rate": 2e-3}


def draw(rng, colour, shape, place):
    image = Image.new("RGB", (48, 48), tuple(rng.integers(0, 60, 3).tolist()))
    x, y = PLACES[place] + rng.integers(-2, 3), 24 + rng.integers(-8, 9)
    r = rng.integers(10, 13)
    fill = tuple(int(c) for c in np.clip(COLOURS[colour] + rng.integers(-20, 21, 3), 0, 255))
    corners = [(x - r, y + r), (x + r, y + r)]
    corners += [(x + r, y - r), (x - r, y - r)] if shape == "square" else [(x, y - r)]
    ImageDraw.Draw(image).polygon([(int(a), int(b)) for a, b in corners], fill)
    return np.asarray(image.resize((24, 24)))


def drawings(count, seed):
    rng = np.random.default_rng(seed)
    facts = [
        tuple(rng.choice(list(names)) for names in (COLOURS, SHAPES, PLACES)) for _ in range(count)
    ]
    images = np.stack([draw(rng, *fact) for fact in facts])
    return images, [f"a {c} {s} on the {p}" for c, s, p in facts]


@pytest.fixture(scope="module")
def trained():
    lines = []
    images, sentences = drawings(400, 0)
    encoder = module.train(images, sentences, size=SIZE, **SCHEDULE, report=lines.append)
    return encoder, lines


@pytest.mark.slow  # training takes seconds
def test_unseen_drawings_find_their_sentences(trained):
    encoder, _ = trained
    images, sentences = drawings(120, 1)
    candidates = sorted(set(sentences))
    assert len(candidates) == 12
    cosines = encoder.encode_texts(candidates) @ encoder.encode_images(images).T
    best = [candidates[i].split() for i in cosines.argmax(0)]
    right = np.array([[a == b for a, b in zip(x, y.split(), strict=True)] for x, y in zip(
        best, sentences, strict=True
    )])  # fmt: skip
    colour, shape, place = right[:, 1].mean(), right[:, 2].mean(), right[:, 5].mean()
    # By chance 0.33, 0.5, 0.5, and 0.08 for all three.
    assert colour > 0.95 and place > 0.95 and shape > 0.85, (colour, shape, place)
    assert right.all(1).mean() > 0.8


@pytest.mark.slow
def test_loss_falls_and_is_reported_ten_times(trained):
    _, lines = trained
    losses = [float(line.rpartition(" ")[2]) for line in lines]
    assert len(lines) == 10 and lines[-1].startswith("step 400 of 400: loss")
    assert losses[-1] < losses[0] / 2


@pytest.mark.slow
def test_probabilities_separate_matching_pairs(trained):
    encoder, _ = trained
    images, sentences = drawings(60, 2)
    cosines = (encoder.encode_images(images) * encoder.encode_texts(sentences)).sum(1)
    swapped = [
        s.replace("red", "x").replace("green", "red").replace("x", "green") for s in sentences
    ]
    changed = np.array([a != b for a, b in zip(sentences, swapped, strict=True)])
    swapped_cosines = (encoder.encode_images(images) * encoder.encode_texts(swapped)).sum(1)
    assert np.median(encoder.probability(cosines)) > 0.3
    assert np.median(encoder.probability(swapped_cosines)[changed]) < 0.05


@pytest.mark.slow
def test_trained_encoder_is_saved_and_read_again(trained, tmp_path):
    encoder, _ = trained
    encoders.save(encoder, tmp_path / "tiny-siglip")
    read = encoders.load(tmp_path / "tiny-siglip")
    images, sentences = drawings(5, 3)
    np.testing.assert_array_equal(encoder.encode_images(images), read.encode_images(images))
    for texts in (sentences, ["A RED, square!", "", "words never heard of " * 9]):
        np.testing.assert_array_equal(encoder.encode_texts(texts), read.encode_texts(texts))
        for before, after in zip(
            encoder.encode_tokens(texts), read.encode_tokens(texts), strict=True
        ):
            np.testing.assert_array_equal(before, after)
    for fact in ("name", "kind", "width", "scale", "bias", "preprocessing", "fingerprint"):
        assert getattr(read, fact) == getattr(encoder, fact), fact


@pytest.mark.slow
def test_equal_seeds_give_equal_encoders():
    images, sentences = drawings(400, 0)  # sizes that are compiled already
    options = {"size": SIZE, "steps": 2, "batch": 32, "report": lambda line: None}
    first, second, third = (
        module.train(images, sentences, seed=seed, **options) for seed in (0, 0, 1)
    )
    assert first.fingerprint == second.fingerprint != third.fingerprint


def test_loss_matches_siglip():
    sizes = module._make_config(24, SIZE, 20)
    params = module.initial_params(sizes, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (4, 24, 24, 3), np.uint8)
    ids = rng.integers(0, 20, (3, 8)).astype(np.int32)
    is_pair = rng.random((4, 3)) < 0.4
    grey = Preprocessing(24, None, "bicubic", 1 / 255, (0.5,) * 3, (0.5,) * 3)

    @jax.jit
    def program(params):
        images = module.SIGLIP.encode_images(params["vision"], sizes, grey, pixels)
        texts, _ = module.SIGLIP.encode_texts(params["text"], sizes, ids)
        return module.loss(params, sizes, grey, pixels, ids, is_pair), images, texts

    value, images, texts = program(params)
    logits = 20.0 * np.asarray(images, np.float64) @ np.asarray(texts, np.float64).T - 10.0
    probability = 1 / (1 + np.exp(-logits))
    expected = -np.log(np.where(is_pair, probability, 1 - probability)).sum(1).mean()
    assert float(value) == pytest.approx(expected, rel=1e-4)


def test_step_pairs_images_with_their_texts():
    rng = np.random.default_rng(0)
    sentence_of = rng.integers(0, 300, 50)
    ids = np.zeros((300, 4), np.int32)
    ids[:, 0], ids[:, 1] = np.arange(3, 303), 1  # sentences of one word each, and the end mark
    for images, texts, is_pair in module._draw_steps(np.arange(50), sentence_of, ids, 7, 20, rng):
        assert len(texts) == module.MAX_SENTENCES_OF_A_STEP == len(set(texts[:, 0]))
        np.testing.assert_array_equal(
            is_pair, ids[sentence_of[images]][:, None, 0] == texts[None, :, 0]
        )
        assert (is_pair.sum(1) == 1).all()


def test_shortened_sentence_matches_longer_ones():
    longer = np.array([[5, 6, 7, 1, 0], [7, 6, 5, 1, 0], [5, 5, 6, 7, 1]])
    shorter = np.array([[5, 7, 1, 0, 0], [6, 1, 0, 0, 0], [5, 5, 1, 0, 0], [7, 6, 5, 1, 0]])
    expected = [[True, True, False, False], [False, True, False, True], [True, True, True, False]]
    np.testing.assert_array_equal(module.contains_words(shorter, longer), expected)


def test_dropping_words_keeps_at_least_one_word():
    ids = np.tile(np.array([5, 6, 7, 8, 1, 0], np.int32), (4000, 1))
    shorter = module.drop_words(ids, np.random.default_rng(0))
    words = (shorter > 2).sum(1)
    assert words.min() == 1 and 0.6 < (words == 4).mean() < 0.8
    assert ((shorter == 1).sum(1) == 1).all()  # the end mark stays, and what follows is padding
    assert (shorter[np.arange(4000), words] == 1).all()
    assert module.contains_words(shorter, ids[:1]).all()


@pytest.mark.slow
def test_part_of_a_sentence_finds_its_image(trained):
    encoder, _ = trained
    images, sentences = drawings(120, 5)
    vectors = encoder.encode_images(images)
    for words in (("red", "green", "blue"), SHAPES, ("left", "right")):
        best = (encoder.encode_texts(list(words)) @ vectors.T).argmax(0)
        right = [words[i] in sentence for i, sentence in zip(best, sentences, strict=True)]
        assert np.mean(right) > 0.85, words


@pytest.mark.parametrize(
    ("shape", "dtype", "sentences", "size", "part"),
    [
        ((2, 24, 24), np.uint8, ["a", "b"], SIZE, r"\[N, S, S, 3\]"),
        ((2, 24, 20, 3), np.uint8, ["a", "b"], SIZE, r"\[N, S, S, 3\]"),
        ((2, 24, 24, 3), np.float32, ["a", "b"], SIZE, "float32"),
        ((2, 24, 24, 3), np.uint8, ["a"], SIZE, "2 images and 1 sentences"),
        ((2, 24, 24, 3), np.uint8, ["a", "a"], SIZE, "at least two different"),
        ((2, 4, 4, 3), np.uint8, ["a", "b"], SIZE, "a patch must fit"),
        ((2, 24, 24, 3), np.uint8, ["a", "b"], module.Size(width=30), "heads must divide"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_unusable_training_data_gives_one_line(shape, dtype, sentences, size, part):
    with pytest.raises(EncoderError, match=part) as caught:
        module.train(np.zeros(shape, dtype), sentences, size=size, steps=1)
    assert "\n" not in str(caught.value)


def test_expansion_sets_the_hidden_size():
    size = module.Size(width=32, layers=2, heads=2, expansion=4, patch=8, tokens=6, vocabulary=8)
    sizes = module.untrained(16, ["a red circle", "a blue one"], size=size).config
    assert sizes.vision.hidden == sizes.text.hidden == 128
