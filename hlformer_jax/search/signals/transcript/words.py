"""Words of passages and of queries, in the one form in which they are compared.

Case, compatibility forms and accents are removed, so that Straße, STRASSE and strasse are one word.
Signs of vowels are parts of words, except the points of Hebrew, Arabic and Syriac. SQLite only
splits the result at its spaces and stems English words (`porter ascii`), because its own tables
know neither the folding of case nor the vowel signs of Indic scripts.
"""

import itertools
import re
import unicodedata

VERSION = 1, unicodedata.unidata_version
"""Version of the form; tables of passages with another version are made again."""

_ACCENTS = ("COMBINING ", "HEBREW ", "ARABIC ", "SYRIAC ")
"""First words of the names of nonspacing marks without which a word is still the same."""

_VOICED = 8
"""Canonical combining class of the marks that make か into が, which is another letter."""

# й, ў and ї are letters of their own, whereas ё is also written е.
_CYRILLIC_LETTERS = re.compile("[\u0438\u0443]\u0306|\u0456\u0308")

_PAIRED = "[\u2e80-\u2fdf\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff]"
"""Characters of Chinese and Japanese, which have no spaces between words."""

_JOINED = "[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff]"
"""Characters of Thai, Lao, Burmese and Khmer, which have spaces between phrases only."""

_UNSPACED = re.compile(f"{_PAIRED}|{_JOINED}")
_RUNS = re.compile(f"({_PAIRED}+|{_JOINED}+)")


class _Characters(dict[int, str]):
    """The replacement of each character: itself, nothing, or a space; a table of `translate`."""

    def __missing__(self, code: int) -> str:
        self[code] = replacement = _replace(chr(code))
        return replacement


def _replace(character: str) -> str:
    if character == "\u0131":  # the Turkish ı, whose capital is I, as that of i elsewhere
        return "i"
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    is_accent = name.startswith(_ACCENTS) and unicodedata.combining(character) != _VOICED
    if category in ("Mn", "Me") and (is_accent or name.startswith("VARIATION SELECTOR")):
        return ""
    if name == "ARABIC TATWEEL" or category == "Cf" and name != "ZERO WIDTH SPACE":
        return ""  # lengthens a line, or is invisible, such as a soft hyphen
    return character if category[0] in "LNM" or category == "Co" else " "


_CHARACTERS = _Characters()


def normalise(text: str) -> str:
    """Return the words of a text without case and accents, separated by spaces."""
    if text.isascii():
        return text.lower().translate(_CHARACTERS)
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    letters = _CYRILLIC_LETTERS.sub(lambda x: unicodedata.normalize("NFC", x[0]), folded)
    return unicodedata.normalize("NFC", letters.translate(_CHARACTERS))


def spaced(text: str) -> str:
    """Return the words of a passage, separated by spaces.

    Each character of a script without spaces is a word.
    """
    return _UNSPACED.sub(lambda character: f" {character[0]} ", normalise(text))


def phrases(text: str) -> list[str]:
    """Return the phrases of a query that are searched for in `spaced` passages, mostly words.

    In Chinese and Japanese each pair of characters is searched for. In Thai, Lao, Burmese and Khmer
    it is each run of characters without a space, wherever it stands in a passage.
    """
    words: list[str] = []
    for word in normalise(text).split():
        for part in filter(None, _RUNS.split(word)):
            if re.match(_PAIRED, part):
                pairs = [f"{first} {second}" for first, second in itertools.pairwise(part)]
                words += pairs or [part]
            else:
                words.append(" ".join(part) if re.match(_JOINED, part) else part)
    return words
