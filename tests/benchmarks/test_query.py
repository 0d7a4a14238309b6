"""Measurements of search: operations, the corpus of each model, and simulated archives."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
import runs

from benchmarks import query
from benchmarks.query import SCENE, SECONDS, Archive
from hlformer_jax.config import of_model
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.retrieval import corpus
from hlformer_jax.runtime import compiler
from hlformer_jax.search.query.library import Library
from hlformer_jax.search.signals.rankers import RANKERS


def test_compiled_search_operations_match_a_hand_count():
    rng = np.random.default_rng(0)
    encoded = VideoEncoding(None, rng.normal(size=(8, 16, 256)).astype(np.float32))
    built = corpus.build(encoded, dtype="float32")
    queries = jnp.ones((32, 256))
    compiled = jax.jit(corpus.scores).lower(built, queries).compile()
    by_hand = 2 * 32 * 8 * 16 * 256
    assert 1 <= compiler.flops(compiled) / by_hand < 1.05


@pytest.mark.parametrize(
    ("name", "positions", "parts"),
    [
        pytest.param("hlformer", {"clips": 4, "frames": 8}, 1, marks=pytest.mark.slow),
        # It pools frames to one vector.
        pytest.param("gmmformer", {"clips": 4, "frames": 1}, 1, marks=pytest.mark.slow),
        ("ms_sl", {"clips": 10, "guided": 10}, 1),  # each proposal has a vector from the frames too
        ("dl_dkd", {"clips": 8, "frames": 8}, 2),  # both branches read frames, with a query each
    ],
)
def test_searched_corpus_has_the_shapes_of_the_model(name, positions, parts):
    config = of_model(name)
    config.data.update(visual_dim=6, text_dim=5, max_frames=8, max_clips=4, max_words=3)
    config.model.update(hidden_size=8, num_heads=2, lorentz_dim=7)
    stored = corpus.random(config, 5, "float32")
    shapes = {name: branch.values.shape for name, branch in stored.stored.items()}
    assert shapes == {name: (1, 5, count, 8) for name, count in positions.items()}
    queries = query.random_queries(stored, 3)
    assert queries.shape == (3, 8 * parts)
    results = jax.eval_shape(
        lambda stored, queries: corpus.search(stored, queries, 2), stored, queries
    )
    assert results.scores.shape == (3, 2)


def test_random_corpus_has_the_requested_number_of_videos(monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK", 2)
    config = runs.retrieval("")
    stored = corpus.random(config, 5, "bfloat16")
    assert np.asarray(stored.mask).tolist() == [[True, True], [True, True], [True, False]]
    norms = np.linalg.norm(np.asarray(stored.stored["frames"].values, np.float32), axis=-1)
    np.testing.assert_allclose(norms, 1, atol=0.01)


@pytest.mark.slow  # it compiles for seconds
def test_benchmark_prints_a_table_and_writes_json(tmp_path):
    config = f"--config={processes.ROOT}/configs/anet.py:debug"
    sizes = "--videos=300", "--repeats=3"
    result = processes.run("benchmarks", "query", config, *sizes, f"--json={tmp_path}/query.json")
    assert result.returncode == 0, result.stderr
    assert "search, int8, 256 at once" in result.stdout
    written = json.loads((tmp_path / "query.json").read_text())
    assert written["platform"] == "cpu"
    facts = [fact for row in written["rows"] for fact in row["facts"]]
    lines = [line.strip().rpartition(" ")[0] for line in result.stdout.splitlines()]
    assert all(sum(line.endswith(fact) for line in lines) >= facts.count(fact) for fact in facts)
    rows = {row["what"]: row for row in written["rows"]}
    search = rows["search, bfloat16, 256 at once"]
    assert search["seconds"]["median"] > search["floor"]["seconds"] > 0
    # 8 clips and 32 frames of 16 numbers of 2 bytes.
    assert search["facts"]["bytes/video"] == 40 * 16 * 2
    # A query needs no parameters of the video encoder.
    moved = rows["encode 1 queries, each"]["floor"]["bytes"]
    assert 0 < moved < 0.75 * 4 * search["facts"]["parameters"]


class _Encoder:
    """A stand-in of an encoder, whose text embeddings are rows of `queries` by number."""

    name = preprocessing = "simulated"
    fingerprint = "0" * 64
    width, image_size = 768, 4

    def __init__(self, queries):
        self.queries = queries

    def encode_texts(self, texts):
        return self.queries[[int(text) if text.isdigit() else 0 for text in texts]]

    def preprocess(self, image):
        return image[:4, :4]

    def encode_images(self, pixels):
        return np.zeros((len(pixels), self.width), np.float32)

    def probability(self, cosine):
        return None


@pytest.mark.slow  # it takes seconds
def test_query_finds_the_video_of_its_scene(tmp_path):
    archive = Archive(1.0, _Encoder.width)
    embeddings = np.stack([archive.vectors(video) for video in range(archive.videos)])
    assert embeddings.shape == (6, SECONDS, _Encoder.width)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=2), 1, atol=1e-6)
    cosines = embeddings[0] @ embeddings[0, 0]
    assert 0.3 < cosines[1:SCENE].mean() < 0.7  # of a scene
    assert abs(cosines[SCENE:].mean()) < 0.02
    encoder = _Encoder(embeddings[:, SCENE])
    index = archive.write(tmp_path / "index", encoder, ())
    for name in RANKERS:
        library = Library(index.directory, ranker=name, encoder=encoder)
        for video in range(archive.videos):
            hit = library.query(str(video), k=1)[0]
            assert hit.video == f"000/{video:06}.mp4"
            assert hit.duration == len(hit.times) == SECONDS


@pytest.mark.slow  # it makes libraries of several sizes
def test_search_is_measured_at_several_sizes(tmp_path):
    arguments = "--hours=19", "--encoder=tiny", "--repeats=1", f"--json={tmp_path}/search.json"
    result = processes.run("benchmarks", "search", *arguments)
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "search.json").read_text())["rows"]
    rows = {row["what"]: row for row in written}
    assert len([name for name in rows if "rows packed" in name]) == 3  # and two videos, twice
    assert {f"19 hours: query, {name}" for name in query.ASKED} < rows.keys()
    assert rows["19 hours: rows packed"]["facts"]["texts, GB"] > 114 * 120 * 40 / 1e9
    query_row = rows["19 hours: query, best_frame"]
    assert query_row["floor"]["bytes"] == 19 * 3600 * 96
    assert query_row["seconds"]["median"] > query_row["floor"]["seconds"]
    first_result = rows["first result of a fresh process"]["seconds"]["median"]
    parts = ("start and imports", "opening", "encoder's first sentence", "query")
    assert first_result == pytest.approx(sum(rows[name]["seconds"]["median"] for name in parts))
