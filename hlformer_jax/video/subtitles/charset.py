"""Detection of the text encoding of a subtitle file.

Unicode is recognised by its structure, and older encodings by the language of the decoded text.
chardet names the likely older encodings. For a single sentence, its first choice can give a text
that is in no language ("Ll‡mame" instead of "Llámame"). So the candidates are scored by the decoded
text: changes of the alphabet, symbols and capitals inside words make an encoding less likely, and
common words make it more likely.
"""

import contextlib
import math
import re
import unicodedata

import chardet

_CENTRAL = (
    "cs pl hu sk sl hr bs ro sq sr ces cze pol hun slk slo slv hrv bos ron rum czech polish"
    " hungarian slovak croatian romanian"
)
_CYRILLIC = "ru uk be bg sr mk russian ukrainian bulgarian serbian rus ukr bel bul srp mkd mac"
_WESTERN = (
    "en de fr es it pt nl sv da no nb nn fi is ca gl eu ga id ms eng deu ger fra fre spa ita"
    " por nld dut swe dan nor fin isl ice"
)
_GREEK = "el ell gre greek"
_TURKISH = "tr az tur aze turkish"
_HEBREW = "he iw heb hebrew"
_ARABIC = "ar fa ur ara fas per urd arabic persian farsi"

ENCODINGS = {
    "cp1250": _CENTRAL,
    "cp1251": _CYRILLIC,
    "koi8-r": "ru rus russian",
    "koi8-u": "uk ukr ukrainian",
    "cp1252": _WESTERN,
    "mac-roman": _WESTERN,
    "cp1253": _GREEK,
    "cp1254": _TURKISH,
    "cp1255": _HEBREW,
    "cp1256": _ARABIC,
    "cp1257": "lt lv et lit lav est lithuanian latvian estonian",
    "cp1258": "vi vie vietnamese",
    "gb18030": "zh chs zhs sc gb zho chi cn hans chinese",
    "big5hkscs": "zh cht zht tc big5 zho chi tw hk hant chinese",
    "cp932": "ja jp jpn japanese",
    "euc_jp": "ja jp jpn japanese",
    "cp949": "ko kr kor korean",
    "cp874": "th tha thai",
    "iso8859-2": _CENTRAL,
    "cp852": _CENTRAL,
    "iso8859-5": _CYRILLIC,
    "cp866": _CYRILLIC,
    "cp855": _CYRILLIC,
    "mac-cyrillic": _CYRILLIC,
    "cp850": _WESTERN,
    "iso8859-15": _WESTERN,
    "iso8859-6": _ARABIC,
    "iso8859-7": _GREEK,
    "cp737": _GREEK,
    "cp857": _TURKISH,
    "cp862": _HEBREW,
}
"""Older encodings that are distinguished, with language codes.

Of two that give the same text, the first is named.
"""

_BALTIC_ISO = "iso8859-13"
"""Encoding that differs from cp1257 in quotation marks only; two of them are invalid in cp1257."""

_SAMPLE_BYTES = 2**15
"""Number of bytes, of lines that are not ASCII, from which an older encoding is detected."""

_CHARDET_NAMES = {"euc_jis_2004": "euc_jp", "iso8859-9": "cp1254"}
_INCLUDED = [name for name in (*ENCODINGS, *_CHARDET_NAMES) if name != "euc_jp"]

_MIN_UTF8_LETTERS = 20
"""Number of letters from which on a text without an invalid byte is certainly UTF-8."""

_SAMPLE_CHARACTERS = 4000
"""Number of characters of a sample that are scored."""

_WEIGHT, _LEAST, _HINT = 6.0, 0.01, 2.0
"""Weight of oddities and smallest confidence, beside the logarithm of the confidence; and weight of
a language in the file's name. The weight from 4 to 12 and the smallest confidence from 0.005 to
0.02 give nearly the same decisions."""

_MAX_ODDITIES = 0.15
"""Share of oddities from which on a text is probably in an encoding that is not distinguished. Of
right texts of five or more cues, none had more than 0.11."""

_FOREIGN_LETTER_WEIGHT = 0.6
"""Weight of a Latin letter that the most likely language of an encoding does not have."""

_CENTRAL_LETTERS = (
    "áčďéěíňóřšťúůýž", "ąćęłńóśźż", "áéíóöőúüű", "áäčďéíĺľňóôŕšťúýž", "čćđšž", "ăâîşţ", "çë",
    "äöüß",
)  # fmt: skip
_WESTERN_LETTERS = (
    "àâæçéèêëîïôœùûüÿ", "áéíñóúüªº", "áâãàçéêíóôõúüªº", "àèéìíòóùú", "äöüß", "éëïóöüèêáí", "åäöéà",
    "æøåéòôóâ", "áðéíóúýþæö", "äöåšž", "àçèéíïòóúü", "áéíóú",
)  # fmt: skip
_TURKISH_LETTERS = ("çğıi̇öşüâîû", "əçğıöşü")
_LATIN_LETTERS = {
    **dict.fromkeys(("cp1250", "iso8859-2", "cp852"), _CENTRAL_LETTERS),
    **dict.fromkeys(("cp1252", "mac-roman", "cp850", "iso8859-15"), _WESTERN_LETTERS),
    **dict.fromkeys(("cp1254", "cp857"), _TURKISH_LETTERS),
    "cp1257": ("ąčęėįšųūž", "āčēģīķļņšūž", "äöõüšž"),
}
"""Letters besides A to Z of the languages of each encoding, one text for each language."""

_COMMON_WORD_WEIGHT = 0.25
"""Weight of a common word in the decoded text, in favour of the encoding."""

_COMMON_WORDS = frozenset(
    # French, Spanish, Portuguese, Italian
    "à ça été être même très où déjà voilà après là c'était père mère frère désolé français cœur"
    " está qué él más sí también aquí así cómo sólo mañana niño señor años día dónde adiós"
    " não é você são também até então já só está mãe nós amanhã obrigação coração"
    " è perché più può così già città sarà però né lì"
    # German, Dutch, Swedish, Danish, Norwegian, Icelandic, Finnish
    " für über können müssen wäre schön natürlich zurück möchte heißt hätte mädchen tür"
    " één på är för från så då nå også får når må går på hvornår år því það ég við"
    " hyvää tämä minä sinä hän mitä tässä päivää kyllä"
    # Polish, Czech, Slovak, Hungarian, Croatian, Romanian, Albanian
    " się że dzień cześć będzie dziękuję proszę już też są coś może być"
    " dobrý že není děkuji prosím můj když už řekl být"
    " ďakujem môj keď čo és én még már köszönöm jó"
    " što može već kuća čovjek şi în că să mulţumesc bună të në që për një është"
    " unë më çfarë mirë shumë"
    # Turkish, Lithuanian, Latvian, Estonian
    " için çok değil ağaç ağacı şimdi günaydın teşekkür nasılsın köpek bütün kadın şey"
    " ačiū aš kā ļoti jõgi läheb"
    # Russian, Ukrainian, Bulgarian, Serbian
    " не что это как я привет да нет он она мы вы ты все так его у меня на и с"
    " привіт як це що ні добър ден как сте здравей какво добар дан мој је".split()
)
"""Words with letters outside ASCII that occur in nearly any speech. A word of ASCII is the same in
all encodings, but would count more in those of Chinese and Korean, which give fewer letters."""

_UTF8_MARK = b"\xef\xbb\xbf"
_BOMS = (
    (_UTF8_MARK, "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),  # before UTF-16: this mark begins with that of UTF-16
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)

_ALPHABETS = re.compile(
    "(?P<Latin>[A-Za-z\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff])|"
    "(?P<Greek>[\u0370-\u0373\u0376-\u03ff\u1f00-\u1fff])|(?P<Cyrillic>[\u0400-\u052f])|"
    "(?P<Armenian>[\u0531-\u0587])|(?P<Hebrew>[\u05d0-\u05ea\ufb1d-\ufb4f])|"
    "(?P<Arabic>[\u0620-\u064a\u0671-\u06d3])|(?P<kana>[\u3041-\u30ff])|"
    "(?P<Han>[\u3400-\u9fff\uf900-\ufaff])|(?P<Hangul>[\uac00-\ud7a3])|"
    "(?P<Thai>[\u0e01-\u0e3a\u0e40-\u0e4e])"
)

_KANA = {"gb18030": 0.5, "big5hkscs": 0.5, "cp949": 0.5, "cp932": -0.3, "euc_jp": -0.3}
"""Weight of a kana against an encoding; negative for encodings of Japanese."""


def decode(content: bytes, language: str = "") -> tuple[str, str]:
    """Decode a text of unknown encoding; invalid bytes become U+FFFD.

    Args:
      content: the bytes of a file.
      language: the language code or name in the file's name, such as "ru"; "" if it has none.

    Returns:
      The text, without a byte order mark, and the Python name of its encoding.
    """
    encoding = detect(content, language)
    if encoding != "utf-8":
        content = content.removeprefix(_UTF8_MARK)
    text = content.decode(encoding, errors="replace").removeprefix("\ufeff")
    if encoding == "utf-8":
        text = _encoded_once(text)
    return text, encoding


_CP1252_BYTES = {
    ord(letter): byte
    for byte in range(0x80, 0xA0)
    if (letter := bytes([byte]).decode("cp1252", errors="ignore"))
}
"""Bytes of cp1252, by their characters; its undefined bytes are decoded as control characters."""

_LETTER_BEFORE_PUNCTUATION = re.compile("[^\x00-\x7fÂÃâ][‘’“”–—…«»\xa0]")
"""Two characters of correct texts ("weiß…") that have the bytes of a single one in UTF-8."""


def _encoded_once(text: str) -> str:
    """Return a text that was encoded twice ("Ã©" for "é") as it was; any other is unchanged."""
    if _LETTER_BEFORE_PUNCTUATION.sub("", text).isascii():
        return text
    with contextlib.suppress(UnicodeError):
        return text.translate(_CP1252_BYTES).encode("latin-1").decode().removeprefix("\ufeff")
    return text


def doubt(content: bytes, encoding: str) -> str:
    """Return a warning if a text is probably not in its detected encoding; "" if it may be."""
    if encoding not in (*ENCODINGS, _BALTIC_ISO):
        return ""
    text = _sample(content).decode(encoding, errors="replace")[:_SAMPLE_CHARACTERS]
    if encoding in _KANA:  # East Asian texts have Latin words without spaces around them
        text = re.sub("[A-Za-z]+", "", text)
    if _oddities(text) <= _MAX_ODDITIES * sum(not c.isascii() for c in text):
        return ""
    return f"uncertain text encoding: symbols inside words as {encoding}; convert it to UTF-8"


def detect(content: bytes, language: str = "") -> str:
    """Return the Python name of the most likely encoding of a text; see `decode`."""
    for mark, encoding in _BOMS:
        if content.startswith(mark) and (mark != _UTF8_MARK or _is_mostly_utf8(content)):
            return encoding
    if encoding := _wide(content):
        return encoding
    if content.isascii():
        return "iso2022_jp" if b"\x1b$" in content else "utf-8"
    text = content.decode("utf-8", errors="replace")
    damaged = text.count("\ufffd")
    letters = len(text) - len(text.encode("ascii", "ignore")) - damaged
    is_certain = letters > _MIN_UTF8_LETTERS or _encoded_once(text) != text
    if (not damaged and is_certain) or 0 < 2 * damaged <= letters:
        return "utf-8"
    sample = _sample(content)
    encoding = _older(sample, language)
    if letters >= damaged:
        # Two letters of an older encoding can be one letter of UTF-8, but rarely a likely one.
        unicode, older = (sample.decode(name, errors="replace") for name in ("utf-8", encoding))
        if _oddities(unicode) <= _oddities(older, encoding) + (not damaged):
            return "utf-8"
    return encoding


def _is_mostly_utf8(content: bytes) -> bool:
    """Return whether a text with UTF-8's mark is UTF-8; editors also add it elsewhere."""
    text = content[: 2**16].decode("utf-8", errors="replace")
    return text.count("\ufffd") <= len(re.findall(r"[^\x00-\x7f\ufffd]", text))


def _wide(content: bytes) -> str:
    """Return UTF-16 or UTF-32 for a text without a mark, by its zero bytes; "" for neither."""
    head = content[: 2**12]
    head = head[: len(head) // 4 * 4]
    zeros = [head[i::4].count(0) for i in range(4)]
    rows = len(head) // 4
    # Digits, spaces and line ends are ASCII in any language, so each has a zero byte.
    for encoding, mostly, never in (
        ("utf-32-le", (2, 3), (0,)),
        ("utf-32-be", (0, 1), (3,)),
        ("utf-16-le", (1, 3), (0, 2)),
        ("utf-16-be", (0, 2), (1, 3)),
    ):
        share = 0.9 if encoding.startswith("utf-32") else 0.2
        if (
            rows
            and all(zeros[i] >= share * rows for i in mostly)
            and all(zeros[i] <= 0.1 * rows for i in never)
        ):
            return encoding
    return ""


def _sample(content: bytes) -> bytes:
    """Return the distinct lines of a text that are not ASCII, without tags."""
    lines: dict[bytes, None] = {}
    size = 0
    for line in re.split(rb"[\r\n]+", content):
        if line.isascii() or line in lines:
            continue
        lines[line] = None
        size += len(line)
        if size > _SAMPLE_BYTES:
            break
    sample = b"\n".join(lines)[: 2 * _SAMPLE_BYTES]
    return re.sub(rb"<[/A-Za-z][^<>\x80-\xff]{0,100}>|\{\\[^{}\x80-\xff]{0,100}\}", b"", sample)


def _older(sample: bytes, language: str) -> str:
    """Return the most likely older encoding of a sample."""
    confidences = _confidences(sample)
    codes = language.lower().replace("_", "-").split("-")

    def score(encoding: str) -> float:
        text = sample.decode(encoding, errors="replace")[:_SAMPLE_CHARACTERS]
        count = sum(not c.isascii() for c in text) or 1
        odd = _oddities(text, encoding) + _FOREIGN_LETTER_WEIGHT * _foreign_letters(text, encoding)
        words = re.findall(r"\w+", text.lower())
        odd -= _COMMON_WORD_WEIGHT * sum(word in _COMMON_WORDS for word in words)
        fit = -_WEIGHT * odd / count
        is_named = any(code in ENCODINGS[encoding].split() for code in codes)
        return math.log(confidences[encoding] + _LEAST) + fit + _HINT * is_named

    likeliest = max(ENCODINGS, key=score)
    if likeliest == "cp1257" and re.search(rb"[\xa1\xa5]", sample):
        if not re.search(rb"[\x80-\x9f]", sample):
            return _BALTIC_ISO
    text = sample.decode(likeliest, errors="replace")
    return next(name for name in ENCODINGS if sample.decode(name, errors="replace") == text)


def _confidences(sample: bytes) -> dict[str, float]:
    """Return chardet's confidence in each encoding.

    chardet rejects an encoding because of a single invalid byte. So if few bytes of the sample are
    invalid in an encoding, chardet gets the sample without them.
    """
    confidences = dict.fromkeys(ENCODINGS, 0.0)
    groups: dict[bytes, list[str]] = {sample: []}
    for encoding in ENCODINGS:
        cleaned = sample.decode(encoding, errors="ignore").encode(encoding, errors="ignore")
        damaged = len(sample) - len(cleaned)
        if 0 < damaged <= max(2, 0.05 * len(sample)):
            groups.setdefault(cleaned, []).append(encoding)
        else:
            groups[sample].append(encoding)
    for cleaned, encodings in groups.items():
        if not cleaned:
            continue
        for result in chardet.detect_all(
            cleaned, ignore_threshold=True, compat_names=False, include_encodings=_INCLUDED
        ):
            name = _CHARDET_NAMES.get(result["encoding"] or "", result["encoding"] or "")
            if name in encodings:
                confidences[name] = max(confidences[name], result["confidence"])
    return confidences


def _oddities(text: str, encoding: str = "") -> float:
    """Return the weight of oddities in a text that no language has; 0 for a likely text."""
    odd = 0.0
    before, alphabet_before, word_before = " ", "", ""
    for c in text:
        match = None if c in " \n" else _ALPHABETS.match(c)
        alphabet = (match.lastgroup or "") if match else ""
        if c == " ":
            word_before = alphabet_before
        elif before == " " and alphabet == word_before == "Han":  # Korean has spaces, Chinese few
            odd += 0.5
        if not c.isascii() or not before.isascii():
            if c == "\ufffd" or "\x80" <= c <= "\x9f" or "\ue000" <= c <= "\uf8ff":
                odd += 1
            elif "\uff61" <= c <= "\uff9f":  # halfwidth katakana
                odd += 0.7
            elif alphabet and alphabet_before:
                if alphabet != alphabet_before and {alphabet, alphabet_before} != {"Han", "kana"}:
                    odd += 1
                elif before.islower() and c.isupper():
                    odd += 1
            elif alphabet or alphabet_before:
                neighbour = before if alphabet else c
                if not neighbour.isascii() and (
                    unicodedata.category(neighbour) in _SYMBOLS or neighbour in "§¶†‡‰"
                ):
                    odd += 0.7
            if alphabet == "kana":
                odd += _KANA.get(encoding, 0.0)
        before, alphabet_before = c, alphabet
    return odd


def _foreign_letters(text: str, encoding: str) -> int:
    """Count the Latin letters that the best-fitting language of an encoding does not have."""
    letters = [c for c in text.lower() if not c.isascii() and "\u00c0" <= c <= "\u024f"]
    alphabets = _LATIN_LETTERS.get(encoding, ())
    return min((sum(c not in alphabet for c in letters) for alphabet in alphabets), default=0)


_SYMBOLS = frozenset({"So", "Sm", "Sc", "Sk", "No", "Cc", "Cn", "Cf"})
"""Unicode categories of characters that do not occur next to a letter."""
