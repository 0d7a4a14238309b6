"""Which files the released features are made of, and where they lie.

    {manual_dir}/{collection}/TextData/{collection}{train,val,test}.caption.txt
    {manual_dir}/{collection}/TextData/roberta_{collection}_query_feat.hdf5
    {manual_dir}/{collection}/FeatureData/{feature}/{feature.bin,id.txt,shape.txt,video2frames.txt}

It is the layout in which MS-SL published its features; GMMFormer and HLFormer read the same.
"""

import dataclasses
from pathlib import Path

from hlformer_jax.data.source import SPLITS, DataError


@dataclasses.dataclass(frozen=True)
class Layout:
    """Paths of one published collection, and the widths that the model expects of its features.

    Attributes:
      manual_dir: folder that holds the collections; may be empty when a prepared set exists.
      name: folder of the collection below it and prefix of its text files, such as activitynet.
      feature: folder below FeatureData, such as i3d.
      visual_dim: D, the width of feature.bin.
      text_dim: E, the width of the word features.

    Raises:
      DataError: if name or feature is not the name of one folder.
    """

    manual_dir: str | Path
    name: str
    feature: str
    visual_dim: int
    text_dim: int

    def __post_init__(self) -> None:
        for field, value in (("data.collection", self.name), ("data.feature", self.feature)):
            if value in ("", ".", "..") or "/" in value or "\\" in value or not value.isprintable():
                raise DataError(
                    f"{field} is {value!r}; it must be the name of one folder, such as "
                    f"'activitynet' or 'i3d' (data.manual_dir says where the folders lie)"
                )

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
