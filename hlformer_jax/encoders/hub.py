"""An encoder's folder by its name: a folder of this machine, or an id of the Hugging Face hub.

What is in the hub's cache is used as it is, without a look at the network. Before anything is
fetched, a line says what, from where and how large.
"""

import re
from collections.abc import Callable
from pathlib import Path

from hlformer_jax.encoders import tokenizer, weights
from hlformer_jax.encoders.errors import EncoderError

CONFIG = "config.json"
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""Files that say how images are prepared; transformers from 5 on writes the second."""

_SMALL = (CONFIG, *PREPROCESSORS, tokenizer.SETTINGS, "special_tokens_map.json")
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_ID = re.compile(r"[\w.-]+/[\w.-]+")


def find(
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

    found = huggingface_hub.try_to_load_from_cache(name, CONFIG, revision=revision)
    if not isinstance(found, str):
        return None
    return None if missing(Path(found).parent) else Path(found).parent


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
            found = huggingface_hub.hf_hub_download(
                name, file, revision=revision, endpoint=constants.ENDPOINT
            )
        return Path(found).parent
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
