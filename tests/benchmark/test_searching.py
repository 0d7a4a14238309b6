"""Work of retrieval: its operations by hand, and what its command prints and writes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest

from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.parallel import analysis
from hlformer_jax.retrieval import corpus


def test_operations_of_a_compiled_search_are_those_counted_by_hand():
    rng = np.random.default_rng(0)
    encoded = VideoEncoding(None, rng.normal(size=(8, 16, 256)).astype(np.float32))
    built = corpus.build(encoded, dtype="float32")
    queries = jnp.ones((32, 256))
    compiled = jax.jit(corpus.scores).lower(built, queries).compile()
    by_hand = 2 * 32 * 8 * 16 * 256
    assert 1 <= analysis.flops(compiled) / by_hand < 1.05


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
