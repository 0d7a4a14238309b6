"""Answers to the page: names of folders, finite scores, score curves of few points."""

import math
from types import SimpleNamespace

import numpy as np

from hlformer_jax.search.page import answers


def test_a_folder_that_holds_only_folders_can_be_chosen_too():
    entries = [SimpleNamespace(video=video) for video in ("a/b/c.mp4", "a/d.mp4", "e.mp4")]
    assert answers.folders(entries) == ["a", "a/b"]


def test_numbers_that_json_lacks_are_null():
    found = answers.finite({"a": np.float32("nan"), "b": [math.inf, -math.inf, 0.5], 3: {1}})
    assert found == {"a": None, "b": [None, None, 0.5], "3": "{1}"}


def test_a_long_curve_keeps_its_peaks():
    times = np.arange(10_000) / 2
    scores = np.zeros(10_000)
    scores[[0, 7_777, 9_999]] = 1, 3, 2
    scores[5_000] = math.nan
    few, kept = answers.thin(times, scores, 100)
    assert len(few) == len(kept) == 100 and few == sorted(few) and not np.isnan(kept).any()
    assert {7_777 / 2: 3.0, 9_999 / 2: 2.0, 0.0: 1.0}.items() <= dict(
        zip(few, kept, strict=True)
    ).items()
    assert answers.thin(times[:7], scores[:7], 100) == (times[:7].tolist(), scores[:7].tolist())
