"""Simulated archives on which rankers are compared."""

import json

import numpy as np
import pytest

from hlformer_jax.retrieval import ranking
from hlformer_jax.search import rankers, regimes
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.regimes import REGIMES, Regime


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(regimes, "FRAMES", 90)


def test_a_sentence_without_doubt_is_nearest_to_its_scene_and_frames_have_unit_length():
    drawn = regimes._Drawn(Regime(3, 5, noise=0.1, topic=0.5, doubt=0.0), 6, seed=0)
    frames = np.stack(drawn.videos)
    np.testing.assert_allclose(np.linalg.norm(frames, axis=-1), 1, atol=1e-6)
    cosines = np.einsum("vfd,qd->qvf", frames, drawn.queries).max(-1)
    assert cosines.argmax(-1).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    same = regimes._Drawn(Regime(3, 5, noise=0.1, topic=0.5, doubt=0.0), 6, seed=0)
    np.testing.assert_array_equal(same.queries, drawn.queries)


def test_recalls_of_the_best_frame_are_those_of_a_plain_product():
    regime = REGIMES["short scenes"]
    table = regimes.recalls(regime, 8, seed=1)
    assert list(table) == list(rankers.ROWS)
    drawn = regimes._Drawn(regime, 8, seed=1)
    frames = np.stack(drawn.videos).astype(np.float16).astype(np.float64)
    scores = np.einsum("vfd,qd->qvf", frames, drawn.queries).max(-1)
    ranks = 1 + (scores > np.take_along_axis(scores, np.arange(16)[:, None] // 2, 1)).sum(-1)
    assert table["best_frame"] == ranking.metrics(ranks)


def test_the_command_writes_all_regimes_and_refuses_what_is_there(tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert main(["simulate", "--videos=3", f"--json={out}"]) == 0
    written = json.loads(out.read_text())
    assert set(written) == set(REGIMES) and "short scenes" in capsys.readouterr().out
    assert main(["simulate", "--videos=3", f"--json={out}"]) == 1
    assert main(["simulate", "--videos=1"]) == 1
