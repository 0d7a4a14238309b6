"""Values that no feature can be are refused with their place; zeros are counted."""

import corpora
import numpy as np
import pytest
from corpora import assert_refused, feature, read_all, warnings_of

from hlformer_jax.data.source import DataError


def _poke(collection, name, value):
    """Writes a value into the row of a frame."""
    row = (collection.feature_dir / "id.txt").read_text().split().index(name)
    features = np.memmap(collection.feature_dir / "feature.bin", "<f4", "r+").reshape(-1, 6)
    features[row, 3] = value
    features.flush()


def _zero_rows(share):
    """Zeros in the last rows of feature.bin, as where a download was broken off."""

    def change(data):
        kept = len(data) // 24 * round(24 * (1 - share))
        return data[:kept] + bytes(len(data) - kept)

    return feature("feature.bin", change)


FAULTS = {
    "text_nan": (
        corpora.words(lambda f: f["val_1#enc#1"].write_direct(np.full((3, 5), np.nan, "f4"))),
        [".hdf5", "'val_1#enc#1'", "nan"],
    ),
    "text_inf": (
        corpora.words(lambda f: f["val_1#enc#1"].write_direct(np.full((3, 5), -np.inf, "f4"))),
        [".hdf5", "'val_1#enc#1'", "inf"],
    ),
    "text_of_zeros": (
        corpora.words(
            lambda f: [f[name].write_direct(np.zeros(f[name].shape, "f4")) for name in f]
        ),
        [".hdf5: caption 'train_0#enc#0'", "is zero", "captions", "broken off"],
    ),
    "bin_half_zero": (
        _zero_rows(0.5),
        ["feature.bin: frame 'train_", "is zero", "frames", "(", "%)", "broken off"],
    ),
    "frame_nan": (
        lambda c: _poke(c, "val_1_2", np.nan),
        ["feature.bin", "'val_1_2'", "'val_1'", "nan"],
    ),
    "frame_signalling_nan": (
        lambda c: _poke(c, "val_1_2", np.uint32(0x7F800001).view("f4")),
        ["feature.bin", "'val_1_2'", "nan"],
    ),
    "frame_inf": (lambda c: _poke(c, "val_1_2", -np.inf), ["feature.bin", "'val_1_2'", "inf"]),
    "frame_absurd": (lambda c: _poke(c, "val_1_2", 3e30), ["feature.bin", "float32"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_refused_with_its_place(tiny, write, fault):
    assert_refused(write(tiny), *FAULTS[fault])


def test_a_few_zero_rows_are_padding_and_warned_of(tiny, write):
    tiny.frames["train_3"][2] = 0
    tiny.words["val_1#enc#1"][0] = 0
    warned = warnings_of(write(tiny))
    assert len(warned) == 2
    assert "frame 'train_3_2'" in warned[0] and "1 (4.2%) of the 24 frames" in warned[0]
    assert "caption 'val_1#enc#1'" in warned[1] and "all words of 0" in warned[1]


def test_zeros_throughout_one_video_are_refused(tiny, write):
    tiny.frames["val_1"][:] = 0
    with pytest.raises(DataError, match=r"all frames of 1 \(.*%\) of the 6 videos"):
        read_all(write(tiny))
