"""Texts of the page: all in one file, ready for translation."""

import re
from html.parser import HTMLParser

import pytest

from hlformer_jax.search.serve import app
from hlformer_jax.search.serve.refusals import REFUSALS

KEY = r'"([a-z]+(?:\.[a-z0-9]+)*)"'
SCRIPTS = {name: (app.STATIC / name).read_text() for name in ("page.js", "manage.js")}
HTML = (app.STATIC / "index.html").read_text()
TEXTS = re.search(r"const TEXTS = \{(.*?)\n\};", (app.STATIC / "texts.js").read_text(), re.S)[1]
KEYS = re.findall(rf"^  {KEY}: ", TEXTS, re.M)


class Page(HTMLParser):
    """Words of the page's HTML, and keys of the texts that scripts fill in.

    The words of <noscript>, which no script can fill in, are in `without_script`.
    """

    def __init__(self):
        super().__init__()
        self.words, self.keys, self.without_script = [], [], []
        self.tag = ""
        self.feed(HTML)

    def handle_starttag(self, tag, attributes):
        self.tag = "noscript" if "noscript" in (tag, self.tag) else tag
        for name, value in attributes:
            if name in ("aria-label", "title", "placeholder", "alt"):
                self.words.append(value)
            elif name in ("data-text", "data-label", "data-hint", "data-example"):
                self.keys.append(value)

    def handle_endtag(self, tag):
        self.tag = "" if tag == "noscript" else self.tag

    def handle_data(self, data):
        words = self.without_script if self.tag == "noscript" else self.words
        words += re.findall(r"[^\W\d_]{2,}", data)


def test_html_and_scripts_hold_no_text():
    assert set(Page().words) == {"hlformer"}  # the name of the program
    assert " ".join(Page().without_script).startswith("This page needs JavaScript")
    for name, script in SCRIPTS.items():
        code = re.sub(r"(?m)^//.*| {4}//.*", "", script)
        phrases = re.findall(r"""["'`>}]([A-Z][a-z]+(?: [a-z]+| ?…)[^"'`]*)["'`]""", code)
        assert phrases == [], name


def test_every_text_is_defined_once_and_used():
    used = set(Page().keys)
    for script in SCRIPTS.values():
        used |= set(re.findall(KEY, script)) & set(KEYS)
        missing = set(re.findall(rf"\btext\({KEY}", script)) - set(KEYS)
        assert not missing
    built = {key for key in KEYS if key.partition(".")[0] in ("signals", "date", "job", "refused")}
    assert len(set(KEYS)) == len(KEYS) > 100
    assert set(Page().keys) <= set(KEYS)
    assert set(KEYS) - used - built == set()


def test_every_refusal_of_the_server_has_a_text_with_its_values():
    texts = dict(re.findall(r'^  "refused\.([a-z.]+)": (.*),$', TEXTS, re.M))
    values = {code: re.findall(r"\{\w+\}", sentence) for code, (_, sentence) in REFUSALS.items()}
    values["query.image"] = []  # the only field that the page cannot check
    assert {code: re.findall(r"\{\w+\}", sentence) for code, sentence in texts.items()} == values


@pytest.mark.parametrize("key", [key for key in KEYS if re.search(rf'"{key}": {{', TEXTS)])
def test_counted_texts_have_both_english_forms(key):
    forms = re.search(rf'"{re.escape(key)}": {{(.*?)}},\n', TEXTS, re.S)[1]
    assert re.findall(r"\b(one|other):", forms) == ["one", "other"] and "{count}" in forms
