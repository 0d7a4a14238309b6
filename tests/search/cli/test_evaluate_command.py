"""The command evaluate: recalls and the calibrated match threshold."""

import json

import archive
import numpy as np
import pytest

from hlformer_jax import files
from hlformer_jax.search.evaluate import metrics
from hlformer_jax.search.index import Index
from hlformer_jax.search.signals import rankers


def test_evaluate_reports_recalls_of_videos_and_moments(ask, tmp_path):
    captions = tmp_path / "captions.jsonl"
    lines = [("a.film", "red", 5, 8), ("trips/c.film", "blue", 10, 14), ("b.film", "green", 0, 20)]
    form = '{{"video": "{}", "sentence": "{}", "start": {}, "end": {}}}\n'
    captions.write_text("".join(form.format(*line) for line in lines))
    out = tmp_path / "figures.json"
    done = ask("evaluate", f"--captions={captions}", f"--json={out}")
    assert done.status == 0
    assert all(name in done.out for name in ("segments", "best_frame", "IoU 0.7"))
    figures = json.loads(out.read_text())["rankers"]
    assert set(figures) == set(rankers.RANKERS)
    expected = {"R@1": 100, "R@5": 100, "IoU 0.3": 100, "IoU 0.7": 100, "SumR": 400}
    assert expected.items() <= figures["best_frame"].items()
    captions.write_text('{"video": "nowhere.film", "sentence": "red"}')
    done = ask("evaluate", f"--captions={captions}")
    assert done.status == 1 and "'nowhere.film', which is not indexed" in done.errors[0]


def test_calibrated_threshold_decides_good_matches(ask, films, index, tmp_path):
    captions = tmp_path / "captions.jsonl"
    sentences = {"a.film": "red", "b.film": "yellow", "trips/c.film": "white blue", "": "green"}
    lines = [{"video": video, "sentence": sentence} for video, sentence in sentences.items()]
    captions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    captions_flag = f"--captions={captions}"
    out = tmp_path / "figures.json"
    done = ask("evaluate", captions_flag, "--calibrate=10", f"--json={out}")
    assert done.status == 1 and "needs at least 9 visual captions" in done.errors[0]
    assert "best_frame" in done.out and json.loads(out.read_text())["captions"] == 3
    for wrong in ("-1", "100", "nan", "1e-320"):
        assert "percent" in ask("evaluate", captions_flag, f"--calibrate={wrong}").errors[0]
    before = ask("query", "green").errors
    out = ask("evaluate", captions_flag, "--calibrate=50").out
    assert f"{index}: 50 % false alarms (best_frame; top_3_frames; segments)" in out
    thresholds = Index.open(index).thresholds
    assert set(thresholds) == set(rankers.RANKERS)
    assert (thresholds["best_frame"].false_alarms, thresholds["best_frame"].captions) == (50, 3)
    # By hand: the second largest of the best cosines in wrong videos, above the medians.
    encoder, frames = archive.Encoder(), {}
    for name, record in Index.open(index).videos.items():
        frames[name] = Index.open(index).read(record.content).vectors.astype(np.float32)
    all_frames, best_wrong_margins = np.concatenate(list(frames.values())), []
    for line in lines[:3]:
        (query,) = encoder.encode_texts([line["sentence"]])
        wrong_cosines = [
            video_frames @ query for name, video_frames in frames.items() if name != line["video"]
        ]
        best_wrong_margins.append(
            np.concatenate(wrong_cosines).max() - np.median(all_frames @ query)
        )
    assert thresholds["best_frame"].margin == pytest.approx(sorted(best_wrong_margins)[1], abs=1e-6)
    assert thresholds["best_frame"].margin > 0.1
    assert thresholds["best_frame"].frames == len(all_frames)
    assert "calibrated for 50 % false alarms on 3 captions" in ask("status").out
    for sentence, is_good in {"red": True, "white": True, "red blue": False}.items():
        (query,) = encoder.encode_texts([sentence])
        margin = (all_frames @ query).max() - np.median(all_frames @ query)
        assert (margin >= thresholds["best_frame"].margin) == is_good
        errors = ask("query", sentence).errors
        assert bool(errors) != is_good, sentence
        if errors:
            assert "50 % of absent things reach (calibrated with 3 captions)" in errors[0]
    similar = archive.opened(Index.open(index)).query("red", like=("b.film", 0))
    assert similar[0].is_match is None  # calibrated for texts alone
    for name in ("d", "e", "f"):
        archive.random_film(films / f"{name}.film", 60, seed=ord(name))
    assert ask("index", films).status == 0
    assert "calibrate it again" in ask("query", "green").errors[0]
    assert f"threshold of {index}: none" in ask("evaluate", captions_flag, "--calibrate=0").out
    assert ask("query", "green").errors == before


def test_evaluate_refuses_times_in_milliseconds(ask, tmp_path):
    captions = tmp_path / "captions.jsonl"
    line = {"video": "a.film", "sentence": "red"}
    times = {"start": 5000, "end": 8000}, {"start": 5, "end": 8}  # the later line does not matter
    captions.write_text("".join(json.dumps(line | part) + "\n" for part in times))
    done = ask("evaluate", f"--captions={captions}")
    assert done.status == 1 and "begins at 5000 s, but its video ends at" in done.errors[0]


def test_repeated_sentences_calibrate_no_threshold(ask, index, tmp_path):
    captions = tmp_path / "captions.jsonl"
    lines = [{"video": "a.film", "sentence": "red" if i else "Red. "} for i in range(9)]
    captions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = ask("evaluate", f"--captions={captions}", "--calibrate=10")
    needed = "needs at least 9 visual captions with different sentences (got 1)"
    assert done.status == 1 and needed in done.errors[0]
    assert Index.open(index).thresholds == {}


def test_caption_that_lists_every_video_prevents_calibration(ask, tmp_path):
    captions, out = tmp_path / "captions.jsonl", tmp_path / "figures.json"
    line = {"video": "a.film", "sentence": "red", "also": ["b.film", "trips/c.film"]}
    captions.write_text(json.dumps(line))
    flags = f"--captions={captions}", f"--json={out}", "--calibrate=50"
    done = ask("evaluate", *flags)
    assert done.status == 1 and "lists every video as correct" in done.errors[0]
    figures = files.parse_json(out.read_bytes(), finite=True)
    assert figures["rankers"]["best_frame"] == dict.fromkeys(
        ("R@1", "R@5", "R@10", "R@100"), 100
    ) | {"SumR": 400}
    assert figures["thresholds"]["best_frame"] == {"0.05": None, "0.1": None, "0.2": None}


def test_runs_have_short_names_in_a_table():
    runs = ["hlformer/0", "hlformer/1", "ms_sl"]
    shown = metrics.shorten_runs(["best_frame", *(f"/runs/{run}" for run in runs)])
    assert shown == ["best_frame", *runs]
    assert metrics.shorten_runs(["segments", "/runs/hlformer"]) == ["segments", "hlformer"]
    assert metrics.shorten_runs(["segments"]) == ["segments"]
