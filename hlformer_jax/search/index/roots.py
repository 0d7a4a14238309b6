"""Roots: the folders of an index's videos, and which of their files exist."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from hlformer_jax import files
from hlformer_jax.errors import SearchError
from hlformer_jax.search.index.records import join_name, split_name


class Roots(dict[str, Path]):
    """The roots of an index at one moment by their names; the name of the first root is empty."""

    def __init__(self, folders: Mapping[str, Path], directory: Path) -> None:
        """Store copies of the names and folders.

        Args:
          folders: the absolute path of each root, by its name.
          directory: the directory of the index.
        """
        super().__init__(folders)
        self._removed = directory / "unknown folder"

    def path(self, name: str) -> Path:
        """Return the path of a video; if its root was removed, a path that does not exist."""
        root, path_below = split_name(name)
        return self.get(root, self._removed / root) / path_below

    def name_below(self, path: Path) -> str | None:
        """Return the name that a file with an absolute path has; None if it is in no root."""
        parts = path.parts
        for root, folder in self.items():
            depth = len(folder.parts)
            if parts[:depth] == folder.parts:
                return join_name(root, "/".join(parts[depth:]) or ".")
        return None

    def is_available(self, root: str) -> bool:
        """Return whether a root exists and is not empty: an offline disk leaves an empty folder."""
        if root not in self:
            return False
        with contextlib.suppress(OSError), os.scandir(self[root]) as entries:
            return next(entries, None) is not None
        return False

    def is_missing(self, root: str) -> bool:
        """Return whether a root is missing or empty; False if it cannot be read."""
        try:
            with os.scandir(self[root]) as entries:
                return next(entries, None) is None
        except OSError:
            return files.is_gone(self[root], follow=True)

    def offline(self) -> list[str]:
        """Return the names of the roots that are not available."""
        return [name for name in self if not self.is_available(name)]

    def is_deleted(self, name: str, follow: bool = False) -> bool:
        """Return whether a video's file is missing in a root that is available.

        The root is checked between two checks of the file: if its disk goes offline or comes back
        meanwhile, the file is not taken for deleted.

        Args:
          name: the name of a video.
          follow: whether to follow a link, so that a link without a target counts as missing.
        """
        path, root = self.path(name), split_name(name)[0]
        return (
            files.is_gone(path, follow) and self.is_available(root) and files.is_gone(path, follow)
        )

    def check_apart(self, folder: Path, instead_of: str | None = None) -> None:
        """Check that a folder shares no files with a root, so that no video is indexed twice.

        Args:
          folder: the absolute path of a folder.
          instead_of: name of a root that the folder replaces, and is not compared with.

        Raises:
          SearchError: if the folder contains a root, or is inside one.
        """
        for name, root in self.items():
            if name != instead_of and (root.is_relative_to(folder) or folder.is_relative_to(root)):
                raise SearchError(
                    f"{folder} and {root}, a folder of this index, have files in common:"
                    " choose a folder outside of it"
                )


def find_missing(paths: Mapping[str, Path]) -> set[str]:
    """Return the names of the videos whose files are missing: deleted, moved, or offline.

    Each folder is listed once, which is faster than a call for each file.

    Args:
      paths: the path of each video, by its name.
    """
    names: dict[str, set[str]] = {}  # of the files in each folder
    missing = set()
    for name, path in paths.items():
        folder, _, file = name.rpartition("/")
        if folder not in names:
            names[folder] = set()
            with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # a link in a circle
                        if entry.is_file():
                            names[folder].add(entry.name)
        if file not in names[folder]:
            missing.add(name)
    return missing
