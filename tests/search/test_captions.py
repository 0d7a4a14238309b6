"""Captions: read strictly, recalls by them, and a data set of them."""

import archive
import numpy as np
import pytest

from hlformer_jax import search
from hlformer_jax.data.extracted import ExtractedReader, contents
from hlformer_jax.errors import SearchError
from hlformer_jax.search import evaluation
from hlformer_jax.search.evaluation import Caption, evaluate


def test_lines_are_captions_and_times_may_be_missing(tmp_path):
    path = tmp_path / "captions.jsonl"
    path.write_text(
        '\ufeff{"video": "a.mp4", "sentence": "ein Kühlschrank", "start": 1, "end": 2.5}\n\n'
        '{"video": "b/c.mp4", "sentence": "two", "start": null, "split": "val"}\n',
        encoding="utf-8",
    )
    assert evaluation.read(path) == [
        Caption("a.mp4", "ein Kühlschrank", 1.0, 2.5),
        Caption("b/c.mp4", "two", split="val"),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "captions.jsonl:2: this is no JSON"),
        ("[]", "captions.jsonl:2: a caption is a JSON object"),
        ('{"sentence": "x"}', 'captions.jsonl:2: "video" is missing'),
        (
            '{"video": "a", "sentence": " "}',
            'captions.jsonl:2: "sentence" is missing or no text',
        ),
        ('{"video": "a", "sentence": "x", "start": 3}', '"start" and "end" are 3 and None'),
        ('{"video": "a", "sentence": "x", "start": 3, "end": 3}', "the end after the start"),
        ('{"video": "a", "sentence": "x", "start": -1, "end": 3}', "are -1 and 3"),
        ('{"video": "a", "sentence": "x", "start": "1", "end": 3}', "are 1 and 3"),
        ('{"video": "a", "sentence": "x", "start": true, "end": NaN}', "are True and nan"),
        ('{"video": "a", "sentence": "x", "split": "dev"}', "\"split\" is 'dev'"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, complaint):
    path = tmp_path / "captions.jsonl"
    path.write_text('{"video": "a", "sentence": "x"}\n' + line)
    with pytest.raises(SearchError) as error:
        evaluation.read(path)
    assert complaint in str(error.value)


def test_an_empty_file_and_one_that_is_no_text_are_refused(tmp_path):
    path = tmp_path / "captions.jsonl"
    path.write_bytes(b"\n")
    with pytest.raises(SearchError, match="caption"):
        evaluation.read(path)
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SearchError, match="UTF-8"):
        evaluation.read(path)


@pytest.fixture
def library(index):
    return search.open(index.directory, ranker="best_frame", encoder=archive.Encoder())


def test_captions_with_times_alone_count_for_the_moments(library):
    asked = [Caption("a.film", "red", 5.0, 8.0), Caption("b.film", "green")]
    metrics = evaluate(library, asked)
    assert metrics["R@1"] == 100 and metrics["IoU 0.7"] == 100
    asked[0] = Caption("a.film", "red", 0.0, 5.0)
    missed = evaluate(library, asked)
    assert missed["R@1"] == 100 and missed["IoU 0.3"] == missed["mIoU"] == 0
    assert not any("IoU" in name for name in evaluate(library, asked[1:]))


def test_a_video_that_is_not_indexed_is_named(library):
    with pytest.raises(SearchError, match="'d.film'"):
        evaluate(library, [Caption("d.film", "red")])


CAPTIONS = [
    Caption("a.film", "red on black", 5.0, 8.0),
    Caption("b.film", "green"),
    Caption("trips/c.film", "blue black", 10.0, 14.0),
    Caption("a.film", "red again", 14.0, 16.0),
]


def test_the_features_are_the_vectors_of_the_index_and_the_encoder_s_tokens(index, tmp_path):
    lines = []
    asked = [*CAPTIONS, Caption("gone.film", "red")]
    counts = evaluation.write_features(
        index, archive.Encoder(), asked, tmp_path / "out", report=lines.append
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
    drawn = [evaluation.divide(asked, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(drawn[0][split]) for split in ("train", "val", "test")] == [32, 4, 4]
    assert len(set().union(*drawn[0].values())) == 40
    few = evaluation.divide(CAPTIONS, 0)
    assert [len(few[split]) for split in ("train", "val", "test")] == [1, 1, 1]


def test_captions_that_cannot_be_divided_are_refused_in_one_line():
    named = [Caption("a.film", "red", split="train"), Caption("b.film", "green")]
    with pytest.raises(SearchError, match="'green'"):
        evaluation.divide(named, 0)
    with pytest.raises(SearchError, match="'val'"):
        evaluation.divide(named[:1], 0)
    with pytest.raises(SearchError, match=" 2 "):
        evaluation.divide(CAPTIONS[:2], 0)
