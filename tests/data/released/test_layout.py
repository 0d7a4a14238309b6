"""Where the released files lie: a collection and a feature are each the name of one folder."""

import pytest

from hlformer_jax.data.released.collection import Collection
from hlformer_jax.data.released.layout import Layout
from hlformer_jax.data.source import DataError


@pytest.mark.parametrize("name", ["../../x", "", "..", "a/b", "a\nb"])
def test_a_collection_is_the_name_of_one_folder(tmp_path, name):
    for names, field in (((name, "i3d"), "collection"), (("tvr", name), "feature")):
        with pytest.raises(DataError, match=f"data.{field} is .* the name of one folder"):
            Collection(tmp_path, *names, 6, 5)


def test_files_are_those_that_ms_sl_published(tmp_path):
    layout = Layout(tmp_path, "tvr", "i3d_resnet", 3072, 768)
    assert sorted(str(path.relative_to(tmp_path)) for path in layout.files()) == [
        "tvr/FeatureData/i3d_resnet/feature.bin",
        "tvr/FeatureData/i3d_resnet/id.txt",
        "tvr/FeatureData/i3d_resnet/shape.txt",
        "tvr/FeatureData/i3d_resnet/video2frames.txt",
        "tvr/TextData/roberta_tvr_query_feat.hdf5",
        "tvr/TextData/tvrtest.caption.txt",
        "tvr/TextData/tvrtrain.caption.txt",
        "tvr/TextData/tvrval.caption.txt",
    ]
