"""Times of subtitle files by the specifications of their formats."""

import pytest

from hlformer_jax.video.subtitles import read_file

NTSC = 'ttp:timeBase="smpte" ttp:frameRate="30" ttp:frameRateMultiplier="1000 1001"'


def read(tmp_path, name, text):
    """Write a file and return its cues as tuples, and the number of unreadable blocks."""
    (tmp_path / name).write_text(text)
    subtitles = read_file(tmp_path / name)
    return [tuple(cue) for cue in subtitles], subtitles.skipped


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (  # each child begins at the end of the one before it
            '<body><div timeContainer="seq"><p dur="2s">a</p><p dur="3s">b</p>'
            '<p begin="1s" dur="1s">c</p><p begin="1s" end="4s">d</p></div></body>',
            [(0, 2, "a"), (2, 5, "b"), (6, 7, "c"), (8, 11, "d")],
        ),
        (  # a parallel container ends with its last child
            '<body begin="10s" timeContainer="seq"><div><p begin="3s" end="4s">b</p>'
            '<p begin="1s" end="2s">a</p></div><set begin="1s" end="9s"/><div><p dur="1s">c</p>'
            "</div></body>",
            [(11, 12, "a"), (13, 14, "b"), (14, 15, "c")],
        ),
        (
            '<body timeContainer="seq"><div timeContainer="seq"><p dur="1s">a</p><p dur="1s">b</p>'
            '</div><div dur="10s" timeContainer="seq"><p dur="1s">c</p></div><p dur="1s">d</p>'
            "</body>",
            [(0, 1, "a"), (1, 2, "b"), (2, 3, "c"), (12, 13, "d")],
        ),
        (
            '<body><p begin="5s" timeContainer="seq"><span dur="1s">one two</span>'
            '<span begin="500ms" dur="1s">three four</span></p></body>',
            [(5, 6, "one two"), (6.5, 7.5, "three four")],
        ),
        (  # the earlier of both ends counts
            '<body><p dur="2s">a</p><p begin="3s" dur="4s" end="5s">b</p>'
            '<p begin="6s" dur="1s" end="9s">c</p></body>',
            [(0, 2, "a"), (3, 5, "b"), (6, 7, "c")],
        ),
        (  # nothing lasts longer than its parent
            '<body><div begin="22s" end="30s"><p end="1s">a</p><p begin="5s" end="10s">b</p></div>'
            '<div begin="0s" end="3s"><p>c</p></div></body>',
            [(0, 3, "c"), (22, 23, "a"), (27, 30, "b")],
        ),
    ],
    ids=["sequence", "parallel in sequence", "nested", "spans", "shorter end", "parent"],
)
def test_ttml_times_follow_containers(tmp_path, body, expected):
    assert read(tmp_path, "a.ttml", f"<tt>{body}</tt>") == (expected, 0)


def test_times_of_apple_lyrics_count_from_zero(tmp_path):
    text = (
        '<tt xmlns:itunes="http://music.apple.com/lyric-ttml-internal" itunes:timing="Word">'
        '<body dur="1:30.000"><div begin="19.764" end="59.300"><p begin="19.764" end="21.900">'
        '<span begin="19.764" end="20.326">You were</span> '
        '<span begin="20.326" end="21.900">here</span></p></div>'
        '<div begin="1:01.500" end="1:10.000"><p begin="1:01.500" end="1:03.000">there</p>'
        '<p end="1:05.000">and</p></div></body></tt>'
    )
    expected = [(19.764, 21.9, "You were here"), (61.5, 63, "there"), (61.5, 65, "and")]
    assert read(tmp_path, "a.ttml", text) == (expected, 0)


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        (
            '<p begin="1s" end="20s"><span begin="0s" end="2s">one two</span>\n'
            '<span begin="3s" end="5s">three four</span></p>',
            [(1, 3, "one two"), (4, 6, "three four")],
        ),
        (  # the words of a song are one cue
            '<p begin="1s" end="20s"><span begin="0s" end="2s">one</span> '
            '<span begin="3s" end="5s">two</span></p>',
            [(1, 6, "one two")],
        ),
        (  # a line that grows is one cue
            '<p begin="1s" end="9s"><span begin="0s">one two </span>'
            '<span begin="1s">three four</span></p>',
            [(1, 9, "one two three four")],
        ),
        (  # the times of spans count, by mistake, from the start of the document
            '<p begin="10s" end="20s"><span begin="10s" end="12s">one two</span> '
            '<span begin="13s" end="15s">three</span></p>',
            [(10, 20, "one two three")],
        ),
        (
            '<p>Ann: <span begin="1s" end="2s">one two</span> and '
            '<span begin="3s" end="4s">three four</span></p>',
            [(1, 2, "Ann: one two and"), (3, 4, "three four")],
        ),
        (
            '<p begin="1s" end="2s"><metadata>author <p>Ann</p></metadata>one'
            "<ttm:desc>a caption</ttm:desc> two</p>",
            [(1, 2, "one two")],
        ),
        (
            '<p begin="1s" end="2s" tts:display="none">one <span>two</span></p>'
            '<p begin="3s" end="4s" tts:visibility="hidden">three <span tts:visibility="visible">'
            'four</span></p><p begin="5s" end="6s" tts:visibility="visible">five</p>',
            [(3, 4, "four"), (5, 6, "five")],
        ),
        (  # XML allows ">" in a value
            '<p xml:id="a > b" begin="1s" end="2s">one</p>'
            "<p begin='3s' end='4s' region='c > d'>two</p>",
            [(1, 2, "one"), (3, 4, "two")],
        ),
        (  # shown after half a second
            '<p begin="1s" end="2s" tts:visibility="hidden">'
            '<set begin="0.5s" tts:visibility="visible"/>one</p>',
            [(1, 2, "one")],
        ),
    ],
    ids=[
        "sentences",
        "words",
        "growing",
        "absolute",
        "untimed text",
        "metadata",
        "hidden",
        "greater sign",
        "shown later",
    ],
)
def test_ttml_spans_and_their_texts(tmp_path, paragraph, expected):
    text = f"<tt><body><div>{paragraph}</div></body></tt>"
    assert read(tmp_path, "a.ttml", text) == (expected, 0)


def test_ttml_readings_follow_the_words(tmp_path):
    styles = "".join(
        f'<style xml:id="{name}" tts:ruby="{name}"/>'
        for name in ("container", "base", "text", "delimiter")
    )
    ruby = """<span style="container">
        <span style="base">{}</span>
        <span style="delimiter">(</span><span style="text"><span>{}</span></span></span>"""
    words = f"{ruby.format('東京', 'とうきょう')}都{ruby.format('北', 'きた')}区"
    text = (
        f'<tt><head><styling>{styles}<style xml:id="none" tts:display="none"/></styling></head>'
        f'<body><p begin="1s" end="2s">{words}<span style="none base">hidden</span></p></body></tt>'
    )
    assert read(tmp_path, "a.ttml", text) == ([(1, 2, "東京都北区 とうきょう きた")], 0)
    timed = "".join(
        f'<span begin="{k}s" end="{k + 1}s">{ruby.format(word, reading)}</span>'
        for k, (word, reading) in enumerate([("東", "ひがしがわ"), ("京", "きょう")])
    )
    text = f"<tt><head><styling>{styles}</styling></head><body><p>{timed}</p></body></tt>"
    assert read(tmp_path, "a.ttml", text) == ([(0, 2, "東京 ひがしがわ きょう")], 0)


@pytest.mark.parametrize(
    ("root", "attribute", "start"),
    [
        (f'{NTSC} ttp:dropMode="nonDrop"', "01:00:00:00", 3603.6),
        (f'{NTSC} ttp:dropMode="dropNTSC"', "01:00:00;00", 3599.996),
        (NTSC.replace("smpte", "media"), "01:00:00:15", 3600.5005),
        ('ttp:frameRate="25"', "00:00:01:05", 1.2),
        ('ttp:frameRate="25" ttp:subFrameRate="2"', "00:00:01:05.1", 1.22),
        ('ttp:frameRate="25"', "50t", 2),
        ('ttp:frameRate="23.976"', "00:00:01:12", 1.5005),
        ('ttp:frameRate="29.97" ttp:timeBase="smpte"', "01:00:00:00", 3603.6036),
        ("", "2t", 2),
        ('ttp:tickRate="10000000"', "25000000t", 2.5),
        ("", "45f", 1.5),
        ("", "1.3333333333333333s", 1.333),
        ("", "00:00:01.3333333333333333", 1.333),
        (f'xmlns:a="{"a" * 3000}" ttp:tickRate="10000000"', "25000000t", 2.5),
    ],
)
def test_ttml_frames_and_ticks(tmp_path, root, attribute, start):
    text = f'<tt {root}><body><p begin="{attribute}" dur="2s">a</p></body></tt>'
    [cue], _ = read(tmp_path, "a.ttml", text)
    assert cue[0] == pytest.approx(start, abs=1e-3)


def test_ttml_counts_text_that_is_never_shown(tmp_path):
    text = (
        '<tt><body><p>no time</p><div end="9s"><p begin="9s" end="10s">after its parent</p></div>'
        '<div timeContainer="seq"><p begin="1s">no end</p><p dur="1s">after it</p></div>'
        "</body></tt>"
    )
    assert read(tmp_path, "a.ttml", text) == ([(1, 6, "no end")], 3)


def test_colon_before_hundredths_in_ssa(tmp_path):
    line = "[Events]\nDialogue: 0,0:00:01:50,0:00:02:10,D,,0,0,0,,a\n"
    assert read(tmp_path, "a.ssa", line) == ([(1.5, 2.1, "a")], 0)


def test_first_line_of_microdvd_is_a_rate_or_a_number(tmp_path):
    lines = "{25}{50}a\n{75}{100}b\n"
    rated = [(1, 2, "a"), (3, 4, "b")]
    for first in ("{1}{1}25", "{0}{0}25,000", "{1}{1}25 fps", "{1}{25}25.0", "{1}{}25"):
        assert read(tmp_path, "a.sub", f"{first}\n{lines}") == (rated, 0)
    cues, _ = read(tmp_path, "a.sub", "{0}{48}100\n{72}{96}a\n")
    assert [cue[2] for cue in cues] == ["100", "a"]


def test_segments_of_webvtt_are_shifted_to_the_first(tmp_path):
    segment = "WEBVTT\nX-TIMESTAMP-MAP={}\n\n00:0{}.000 --> 00:0{}.000\n{}\n\n"
    near_wrap = 2**33 - 90_000
    for first, second in (
        ("MPEGTS:900000,LOCAL:00:00:00.000", "MPEGTS:1800000,LOCAL:00:00:00.000"),
        ("LOCAL:00:00:00.000,MPEGTS:900000", "LOCAL:00:00:02.000,MPEGTS:1980000"),
        (f"MPEGTS:{near_wrap},LOCAL:00:00:00.000", "MPEGTS:810000,LOCAL:00:00:00.000"),
    ):
        text = segment.format(first, 1, 2, "a") + segment.format(second, 1, 3, "b")
        assert read(tmp_path, "a.vtt", text) == ([(1, 2, "a"), (11, 13, "b")], 0)
        text = segment.format(first, 1, 2, "a") + segment.format(first, 4, 5, "b")
        assert read(tmp_path, "a.vtt", text) == ([(1, 2, "a"), (4, 5, "b")], 0)


@pytest.mark.parametrize(
    "syncs",
    [
        "<SYNC Start=1000><P Class=ENCC>sea<P Class=DECC>Meer<SYNC Start=3000><P Class=ENCC>&nbsp;"
        "<SYNC Start=4000><P Class=DECC>&nbsp;",
        "<SYNC Start=1000><P Class=ENCC>sea\n<SYNC Start=1000><P Class=DECC>Meer\n"
        "<SYNC Start=3000><P Class=ENCC>&nbsp;\n<SYNC Start=4000><P Class=DECC>&nbsp;",
        "<SYNC Start=1000><P Class=DECC>Meer<SYNC Start=4000><P Class=DECC>&nbsp;"
        "<SYNC Start=1000><P Class=ENCC>sea<SYNC Start=3000><P Class=ENCC>&nbsp;",
    ],
    ids=["same sync", "alternating", "one after the other"],
)
def test_languages_of_sami_have_their_own_times(tmp_path, syncs):
    for english, german in (("ENCC", "DECC"), ("en", "de")):
        style = f".{english} {{Name:English; lang:en-US;}}\n.{german} {{ lang: de; }}"
        body = syncs.replace("ENCC", english).replace("DECC", german)
        text = f"<SAMI><HEAD><STYLE><!--\n{style}\n--></STYLE></HEAD><BODY>{body}</BODY></SAMI>"
        assert read(tmp_path, "a.smi", text) == ([(1, 3, "sea"), (1, 4, "Meer")], 0)


def test_sami_classes_of_styles_replace_each_other(tmp_path):
    text = (
        "<SAMI><STYLE>.LOUD {color:red}</STYLE><BODY><SYNC Start=1000><P Class=LOUD>a"
        "<SYNC Start=2000><P>b<SYNC Start=4000></SYNC></BODY></SAMI>"
    )
    assert read(tmp_path, "a.smi", text) == ([(1, 2, "a"), (2, 4, "b")], 0)
