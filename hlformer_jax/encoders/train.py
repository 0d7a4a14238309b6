"""Training of a tiny SigLIP from images and sentences, without any download.

It uses the same functions as large encoders and can be saved like them. After a minute of training
it knows the words and images of its few hundred pairs, which is enough for the demo; it does not
generalise.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers
from jaxtyping import Bool, Float, Int, UInt8
from tokenizers import models, normalizers, pre_tokenizers, processors

from hlformer_jax.encoders import weights
from hlformer_jax.encoders.config import Config, EncoderError, Text, Tower, Vision
from hlformer_jax.encoders.encoder import ImageTextEncoder
from hlformer_jax.encoders.families.siglip import Siglip
from hlformer_jax.encoders.images import Preprocessing
from hlformer_jax.encoders.tokenizer import Tokenizer, build
from hlformer_jax.encoders.transformer import Params
from hlformer_jax.typing import Array

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
PAD_ID, END_ID, UNKNOWN_ID = 0, 1, 2
MAX_SENTENCES_OF_A_STEP = 128
"""Largest number of different sentences with which a step compares each image."""

SIGLIP = Siglip()
_GREY = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Size:
    """The sizes of a tiny encoder, the same for images and sentences."""

    width: int = 96  # number of coordinates of unit vectors and of hidden states
    layers: int = 1
    heads: int = 4
    expansion: int = 2  # width of a feed-forward layer as a multiple of `width`
    patch: int = 8  # height and width of a patch, in pixels
    tokens: int = 16  # largest number of tokens of a sentence, including the end token
    vocabulary: int = 2000  # largest number of words


def train(
    images: UInt8[np.ndarray, "V S S 3"],
    sentences: Sequence[str],
    *,
    size: Size | None = None,
    steps: int = 1000,
    batch: int = 48,
    learning_rate: float = 2e-3,
    seed: int = 0,
    name: str = "tiny-siglip",
    report: Callable[[str], None] = print,
) -> ImageTextEncoder:
    """Train a SigLIP on pairs of an image and a sentence.

    The loss is SigLIP's: a sigmoid cross-entropy for each pair of an image and a sentence. The
    images of a step are compared with all different sentences of the data, up to
    `MAX_SENTENCES_OF_A_STEP`. (The sentences of a batch alone mostly differ in many words, so that
    they teach little about single words.) Half of the sentences lose words at random. A shortened
    sentence is positive for every image whose sentence contains its words in that order, so that
    "circle" finds the image of "a red circle on the left".

    Every image is used once before any image is used again. Equal seeds give equal encoders on the
    same machine.

    Args:
      images: images of one size.
      sentences: the sentence of each image.
      size: sizes of the encoder.
      steps: number of optimiser steps.
      batch: images of a step.
      learning_rate: the largest learning rate, reached after a tenth of the steps; then it falls
        as a cosine.
      seed: seed of initial parameters and random choices.
      name: name of the encoder.
      report: receives a line with the loss ten times during the training.

    Raises:
      EncoderError: if images and sentences are not pairs, or too few, or the sizes do not fit.
    """
    size = size or Size()
    images = np.asarray(images)
    _check(images, sentences, size, steps, batch)
    unique, sentence_of = np.unique(np.asarray(sentences), return_inverse=True)
    config, tokenizer, preprocessing = build_parts(images.shape[1], sentences, size, name)
    ids, _ = tokenizer(unique.tolist())

    generator = np.random.default_rng(seed)
    params = initial_params(config, generator)
    # Unknown words have the embedding 0 instead of a random one.
    params["text"]["tokens"][UNKNOWN_ID] = 0.0
    state = _OPTIMISER.init(params)
    rates = _learning_rates(learning_rate, steps)
    for step, rows in enumerate(_draw_steps(images, sentence_of, ids, steps, batch, generator)):
        params, state, value = _step(params, state, rows, rates[step], config, preprocessing)
        if (step + 1) % max(steps // 10, 1) == 0:
            report(f"step {step + 1} of {steps}: loss {float(value):.3f}")
    return _make_encoder(jax.tree.map(np.asarray, params), config, tokenizer, preprocessing, name)


def untrained(
    image_size: int,
    sentences: Sequence[str],
    *,
    size: Size | None = None,
    name: str = "untrained",
) -> ImageTextEncoder:
    """Return a SigLIP with random parameters, for measurements of time and memory.

    Args:
      image_size: height and width of its images, in pixels.
      sentences: texts whose words are its vocabulary.
      size: sizes of the encoder; None for the default sizes.
      name: name of the encoder.
    """
    parts = build_parts(image_size, sentences, size or Size(), name)
    return _make_encoder(initial_params(parts[0], np.random.default_rng(0)), *parts, name)


def build_parts(
    image_size: int, sentences: Sequence[str], size: Size, name: str
) -> tuple[Config, Tokenizer, Preprocessing]:
    """Return the parts of an encoder other than its parameters.

    Args:
      image_size: height and width of its images, in pixels.
      sentences: texts whose words are its vocabulary.
      size: sizes of the encoder.
      name: name of the encoder, for errors.
    """
    backend = _word_tokenizer(sentences, size.vocabulary)
    config = _make_config(image_size, size, backend.get_vocab_size())
    content = backend.to_str(pretty=True).encode()
    settings = {
        "eos_token": END,
        "model_input_names": ["input_ids"],
        "model_max_length": size.tokens,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
    }
    tokenizer = build(backend, content, settings, config, name)
    return config, tokenizer, Preprocessing(image_size, None, "bicubic", 1 / 255, _GREY, _GREY)


def _make_encoder(
    params: Params, config: Config, tokenizer: Tokenizer, preprocessing: Preprocessing, name: str
) -> ImageTextEncoder:
    def digest() -> str:
        return hashlib.sha256(weights.to_bytes(params, SIGLIP.leaves(config))).hexdigest()

    return ImageTextEncoder(config, params, tokenizer, preprocessing, name=name, digest=digest)


def loss(
    params: Params,
    config: Config,
    preprocessing: Preprocessing,
    pixels: UInt8[Array, "V S S 3"],
    ids: Int[Array, "Q W"],
    is_pair: Bool[Array, "V Q"],
) -> Float[Array, ""]:
    """Return SigLIP's loss: the sum over texts of sigmoid losses, as a mean over images.

    Args:
      params: the parameter tree.
      config: the encoder's sizes.
      preprocessing: the settings of the normalisation.
      pixels: images that have been resized and cropped.
      ids: the ids of the texts.
      is_pair: whether image and text belong together.

    References:
      Zhai, Mustafa, Kolesnikov and Beyer, Sigmoid loss for language image pre-training, ICCV 2023.
    """
    images = SIGLIP.encode_images(params["vision"], config, preprocessing, pixels)
    texts, _ = SIGLIP.encode_texts(params["text"], config, ids)
    logits = jnp.exp(params["scale"]) * (images @ texts.T) + params["bias"]
    signs = jnp.where(is_pair, 1.0, -1.0)
    return -jnp.mean(jnp.sum(jax.nn.log_sigmoid(signs * logits), axis=1))


def _learning_rates(peak: float, steps: int) -> Float[np.ndarray, " steps"]:
    """Return the learning rate of each step: a linear rise for a tenth, then a cosine."""
    step = np.arange(1, steps + 1)
    rise = max(steps // 10, 1)
    cosine = 0.5 * (1 + np.cos(np.pi * np.maximum(step - rise, 0) / (steps + 1 - rise)))
    return (peak * np.minimum(step / rise, cosine)).astype(np.float32)


# In a short training, the second moment should depend on the last steps only. `_step` multiplies
# the updates by the learning rate.
_OPTIMISER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1.0, b2=0.95))


@partial(jax.jit, static_argnums=(4, 5))
def _step(
    params: Params,
    state: Any,
    rows: tuple[Array, Array, Array],
    rate: Float[Array, ""],
    config: Config,
    preprocessing: Preprocessing,
) -> tuple[Params, Any, Float[Array, ""]]:
    """Return parameters, optimiser state and loss after one step on the rows of `_draw_steps`."""
    value, gradient = jax.value_and_grad(loss)(params, config, preprocessing, *rows)
    with jax.numpy_dtype_promotion("standard"):  # optax counts steps in integers
        updates, state = _OPTIMISER.update(gradient, state, params)
    updates = jax.tree.map(lambda update: rate * update, updates)
    return optax.apply_updates(params, updates), state, value


def _draw_steps(
    images: np.ndarray,
    sentence_of: np.ndarray,
    ids: np.ndarray,
    steps: int,
    batch: int,
    generator: np.random.Generator,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield for each step its images, the ids of its sentences, and which of these are pairs."""
    sentence_count = min(len(ids), max(MAX_SENTENCES_OF_A_STEP, batch))
    order = np.zeros(0, np.int64)
    for _ in range(steps):
        while len(order) < batch:
            order = np.concatenate([order, generator.permutation(len(images))])
        drawn, order = order[:batch], order[batch:]
        positives = np.unique(sentence_of[drawn])
        negatives = generator.permutation(np.setdiff1d(np.arange(len(ids)), positives))
        compared = np.concatenate([positives, negatives[: sentence_count - len(positives)]])
        shorter = drop_words(ids[compared], generator)
        is_pair = sentence_of[drawn][:, None] == compared[None]
        yield images[drawn], shorter, is_pair | contains_words(shorter, ids[sentence_of[drawn]])


def drop_words(ids: Int[np.ndarray, "Q W"], generator: np.random.Generator) -> np.ndarray:
    """Drop random words of half of the sentences, at a random rate for each sentence.

    The end token and padding follow the remaining words. A sentence that would lose all words stays
    unchanged.
    """
    words = ids > UNKNOWN_ID
    loss_rate = generator.random((len(ids), 1)) * (generator.random((len(ids), 1)) < 0.5)
    stays = ~words | (generator.random(ids.shape) >= loss_rate)
    stays[~(stays & words).any(1)] = True
    # A stable sort moves the remaining words to the front, in their order.
    order = np.argsort(~stays, axis=1, kind="stable")
    tokens = np.take_along_axis(np.where(stays, ids, PAD_ID), order, axis=1)
    return tokens.astype(np.int32)


def contains_words(
    shorter: Int[np.ndarray, "Q W"], longer: Int[np.ndarray, "V W"]
) -> Bool[np.ndarray, "V Q"]:
    """Return which longer sentences contain all words of which shorter ones, in the same order."""
    matched = np.zeros((len(longer), len(shorter)), np.int64)  # words matched so far
    lengths = (shorter > END_ID).sum(1)
    for column in range(longer.shape[1]):
        word = shorter[np.arange(len(shorter))[None], np.minimum(matched, lengths[None])]
        matched += (word == longer[:, column, None]) & (matched < lengths[None])
    return matched == lengths[None]


def _check(
    images: np.ndarray, sentences: Sequence[str], size: Size, steps: int, batch: int
) -> None:
    """Refuse invalid images, sentences and sizes."""
    shape = images.shape
    if images.dtype != np.uint8 or len(shape) != 4 or shape[1] != shape[2] or shape[3] != 3:
        raise EncoderError(
            f"images are an array [N, S, S, 3] of uint8, not {list(shape)} of {images.dtype}"
        )
    if len(images) != len(sentences) or len(set(sentences)) < 2:
        raise EncoderError(
            f"{len(images)} images and {len(sentences)} sentences, {len(set(sentences))} different:"
            " give a sentence for each image, at least two different ones"
        )
    if shape[1] < size.patch or size.width % size.heads or min(steps, batch) < 1:
        raise EncoderError(
            f"images of {shape[1]} pixels, {size}, {steps} steps of {batch}: a patch must fit an"
            " image, and heads must divide the width"
        )


def _word_tokenizer(sentences: Sequence[str], max_words: int) -> tokenizers.Tokenizer:
    """Return a tokenizer of whole words, in lower case and without punctuation."""
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("removed")]
    )
    counts: Counter[str] = Counter()
    for sentence in sentences:
        words = splitter.pre_tokenize_str(normalizer.normalize_str(sentence))
        counts.update(word for word, _ in words)
    # The trainer of the library would sort equally frequent words at random.
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    marks = (PAD, END, UNKNOWN)
    words_by_id = [*marks, *(word for word in frequent if word not in marks)][:max_words]
    vocabulary = {word: number for number, word in enumerate(words_by_id)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    backend.add_special_tokens(list(marks))
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, END_ID)]
    )
    return backend


def _make_config(image_size: int, size: Size, vocabulary: int) -> Config:
    tower = asdict(
        Tower(
            width=size.width,
            hidden=size.expansion * size.width,
            layers=size.layers,
            heads=size.heads,
            activation="gelu_pytorch_tanh",
            epsilon=1e-6,
        )
    )
    return Config(
        SIGLIP.name,
        Text(**tower, vocabulary=vocabulary, positions=size.tokens, eos=END_ID, pad=PAD_ID),
        Vision(**tower, image_size=image_size, patch_size=size.patch),
        size.width,
    )


def initial_params(config: Config, generator: np.random.Generator) -> Params:
    """Return kernels with the variance 1 / inputs, norms with scale 1, and zero biases."""

    def fill(path: tuple, zeros: np.ndarray) -> np.ndarray:
        name = path[-1].key
        if name == "kernel":
            deviation = zeros.shape[-2] ** -0.5
        elif name in ("tokens", "positions", "probe"):
            deviation = 0.5
        elif len(path) > 1:
            return np.full_like(zeros, name == "scale")
        else:  # of the logits: most pairs of a batch do not match
            return np.full_like(zeros, {"scale": np.log(20.0), "bias": -10.0}[name])
        return (deviation * generator.standard_normal(zeros.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(fill, weights.empty(SIGLIP.leaves(config)))
