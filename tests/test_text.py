"""Text for messages: suggestions, legible names, hidden passwords."""

import pytest

from hlformer_jax import text


def test_suggestion_is_a_similar_name():
    assert text.suggestion("hiden", ["hidden", "heads"]) == "; did you mean 'hidden'?"
    assert text.suggestion("x", ["hidden"]) == ""


def test_names_of_files_are_printable():
    assert text.legible("a\udcff.mp4") == "a\ufffd.mp4"
    assert text.printable("a\udcff.mp4") == "a\ufffd.mp4"
    assert text.printable("a\nb\x1b[31m\u202e\u2028\x85") == r"a\nb\x1b[31m\u202e\u2028\x85"
    for name in ('it\'s "Küche" 映画\u3000一 🎬.mp4', "C:\\n", "👨\u200d👩.mp4", "a\u00a0b"):
        assert text.printable(name) == name


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("postgresql://me:secret@h/d", "postgresql://me:…@h/d"),
        ("postgresql://me@h/d?a=b", "postgresql://me@h/d?a=b"),
        ("postgresql://me:@/d?host=/x", "postgresql://me:…@/d?host=/x"),
        ("x://h/?password=secret&a=b", "x://h/?password=…&a=b"),
        ("sslpassword = 'a secret' user=me", "sslpassword = … user=me"),
        ("no a:b password here", "no a:b password here"),
    ],
)
def test_passwords_are_hidden(line, shown):
    assert text.without_passwords(line) == shown
