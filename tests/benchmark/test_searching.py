"""Work of retrieval: its operations by hand, and what its command prints and writes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
import runs

from hlformer_jax import parallel
from hlformer_jax.benchmark import searching
from hlformer_jax.config import of_model
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.retrieval import corpus


def test_operations_of_a_compiled_search_are_those_counted_by_hand():
    rng = np.random.default_rng(0)
    encoded = VideoEncoding(None, rng.normal(size=(8, 16, 256)).astype(np.float32))
    built = corpus.build(encoded, dtype="float32")
    queries = jnp.ones((32, 256))
    compiled = jax.jit(corpus.scores).lower(built, queries).compile()
    by_hand = 2 * 32 * 8 * 16 * 256
    assert 1 <= parallel.flops(compiled) / by_hand < 1.05


@pytest.mark.parametrize(
    ("name", "positions", "parts"),
    [
        ("hlformer", {"clips": 4, "frames": 8}, 1),
        ("gmmformer_v2", {"clips": 4, "frames": 8}, 1),
        ("gmmformer", {"clips": 4, "frames": 1}, 1),  # it pools frames to one vector
        ("ms_sl", {"clips": 10, "guided": 10}, 1),  # proposals, with a vector each from the frames
        ("dl_dkd", {"clips": 8, "frames": 8}, 2),  # both branches read frames, each asked apart
    ],
)
def test_the_corpus_that_is_searched_is_that_of_the_model(name, positions, parts):
    config = of_model(name)
    config.data.update(visual_dim=6, text_dim=5, max_frames=8, max_clips=4, max_words=3)
    config.model.update(hidden_size=8, num_heads=2, lorentz_dim=7)
    stored = searching.random_corpus(config, 5, "float32")
    shapes = {name: branch.values.shape for name, branch in stored.stored.items()}
    assert shapes == {name: (1, 5, count, 8) for name, count in positions.items()}
    queries = searching.random_queries(stored, 3)
    assert queries.shape == (3, 8 * parts)
    found = jax.eval_shape(
        lambda stored, queries: corpus.search(stored, queries, 2), stored, queries
    )
    assert found.scores.shape == (3, 2)


def test_a_random_corpus_holds_as_many_videos_as_were_asked_for(monkeypatch):
    monkeypatch.setattr(searching, "BLOCK", 2)
    config = runs.retrieval("")
    stored = searching.random_corpus(config, 5, "bfloat16")
    assert np.asarray(stored.mask).tolist() == [[True, True], [True, True], [True, False]]
    norms = np.linalg.norm(np.asarray(stored.stored["frames"].values, np.float32), axis=-1)
    np.testing.assert_allclose(norms, 1, atol=0.01)


@pytest.mark.slow  # it compiles for seconds
def test_a_benchmark_prints_a_table_and_writes_its_figures(tmp_path):
    config = f"--config={processes.ROOT}/configs/anet.py:debug"
    sizes = "--videos=40", "--repeats=3"
    result = processes.run("benchmark", "query", config, *sizes, f"--json={tmp_path}/query.json")
    assert result.returncode == 0, result.stderr
    assert "search, int8, 256 at once" in result.stdout
    written = json.loads((tmp_path / "query.json").read_text())
    assert written["platform"] == "cpu"
    search = {row["what"]: row for row in written["rows"]}["search, bfloat16, 256 at once"]
    assert search["seconds"]["median"] > search["floor"]["seconds"] > 0
    # 8 clips and 32 frames of 16 numbers of 2 bytes, and what tells padding apart.
    assert search["facts"]["bytes/video"] == pytest.approx(40 * 16 * 2, abs=2)
