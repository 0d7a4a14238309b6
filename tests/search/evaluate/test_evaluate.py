"""Captions: strict reading, recalls, thresholds and kinds, and data sets made of them."""

import errno
import itertools
import math

import archive
import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from hlformer_jax.data.sources import extracted
from hlformer_jax.data.sources.extracted import ExtractedReader, contents
from hlformer_jax.data.sources.protocol import DataError
from hlformer_jax.errors import SearchError
from hlformer_jax.search.evaluate import captions, features, metrics, threshold
from hlformer_jax.search.evaluate.captions import Caption
from hlformer_jax.search.evaluate.metrics import evaluate
from hlformer_jax.search.evaluate.threshold import Separation


def test_read_returns_captions_in_order(tmp_path):
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
    path.write_text('{"video": "a", "sentence": "x\u2028y\u0085z"}\r\n', encoding="utf-8")
    assert captions.read(path) == [Caption("a", "x\u2028y\u0085z")]
    path.write_text(
        '{"video": "", "sentence": "x", "kind": "absent"}\n{"video": "a.mp4", "sentence": "x",'
        ' "also": ["b.mp4"], "then": ["y"], "not": ["z"], "within": 9, "transcript": true}\n'
    )
    absent, parts = captions.read(path)
    assert absent == Caption("", "x", kind="absent") and absent.is_visual and not parts.is_visual
    assert parts == Caption(
        "a.mp4",
        "x",
        duplicates=("b.mp4",),
        in_transcript=True,
        following=("y",),
        without=("z",),
        within=9.0,
    )


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ("[]", "must be a JSON object"),
        ('{"sentence": "x"}', '"video" is missing'),
        ('{"video": "a", "sentence": " "}', '"sentence" is missing'),
        ('{"video": "a", "sentence": "x", "start": 3, "end": 3}', '"start" is 3 and "end" is 3'),
        ('{"video": "a", "sentence": "x", "start": 0, "end": 1e999}', '"end" is inf'),
        ('{"video": "a", "sentence": "x", "split": "dev"}', "\"split\" is 'dev'"),
        ('{"video": "", "sentence": "x", "also": ["b"]}', '"video" is empty'),
        ('{"video": "a", "sentence": "x", "then": "y"}', "\"then\" is 'y'"),
        ('{"video": "a", "sentence": "x", "within": 0}', '"within" is 0'),
        ('{"video": "a", "sentence": "x", "within": 9}', '"within" needs "then"'),
        ('{"video": "a", "sentence": "x", "transcript": 1}', '"transcript" is 1'),
        ("{", "not JSON"),
    ],
)
def test_malformed_line_is_named(tmp_path, fields, name):
    path = tmp_path / "captions.jsonl"
    path.write_text('{"video": "a", "sentence": "x"}\n' + fields)
    with pytest.raises(SearchError, match="captions.jsonl:2: ") as error:
        captions.read(path)
    assert name in str(error.value)


@pytest.mark.parametrize(("content", "reason"), [(b"\n", "no caption"), (b"\xff\xfe", "UTF-8")])
def test_file_without_captions_is_refused(tmp_path, content, reason):
    path = tmp_path / "captions.jsonl"
    path.write_bytes(content)
    with pytest.raises(SearchError, match=reason):
        captions.read(path)


@pytest.fixture
def library(index):
    return archive.opened(index, ranker="best_frame")


def test_moment_metrics_use_captions_with_times(library):
    queries = [Caption("a.film", "red", 5.0, 8.0), Caption("b.film", "green")]
    figures, _ = evaluate(library, queries)
    assert figures["R@1"] == 100 and figures["IoU 0.7"] == 100
    queries[0] = Caption("a.film", "red", 0.0, 5.0)
    missed, _ = evaluate(library, queries)
    assert missed["R@1"] == 100 and missed["IoU 0.3"] == missed["mIoU"] == 0
    assert not any("IoU" in name for name in evaluate(library, queries[1:])[0])


def test_copy_of_a_video_counts_as_correct(films, index):
    (films / "copy.film").write_bytes((films / "a.film").read_bytes())
    archive.fill(index)
    library = archive.opened(index, ranker="best_frame")
    figures, separation = evaluate(library, [Caption("a.film", "red")])
    assert figures["R@1"] == 100 and separation.absent[0] < separation.present[0]


def test_copies_of_a_wrong_video_count_once(films, index):
    for number in range(9):
        (films / f"0{number}.film").write_bytes((films / "b.film").read_bytes())
    archive.fill(index)
    library = archive.opened(index, ranker="best_frame")
    queries = [Caption("a.film", "green")]  # b.film is green
    figures, _ = evaluate(library, queries)
    assert figures["R@1"] == 0 and figures["R@5"] == 100
    assert metrics.by_kind(library, queries)[""]["visual"]["R@5"] == 100


@pytest.mark.parametrize("probable", [False, True])
def test_separation_equals_brute_force(index, probable):
    encoder = archive.Encoder(probable=probable)
    library = archive.opened(index, ranker="best_frame", encoder=encoder)
    queries = [
        Caption("a.film", "red"), Caption("b.film", "blue green", duplicates=("trips/c.film",)),
        Caption("a.film", "white", in_transcript=True), Caption("", "yellow", kind="k"),
    ]  # fmt: skip
    figures, separation = evaluate(library, queries)
    frames = {entry.video: index.read(index.videos[entry.video].content).vectors
              for entry in library.ranked()}  # fmt: skip

    def best_margin(sentence, videos):
        (query,) = encoder.encode_texts([sentence])
        cosines = {name: [float(x.astype(np.float32) @ query) for x in vectors]
                   for name, vectors in frames.items()}  # fmt: skip
        centre = 0 if probable else np.median([x for vectors in cosines.values() for x in vectors])
        return max(max(cosines[name]) for name in videos) - centre

    a, b, c = frames
    for margins, expected in (
        (separation.present, [best_margin("red", [a]), best_margin("blue green", [b, c])]),
        (separation.absent, [best_margin("red", [b, c]), best_margin("blue green", [a])]),
        (separation.without_video["k"], [best_margin("yellow", [a, b, c])]),
    ):
        np.testing.assert_allclose(margins, expected, atol=1e-6)
    assert separation.videos == ("a.film", "b.film") and figures["R@1"] == 100
    wins = [x > y for x, y in itertools.product(separation.present, separation.absent)]
    assert figures["AUC"] == 100 * np.mean(wins)
    best = np.maximum(separation.present, separation.absent)
    assert figures["AUC k"] == 100 * np.mean(best > separation.without_video["k"])


def test_auc_equals_scipy_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(20):
        present, absent = (rng.integers(0, 9, rng.integers(1, 40)).astype(float) for _ in "ab")
        expected = mannwhitneyu(present, absent).statistic / len(present) / len(absent)
        assert threshold.auc(present, absent) == pytest.approx(100 * expected)


def test_conformal_threshold_keeps_its_false_alarm_rate():
    rng, rates = np.random.default_rng(0), (0.05, 0.1, 0.2)
    for rate in rates:
        alarms = []
        for _ in range(4000):
            drawn = rng.gumbel(size=40)
            # By definition: the lowest score that at most rate (n + 1) - 1 scores exceed.
            scores = drawn[:39]
            exceeded_by = np.sum(scores > scores[:, None], axis=1)
            bound = scores[exceeded_by <= rate * 40 - 1 + 1e-9].min()
            calibrated = threshold.conformal_threshold(scores, rate)
            assert calibrated == math.nextafter(bound, math.inf)
            alarms.append(drawn[39] >= calibrated)
        assert np.mean(alarms) == pytest.approx(rate, abs=0.015)
    assert threshold.conformal_threshold(np.arange(18.0), 0.05) is None
    assert threshold.conformal_threshold(np.arange(19.0), 0.05) == math.nextafter(18.0, math.inf)
    assert threshold.conformal_threshold(np.ones(19), 0.5) == math.nextafter(
        1.0, math.inf
    )  # above all ties


def test_error_rates_equal_leaving_out_each_video():
    rng = np.random.default_rng(1)
    videos = tuple(f"{i}" for i in rng.integers(0, 9, 80))
    separation = Separation(
        rng.normal(1, 1, 80),
        rng.normal(0, 1, 80),
        videos,
        {"k": rng.normal(size=7)},
        np.ones(80, bool),
    )
    figures = threshold.error_rates(separation, 0.1)
    alarms, hits = [], []
    for i, video in enumerate(videos):
        is_calibration = [name != video for name in videos]
        calibration = separation.absent[is_calibration]
        calibrated = threshold.conformal_threshold(calibration, 0.1)
        alarms.append(separation.absent[i] >= calibrated)
        hits.append(separation.present[i] >= calibrated)
    assert figures["false alarms"][0] == pytest.approx(100 * np.mean(alarms))
    share, low, high = figures["recall"]
    assert share == pytest.approx(100 * np.mean(hits)) and low < share < high
    # Approximately the width of a normal approximation by the videos' sums of deviations.
    sums = [sum(k - np.mean(hits) for k, v in zip(hits, videos, strict=True) if v == video)
            for video in set(videos)]  # fmt: skip
    assert high - low == pytest.approx(2 * 196 * math.hypot(*sums) / 80, rel=0.3)
    assert figures["threshold"] == threshold.conformal_threshold(separation.absent, 0.1)
    assert figures["absent"]["k"] == 100 * np.mean(
        separation.without_video["k"] >= figures["threshold"]
    )
    assert threshold.error_rates(separation._replace(videos=("0",) * 80), 0.1) is None


def test_by_kind_reports_each_signal(tmp_path, films):
    (films / "b.en.srt").write_text('[[2, 4, "a lighthouse keeper"]]')
    index = archive.create(tmp_path / "index", films)
    archive.fill(index, video=archive.SUBTITLED)
    library = archive.opened(index, encoder=archive.Encoder(probable=True))
    captions = [
        Caption("a.film", "red", 5.0, 8.0, kind="pictured", duplicates=("b.film",)),
        Caption("b.film", "blue", kind="pictured", duplicates=("a.film",)),
        Caption("b.film", "the lighthouse", 2.0, 6.0, kind="spoken", in_transcript=True),
        Caption("a.film", "black", 0.0, 8.0, kind="order", following=("red",)),
        Caption("", "submarine", kind="absent", in_transcript=True),
    ]
    kinds = metrics.by_kind(library, captions)
    # The second caption is wrong, because blue is in c.film; all three videos are in the top 5.
    assert kinds["pictured"]["visual"] == pytest.approx(
        {"queries": 2, "R@1": 50, "R@5": 100, "mIoU": 100, "matches": 100}
    )
    assert kinds["pictured"]["transcript"] == {
        "queries": 2,
        "R@1": 0,
        "R@5": 0,
        "mIoU": 0,
        "matches": 0,
    }
    assert kinds["spoken"]["transcript"] == pytest.approx(
        {"queries": 1, "R@1": 100, "R@5": 100, "mIoU": 50, "matches": 100}
    )
    assert list(kinds["order"]) == ["visual"] and kinds["order"]["visual"]["R@1"] == 100
    assert kinds["absent"]["transcript"] == {"queries": 1, "matches": 0}


def test_by_kind_omits_parts_that_the_ranker_lacks(index):
    captions = [Caption("a.film", "red"), Caption("a.film", "black", following=("red",))]
    normalised = archive.opened(index, ranker="best_frame", normalise=True)
    report = metrics.report(normalised, {}, captions)
    assert report["kinds"][""]["visual"]["queries"] == 1
    only_parts = metrics.report(normalised, {}, captions[1:])
    assert only_parts["kinds"] == {}
    metrics.print_report(only_parts)
    plain = metrics.by_kind(archive.opened(index), captions)
    assert plain[""]["visual"]["queries"] == 2


CAPTIONS = [
    Caption("a.film", "red on black", 5.0, 8.0),
    Caption("b.film", "green"),
    Caption("trips/c.film", "blue black", 10.0, 14.0),
    Caption("a.film", "red again", 14.0, 16.0),
]


def test_records_are_read_once_for_features_of_all_videos(index, tmp_path, monkeypatch):
    videos, reads = type(index).videos, []
    monkeypatch.setattr(
        type(index), "videos", property(lambda self: reads.append(None) or videos.fget(self))
    )
    features.write_features(index, archive.Encoder(), CAPTIONS, tmp_path / "out")
    assert len(reads) == 1  # each read copies the records of all videos


def test_features_are_index_vectors_and_encoder_tokens(index, tmp_path):
    lines = []
    all_captions = [*CAPTIONS, Caption("gone.film", "red")]
    counts = features.write_features(
        index, archive.Encoder(), all_captions, tmp_path / "out", report=lines.append
    )
    assert sum(counts.values()) == 4 and "gone.film" in lines[0]
    reader = ExtractedReader(tmp_path / "out")
    pairs = [
        (video, caption)
        for split in reader.splits.values()
        for video, captions_of_video in split.items()
        for caption in captions_of_video
    ]
    assert sorted((v, c.sentence, c.start, c.end) for v, c in pairs) == sorted(
        (c.video, c.sentence, c.start, c.end) for c in CAPTIONS
    )
    for video, caption in pairs:
        vectors = index.read(index.videos[video].content).vectors
        np.testing.assert_array_equal(reader.read_frames(video), vectors.astype(np.float32))
        (tokens,) = archive.Encoder().encode_tokens([caption.sentence])
        np.testing.assert_array_equal(reader.read_words(caption.caption_id), tokens)
    assert contents(tmp_path / "out")["feature"] == "colours-" + "f" * 12
    # The two moments of a video make a tree; the text of its parent is encoded as a whole.
    text = "red on black red again"
    assert contents(tmp_path / "out")["parents"] == {"a.film": {"a.film#parent#0": text}}
    (tokens,) = archive.Encoder().encode_tokens([text])
    np.testing.assert_array_equal(reader.read_words("a.film#parent#0"), tokens)


def test_features_check_the_times_of_captions(index, tmp_path):
    late = Caption("a.film", "red", 5000.0, 8000.0)
    with pytest.raises(DataError, match=r"moment '5: red \(a.film\)' begins at 5000 s"):
        features.write_features(index, archive.Encoder(), [*CAPTIONS, late], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_full_disk_of_features_names_their_folder(index, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(extracted, "_write_header", fail)
    with pytest.raises(OSError, match="No space left") as error:
        features.write_features(index, archive.Encoder(), CAPTIONS, tmp_path / "out")
    assert error.value.filename == str(tmp_path / "out")


def test_times_are_cut_at_the_end_of_a_video():
    all_captions = [
        Caption("a", "x", 1.0, 12.5),
        Caption("a", "x", 2.0, 3.0),
        Caption("b", "x", 9.0, 99.0),
    ]
    first, *unchanged = captions.cut_times(all_captions, {"a": 10.0}, 1.0)
    assert (first.start, first.end) == (1, 10) and unchanged == all_captions[1:]


def test_features_join_copies_and_count_omissions(index, films, tmp_path):
    (films / "copy.film").write_bytes((films / "b.film").read_bytes())
    archive.fill(index)
    left_out = [
        Caption("a.film", "red", following=("black",)),
        Caption("a.film", "speech", in_transcript=True),
        Caption("", "nothing"),
    ]
    all_captions = [*CAPTIONS, *left_out, Caption("copy.film", "a copy", duplicates=("b.film",))]
    all_captions.append(Caption("a.film", "red too", duplicates=("b.film", "gone.film")))
    lines = []
    features.write_features(
        index, archive.Encoder(), all_captions, tmp_path / "out", report=lines.append
    )
    videos = {
        video: [caption.sentence for caption in captions]
        for split in ExtractedReader(tmp_path / "out").splits.values()
        for video, captions in split.items()
    }
    assert videos["b.film"] == ["green", "a copy"] and "copy.film" not in videos
    dropped, copies, several = lines
    assert dropped.startswith("3 of 9 captions have no video, have several parts")
    assert copies.startswith("copies, which count as one video with their original: 1 caption")
    assert "'copy.film'" in copies
    assert several.startswith("1 caption with further correct videos") and "'red too'" in several


def test_copies_in_several_named_splits_are_one_video(index, films, tmp_path):
    (films / "copy.film").write_bytes((films / "b.film").read_bytes())
    archive.fill(index)
    videos = {"train": "a.film", "val": "b.film", "test": "copy.film"}
    all_captions = [Caption(video, "red", split=split) for split, video in videos.items()]
    features.write_features(index, archive.Encoder(), all_captions, tmp_path / "out")
    assert list(ExtractedReader(tmp_path / "out").splits["test"]) == ["b.film"]
