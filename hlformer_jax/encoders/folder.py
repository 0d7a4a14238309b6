"""A Hugging Face folder: located on this machine or fetched from the hub, read, and written.

What is in the hub's cache is used as it is, without a look at the network. Before anything is
fetched, a line says what, from where and how large.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.encoders import config as configs
from hlformer_jax.encoders import images, tokenizer, weights
from hlformer_jax.encoders.config import EncoderError
from hlformer_jax.encoders.encoder import Encoder

CONFIG = "config.json"
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""Files that say how images are prepared; transformers from 5 on writes the second."""

_SMALL = (CONFIG, *PREPROCESSORS, tokenizer.SETTINGS, "special_tokens_map.json")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load(
    name_or_path: str | Path,
    *,
    dtype: str = "float32",
    revision: str | None = None,
    offline: bool | None = None,
    tell: Callable[[str], None] = print,
) -> Encoder:
    """An encoder from a folder, or by an id of the Hugging Face hub.

    Args:
      name_or_path: a folder, or an id such as google/siglip-base-patch16-224.
      dtype: dtype of the operands of matrix products: "float32", or "bfloat16", which is faster on
        GPUs, not on CPUs.
      revision: branch, tag or commit of an id.
      offline: never use the network; None: as the environment's HF_HUB_OFFLINE says.
      tell: gets a line before something is fetched: what, from where, how large.

    Raises:
      EncoderError: when the name is unknown, the network is missing, or a file is damaged or that
        of another kind of model.
    """
    if dtype not in weights.DTYPES:
        raise EncoderError(f"dtype {dtype!r} is none of {', '.join(weights.DTYPES)}")
    folder, name = _find(str(name_or_path), revision, offline, tell)
    path = folder / CONFIG
    if not path.exists():
        raise EncoderError(f"{folder}: has no {CONFIG}; it is no encoder's folder")
    config = configs.read(configs.read_json(path), str(path))
    if lacks := missing(folder):
        if lacks == [tokenizer.FILE]:
            tokenizer.read(folder, config)  # knows what to do about it
        raise EncoderError(f"{folder}: lacks {', '.join(lacks)}; fetch or copy it whole")
    preparation = _preparation(folder, config.family)
    if preparation.size != config.vision.image_size:
        raise EncoderError(
            f"{folder}: images are prepared to {preparation.size} pixels, but the encoder reads"
            f" {config.vision.image_size}; {CONFIG} and {PREPROCESSORS[0]} disagree"
        )
    paths = weights.files(folder)
    return Encoder(
        config,
        weights.read(paths, config, dtype),
        tokenizer.read(folder, config),
        preparation,
        name=name,
        digest=lambda: _digest(paths),
        dtype=dtype,
    )


def save(encoder: Encoder, folder: str | Path) -> None:
    """Writes an encoder as a Hugging Face folder, which `load` and transformers read.

    Each file is written whole or not at all, `config.json` last: a folder without it is no
    encoder's. Files are replaced that were saved so and nobody has changed.

    Args:
      encoder: a float32 SigLIP.
      folder: made where there is none.

    Raises:
      EncoderError: when the encoder is a CLIP, whose preparation is not written, or not float32.
      OutputError: when the folder has files of these names from elsewhere.
      OSError: when the folder cannot be written.
    """
    if encoder.config.family != "siglip" or encoder.dtype != "float32":
        raise EncoderError(f"{encoder.name}: only a SigLIP in float32 is written")
    folder = Path(folder)
    settings, preparation = encoder.tokenizer.settings, images.write(encoder.preparation)
    for name in (weights.SINGLE, tokenizer.FILE, tokenizer.SETTINGS, PREPROCESSORS[0], CONFIG):
        files.check_output(folder / name, "own")
    (folder / CONFIG).unlink(missing_ok=True)
    content = weights.to_bytes(encoder.params, encoder.config)
    files.write_bytes(folder / weights.SINGLE, content, "own")
    files.write_bytes(folder / tokenizer.FILE, encoder.tokenizer.content, "own")
    files.write_json(folder / tokenizer.SETTINGS, settings, "own")
    files.write_json(folder / PREPROCESSORS[0], preparation, "own")
    files.write_json(folder / CONFIG, configs.write(encoder.config), "own")


def _preparation(folder: Path, family: str) -> images.Preprocessing:
    for name in PREPROCESSORS:
        path = folder / name
        if path.exists():
            content = configs.read_json(path)
            inner = content.get("image_processor", content)
            if not isinstance(inner, Mapping):
                raise EncoderError(f"{path}: image_processor is no object")
            return images.read(inner, family, str(path))
    raise EncoderError(f"{folder}: lacks {PREPROCESSORS[0]}")


def _digest(paths: list[Path]) -> str:
    """Hexadecimal SHA-256 of the weights: of the file, or of several files' own."""
    digests = [_of_file(path) for path in paths]
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    )


def _of_file(path: Path) -> str:
    # The hub's cache names large files by their SHA-256: reading a gigabyte again takes seconds.
    blob = path.resolve()
    if blob.parent.name == "blobs" and len(blob.name) == 64:
        return blob.name
    return files.digest(path)


def _find(
    name: str, revision: str | None, offline: bool | None, tell: Callable[[str], None]
) -> tuple[Path, str]:
    """The folder of an encoder, fetched where it is not on this machine yet.

    Args:
      name: path of a folder, or an id such as google/siglip-base-patch16-224.
      revision: branch, tag or commit of an id; None: the main branch.
      offline: never use the network; None: as the environment's HF_HUB_OFFLINE says.
      tell: gets a line before something is fetched.

    Returns:
      The folder, and the encoder's name: the id, or the folder's base name.

    Raises:
      EncoderError: when there is no such folder, or an id cannot be fetched.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path, path.resolve().name
    if path.exists():
        raise EncoderError(f"{path} is a file; give the folder that holds {CONFIG}")
    if not _ID.fullmatch(name) or name.startswith("."):
        raise EncoderError(
            f"{name!r}: no such folder, nor an id of the hub, as google/siglip-base-patch16-224 is"
        )
    cached = _cached(name, revision)
    return cached or _fetch(name, revision, offline, tell), name


def missing(folder: Path) -> list[str]:
    """What a folder lacks of what an encoder is read from, by name."""
    has = lambda name: (folder / name).exists()
    lacks = [] if has(CONFIG) else [CONFIG]
    lacks += [path.name for path in weights.files(folder) if not path.exists()]
    old = any(all(map(has, names)) for names in tokenizer.OLD_FILES.values())
    if not has(tokenizer.FILE) and not old:
        lacks.append(tokenizer.FILE)
    if not any(map(has, PREPROCESSORS)):
        lacks.append(PREPROCESSORS[0])
    return lacks


def _cached(name: str, revision: str | None) -> Path | None:
    """The folder of an id in the cache; None where it is not whole."""
    import huggingface_hub  # takes half a second, which a local folder need not

    path = huggingface_hub.try_to_load_from_cache(name, CONFIG, revision=revision)
    if not isinstance(path, str):
        return None
    return None if missing(Path(path).parent) else Path(path).parent


def _fetch(
    name: str, revision: str | None, offline: bool | None, tell: Callable[[str], None]
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
        cached = lambda file: isinstance(
            huggingface_hub.try_to_load_from_cache(name, file, revision=info.sha), str
        )
        fresh = [file for file in wanted if not cached(file)]
        if fresh:
            tell(
                f"fetching {name} from {constants.ENDPOINT}: {len(fresh)} files,"
                f" {_size(sum(sizes[file] or 0 for file in fresh))}, to {cache}"
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
        raise EncoderError(
            f"{name}: neither a folder here nor a model at {constants.ENDPOINT}"
        ) from error
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
    wanted = [name for name in _SMALL if name in names]
    if tokenizer.FILE in names:
        wanted.append(tokenizer.FILE)
    else:
        old = (name for files in tokenizer.OLD_FILES.values() for name in files)
        wanted += [name for name in old if name in names]
    if weights.SINGLE in names:
        return [*wanted, weights.SINGLE]
    if weights.INDEX in names:
        return [*wanted, weights.INDEX, *sorted(filter(_SHARD.fullmatch, names))]
    raise EncoderError(
        f"{model}: has no {weights.SINGLE}; pickles such as pytorch_model.bin are not read; a"
        " revision such as refs/pr/1 may have it, or convert it to safetensors yourself"
    )


def _size(count: float) -> str:
    """A number of bytes as a person reads it."""
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"
