"""Search as it is measured: its operations, the corpus of each model, and simulated archives."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
import runs

from hlformer_jax import parallel
from hlformer_jax.benchmark import query
from hlformer_jax.benchmark.measure import Floor, Options, Timing
from hlformer_jax.benchmark.query import BEST, INTERVAL, SCENE, SECONDS, Archive
from hlformer_jax.config import of_model
from hlformer_jax.models.two_branch import VideoEncoding
from hlformer_jax.retrieval import corpus
from hlformer_jax.search.library import Library
from hlformer_jax.search.rankers import ROWS


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
    stored = query.random_corpus(config, 5, "float32")
    shapes = {name: branch.values.shape for name, branch in stored.stored.items()}
    assert shapes == {name: (1, 5, count, 8) for name, count in positions.items()}
    queries = query.random_queries(stored, 3)
    assert queries.shape == (3, 8 * parts)
    found = jax.eval_shape(
        lambda stored, queries: corpus.search(stored, queries, 2), stored, queries
    )
    assert found.scores.shape == (3, 2)


def test_a_random_corpus_holds_as_many_videos_as_were_asked_for(monkeypatch):
    monkeypatch.setattr(query, "BLOCK", 2)
    config = runs.retrieval("")
    stored = query.random_corpus(config, 5, "bfloat16")
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


def test_a_step_and_a_search_are_timed_at_an_eighth_to_the_whole(monkeypatch):
    sizes, searched = [], []
    floor = lambda *_: Floor(0.0, 0.0, 1.0)

    def training(config, videos, longest):
        assert config.train.batch_size == videos and longest == 1
        sizes.append(videos)
        feed = SimpleNamespace(chunks=lambda: iter([None]))
        return SimpleNamespace(feed=feed, run=None, floor=floor)

    def timed(run, *arguments, repeats):
        searched.extend(arguments[:1] if len(arguments) > 1 else ())
        return Timing(3.0, 3.0, 3.0, repeats)

    for name, stand_in in {
        "Training": training, "timed": timed, "search_floor": floor,
        "random_corpus": lambda config, videos, dtype: videos, "random_queries": lambda *_: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(query, name, stand_in)
    config = runs.retrieval("", **{"train.batch_size": 24})
    rows = list(query.scaling(config, Options(videos=16, repeats=3, steps=1)))
    assert (sizes, searched) == ([3, 6, 12, 24], [2, 4, 8, 16])
    assert [row.facts["ms/video"] for row in rows[:4]] == [1000.0, 500.0, 250.0, 125.0]
    assert rows[-1].what == "search, 16 videos, 256 queries"
    assert rows[-1].facts["us/video"] == 3e6 / 16
    sizes.clear()
    config.train.batch_size = 2  # as few are timed once at each size
    list(query.scaling(config, Options(videos=8, repeats=3, steps=1)))
    assert sizes == [1, 2]


class _Encoder:
    """What of an encoder a library asks, with sentences that are numbers of queries."""

    name = preprocessing = "simulated"
    fingerprint = "0" * 64
    width = 768

    def __init__(self, queries):
        self.queries = queries

    def sentences(self, texts):
        return self.queries[[int(text) for text in texts]]

    def probability(self, cosine):
        return None


def test_a_query_is_answered_by_its_scene_and_frames_are_numbered_by_rows(tmp_path):
    archive = Archive(1.0, _Encoder.width)
    queries = archive.queries(4)
    encoder = _Encoder(queries)
    index, truth = archive.write(tmp_path / "index", encoder, (), queries)
    every = np.concatenate([archive.vectors(video) for video in range(archive.videos)])
    assert every.shape == (archive.frames, _Encoder.width) == (3600, 768)
    np.testing.assert_allclose(np.linalg.norm(every, axis=1), 1, atol=1e-6)
    cosines = every @ every[:SCENE].T
    assert 0.3 < cosines[1:SCENE, 0].mean() < 0.7  # of a scene
    assert abs(cosines[SCENE:].mean()) < 0.02
    best = np.argsort(-(every @ queries.T), axis=0)[:BEST].T
    for found, wanted in zip(truth, best, strict=True):
        assert set(found) == set(wanted)
    for name in ROWS:
        library = Library(index.directory, ranker=name, encoder=encoder)
        # By width 96 noise has cosines of 0.1: the scene still wins, as 6 videos are few.
        for number in range(4):
            hit = library.query(str(number), 1)[0]
            wanted = best[number][0] // SECONDS
            assert hit.video == f"000/{wanted:06}.mp4"
            assert hit.duration == len(hit.times) == SECONDS
    assert sum(one.intervals for one in index.manifest.videos.values()) == 3600 / INTERVAL


@pytest.mark.parametrize(
    ("name", "module"), [("Qdrant local", "qdrant_client"), ("LanceDB", "lancedb")]
)
def test_a_store_finds_the_best_frames(name, module, tmp_path):
    pytest.importorskip(module)
    archive = Archive(0.0, 8)
    queries = archive.queries(3)
    every = np.concatenate([archive.vectors(video) for video in range(archive.videos)])
    _, fill = query.available_stores()[name]
    ask = fill(archive, tmp_path)
    for one in queries:
        np.testing.assert_array_equal(ask(one), np.argsort(-(every @ one))[:BEST])


def test_a_store_that_is_not_installed_is_told(monkeypatch, capsys):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(query.importlib, "import_module", missing)
    assert query.available_stores() == {}
    assert "LanceDB is not measured: lancedb is not installed" in capsys.readouterr().err


@pytest.mark.slow  # it makes libraries of several sizes
def test_search_is_measured_at_several_sizes(tmp_path):
    arguments = "--hours=19", "--encoder=tiny", "--repeats=1", f"--json={tmp_path}/search.json"
    result = processes.run("benchmark", "search", *arguments)
    assert result.returncode == 0, result.stderr
    written = json.loads((tmp_path / "search.json").read_text())["rows"]
    rows = {row["what"]: row for row in written}
    assert len([name for name in rows if "rows packed" in name]) == 3  # and two videos, twice
    # So many that a library reads rounded rows.
    exact = rows["19 hours: frames, int8, best again"]["facts"]
    assert exact["exact, %"] == rows["19 hours: frames, float16"]["facts"]["exact, %"] > 0
    rounded = rows["19 hours: frames, int8"]["facts"]
    assert 0 < rounded["largest error"] <= rounded["bound"] < 0.05
    # 96 coordinates of a byte, and a scale and a bound of four.
    assert rounded["GB"] == pytest.approx(19 * 3600 * (96 + 8) / 1e9)
    first = rows["first result of a fresh process"]["seconds"]["median"]
    parts = ("start and imports", "opening", "encoder's first sentence", "query")
    assert first == pytest.approx(sum(rows[name]["seconds"]["median"] for name in parts))
    for name, module in (("Qdrant local", "qdrant_client"), ("LanceDB", "lancedb")):
        told = f"{name} is not measured: {module} is not installed" in result.stderr
        assert told != any(row.endswith(f"hours: {name}") for row in rows)
