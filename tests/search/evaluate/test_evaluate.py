"""Captions: read strictly, recalls and levels by them, by kind, and a data set of them."""

import itertools
import math

import archive
import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from hlformer_jax.data.extracted import ExtractedReader, contents
from hlformer_jax.errors import SearchError
from hlformer_jax.search.evaluate import captions, features, metrics, threshold
from hlformer_jax.search.evaluate.captions import Caption
from hlformer_jax.search.evaluate.metrics import evaluate
from hlformer_jax.search.evaluate.threshold import Separation


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
    path.write_text(
        '{"video": "", "sentence": "x", "kind": "absent"}\n{"video": "a.mp4", "sentence": "x",'
        ' "also": ["b.mp4"], "then": ["y"], "not": ["z"], "within": 9, "said": true}\n'
    )
    absent, parts = captions.read(path)
    assert absent == Caption("", "x", kind="absent") and absent.single and not parts.single
    assert parts == Caption(
        "a.mp4", "x", also=("b.mp4",), said=True, then=("y",), without=("z",), within=9.0
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "captions.jsonl:2: this is no JSON"),
        ("[]", "captions.jsonl:2: a caption is a JSON object"),
        ('{"sentence": "x"}', 'captions.jsonl:2: "video" is missing'),
        ('{"video": "a", "sentence": " "}', '"sentence" is missing or no text'),
        ('{"video": "a", "sentence": "x", "start": 3}', '"start" and "end" are 3 and None'),
        ('{"video": "a", "sentence": "x", "start": 3, "end": 3}', "the end after the start"),
        ('{"video": "a", "sentence": "x", "start": -1, "end": 3}', "are -1 and 3"),
        ('{"video": "a", "sentence": "x", "start": "1", "end": 3}', "are 1 and 3"),
        ('{"video": "a", "sentence": "x", "start": true, "end": NaN}', "are True and nan"),
        ('{"video": "a", "sentence": "x", "split": "dev"}', "\"split\" is 'dev'"),
        ('{"video": "a", "sentence": "x", "start": 0, "end": 1e999}', "are 0 and inf"),
        ('{"video": "a", "sentence": "x", "start": 0, "end": 1%s}' % ("0" * 400), "are 0 and 1000"),
        ('{"video": null, "sentence": "x"}', '"video" is missing'),
        ('{"video": "", "sentence": "x", "start": 1, "end": 2}', '"video" is empty'),
        ('{"video": "", "sentence": "x", "also": ["b"]}', '"video" is empty'),
        ('{"video": "a", "sentence": "x", "then": "y"}', "\"then\" is 'y'"),
        ('{"video": "a", "sentence": "x", "not": [1]}', '"not" is [1]'),
        ('{"video": "a", "sentence": "x", "within": 0}', '"within" 0'),
        ('{"video": "a", "sentence": "x", "said": 1}', '"said" 1'),
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
    with pytest.raises(SearchError, match="caption"):
        captions.read(path)
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SearchError, match="UTF-8"):
        captions.read(path)


@pytest.fixture
def library(index):
    return archive.opened(index, ranker="best_frame")


def test_captions_with_times_alone_count_for_the_moments(library):
    asked = [Caption("a.film", "red", 5.0, 8.0), Caption("b.film", "green")]
    metrics, _ = evaluate(library, asked)
    assert metrics["R@1"] == 100 and metrics["IoU 0.7"] == 100
    asked[0] = Caption("a.film", "red", 0.0, 5.0)
    missed, _ = evaluate(library, asked)
    assert missed["R@1"] == 100 and missed["IoU 0.3"] == missed["mIoU"] == 0
    assert not any("IoU" in name for name in evaluate(library, asked[1:])[0])


def test_a_copy_of_the_same_bytes_is_as_right_as_its_video(films, index):
    (films / "copy.film").write_bytes((films / "a.film").read_bytes())
    archive.fill(index)
    library = archive.opened(index, ranker="best_frame")
    metrics, apart = evaluate(library, [Caption("a.film", "red")])
    assert metrics["R@1"] == 100 and apart.absent[0] < apart.present[0]


def test_a_video_that_is_not_indexed_is_named(library):
    with pytest.raises(SearchError, match="'d.film'"):
        evaluate(library, [Caption("d.film", "red")])


@pytest.mark.parametrize("probable", [False, True])
def test_what_captions_find_in_their_videos_and_elsewhere_is_that_of_loops(index, probable):
    encoder = archive.Encoder(probable=probable)
    library = archive.opened(index, ranker="best_frame", encoder=encoder)
    asked = [
        Caption("a.film", "red"), Caption("b.film", "blue green", also=("trips/c.film",)),
        Caption("a.film", "white", said=True), Caption("", "yellow", kind="k"),
    ]  # fmt: skip
    metrics, apart = evaluate(library, asked)
    frames = {one.video: index.read(index.manifest.videos[one.video].content).vectors
              for one in library.ranked()}  # fmt: skip

    def above(sentence, videos):
        (query,) = encoder.encode_texts([sentence])
        cosines = {name: [float(x.astype(np.float32) @ query) for x in own]
                   for name, own in frames.items()}  # fmt: skip
        centre = 0 if probable else np.median([x for own in cosines.values() for x in own])
        return max(max(cosines[name]) for name in videos) - centre

    a, b, c = frames
    np.testing.assert_allclose(apart.present, [above("red", [a]), above("blue green", [b, c])],
                               atol=1e-6)  # fmt: skip
    np.testing.assert_allclose(apart.absent, [above("red", [b, c]), above("blue green", [a])],
                               atol=1e-6)  # fmt: skip
    np.testing.assert_allclose(apart.lacking["k"], [above("yellow", [a, b, c])], atol=1e-6)
    assert apart.videos == ("a.film", "b.film") and metrics["R@1"] == 100
    wins = [x > y for x, y in itertools.product(apart.present, apart.absent)]
    assert metrics["AUC"] == 100 * np.mean(wins)


def test_the_area_under_the_curve_is_scipy_s_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(20):
        present, absent = (rng.integers(0, 9, rng.integers(1, 40)).astype(float) for _ in "ab")
        expected = mannwhitneyu(present, absent).statistic / len(present) / len(absent)
        assert threshold.auc(present, absent) == pytest.approx(100 * expected)


def test_a_level_calls_no_more_of_what_is_absent_good_than_it_says():
    rng, rates = np.random.default_rng(0), (0.05, 0.1, 0.2)
    for rate in rates:
        alarms = []
        for _ in range(4000):
            drawn = rng.gumbel(size=40)
            # By definition: the least of the scores that at most rate (n + 1) - 1 others exceed.
            ordered = sorted(drawn[:39])
            bound = min(x for x in ordered if sum(y > x for y in ordered) <= rate * 40 - 1 + 1e-9)
            level = threshold.level(drawn[:39], rate)
            assert level == math.nextafter(bound, math.inf)
            alarms.append(drawn[39] >= level)
        assert np.mean(alarms) == pytest.approx(rate, abs=0.015)
    assert threshold.level(np.arange(18.0), 0.05) is None
    assert threshold.level(np.arange(19.0), 0.05) == math.nextafter(18.0, math.inf)
    assert threshold.level(np.ones(19), 0.5) == math.nextafter(1.0, math.inf)  # above all ties


def test_the_trade_off_is_that_of_leaving_each_video_out_in_a_loop():
    rng = np.random.default_rng(1)
    videos = tuple(f"{i}" for i in rng.integers(0, 9, 80))
    apart = Separation(
        rng.normal(1, 1, 80), rng.normal(0, 1, 80), videos, {"k": rng.normal(size=7)}
    )
    figures = threshold.trade_off(apart, 0.1)
    alarms, kept = [], []
    for i, video in enumerate(videos):
        others = np.asarray([x for x, other in zip(apart.absent, videos, strict=True)
                             if other != video])  # fmt: skip
        level = threshold.level(others, 0.1)
        alarms.append(apart.absent[i] >= level)
        kept.append(apart.present[i] >= level)
    assert figures["false alarms"][0] == pytest.approx(100 * np.mean(alarms))
    share, low, high = figures["kept"]
    assert share == pytest.approx(100 * np.mean(kept)) and low < share < high
    # As wide as a normal approximation by the videos' sums of deviations, about.
    sums = [sum(k - np.mean(kept) for k, v in zip(kept, videos, strict=True) if v == video)
            for video in set(videos)]  # fmt: skip
    assert high - low == pytest.approx(2 * 196 * math.hypot(*sums) / 80, rel=0.3)
    assert figures["level"] == threshold.level(apart.absent, 0.1)
    assert figures["absent"]["k"] == 100 * np.mean(apart.lacking["k"] >= figures["level"])
    assert threshold.trade_off(apart._replace(videos=("0",) * 80), 0.1) is None


def test_by_kind_figures_are_those_of_what_each_way_of_asking_finds(tmp_path, films):
    (films / "b.en.srt").write_text('[[2, 4, "a lighthouse keeper"]]')
    index = archive.create(tmp_path / "index", films)
    archive.fill(index, video=archive.TOLD)
    library = archive.opened(index, encoder=archive.Encoder(probable=True))
    asked = [
        Caption("a.film", "red", 5.0, 8.0, kind="seen"),
        Caption("b.film", "blue", kind="seen", also=("a.film",)),
        Caption("b.film", "the lighthouse", 2.0, 6.0, kind="said", said=True),
        Caption("a.film", "black", 0.0, 8.0, kind="order", then=("red",)),
        Caption("", "submarine", kind="absent", said=True),
    ]
    kinds = metrics.by_kind(library, asked)
    # Blue is in c.film, of which the second caption knows nothing; all three are among five.
    assert kinds["seen"]["sight"] == pytest.approx(
        {"queries": 2, "R@1": 50, "R@5": 100, "mIoU": 100, "good": 100}
    )
    assert kinds["seen"]["words"] == {"queries": 2, "R@1": 0, "R@5": 0, "mIoU": 0, "good": 0}
    assert kinds["said"]["words"] == pytest.approx(
        {"queries": 1, "R@1": 100, "R@5": 100, "mIoU": 50, "good": 100}
    )
    assert list(kinds["order"]) == ["sight"] and kinds["order"]["sight"]["R@1"] == 100
    assert kinds["absent"]["words"] == {"queries": 1, "good": 0}


CAPTIONS = [
    Caption("a.film", "red on black", 5.0, 8.0),
    Caption("b.film", "green"),
    Caption("trips/c.film", "blue black", 10.0, 14.0),
    Caption("a.film", "red again", 14.0, 16.0),
]


def test_the_features_are_the_vectors_of_the_index_and_the_encoder_s_tokens(index, tmp_path):
    lines = []
    asked = [*CAPTIONS, Caption("gone.film", "red")]
    counts = features.write_features(
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
        (tokens,) = archive.Encoder().encode_tokens([caption.sentence])
        np.testing.assert_array_equal(reader.read_words(caption.caption_id), tokens)
    assert contents(tmp_path / "out")["feature"] == "colours-" + "f" * 12
    # The two moments of a video make a tree; the text of its parent is encoded as a whole.
    text = "red on black red again"
    assert contents(tmp_path / "out")["parents"] == {"a.film": {"a.film#parent#0": text}}
    (tokens,) = archive.Encoder().encode_tokens([text])
    np.testing.assert_array_equal(reader.read_words("a.film#parent#0"), tokens)


def test_every_split_has_videos_of_its_own_and_the_seed_decides():
    asked = [Caption(f"{k}.mp4", "a sentence") for k in range(40)] * 2
    drawn = [features.divide(asked, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(drawn[0][split]) for split in ("train", "val", "test")] == [32, 4, 4]
    assert len(set().union(*drawn[0].values())) == 40
    few = features.divide(CAPTIONS, 0)
    assert [len(few[split]) for split in ("train", "val", "test")] == [1, 1, 1]


def test_captions_that_cannot_be_divided_are_refused_in_one_line():
    named = [Caption("a.film", "red", split="train"), Caption("b.film", "green")]
    with pytest.raises(SearchError, match="'green'"):
        features.divide(named, 0)
    with pytest.raises(SearchError, match="'val'"):
        features.divide(named[:1], 0)
    with pytest.raises(SearchError, match=" 2 "):
        features.divide(CAPTIONS[:2], 0)
