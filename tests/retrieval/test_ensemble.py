"""Ensembles of score files: combined ranks, alignment by name, and refused files."""

import json

import numpy as np
import pytest

from hlformer_jax.retrieval import ensemble
from hlformer_jax.retrieval.ensemble import EnsembleError

QUERIES, VIDEOS = [f"v{k}#{j}" for k in range(6) for j in range(2)], [f"v{k}" for k in range(6)]
RELEVANT = np.repeat(np.arange(6), 2)


def _write(path, scores, queries=QUERIES, videos=VIDEOS, relevant=RELEVANT, **data):
    np.savez(path, scores=scores, queries=queries, videos=videos, relevant=relevant, **data)
    return path


@pytest.fixture
def scores():
    return np.random.default_rng(0).normal(size=(2, 12, 6)).astype(np.float32)


def test_range_of_scores_does_not_weight_members(scores):
    a, b = scores
    np.testing.assert_allclose(
        ensemble.combine([a, 100 * b + 7]), ensemble.combine([a, b]), atol=1e-5
    )
    standard = [(x - x.mean()) / x.std() for x in scores.astype(np.float64)]
    np.testing.assert_allclose(ensemble.combine([a, b]), np.mean(standard, axis=0), atol=1e-6)
    np.testing.assert_allclose(ensemble.combine([a, np.ones_like(a)]), standard[0] / 2, atol=1e-6)


def test_equal_scores_count_as_zero():
    for score in (0.1, 1 / 3, -0.7, 1e20):  # their means are rounded in different ways
        assert not ensemble.combine([np.full((5, 4), score)]).any()


def test_ranks_follow_the_combined_scores(tmp_path, scores):
    files = [_write(tmp_path / f"{k}.npz", x) for k, x in enumerate(scores)]
    results = ensemble.evaluate([str(file) for file in files], str(tmp_path / "out"))
    for name, matrix in zip(results, [*scores, ensemble.combine(list(scores))], strict=True):
        true_scores = matrix[np.arange(12), RELEVANT][:, None]
        assert results[name].metrics["R@1"] == pytest.approx(
            100 * np.mean((matrix > true_scores).sum(1) == 0)
        )
    written = json.loads((tmp_path / "out" / "test_metrics.json").read_text())
    assert written == results["ensemble"].as_json()
    assert json.loads((tmp_path / "out" / "ensemble.json").read_text()) == {
        "members": list(map(str, files))
    }
    with pytest.raises(OSError, match="exists"):
        ensemble.evaluate(files, tmp_path / "out")
    ensemble.evaluate(files, tmp_path / "out", overwrite=True)


@pytest.mark.parametrize("scale", [1, 10**9])
def test_scores_that_float32_cannot_distinguish_are_ranked(tmp_path, scale):
    exact = np.full((12, 6), 10**9)
    exact[np.arange(12), RELEVANT] += 1
    exact = exact if scale == 1 else exact / scale
    files = [_write(tmp_path / f"{k}.npz", x) for k, x in enumerate((exact, 2 * exact))]
    results = ensemble.evaluate(files)
    assert [result.metrics["R@1"] for result in results.values()] == [100, 100, 100]


def test_rows_and_columns_are_aligned_by_name(tmp_path, scores):
    rng = np.random.default_rng(1)
    rows, columns = rng.permutation(12), rng.permutation(6)
    place = {video: k for k, video in enumerate(columns)}
    shuffled = _write(
        tmp_path / "shuffled.npz",
        scores[1][rows][:, columns],
        np.array(QUERIES)[rows],
        np.array(VIDEOS)[columns],
        np.array([place[k] for k in RELEVANT[rows]]),
    )
    first, second = (_write(tmp_path / f"{k}.npz", x) for k, x in enumerate(scores))
    expected = ensemble.evaluate([first, second])["ensemble"]
    result = ensemble.evaluate([first, shuffled])["ensemble"]
    assert result == expected
    np.testing.assert_array_equal(result.per_query["ranks"], expected.per_query["ranks"])


def test_files_that_do_not_belong_together_are_refused(tmp_path, scores):
    right = _write(tmp_path / "right.npz", scores[0])
    faults = {
        r"other queries than .*only one of the two has 'v5#1' \(2 differ\)": dict(
            queries=[*QUERIES[:-1], "x#0"]
        ),
        "other videos than": dict(videos=[*VIDEOS[:-1], "x"]),
        "other relevant videos": dict(relevant=RELEVANT[::-1]),
        "a name twice": dict(videos=["v0", *VIDEOS[:-1]]),
    }
    for message, arrays in faults.items():
        wrong = _write(tmp_path / "wrong.npz", scores[1], **arrays)
        with pytest.raises(EnsembleError, match=message):
            ensemble.evaluate([right, wrong])
    np.savez(tmp_path / "old.npz", scores=scores[0], queries=QUERIES, videos=VIDEOS)
    with pytest.raises(EnsembleError, match="no array 'relevant'"):
        ensemble.evaluate([right, tmp_path / "old.npz"])
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(EnsembleError, match=r"text\.npz was not written by `scores`"):
        ensemble.evaluate([right, tmp_path / "text.npz"])
    with pytest.raises(EnsembleError, match="two score files"):
        ensemble.evaluate([right])


def test_repeated_member_is_refused(tmp_path, scores):
    files = [_write(tmp_path / f"{k}.npz", x) for k, x in enumerate(scores)]
    (tmp_path / "link.npz").symlink_to(files[0])
    for name in ("0.npz", "link.npz"):
        with pytest.raises(EnsembleError, match=rf"{name} is given twice"):
            ensemble.evaluate([*files, tmp_path / name])


SENTENCES = [f"sentence {name}" for name in QUERIES]


def test_members_with_other_sentences_are_refused(tmp_path, scores):
    first = _write(tmp_path / "first.npz", scores[0], sentences=SENTENCES, data="a")
    sentences = [*SENTENCES[:-1], "others"]
    edited = _write(tmp_path / "other.npz", scores[1], sentences=sentences, data="b")
    complaint = (
        r"other\.npz is of other data than .*: the sentence of query 'v5#1' is 'others', not"
    )
    with pytest.raises(EnsembleError, match=complaint):
        ensemble.evaluate([first, edited])
    few = _write(tmp_path / "few.npz", scores[1], sentences=SENTENCES[:-1], data="a")
    with pytest.raises(EnsembleError, match=r"few\.npz has 11 sentences for 12 queries"):
        ensemble.evaluate([first, few])


def test_members_of_different_or_unknown_data_are_named(tmp_path, scores, caplog):
    first = _write(tmp_path / "first.npz", scores[0], sentences=SENTENCES, data="a")
    recorded = {"queries": QUERIES[::-1], "sentences": SENTENCES[::-1], "data": "a"}
    reordered = _write(tmp_path / "same.npz", scores[1], relevant=RELEVANT[::-1], **recorded)
    assert ensemble.evaluate([first, reordered]) and not caplog.records
    second = _write(tmp_path / "other.npz", scores[1], sentences=SENTENCES, data="b")
    old = _write(tmp_path / "old.npz", scores[1])
    ensemble.evaluate([old, first, second])
    unrecorded, differing = [record.getMessage() for record in caplog.records]
    assert "old.npz does not record its data" in unrecorded
    assert "other.npz has the same queries as" in differing and "first.npz" in differing


def test_data_of_one_element_is_read(tmp_path, scores):
    names = {"sentences": QUERIES}
    files = [
        _write(tmp_path / "a.npz", scores[0], data="a", **names),
        _write(tmp_path / "b.npz", scores[1], data=["a"], **names),
    ]
    assert ensemble.evaluate(files)


def test_ranks_of_a_run_are_refused_as_scores(tmp_path, scores):
    right = _write(tmp_path / "right.npz", scores[0])
    ranks = tmp_path / "test_queries.npz"
    np.savez(ranks, ranks=RELEVANT, videos=RELEVANT)
    with pytest.raises(EnsembleError) as error:
        ensemble.evaluate([right, ranks])
    assert str(error.value).count(str(ranks)) == 1 and "a new name" in str(error.value)
    assert "overwrite" not in str(error.value)


def test_ensemble_replaces_none_of_its_members(tmp_path, scores):
    files = [_write(tmp_path / "a.npz", scores[0])]
    files.append(_write(tmp_path / "test_queries.npz", scores[1]))
    before = files[1].read_bytes()
    with pytest.raises(EnsembleError, match="would be replaced by the ranks of the ensemble"):
        ensemble.evaluate(files, tmp_path, overwrite=True)
    assert files[1].read_bytes() == before


def test_metrics_of_a_run_are_never_replaced(tmp_path, scores):
    files = [_write(tmp_path / f"{k}.npz", x) for k, x in enumerate(scores)]
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EnsembleError, match="holds a run"):
        ensemble.evaluate(files, tmp_path, overwrite=True)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_non_finite_scores_are_refused_by_name(tmp_path, scores, value):
    wrong = scores[1].astype(np.float64)
    wrong[2, 3] = wrong[4, 5] = value
    files = [_write(tmp_path / "a.npz", scores[0]), _write(tmp_path / "wrong.npz", wrong)]
    with pytest.raises(EnsembleError, match=r"wrong\.npz has 2 of 72 scores that are not finite"):
        ensemble.evaluate(files)
    if value != 1e300:
        with pytest.raises(ValueError, match="2 scores"):
            ensemble.combine([scores[0], wrong])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"relevant": RELEVANT + 1}, "relevant video 6, .* 0 to 5"),
        ({"relevant": RELEVANT - 1}, "relevant video -1, .* 0 to 5"),
        ({"relevant": RELEVANT.astype(float)}, "relevant of type float64"),
        ({"scores": np.full((12, 6), "0.5")}, "scores of type <U3, not real numbers"),
        ({"scores": np.full((12, 6), 1j)}, "scores of type complex128"),
        ({"videos": np.arange(6)}, "videos of type int64, not texts"),
        ({"queries": np.array("v0")}, "for 1 queries"),
        (
            {"queries": np.zeros(0, "U1"), "scores": np.zeros((0, 6)), "relevant": RELEVANT[:0]},
            "no query",
        ),
        ({"data": np.array(["a", "b"])}, "2 texts as data"),
    ],
)
def test_wrong_arrays_are_refused_by_name(tmp_path, scores, arrays, message):
    right = _write(tmp_path / "right.npz", scores[0])
    wrong = _write(tmp_path / "wrong.npz", **{"scores": scores[1]} | arrays)
    for members in ([right, wrong], [wrong, right]):
        with pytest.raises(EnsembleError, match=rf"wrong\.npz has .*{message}"):
            ensemble.evaluate(members)


def test_damaged_files_are_refused_by_name(tmp_path, scores):
    right = _write(tmp_path / "right.npz", scores[0])
    content = right.read_bytes()
    flipped = bytearray(content)
    flipped[300] ^= 1  # in the scores, which begin after two headers
    np.save(tmp_path / "single.npy", scores[0])
    single = (tmp_path / "single.npy").read_bytes()
    for damaged in (content[:500], content[:-30], bytes(flipped), single, b""):
        (tmp_path / "wrong.npz").write_bytes(damaged)
        with pytest.raises(EnsembleError, match=r"wrong\.npz was not written .* or is damaged"):
            ensemble.evaluate([right, tmp_path / "wrong.npz"])
