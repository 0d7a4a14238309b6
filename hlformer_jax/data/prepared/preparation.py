"""Finds the prepared set of a source, or makes it: once, complete or not at all.

A set lies in ``{data_dir}/prvr/{name}_{feature}_{D}x{E}_{storage}_{fingerprint}/``, so that another
source, a changed one or another storage is another set; the width of a teacher, where there is one,
stands behind D and E. Processes that want the same set at the
same time wait for the first.
"""

import functools
import re
import shutil
from pathlib import Path
from typing import Any

from absl import logging

from hlformer_jax import files
from hlformer_jax.data.prepared.builder import Prvr, make_builder, root_directory, write
from hlformer_jax.data.prepared.reader import Prepared, is_complete, read_index
from hlformer_jax.data.source import DataError, MissingSourceError, Source, teacher_width

_STORAGES = ("float32", "float16")


def prepare(source: Source, data_dir: str | Path = "", storage: str = "float32") -> Prepared:
    """Finds the prepared set of a source; makes it on first use, with a progress bar.

    Args:
      source: what it is made from. Where the source is missing, the one set that was prepared from
        a source of its name, feature and widths is taken.
      data_dir: where prepared sets lie; empty for TFDS's default, TFDS_DATA_DIR or
        ~/tensorflow_datasets.
      storage: dtype of the stored features, float32 or float16.

    Returns:
      The prepared set.

    Raises:
      DataError: if the source is missing or is not as it should be.
      OSError: if the disk is full.
    """
    if storage not in _STORAGES:
        raise ValueError(f"data.storage is {storage!r}; it must be one of {_STORAGES}")
    root = root_directory(data_dir)
    try:
        fingerprint = source.fingerprint()
    except MissingSourceError as error:
        return _only_prepared(source, root, storage, error)
    if not re.fullmatch("[0-9A-Za-z]{1,64}", fingerprint):
        raise DataError(
            f"{source.name}/{source.feature}: its fingerprint is {fingerprint!r}; it must be up to "
            f"64 digits and letters, as source.digest gives them"
        )
    name = _directory_name(source, storage, fingerprint)
    directory = root / Prvr.name / name / str(Prvr.VERSION)
    fresh_builder = functools.partial(make_builder, source, name, fingerprint, storage, root)
    if not is_complete(directory):
        busy = "Another process prepares %s; waiting for it"
        waiting = functools.partial(logging.info, busy, directory.parent)
        with files.lock(directory.parent, waiting) as alone:
            if not is_complete(directory):  # another process may have made it meanwhile
                _clear(directory, alone)
                title = f"{source.name}/{source.feature}"
                logging.info("Preparing %s in %s, once", title, directory)
                write(fresh_builder(), source)
    return Prepared(fresh_builder())


def _clear(directory: Path, alone: bool) -> None:
    if directory.exists():
        logging.warning("%s is damaged (files missing or cut short); it is made anew", directory)
        shutil.rmtree(directory)
    if alone:
        # The holder of the lock works alone: what other processes left, they left when they died.
        for stale in directory.parent.glob("incomplete.*"):
            logging.warning("%s was left by a killed process; it is removed", stale)
            shutil.rmtree(stale, ignore_errors=True)


def _only_prepared(
    source: Source, root: Path, storage: str, missing: MissingSourceError
) -> Prepared:
    pattern = _directory_name(source, storage, "*")
    sets = [
        path
        for path in sorted((root / Prvr.name).glob(f"{pattern}/{Prvr.VERSION}"))
        if is_complete(path) and _is_of(read_index(path), source)
    ]
    if not sets:
        raise DataError(f"{missing} (nor is there a prepared set in {root})")
    if len(sets) > 1:
        listed = ", ".join(str(path.parent) for path in sets)
        raise DataError(
            f"{source.name}/{source.feature} is missing and several sets were prepared of such a "
            f"collection: {listed}; set data.manual_dir to the source, or remove all but one"
        )
    # What nobody named may be missing; a folder that somebody did may be misspelt.
    log = logging.warning if missing.expected else logging.info
    log("%s: using the set prepared in %s", missing.what, sets[0])
    fingerprint = read_index(sets[0])["fingerprint"]
    return Prepared(make_builder(source, sets[0].parent.name, fingerprint, storage, root))


def _is_of(index: dict[str, Any], source: Source) -> bool:
    # The directory's name joins names that may hold its separator, or had characters replaced.
    return (index["collection"], index["feature"]) == (source.name, source.feature)


def _directory_name(source: Source, storage: str, fingerprint: str) -> str:
    names = [re.sub(r"[^A-Za-z0-9_-]", "-", name) for name in (source.name, source.feature)]
    teacher = teacher_width(source)
    widths = f"{source.visual_dim}x{source.text_dim}" + (f"x{teacher}" if teacher else "")
    return "_".join([*names, widths, storage, fingerprint])
