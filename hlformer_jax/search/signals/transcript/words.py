"""Words of passages and of queries, in the one form in which they are compared.

Case, compatibility forms and accents are removed, so that Straße, STRASSE and strasse are one word,
and so are Łódź and lodz. Digits of all scripts are 0 to 9. Arabic and Persian letters that are
written for each other are one letter, and an Arabic word has no article.
Signs of vowels are parts of words, except the points of Hebrew, Arabic and Syriac. SQLite only
splits the result at its spaces and stems English words (`porter ascii`), because its own tables
know neither the folding of case nor the vowel signs of Indic scripts.
"""

import itertools
import re
import unicodedata

VERSION = 5, unicodedata.unidata_version
"""Version of the form; tables of passages with another version are made again."""

_ACCENTS = ("COMBINING ", "HEBREW ", "ARABIC ", "SYRIAC ")
"""First words of the names of nonspacing marks without which a word is still the same."""

_LETTERS = {
    "ł": "l", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "ı": "i",
    "æ": "ae", "œ": "oe", "þ": "th",
    # Alef wasla, teh marbuta, alef maksura; then Persian and Urdu yeh, kaf and heh.
    "\u0671": "\u0627", "\u0629": "\u0647", "\u0649": "\u064a",
    "\u06cc": "\u064a", "\u06a9": "\u0643", "\u06aa": "\u0643",
    "\u06c1": "\u0647", "\u06c3": "\u0647", "\u06d5": "\u0647",
    # The nukta of Devanagari, which is often left out, and the chandrabindu, written as anusvara.
    "\u093c": "", "\u0901": "\u0902",
    # Kept until the article is removed.
    "\u0653": "\u0653", "\u0654": "\u0654", "\u0655": "\u0655",
    # Letters that are apostrophes, as in Hawaiian, Ukrainian and transcribed Arabic.
    "\u02bb": " ", "\u02bc": " ", "\u02be": " ", "\u02bf": " ",
}  # fmt: skip
"""Replacements of letters that Unicode does not decompose, after the folding of case."""

_ARABIC = "\u0620-\u06ff"

_HAMZAS = re.compile("[\u0653-\u0655]")
"""Madda and hamza above or below a letter. The alef of an article has none."""

_ARABIC_LETTER = "(?:[\u0620-\u064a\u066e-\u06d3\u06ee-\u06ff][\u0653-\u0655]*)"

_ARTICLE = re.compile(
    # The article before at least three letters, also after "and", "so", "in" and "like", or joined
    # with "to"; not that of "O God". Of a noun of three letters that begins with lam, as in
    # "to the language", the lam is written once less.
    "(?<!\\S)[\u0648\u0641]?(?:"
    "(?:[\u0628\u0643]?\u0627\u0644(?!\u0644\u0647\u0645(?!\\S))|\u0644\u0644)"
    f"(?={_ARABIC_LETTER}{{3}})|\u0644(?=\u0644{_ARABIC_LETTER}{{2}}(?!\\S)))"
)
"""Beginning of an Arabic word that is not part of the noun."""

_NON_JOINER = "\u200c"

_NON_JOINED = re.compile(f"[{_ARABIC}]{_NON_JOINER}|{_NON_JOINER}[{_ARABIC}]")
"""Separator of the parts of a Persian word, such as an ending, also after a foreign word."""

_VOICED = 8
"""Canonical combining class of the marks that make か into が, which is another letter."""

# й, ў and ї are letters of their own, whereas ё is also written е.
_CYRILLIC_LETTERS = re.compile("[\u0438\u0443]\u0306|\u0456\u0308")

_PAIRED = "[\u2e80-\u2fdf\u3005-\u3007\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
"""Characters of Chinese and Japanese, which have no spaces between words."""

_JOINED = "[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff]"
"""Characters of Thai, Lao, Burmese and Khmer, which have spaces between phrases only."""

_HANGUL = "[\uac00-\ud7a3]"
"""Syllables of Korean, whose words have spaces between them, and particles joined to their ends."""

_START = "\x80"
"""Word before each run of Korean syllables in a passage; `normalise` removes it from all texts."""

_UNSPACED = re.compile(f"{_PAIRED}|{_JOINED}")
_SYLLABLES = re.compile(f"{_HANGUL}+")
_RUNS = re.compile(f"({_PAIRED}+|{_JOINED}+|{_HANGUL}+)")


class _Characters(dict[int, str]):
    """The replacement of each character: itself, nothing, or a space; a table of `translate`."""

    def __missing__(self, code: int) -> str:
        self[code] = replacement = _replace(chr(code))
        return replacement


def _replace(character: str) -> str:
    if character in _LETTERS:
        return _LETTERS[character]
    if character.isdecimal():
        return str(unicodedata.decimal(character))
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
    words = _HAMZAS.sub("", _ARTICLE.sub("", letters.translate(_CHARACTERS)))
    return unicodedata.normalize("NFC", words)


def spaced(text: str) -> str:
    """Return the words of a passage, separated by spaces.

    Each character of a script without spaces is a word, and so is each syllable of Korean. A
    Persian word with a zero-width non-joiner is followed by its parts.
    """
    parts = [
        f"{word} {word.replace(_NON_JOINER, ' ')}" if _NON_JOINED.search(word) else word
        for word in text.split()
    ]
    separated = _UNSPACED.sub(lambda letter: f" {letter[0]} ", normalise(" ".join(parts)))
    return _SYLLABLES.sub(lambda run: f" {_START} {' '.join(run[0])} ", separated)


def phrases(text: str) -> list[str]:
    """Return the phrases of a query that are searched for in `spaced` passages, mostly words.

    In Chinese, Japanese and Korean each pair of characters is searched for. A single syllable of
    Korean is only searched for at the start of words, because many syllables are in most passages.
    In Thai, Lao, Burmese and Khmer it is each run of characters without a space, wherever it stands
    in a passage.
    """
    words: list[str] = []
    for word in normalise(text).split():
        for part in filter(None, _RUNS.split(word)):
            if re.match(f"{_PAIRED}|{_HANGUL}", part):
                pairs = [f"{first} {second}" for first, second in itertools.pairwise(part)]
                words += pairs or [f"{_START} {part}" if re.match(_HANGUL, part) else part]
            else:
                words.append(" ".join(part) if re.match(_JOINED, part) else part)
    return words
