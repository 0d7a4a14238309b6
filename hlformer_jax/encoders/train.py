"""A tiny SigLIP of one's own from images and sentences, without any download.

It is made of the same functions as the large ones and is saved as any other. Trained for a minute,
it knows the words and the looks of its few hundred pairs: it is for the demo and does not
generalise.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers
from jaxtyping import Bool, Float, Int, UInt8
from tokenizers import models, normalizers, pre_tokenizers, processors

from hlformer_jax.encoders import transformer, weights
from hlformer_jax.encoders.config import Config, EncoderError, Text, Vision
from hlformer_jax.encoders.encoder import Encoder
from hlformer_jax.encoders.images import Preprocessing
from hlformer_jax.encoders.tokenizer import Tokenizer, build
from hlformer_jax.encoders.transformer import Params
from hlformer_jax.typing import Array

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
PAD_ID, END_ID, UNKNOWN_ID = 0, 1, 2
SENTENCES_OF_A_STEP = 128
"""Most different sentences with which every image of a step is compared."""

_GREY = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Size:
    """The sizes of a tiny encoder, the same for images and sentences."""

    width: int = 96  # of unit vectors and of every position
    layers: int = 1
    heads: int = 4
    expansion: int = 2  # width of a feed-forward layer, in widths
    patch: int = 8  # pixels
    tokens: int = 16  # of a sentence, its end mark included
    vocabulary: int = 2000  # words known at most


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
) -> Encoder:
    """Trains a SigLIP on pairs of an image and a sentence.

    The loss is SigLIP's: a sigmoid cross-entropy for each pair of an image and a sentence. The
    images of a step are compared with all different sentences of the data, up to
    `SENTENCES_OF_A_STEP`, and not with those of the batch alone, since most pairs of a batch differ
    in many words and teach little about single ones. Half of the sentences lose words at random; a
    shortened sentence is positive for every image whose sentence contains its words in that order,
    so that "circle" finds the image of "a red circle on the left".

    Every image is drawn once before any is drawn again. The rate rises to `learning_rate` for a
    tenth of the steps and falls as a cosine. Equal seeds give equal encoders on the same machine.
    `report` gets a line with the loss, ten times.

    Raises:
      EncoderError: when images and sentences are no pairs, or too few, or the sizes do not fit.
    """
    size = size or Size()
    images = np.asarray(images)
    _check(images, sentences, size, steps, batch)
    different, own = np.unique(np.asarray(sentences), return_inverse=True)
    config, tokenizer, preparation = _parts(images.shape[1], sentences, size, name)
    ids, _ = tokenizer(different.tolist())

    generator = np.random.default_rng(seed)
    params = _initial(config, generator)
    # Words that were never seen say nothing, rather than something at random.
    params["text"]["tokens"][UNKNOWN_ID] = 0.0
    state = _OPTIMISER.init(params)
    rates = _rates(learning_rate, steps)
    for number, rows in enumerate(_steps(images, own, ids, steps, batch, generator)):
        params, state, value = _step(params, state, rows, rates[number], config, preparation)
        if (number + 1) % max(steps // 10, 1) == 0:
            report(f"step {number + 1} of {steps}: loss {float(value):.3f}")
    return _encoder(jax.tree.map(np.asarray, params), config, tokenizer, preparation, name)


def untrained(
    image_size: int,
    sentences: Sequence[str],
    *,
    size: Size | None = None,
    seed: int = 0,
    name: str = "untrained",
) -> Encoder:
    """A SigLIP of random parameters: as large and as fast as a trained one, and without meaning.

    It reads images of so many pixels, and knows the words of some sentences.
    """
    parts = _parts(image_size, sentences, size or Size(), name)
    return _encoder(_initial(parts[0], np.random.default_rng(seed)), *parts, name)


def _parts(
    image_size: int, sentences: Sequence[str], size: Size, name: str
) -> tuple[Config, Tokenizer, Preprocessing]:
    """All of an encoder but its parameters."""
    backend = _words(sentences, size.vocabulary)
    config = _config(image_size, size, backend.get_vocab_size())
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
    preparation = Preprocessing(image_size, None, "bicubic", 1 / 255, _GREY, _GREY)
    return config, tokenizer, preparation


def _encoder(
    params: Params, config: Config, tokenizer: Tokenizer, preparation: Preprocessing, name: str
) -> Encoder:
    digest = lambda: hashlib.sha256(weights.to_bytes(params, config)).hexdigest()
    return Encoder(config, params, tokenizer, preparation, name=name, digest=digest)


def loss(
    params: Params,
    config: Config,
    preparation: Preprocessing,
    pixels: UInt8[Array, "V S S 3"],
    ids: Int[Array, "Q W"],
    belongs: Bool[Array, "V Q"],
) -> Float[Array, ""]:
    """SigLIP's loss: over images, the mean of the sum of sigmoid losses with every sentence."""
    seen = transformer.encode_images(
        params["vision"], config, pixels, preparation.shift, preparation.scale
    )
    said, _ = transformer.encode_sentences(params["text"], config, ids)
    logits = jnp.exp(params["scale"]) * (seen @ said.T) + params["bias"]
    signs = jnp.where(belongs, 1.0, -1.0)
    return -jnp.mean(jnp.sum(jax.nn.log_sigmoid(signs * logits), axis=1))


def _rates(peak: float, steps: int) -> Float[np.ndarray, " steps"]:
    """The learning rate of each step: it rises for a tenth of them, and falls as a cosine."""
    number = np.arange(1, steps + 1)
    rise = max(steps // 10, 1)
    falling = 0.5 * (1 + np.cos(np.pi * np.maximum(number - rise, 0) / (steps + 1 - rise)))
    return (peak * np.minimum(number / rise, falling)).astype(np.float32)


# The second moment of so short a training is that of its last steps. A step scales the updates.
_OPTIMISER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1.0, b2=0.95))


@partial(jax.jit, static_argnums=(4, 5))
def _step(
    params: Params,
    state: Any,
    rows: tuple[Array, Array, Array],
    rate: Float[Array, ""],
    config: Config,
    preparation: Preprocessing,
) -> tuple[Params, Any, Float[Array, ""]]:
    """Parameters, the optimiser's state and the loss after one step on the rows of `_steps`."""
    value, gradient = jax.value_and_grad(loss)(params, config, preparation, *rows)
    with jax.numpy_dtype_promotion("standard"):  # optax counts steps in whole numbers
        updates, state = _OPTIMISER.update(gradient, state, params)
    updates = jax.tree.map(lambda update: rate * update, updates)
    return optax.apply_updates(params, updates), state, value


def _steps(
    images: np.ndarray,
    own: np.ndarray,
    ids: np.ndarray,
    steps: int,
    batch: int,
    generator: np.random.Generator,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Images of each step, tokens of sentences they are told from, and what belongs together."""
    at_once = min(len(ids), max(SENTENCES_OF_A_STEP, batch))
    order = np.zeros(0, np.int64)
    for _ in range(steps):
        while len(order) < batch:
            order = np.concatenate([order, generator.permutation(len(images))])
        chosen, order = order[:batch], order[batch:]
        theirs = np.unique(own[chosen])
        others = generator.permutation(np.setdiff1d(np.arange(len(ids)), theirs))
        said = np.concatenate([theirs, others[: at_once - len(theirs)]])
        shorter = shortened(ids[said], generator)
        belongs = own[chosen][:, None] == said[None]
        yield images[chosen], shorter, belongs | contained(shorter, ids[own[chosen]])


def shortened(ids: Int[np.ndarray, "Q W"], generator: np.random.Generator) -> np.ndarray:
    """Sentences of which every other one, by chance, has lost each word with a chance of its own.

    An end mark and padding follow the words; a sentence that would be empty stays as it is.
    """
    words = ids > UNKNOWN_ID
    chance = generator.random((len(ids), 1)) * (generator.random((len(ids), 1)) < 0.5)
    kept = ~words | (generator.random(ids.shape) >= chance)
    kept[~(kept & words).any(1)] = True
    # A stable sort moves what is kept to the front, in its order.
    place = np.argsort(~kept, axis=1, kind="stable")
    tokens = np.take_along_axis(np.where(kept, ids, PAD_ID), place, axis=1)
    return tokens.astype(np.int32)


def contained(
    shorter: Int[np.ndarray, "Q W"], longer: Int[np.ndarray, "V W"]
) -> Bool[np.ndarray, "V Q"]:
    """Which of the longer sentences have all words of the shorter ones, in their order."""
    matched = np.zeros((len(longer), len(shorter)), np.int64)  # words matched so far
    lengths = (shorter > END_ID).sum(1)
    for column in range(longer.shape[1]):
        wanted = shorter[np.arange(len(shorter))[None], np.minimum(matched, lengths[None])]
        matched += (wanted == longer[:, column, None]) & (matched < lengths[None])
    return matched == lengths[None]


def _check(
    images: np.ndarray, sentences: Sequence[str], size: Size, steps: int, batch: int
) -> None:
    """Refuses what cannot be trained on, in one line."""
    shape = images.shape
    if images.dtype != np.uint8 or len(shape) != 4 or shape[1] != shape[2] or shape[3] != 3:
        raise EncoderError(
            f"images are an array [N, S, S, 3] of uint8, not {list(shape)} of {images.dtype}"
        )
    if len(images) != len(sentences) or len(set(sentences)) < 2:
        raise EncoderError(
            f"{len(images)} images and {len(sentences)} sentences, {len(set(sentences))} different:"
            " give a sentence of each image, at least two different ones"
        )
    if shape[1] < size.patch or size.width % size.heads or min(steps, batch) < 1:
        raise EncoderError(
            f"images of {shape[1]} pixels, {size}, {steps} steps of {batch}: a patch must fit an"
            " image, and heads divide the width"
        )


def _words(sentences: Sequence[str], most: int) -> tokenizers.Tokenizer:
    """A tokenizer of whole words, without capitals and punctuation."""
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    pieces = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("removed")]
    )
    counts: Counter[str] = Counter()
    for sentence in sentences:
        words = pieces.pre_tokenize_str(normalizer.normalize_str(sentence))
        counts.update(word for word, _ in words)
    # The library's own trainer orders words that are as frequent at random.
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    marks = (PAD, END, UNKNOWN)
    known = [*marks, *(word for word in frequent if word not in marks)][:most]
    vocabulary = {word: number for number, word in enumerate(known)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pieces
    backend.add_special_tokens(list(marks))
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, END_ID)]
    )
    return backend


def _config(image_size: int, size: Size, vocabulary: int) -> Config:
    tower: dict[str, Any] = {
        "width": size.width,
        "hidden": size.expansion * size.width,
        "layers": size.layers,
        "heads": size.heads,
        "activation": "gelu_pytorch_tanh",
        "epsilon": 1e-6,
    }
    return Config(
        "siglip",
        Text(**tower, vocabulary=vocabulary, positions=size.tokens, eos=END_ID, pad=0),
        Vision(**tower, image_size=image_size, patch_size=size.patch),
        size.width,
    )


def _initial(config: Config, generator: np.random.Generator) -> Params:
    """Kernels with the variance of one over their inputs, norms that do nothing, zero biases."""

    def fill(path: tuple, zeros: np.ndarray) -> np.ndarray:
        name = path[-1].key
        if name == "kernel":
            deviation = zeros.shape[-2] ** -0.5
        elif name in ("tokens", "positions", "probe"):
            deviation = 0.5
        elif len(path) > 1:
            return np.full_like(zeros, name == "scale")
        else:  # of the logits: most pairs of a batch do not belong together
            return np.full_like(zeros, {"scale": np.log(20.0), "bias": -10.0}[name])
        return (deviation * generator.standard_normal(zeros.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(fill, weights.empty(config))
