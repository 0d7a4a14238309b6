"""A Hugging Face folder: an encoder read from it, and written to it."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.encoders import config as configs
from hlformer_jax.encoders import hub, images, settings, tokenizer, weights
from hlformer_jax.encoders.encoder import Encoder
from hlformer_jax.encoders.errors import EncoderError


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
    folder, name = hub.find(str(name_or_path), revision, offline, tell)
    path = folder / hub.CONFIG
    if not path.exists():
        raise EncoderError(f"{folder}: has no {hub.CONFIG}; it is no encoder's folder")
    config = configs.read(settings.read(path), str(path))
    if lacks := hub.missing(folder):
        if lacks == [tokenizer.FILE]:
            tokenizer.read(folder, config)  # knows what to do about it
        raise EncoderError(f"{folder}: lacks {', '.join(lacks)}; fetch or copy it whole")
    preparation = _preparation(folder, config.family)
    if preparation.size != config.vision.image_size:
        raise EncoderError(
            f"{folder}: images are prepared to {preparation.size} pixels, but the encoder reads"
            f" {config.vision.image_size}; {hub.CONFIG} and {hub.PREPROCESSORS[0]} disagree"
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
    encoder's.

    Args:
      encoder: a float32 SigLIP.
      folder: made where there is none.

    Raises:
      EncoderError: when the encoder is a CLIP, whose preparation is not written, or not float32.
      OSError: when the folder cannot be written.
    """
    if encoder.config.family != "siglip" or encoder.dtype != "float32":
        raise EncoderError(f"{encoder.name}: only a SigLIP in float32 is written")
    folder = Path(folder)
    (folder / hub.CONFIG).unlink(missing_ok=True)
    files.write_bytes(folder / weights.SINGLE, weights.to_bytes(encoder.params, encoder.config))
    files.write_bytes(folder / tokenizer.FILE, encoder.tokenizer.content)
    files.write_json(folder / tokenizer.SETTINGS, encoder.tokenizer.settings)
    files.write_json(folder / hub.PREPROCESSORS[0], images.write(encoder.preparation))
    files.write_json(folder / hub.CONFIG, configs.write(encoder.config))


def _preparation(folder: Path, family: str) -> images.Preprocessing:
    for name in hub.PREPROCESSORS:
        path = folder / name
        if path.exists():
            content = settings.read(path)
            inner = content.get("image_processor", content)
            if not isinstance(inner, Mapping):
                raise EncoderError(f"{path}: image_processor is no object")
            return images.read(inner, family, str(path))
    raise EncoderError(f"{folder}: lacks {hub.PREPROCESSORS[0]}")


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
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
