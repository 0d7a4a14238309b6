"""Captions of one's own: what a line may hold, and complaints that name it."""

import pytest

from hlformer_jax.search import captions
from hlformer_jax.search.captions import Caption
from hlformer_jax.search.errors import SearchError


def test_lines_are_captions_and_times_may_be_missing(tmp_path):
    path = tmp_path / "captions.jsonl"
    path.write_text(
        '\ufeff{"video": "a.mp4", "sentence": "ein Kühlschrank", "start": 1, "end": 2.5}\n\n'
        '{"video": "b/c.mp4", "sentence": "two", "start": null, "split": "val"}\n',
        encoding="utf-8",
    )
    assert captions.read(path) == [
        Caption("a.mp4", "ein Kühlschrank", 1.0, 2.5),
        Caption("b/c.mp4", "two", split="val"),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "captions.jsonl:2: this is no JSON"),
        ("[]", "captions.jsonl:2: a caption is a JSON object"),
        ('{"sentence": "x"}', 'captions.jsonl:2: "video" is missing'),
        ('{"video": "a", "sentence": " "}', 'captions.jsonl:2: "sentence" is missing or no text'),
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
        captions.read(path)
    assert complaint in str(error.value)


def test_an_empty_file_and_one_that_is_no_text_are_refused(tmp_path):
    path = tmp_path / "captions.jsonl"
    path.write_bytes(b"\n")
    with pytest.raises(SearchError, match="has no caption"):
        captions.read(path)
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SearchError, match="is no text in UTF-8"):
        captions.read(path)
