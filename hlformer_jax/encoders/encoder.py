"""An image-text encoder: images and sentences as unit vectors of one space; or of sentences alone.

It is read from a Hugging Face folder on this machine, or fetched from the hub, and written. What is
in the hub's cache is used as it is, without a look at the network. Before anything is fetched, a
line says what, from where and how large.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from hlformer_jax import files
from hlformer_jax.encoders import config as configs
from hlformer_jax.encoders import images, tokenizer, transformer, weights
from hlformer_jax.encoders.config import Config, EncoderError, TextConfig
from hlformer_jax.encoders.images import Preprocessing
from hlformer_jax.encoders.tokenizer import Tokenizer
from hlformer_jax.encoders.transformer import Params
from hlformer_jax.typing import Array

IMAGES_AT_ONCE = {"cpu": 16}
"""Images of a batch, by the kind of device; elsewhere `MAX_IMAGES_AT_ONCE`."""

MAX_IMAGES_AT_ONCE = 128
SENTENCES_AT_ONCE = 32
"""Sentences of a batch; a single one is a batch of its own, for the least delay."""

CONFIG = "config.json"
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""Files that say how images are prepared; transformers from 5 on writes the second."""

_SMALL = (CONFIG, *PREPROCESSORS, tokenizer.SETTINGS, "special_tokens_map.json")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_ID = re.compile(r"[\w.-]+/[\w.-]+")


class TextEncoder:
    """An encoder of the tokens of sentences; `hlformer_jax.encoders.load_text` reads one.

    Batches have fixed sizes and are filled up, so that sentences compile twice: for one and for
    many. What fills up does not change a result.

    Attributes:
      name: id of the hub, or name of the folder.
      kind: "clip", "siglip", "siglip2" or "roberta".
      dtype: dtype of the operands of matrix products, "float32" or "bfloat16".
      token_width: coordinates of a token's feature.
      max_tokens: tokens of a sentence at most, its marks included.
    """

    def __init__(
        self,
        config: TextConfig,
        params: Params,
        tokenizer: Tokenizer,
        *,
        name: str,
        digest: Callable[[], str],
        dtype: str = "float32",
    ) -> None:
        self.name = name
        self.config = config
        self.dtype = dtype
        self.kind = "siglip2" if config.family == "siglip" and tokenizer.gemma else config.family
        self.token_width = config.text.width
        self.max_tokens = config.max_tokens
        self.params = jax.device_put(params)
        self.tokenizer = tokenizer
        self._digest = digest

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of all that decides a float32 result: weights, sizes, preparation."""
        return hashlib.sha256(json.dumps(self._identity(), sort_keys=True).encode()).hexdigest()

    def _identity(self) -> dict[str, Any]:
        return {
            "weights": self._digest(),
            "config": asdict(self.config),
            "tokenizer": hashlib.sha256(self.tokenizer.content).hexdigest(),
            "kind": [self.kind, self.tokenizer.name, self.tokenizer.settings.get("do_lower_case")],
            "padding": self.tokenizer.backend.padding,
            "truncation": self.tokenizer.backend.truncation,
        }

    def tokens(self, texts: Sequence[str]) -> list[Float[np.ndarray, "W I"]]:
        """Last hidden states of the real tokens of each sentence, its marks included.

        They are what HLFormer's query encoder reads. What is beyond `max_tokens` is cut off.
        """
        return [
            states[real]
            for reals, (_, hidden) in self._texts(texts)
            for real, states in zip(reals, hidden, strict=True)
        ]

    def _texts(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, tuple]]:
        """Masks of real tokens of each batch, and its vectors (or None) and states."""
        if isinstance(texts, str):
            raise EncoderError(f"{self.name}: give a list of sentences, not one string")
        at_once = 1 if len(texts) == 1 else SENTENCES_AT_ONCE
        program = partial(_sentences, self.params["text"], self.config)
        for start in range(0, len(texts), at_once):
            ids, real = self.tokenizer(texts[start : start + at_once])
            yield real, next(iter(_in_batches(program, at_once, ids, real)))


class Encoder(TextEncoder):
    """An image-text encoder, of parts; `hlformer_jax.encoders.load` reads one from a folder.

    Images compile once, whatever their number.

    Attributes:
      config: its sizes.
      width: coordinates of a unit vector.
      image_size: height and width of an input, in pixels.
      scale, bias: of the trained loss, which multiplies a cosine and adds; the bias of CLIP is 0.
      preprocessing: how images are prepared, in a few words.
    """

    config: Config

    def __init__(
        self,
        config: Config,
        params: Params,
        tokenizer: Tokenizer,
        preparation: Preprocessing,
        **options: Any,
    ) -> None:
        """Options are those of a `TextEncoder`."""
        super().__init__(config, params, tokenizer, **options)
        self.width = config.width
        self.image_size = config.vision.image_size
        self.scale = float(np.exp(np.asarray(params["scale"], np.float64)))
        self.bias = float(np.asarray(params["bias"])) if "bias" in params else 0.0
        self.preprocessing = str(preparation)
        self.preparation = preparation

    def _identity(self) -> dict[str, Any]:
        preparation = [str(self.preparation), asdict(self.preparation)]
        return super()._identity() | {"preprocessing": preparation}

    def preprocess(self, image: UInt8[np.ndarray, "height width 3"]) -> UInt8[np.ndarray, "S S 3"]:
        """An image, red, green and blue of 0 to 255, resized and cropped to the encoder's input."""
        return self.preparation.apply(image)

    def images(self, pixels: UInt8[np.ndarray, "V S S 3"]) -> Float[np.ndarray, "V d"]:
        """Unit vectors of images as `preprocess` returns them, any number."""
        pixels = np.asarray(pixels)
        size = self.image_size
        if pixels.dtype != np.uint8 or pixels.shape[1:] != (size, size, 3):
            raise EncoderError(
                f"{self.name}: images are an array [N, {size}, {size}, 3] of uint8, not"
                f" {list(pixels.shape)} of {pixels.dtype}; preprocess them first"
            )
        at_once = IMAGES_AT_ONCE.get(jax.default_backend(), MAX_IMAGES_AT_ONCE)
        program = partial(_images, self.params["vision"], self.config, self.preparation)
        batches = list(_in_batches(program, at_once, pixels))
        return np.concatenate(batches) if batches else np.zeros((0, self.width), np.float32)

    def sentences(self, texts: Sequence[str]) -> Float[np.ndarray, "Q d"]:
        """Unit vectors of sentences of any length; what is beyond `max_tokens` is cut off."""
        batches = [vectors for _, (vectors, _) in self._texts(texts)]
        return np.concatenate(batches) if batches else np.zeros((0, self.width), np.float32)

    def probability(self, cosine: Any) -> Any:
        """The probability that images and sentences of these cosines belong together.

        By the trained loss; None for CLIP, whose cosines rank and no more.
        """
        if self.config.family == "clip":
            return None
        # A sigmoid that does not overflow.
        return 0.5 * (1 + np.tanh((self.scale * np.asarray(cosine) + self.bias) / 2))


def _in_batches(program: Callable[..., Any], at_once: int, *inputs: np.ndarray) -> Iterator[Any]:
    """Results of a program of one batch size, without those of what fills the last batch up.

    The next batch is under way while the one before it is taken back.
    """
    waiting: tuple[Any, int] | None = None
    taken = lambda result, count: jax.tree.map(lambda x: np.asarray(x)[:count], result)

    def filled(rows: np.ndarray) -> np.ndarray:
        batch = np.zeros((at_once, *rows.shape[1:]), rows.dtype)
        batch[: len(rows)] = rows
        return batch

    total = len(inputs[0])
    for start in range(0, total, at_once):
        batch = (filled(rows[start : start + at_once]) for rows in inputs)
        under_way = (program(*batch), min(at_once, total - start))
        if waiting is not None:
            yield taken(*waiting)
        waiting = under_way
    if waiting is not None:
        yield taken(*waiting)


@partial(jax.jit, static_argnums=(1, 2))
def _images(
    params: Params, config: Config, preparation: Preprocessing, pixels: UInt8[Array, "V S S 3"]
) -> Float[Array, "V d"]:
    return transformer.encode_images(params, config, pixels, preparation.shift, preparation.scale)


@partial(jax.jit, static_argnums=1)
def _sentences(
    params: Params, config: TextConfig, ids: Int[Array, "Q W"], real: Bool[Array, "Q W"]
) -> tuple[Float[Array, "Q d"] | None, Float[Array, "Q W I"]]:
    if isinstance(config, Config):
        return transformer.encode_sentences(params, config, ids)
    return None, transformer.token_states(params, config, ids, real)


def load(
    name_or_path: str | Path,
    *,
    dtype: str = "float32",
    revision: str | None = None,
    offline: bool | None = None,
    report: Callable[[str], None] = print,
) -> Encoder:
    """An image-text encoder from a folder, or by an id of the Hugging Face hub.

    Args:
      name_or_path: a folder, or an id such as google/siglip-base-patch16-224.
      dtype: dtype of the operands of matrix products: "float32", or "bfloat16", which is faster on
        GPUs, not on CPUs.
      revision: branch, tag or commit of an id.
      offline: never use the network; None: as the environment's HF_HUB_OFFLINE says.
      report: gets a line before something is fetched: what, from where, how large.

    Raises:
      EncoderError: when the name is unknown, the network is missing, or a file is damaged or that
        of another kind of model.
    """
    encoder = _load(name_or_path, configs.read, dtype, revision, offline, report)
    assert isinstance(encoder, Encoder)
    return encoder


def load_text(
    name_or_path: str | Path,
    *,
    dtype: str = "float32",
    revision: str | None = None,
    offline: bool | None = None,
    report: Callable[[str], None] = print,
) -> TextEncoder:
    """As `load`, also a RoBERTa, such as FacebookAI/roberta-large."""
    return _load(name_or_path, configs.read_text, dtype, revision, offline, report)


def _load(
    name_or_path: str | Path,
    read: Callable[[Mapping[str, Any], str], TextConfig],
    dtype: str,
    revision: str | None,
    offline: bool | None,
    report: Callable[[str], None],
) -> TextEncoder:
    if dtype not in weights.DTYPES:
        raise EncoderError(f"dtype {dtype!r} is none of {', '.join(weights.DTYPES)}")
    folder, name = _find(str(name_or_path), revision, offline, report)
    path = folder / CONFIG
    if not path.exists():
        raise EncoderError(f"{folder}: has no {CONFIG}; it is no encoder's folder")
    config = read(configs.read_json(path), str(path))
    if lacks := missing(folder):
        if lacks == [tokenizer.FILE]:
            raise tokenizer.absent(str(folder))
        raise EncoderError(f"{folder}: lacks {', '.join(lacks)}; fetch or copy it whole")
    paths = weights.files(folder)
    options: dict[str, Any] = {"name": name, "digest": lambda: _digest(paths), "dtype": dtype}
    parts = lambda: (weights.read(paths, config, dtype), tokenizer.read(folder, config))
    if not isinstance(config, Config):
        return TextEncoder(config, *parts(), **options)
    preparation = _preparation(folder, config.family)
    if preparation.size != config.vision.image_size:
        raise EncoderError(
            f"{folder}: images are prepared to {preparation.size} pixels, but the encoder reads"
            f" {config.vision.image_size}; {CONFIG} and {PREPROCESSORS[0]} disagree"
        )
    return Encoder(config, *parts(), preparation, **options)


def save(encoder: Encoder, folder: str | Path) -> None:
    """Writes a float32 SigLIP as a Hugging Face folder, which `load` and transformers read.

    Each file is written whole or not at all, `config.json` last: a folder without it is no
    encoder's. Files are replaced that were saved so and nobody has changed.

    Raises:
      EncoderError: when the encoder is another.
      OutputError: when the folder has files of these names from elsewhere.
    """
    if encoder.config.family != "siglip" or encoder.dtype != "float32":
        raise EncoderError(f"{encoder.name}: only a SigLIP in float32 is written")
    folder = Path(folder)
    settings, preparation = encoder.tokenizer.settings, images.write(encoder.preparation)
    for name in (weights.SINGLE, tokenizer.FILE, tokenizer.SETTINGS, PREPROCESSORS[0], CONFIG):
        files.check_output(folder / name, files.Replace.OWN)
    (folder / CONFIG).unlink(missing_ok=True)
    content = weights.to_bytes(encoder.params, encoder.config)
    files.write_bytes(folder / weights.SINGLE, content, files.Replace.OWN)
    files.write_bytes(folder / tokenizer.FILE, encoder.tokenizer.content, files.Replace.OWN)
    files.write_json(folder / tokenizer.SETTINGS, settings, files.Replace.OWN)
    files.write_json(folder / PREPROCESSORS[0], preparation, files.Replace.OWN)
    files.write_json(folder / CONFIG, configs.write(encoder.config), files.Replace.OWN)


def _preparation(folder: Path, family: str) -> images.Preprocessing:
    path = next(folder / name for name in PREPROCESSORS if (folder / name).exists())
    content = configs.read_json(path)
    inner = content.get("image_processor", content)
    if not isinstance(inner, Mapping):
        raise EncoderError(f"{path}: image_processor is no object")
    return images.read(inner, family, str(path))


def _digest(paths: list[Path]) -> str:
    """Hexadecimal SHA-256 of the weights: of the file, or of several files' own."""
    # The hub's cache names large files by their SHA-256: reading a gigabyte again takes seconds.
    named = lambda blob: blob.parent.name == "blobs" and len(blob.name) == 64
    blobs = [path.resolve() for path in paths]
    digests = [blob.name if named(blob) else files.digest(blob) for blob in blobs]
    whole = hashlib.sha256("".join(digests).encode()).hexdigest()
    return digests[0] if len(digests) == 1 else whole


def _find(
    name: str, revision: str | None, offline: bool | None, report: Callable[[str], None]
) -> tuple[Path, str]:
    """The folder of an encoder, fetched where need be, and its name: the id, or the folder's."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path, path.resolve().name
    if path.exists():
        raise EncoderError(f"{path} is a file; give the folder that holds {CONFIG}")
    if not _ID.fullmatch(name) or name.startswith("."):
        raise EncoderError(
            f"{name!r}: no such folder, nor an id of the hub, as google/siglip-base-patch16-224 is"
        )
    import huggingface_hub  # takes half a second, which a local folder need not

    cached = huggingface_hub.try_to_load_from_cache(name, CONFIG, revision=revision)
    if isinstance(cached, str) and not missing(Path(cached).parent):
        return Path(cached).parent, name
    return _fetch(name, revision, offline, report), name


def missing(folder: Path) -> list[str]:
    """What a folder lacks of what an encoder is read from, by name."""
    has = lambda name: (folder / name).exists()
    lacks = [] if has(CONFIG) else [CONFIG]
    lacks += [path.name for path in weights.files(folder) if not path.exists()]
    if not has(tokenizer.FILE):
        lacks.append(tokenizer.FILE)
    of_text = has(CONFIG) and configs.read_json(folder / CONFIG).get("model_type") == "roberta"
    if not of_text and not any(map(has, PREPROCESSORS)):
        lacks.append(PREPROCESSORS[0])
    return lacks


def _fetch(
    name: str, revision: str | None, offline: bool | None, report: Callable[[str], None]
) -> Path:
    import huggingface_hub
    from huggingface_hub import constants, errors

    cache = constants.HF_HUB_CACHE
    if offline or (offline is None and constants.HF_HUB_OFFLINE):
        why = "HF_HUB_OFFLINE is set" if offline is None else "offline was asked for"
        raise EncoderError(
            f"{name} is not whole in the cache {cache}, and {why}: fetch it once with the network,"
            " or give a folder"
        )
    try:
        info = huggingface_hub.HfApi(endpoint=constants.ENDPOINT).model_info(
            name, revision=revision, files_metadata=True, timeout=20
        )
        sizes = {file.rfilename: file.size for file in info.siblings or ()}
        wanted = _wanted(set(sizes), name)
        cached = lambda file: huggingface_hub.try_to_load_from_cache(name, file, revision=info.sha)
        if fresh := [file for file in wanted if not isinstance(cached(file), str)]:
            count = sum(sizes[file] or 0 for file in fresh)
            size = f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"
            report(
                f"fetching {name} from {constants.ENDPOINT}: {len(fresh)} files, {size}, to {cache}"
            )
        for file in wanted:
            path = huggingface_hub.hf_hub_download(
                name, file, revision=revision, endpoint=constants.ENDPOINT
            )
        return Path(path).parent
    except EncoderError:
        raise
    except errors.GatedRepoError as error:
        raise EncoderError(
            f"{name}: its owner grants access by request; ask there and log in (`hf auth login`)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        message = f"{name}: neither a folder here nor a model at {constants.ENDPOINT}"
        raise EncoderError(message) from error
    except errors.RevisionNotFoundError as error:
        raise EncoderError(f"{name}: {constants.ENDPOINT} has no revision {revision!r}") from error
    except Exception as error:  # the library's transport, and with it its errors, changes
        raise EncoderError(
            f"{name}: not fetched from {constants.ENDPOINT}"
            f" ({type(error).__name__}: {' '.join(str(error).split())});"
            " is there a network? A folder works without"
        ) from error


def _wanted(names: set[str], model: str) -> list[str]:
    """The files to fetch, of those there are; weights last."""
    if tokenizer.FILE not in names:
        raise tokenizer.absent(model)
    wanted = [*(name for name in _SMALL if name in names), tokenizer.FILE]
    if weights.SINGLE in names:
        return [*wanted, weights.SINGLE]
    if weights.INDEX in names:
        return [*wanted, weights.INDEX, *sorted(filter(_SHARD.fullmatch, names))]
    raise EncoderError(
        f"{model}: has no {weights.SINGLE}; pickles such as pytorch_model.bin are not read; a"
        " revision such as refs/pr/1 may have it, or convert it to safetensors yourself"
    )
