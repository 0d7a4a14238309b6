"""A published collection as a source: whether its files are there, and what identifies them."""

import dataclasses
from contextlib import AbstractContextManager, closing
from pathlib import Path

from hlformer_jax.data.released.layout import Layout
from hlformer_jax.data.released.reader import ReleasedReader
from hlformer_jax.data.source import DataError, MissingSourceError, digest


class Collection(Layout):
    """The `Source` of a published collection; see `Layout` for its fields."""

    def fingerprint(self) -> str:
        """Identifies the files without reading them: by their names, sizes and times.

        Returns:
          Twelve hexadecimal digits; other files, or changed ones, have others.

        Raises:
          MissingSourceError: if the collection's folder is missing.
          DataError: if one of its files is missing.
        """
        self.check_files()
        parts: list[object] = [self.name, self.feature]
        for path in self.files():
            stat = path.stat()
            parts += [path.name, stat.st_size, stat.st_mtime_ns]
        return digest(*parts)

    def open(self) -> AbstractContextManager[ReleasedReader]:
        """Opens the collection and checks its structure.

        Returns:
          What gives the reader, and closes its files.

        Raises:
          DataError: at the first thing that is not as the layout says.
        """
        self.check_files()
        return closing(ReleasedReader(self))

    def check_files(self) -> None:
        """Checks that every file is there.

        Raises:
          MissingSourceError: if the folder is missing.
          DataError: if one of the files is missing.
        """
        if str(self.manual_dir) == "" or not self.root.is_dir():
            raise self._missing()
        for path in self.files():
            if not path.is_file():
                raise self._absent(path)

    def _absent(self, path: Path) -> DataError:
        """The error that says where a file is to be had."""
        return DataError(
            f"{path}: no such file; the {self.name} features published with MS-SL have it, "
            f"put it there (or correct data.manual_dir, data.collection, data.feature)"
        )

    def _missing(self) -> MissingSourceError:
        """The error that says what to download and which tree to put it into."""
        expected = str(self.manual_dir) != ""
        base = self if expected else dataclasses.replace(self, manual_dir="MANUAL_DIR")
        where = f"{self.root} does not exist" if expected else "data.manual_dir is not set"
        tree = ", ".join(str(path) for path in base.files())
        return MissingSourceError(
            where,
            f"download the {self.name} features published with MS-SL (GMMFormer and "
            f"HLFormer use the same), point data.manual_dir at the folder that holds {self.name}/ "
            f"and check that these files are there: {tree}",
            expected,
        )
