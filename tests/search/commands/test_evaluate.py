"""`evaluate`: recalls of every ranker, and how runs are named in the table."""

import json

from hlformer_jax.search import rankers
from hlformer_jax.search.commands import evaluate


def test_evaluate_reports_recalls_of_videos_and_moments(search, index, tmp_path):
    captions = tmp_path / "captions.jsonl"
    lines = [("a.film", "red", 5, 8), ("trips/c.film", "blue", 10, 14), ("b.film", "green", 0, 20)]
    keys = ("video", "sentence", "start", "end")
    captions.write_text(
        "".join(json.dumps(dict(zip(keys, line, strict=True))) + "\n" for line in lines)
    )
    out = tmp_path / "figures.json"
    done = search("evaluate", f"--index={index}", f"--captions={captions}", f"--json={out}")
    assert done.status == 0 and all(
        name in done.out for name in ("segments", "best_frame", "IoU 0.7")
    )
    figures = json.loads(out.read_text())["rankers"]
    assert set(figures) == set(rankers.ROWS)
    expected = {"R@1": 100, "R@5": 100, "IoU 0.3": 100, "IoU 0.7": 100, "SumR": 400}
    assert expected.items() <= figures["best_frame"].items()
    captions.write_text('{"video": "nowhere.film", "sentence": "red"}')
    done = search("evaluate", f"--index={index}", f"--captions={captions}")
    assert done.status == 1 and "'nowhere.film', which the index lacks" in done.errors[0]


def test_runs_are_told_apart_in_a_table():
    shown = evaluate._shown(["best_frame", "/runs/hlformer/0", "/runs/hlformer/1", "/runs/ms_sl"])
    assert shown == ["best_frame", "hlformer/0", "hlformer/1", "ms_sl"]
    assert evaluate._shown(["segments", "/runs/hlformer"]) == ["segments", "hlformer"]
    assert evaluate._shown(["segments"]) == ["segments"]
