"""Loading of encoders from a folder or the Hugging Face hub, and saving.

If all files are in the hub's cache, the network is not used. Before files are fetched, a line
reports their names, address and size.
"""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hlformer_jax import files
from hlformer_jax.encoders import config as configs
from hlformer_jax.encoders import families, images, tokenizer, weights
from hlformer_jax.encoders.config import Config, EncoderError
from hlformer_jax.encoders.encoder import ImageTextEncoder, TextEncoder

CONFIG = "config.json"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
"""Names of the files with the settings of image processing; transformers 5 writes the second."""

_SMALL_FILES = (CONFIG, PREPROCESSOR, PROCESSOR, tokenizer.SETTINGS, "special_tokens_map.json")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    revision: str | None = None,
    offline: bool | None = None,
    report: Callable[[str], None] = print,
) -> ImageTextEncoder:
    """Load an image-text encoder.

    Args:
      name_or_path: a folder, or an id such as google/siglip-base-patch16-224.
      dtype: dtype of the operands of matrix products: "float32", or "bfloat16", which is faster on
        GPUs and on CPUs with AMX.
      revision: branch, tag or commit of an id.
      offline: True never uses the network; None takes the environment variable HF_HUB_OFFLINE.
      report: receives a line, with names, address and size, before files are fetched.

    Raises:
      EncoderError: if the name is unknown, the network is missing, a file is damaged, or the
        architecture is not supported.
    """
    encoder = _load(name_or_path, dtype, revision, offline, report, text_only=False)
    assert isinstance(encoder, ImageTextEncoder)
    return encoder


def load_text(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    revision: str | None = None,
    offline: bool | None = None,
    report: Callable[[str], None] = print,
) -> TextEncoder:
    """Load an encoder of texts of any architecture, such as FacebookAI/roberta-large.

    Arguments and errors are those of `load`.
    """
    return _load(name_or_path, dtype, revision, offline, report, text_only=True)


def _load(
    name_or_path: str | os.PathLike[str],
    dtype: str,
    revision: str | None,
    offline: bool | None,
    report: Callable[[str], None],
    text_only: bool,
) -> TextEncoder:
    if dtype not in weights.DTYPES:
        raise EncoderError(f"dtype {dtype!r} is not one of {', '.join(weights.DTYPES)}")
    folder, name = _find(os.fspath(name_or_path), revision, offline, report)
    path = folder / CONFIG
    if not path.exists():
        raise EncoderError(f"{folder}: has no {CONFIG}, so it is not an encoder's folder")
    config = families.read_config(configs.read_json(path), str(path), text_only=text_only)
    if names := missing_files(folder):
        if names == [tokenizer.FILE]:
            raise tokenizer.missing_error(str(folder))
        raise EncoderError(f"{folder}: lacks {', '.join(names)}; fetch or copy the whole folder")
    paths, family = weights.files(folder), families.text_family(config)
    options: dict[str, Any] = {"name": name, "digest": lambda: _digest(paths), "dtype": dtype}
    params = weights.read(paths, family.leaves(config), dtype, family.prefix, family.unread)
    text_tokenizer = tokenizer.read(folder, config)
    if isinstance(config, Config):
        image_processor = _read_image_processor(folder, config)
        return ImageTextEncoder(config, params, text_tokenizer, image_processor, **options)
    return TextEncoder(config, params, text_tokenizer, **options)


def save(encoder: ImageTextEncoder, folder: str | os.PathLike[str]) -> None:
    """Write a float32 SigLIP as a Hugging Face folder, for `load` and transformers.

    Each file is written atomically. `config.json` is the last, and a folder without it does not
    load. Files of an earlier `save` are replaced if they were not changed since.

    Args:
      encoder: the encoder.
      folder: the folder.

    Raises:
      EncoderError: if the encoder has another architecture or dtype.
      OutputError: if the folder has files of these names from elsewhere.
    """
    if encoder.dtype != "float32":
        raise EncoderError(f"{encoder.name} is in {encoder.dtype}; only float32 can be saved")
    family = families.image_text_family(encoder.config)
    config = family.write_config(encoder.config)
    preprocessing = images.write(
        encoder.image_processor, f"{family.name.capitalize()}ImageProcessor"
    )
    folder = Path(folder)
    for name in (weights.SINGLE, tokenizer.FILE, tokenizer.SETTINGS, PREPROCESSOR, CONFIG):
        files.check_output(folder / name, files.Replace.OWN)
    (folder / CONFIG).unlink(missing_ok=True)
    content = weights.to_bytes(encoder.params, family.leaves(encoder.config))
    files.write_bytes(folder / weights.SINGLE, content, files.Replace.OWN)
    files.write_bytes(folder / tokenizer.FILE, encoder.tokenizer.content, files.Replace.OWN)
    files.write_json(folder / tokenizer.SETTINGS, encoder.tokenizer.settings, files.Replace.OWN)
    files.write_json(folder / PREPROCESSOR, preprocessing, files.Replace.OWN)
    files.write_json(folder / CONFIG, config, files.Replace.OWN)


def _read_image_processor(folder: Path, config: Config) -> images.Preprocessing:
    path, settings = _find_image_settings(folder)
    if not isinstance(settings, Mapping):
        raise EncoderError(f"{path}: image_processor is not an object")
    defaults = families.image_text_family(config).image_settings
    image_processor = images.read(settings, defaults, str(path))
    if image_processor.size != config.vision.image_size:
        raise EncoderError(
            f"{folder}: {path.name} resizes images to {image_processor.size} pixels, but"
            f" {CONFIG} has an image_size of {config.vision.image_size}"
        )
    return image_processor


def _find_image_settings(folder: Path) -> tuple[Path, Any]:
    """Return the file with the settings of image processing, and the settings, None if missing.

    Saved by transformers 5, a folder may still contain a `preprocessor_config.json` from before.
    """
    path = folder / PROCESSOR
    settings = configs.read_json(path).get("image_processor") if path.exists() else None
    if settings is None and (path := folder / PREPROCESSOR).exists():
        settings = configs.read_json(path)
    return path, settings


def _digest(paths: list[Path]) -> str:
    """Return the hexadecimal SHA-256 of a weight file, or of the digests of several."""
    digests = [_digest_file(path.resolve()) for path in paths]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _digest_file(path: Path) -> str:
    # The hub's cache names large files by their SHA-256, which saves seconds of reading a gigabyte.
    is_digest = path.parent.name == "blobs" and len(path.name) == 64
    return path.name if is_digest else files.digest(path)


def _find(
    name: str, revision: str | None, offline: bool | None, report: Callable[[str], None]
) -> tuple[Path, str]:
    """Return the folder of an encoder, fetched if needed, and its name: its id or the folder's."""
    path = files.expand(name)
    if path.is_dir():
        return path, path.resolve().name
    if path.exists():
        raise EncoderError(f"{path} is a file; give the folder that holds {CONFIG}")
    if not _ID.fullmatch(name) or name.startswith("."):
        raise EncoderError(
            f"{name!r}: no such folder, and not an id of the hub, such as"
            " google/siglip-base-patch16-224"
        )
    import huggingface_hub  # imported here: it takes half a second, and a local folder needs none

    cached = huggingface_hub.try_to_load_from_cache(name, CONFIG, revision=revision)
    if isinstance(cached, str) and not missing_files(Path(cached).parent):
        return Path(cached).parent, name
    return _fetch(name, revision, offline, report), name


def missing_files(folder: Path) -> list[str]:
    """Return the names of files that an encoder needs and a folder with a `config.json` lacks."""
    model_type = configs.read_json(folder / CONFIG).get("model_type")
    needed = [*weights.files(folder), folder / tokenizer.FILE]
    family = families.FAMILIES.get(str(model_type))
    if family is not None and family.needs_tokenizer_settings:
        needed.append(folder / tokenizer.SETTINGS)
    names = [path.name for path in needed if not path.exists()]
    if families.has_images(model_type) and _find_image_settings(folder)[1] is None:
        names.append(PREPROCESSOR)
    return names


def _fetch(
    name: str, revision: str | None, offline: bool | None, report: Callable[[str], None]
) -> Path:
    """Fetch the files that the cache lacks; return their folder."""
    from huggingface_hub import constants, errors

    if offline or (offline is None and constants.HF_HUB_OFFLINE):
        reason = "HF_HUB_OFFLINE is set" if offline is None else "offline=True was given"
        raise EncoderError(
            f"{name} is not complete in the cache {constants.HF_HUB_CACHE}, and {reason}: fetch it"
            " once with the network, or give a folder"
        )
    try:
        return _download(name, revision, report)
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
    except Exception as error:  # the library's errors depend on its version
        raise EncoderError(
            f"{name}: not fetched from {constants.ENDPOINT}"
            f" ({type(error).__name__}: {' '.join(str(error).split())});"
            " check the network, or give a folder"
        ) from error


def _download(name: str, revision: str | None, report: Callable[[str], None]) -> Path:
    """Download the files that the cache lacks; return the folder of all files."""
    import huggingface_hub
    from huggingface_hub import constants

    info = huggingface_hub.HfApi(endpoint=constants.ENDPOINT).model_info(
        name, revision=revision, files_metadata=True, timeout=20
    )
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    needed = _files_to_fetch(set(sizes), name)

    def is_cached(file: str) -> bool:
        # The result is a path, None, or a mark that the hub has no such file.
        cached = huggingface_hub.try_to_load_from_cache(name, file, revision=info.sha)
        return isinstance(cached, str)

    if uncached := [file for file in needed if not is_cached(file)]:
        count = sum(sizes[file] or 0 for file in uncached)
        size = f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"
        report(
            f"fetching {name} from {constants.ENDPOINT}: {len(uncached)} files, {size}, to"
            f" {constants.HF_HUB_CACHE}"
        )
    for file in needed:
        path = huggingface_hub.hf_hub_download(
            name, file, revision=revision, endpoint=constants.ENDPOINT
        )
    return Path(path).parent


def _files_to_fetch(names: set[str], model: str) -> list[str]:
    """Return the names of the files that an encoder needs, weights last."""
    if tokenizer.FILE not in names:
        raise tokenizer.missing_error(model)
    needed = [*(name for name in _SMALL_FILES if name in names), tokenizer.FILE]
    if weights.SINGLE in names:
        return [*needed, weights.SINGLE]
    if weights.INDEX in names:
        return [*needed, weights.INDEX, *sorted(filter(_SHARD.fullmatch, names))]
    raise EncoderError(
        f"{model}: has no {weights.SINGLE}; pickles such as pytorch_model.bin are not read; a"
        " revision such as refs/pr/1 may have it, or convert it to safetensors yourself"
    )
