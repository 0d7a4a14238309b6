"""Captioned videos into a data set: what it holds, and how captions are divided."""

import archive
import numpy as np
import pytest

from hlformer_jax.data.extracted import ExtractedReader, contents
from hlformer_jax.search import captions
from hlformer_jax.search.captions import Caption
from hlformer_jax.search.errors import SearchError

CAPTIONS = [
    Caption("a.film", "red on black", 5.0, 8.0),
    Caption("b.film", "green"),
    Caption("trips/c.film", "blue black", 10.0, 14.0),
    Caption("a.film", "red again", 14.0, 16.0),
]


def test_the_features_are_the_vectors_of_the_index_and_the_encoder_s_tokens(index, tmp_path):
    lines = []
    asked = [*CAPTIONS, Caption("gone.film", "red")]
    counts = captions.write_features(
        index, archive.Encoder(), asked, tmp_path / "out", tell=lines.append
    )
    assert sum(counts.values()) == 4 and "gone.film" in lines[0]
    reader = ExtractedReader(tmp_path / "out")
    kept = [(video, one) for of in reader.splits.values() for video in of for one in of[video]]
    assert sorted((v, c.sentence, c.start, c.end) for v, c in kept) == sorted(
        (c.video, c.sentence, c.start, c.end) for c in CAPTIONS
    )
    for video, caption in kept:
        vectors = index.read(index.manifest.videos[video].content).vectors
        np.testing.assert_array_equal(reader.read_frames(video), vectors.astype(np.float32))
        (tokens,) = archive.Encoder().tokens([caption.sentence])
        np.testing.assert_array_equal(reader.read_words(caption.caption_id), tokens)
    assert contents(tmp_path / "out")["feature"] == "colours-" + "f" * 12


def test_every_split_has_videos_of_its_own_and_the_seed_decides():
    asked = [Caption(f"{k}.mp4", "a sentence") for k in range(40)] * 2
    drawn = [captions.divide(asked, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(drawn[0][split]) for split in ("train", "val", "test")] == [32, 4, 4]
    assert len(set().union(*drawn[0].values())) == 40
    few = captions.divide(CAPTIONS, 0)
    assert [len(few[split]) for split in ("train", "val", "test")] == [1, 1, 1]


def test_captions_that_cannot_be_divided_are_refused_in_one_line():
    named = [Caption("a.film", "red", split="train"), Caption("b.film", "green")]
    with pytest.raises(SearchError, match="1 captions name.*'green'.*give it to all"):
        captions.divide(named, 0)
    with pytest.raises(SearchError, match="no caption on an indexed video.*'val'"):
        captions.divide(named[:1], 0)
    with pytest.raises(SearchError, match="on 2 indexed videos"):
        captions.divide(CAPTIONS[:2], 0)
