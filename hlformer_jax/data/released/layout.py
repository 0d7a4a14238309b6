"""Which files the released features are made of, and where they lie.

    {manual_dir}/{collection}/TextData/{collection}{train,val,test}.caption.txt
    {manual_dir}/{collection}/TextData/roberta_{collection}_query_feat.hdf5
    {manual_dir}/{collection}/FeatureData/{feature}/{feature.bin,id.txt,shape.txt,video2frames.txt}

It is the layout in which MS-SL published its features; GMMFormer and HLFormer read the same.
"""

import dataclasses
import hashlib
from pathlib import Path

from hlformer_jax.errors import UserError

SPLITS = ("train", "val", "test")


class ReleasedDataError(UserError, ValueError):
    """The released files are not as they should be; the message says where and what to do."""


@dataclasses.dataclass(frozen=True)
class Collection:
    """One published collection: its folder, its feature and the widths that the model expects.

    Attributes:
      manual_dir: folder that holds the collections; may be empty when a prepared set exists.
      name: folder of the collection below it and prefix of its text files, such as activitynet.
      feature: folder below FeatureData, such as i3d.
      visual_dim: D, the width of feature.bin.
      text_dim: E, the width of the word features.
    """

    manual_dir: str | Path
    name: str
    feature: str
    visual_dim: int
    text_dim: int

    @property
    def root(self) -> Path:
        """The collection's own folder."""
        return Path(self.manual_dir).expanduser() / self.name

    @property
    def text_features(self) -> Path:
        """Word features of every caption."""
        return self.root / "TextData" / f"roberta_{self.name}_query_feat.hdf5"

    @property
    def feature_dir(self) -> Path:
        """Folder of the frame features."""
        return self.root / "FeatureData" / self.feature

    def captions(self, split: str) -> Path:
        """The caption list of a split."""
        return self.root / "TextData" / f"{self.name}{split}.caption.txt"

    def files(self) -> list[Path]:
        """Every file of the collection, in a fixed order."""
        names = ("feature.bin", "id.txt", "shape.txt", "video2frames.txt")
        return [
            *(self.captions(split) for split in SPLITS),
            self.text_features,
            *(self.feature_dir / name for name in names),
        ]

    def present(self) -> bool:
        """Whether the collection's folder exists at all."""
        return str(self.manual_dir) != "" and self.root.is_dir()

    def missing(self) -> ReleasedDataError:
        """The error that says what to download and which tree to put it into."""
        base = self if str(self.manual_dir) else dataclasses.replace(self, manual_dir="MANUAL_DIR")
        where = f"{self.root} does not exist" if str(self.manual_dir) else "manual_dir is not set"
        tree = ", ".join(str(path) for path in base.files())
        return ReleasedDataError(
            f"{where}: download the {self.name} features published with MS-SL (GMMFormer and "
            f"HLFormer use the same), point data.manual_dir at the folder that holds {self.name}/ "
            f"and check that these files are there: {tree}"
        )

    def check_files(self) -> None:
        """Checks that every file is there.

        Raises:
          ReleasedDataError: if the folder or one of the files is missing.
        """
        if not self.present():
            raise self.missing()
        for path in self.files():
            if not path.is_file():
                raise ReleasedDataError(
                    f"{path}: no such file; the {self.name} features published with MS-SL have it, "
                    f"put it there (or correct data.manual_dir, data.collection, data.feature)"
                )

    def fingerprint(self) -> str:
        """Identifies the source without reading it: names, sizes and times of its files.

        Returns:
          Twelve hexadecimal digits; another source, or a changed one, has others.

        Raises:
          ReleasedDataError: if a file is missing.
        """
        self.check_files()
        digest = hashlib.sha256(f"{self.name}\0{self.feature}".encode())
        for path in self.files():
            stat = path.stat()
            digest.update(f"\0{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
        return digest.hexdigest()[:12]
