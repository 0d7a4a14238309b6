"""Text files read strictly: what is wrong is named with file and line, in one line."""

import json
import re

import pytest

from hlformer_jax.data.source import DataError
from hlformer_jax.data.trees import lines


def refused(call, *parts):
    """Asserts that a call is refused by one line that has these parts."""
    with pytest.raises(DataError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", ": is empty"),
        (b" \n\t\n", ": is empty"),
        (b"\xef\xbb\xbfa", ":1: begins with a byte order mark"),
        ("a".encode("utf-16"), ":1: begins with a byte order mark"),
        (b"a\nb\ncaf\xe9\n", ":3: byte 0xe9 is not UTF-8"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_its_line(tmp_path, data, complaint):
    path = tmp_path / "given"
    path.write_bytes(data)
    refused(lambda: lines.read_text(path), f"{path}{complaint}")


def test_lines_end_at_line_feeds_alone(tmp_path):
    text = "one\u2028still one\r\ntwo\x0bstill two\n"
    assert lines.split_lines(tmp_path, text) == ["one\u2028still one", "two\x0bstill two"]
    assert lines.split_lines(tmp_path, "one\ntwo") == ["one", "two"]
    refused(lambda: lines.split_lines(tmp_path, "one\n \ntwo\n"), f"{tmp_path}:2: blank line")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"a": 1, "a": 2}', "f:7: 'a' stands twice"),
        ('{"b": {"a": 1, "a": 2}}', "f:7: 'a' stands twice"),
        ("[1]", "f:7: this must be a JSON object"),
        ("{", "f:7: this is no JSON"),
        ("[" * 100_000, "f:7: this is nested too deeply"),
        ('{"a":\n\n1,}', "f:7:3: this is no JSON"),
    ],
)
def test_what_is_no_object_is_refused(text, complaint):
    refused(lambda: lines.parse_object(text, "f:7"), complaint)


def test_an_object_is_what_json_says():
    value = {"a": [1, {"b": None}], "c": "ü"}
    assert lines.parse_object(json.dumps(value), "f") == value
    assert lines.field(value, "c", "f") == "ü"
    refused(lambda: lines.field(value, "d", "f:3"), 'f:3: has no "d"')


@pytest.mark.parametrize("value", ["", "  ", None, 3, ["a"], "a\nb", "a\rb", "a\0b", "a\ud800"])
def test_what_is_no_text_of_one_line_is_refused(value):
    refused(lambda: lines.text_of(value, "name", "f:1"), "f:1: name is ")


def test_a_text_may_have_several_lines_where_that_is_said():
    assert lines.text_of(" a\nb", "name", "f", one_line=False) == " a\nb"
    assert lines.text_of(" a", "name", "f") == " a"


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "3", None])
def test_what_is_no_time_is_refused(value):
    refused(lambda: lines.seconds_of(value, "start", "f:1"), f"f:1: start is {value!r}")


def test_a_time_is_a_float_and_may_be_zero():
    assert [lines.seconds_of(x, "start", "f") for x in (0, 2, 2.5)] == [0.0, 2.0, 2.5]
    assert isinstance(lines.seconds_of(2, "start", "f"), float)


def test_lists_have_the_length_that_is_asked_for():
    assert lines.list_of([1, 2], "span", "f") == lines.list_of([1, 2], "span", "f", 2) == [1, 2]
    refused(
        lambda: lines.list_of([1], "span", "f:2", 2), "f:2: span is [1]; it must be a list of 2"
    )
    refused(lambda: lines.list_of((1, 2), "span", "f:2"), "it must be a list")


def test_values_are_shown_on_one_line_no_longer_than_sixty_characters():
    assert lines.shown("a\nb") == "'a\\nb'"
    long = lines.shown("x" * 1000)
    assert len(long) == 60 and re.fullmatch("'x+…", long)
