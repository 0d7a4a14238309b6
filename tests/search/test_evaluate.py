"""Recalls of videos and moments, against loops written by hand."""

import numpy as np
import pytest

from hlformer_jax.search.evaluate import Answer, Span, metrics, overlap, rank


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ((0, 10), (0, 10), 1),
        ((0, 10), (5, 15), 1 / 3),
        ((0, 10), (2, 4), 0.2),
        ((0, 1), (1, 2), 0),
        ((0, 1), (5, 6), 0),
        ((3, 3), (3, 3), 0),
    ],
)
def test_overlap_is_intersection_over_union(one, other, wanted):
    assert overlap(Span("a", *one), Span("a", *other)) == pytest.approx(wanted)
    assert overlap(Span("a", *other), Span("a", *one)) == pytest.approx(wanted)
    assert overlap(Span("a", *one), Span("b", *other)) == 0


def random_answers(seed, count=60):
    rng = np.random.default_rng(seed)
    span = lambda video: Span(f"v{video}", *sorted(rng.uniform(0, 20, 2).tolist()))
    answers = []
    for _ in range(count):
        found = [span(video) for video in rng.permutation(15)[: rng.integers(3, 16)]]
        true = [span(rng.integers(15)) for _ in range(rng.integers(1, 4))]
        answers.append(Answer(found, true))
    return answers


@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_those_of_a_loop(seed):
    answers = random_answers(seed)
    wanted = dict.fromkeys(metrics(answers), 0.0)
    for found, true in answers:
        best = {}  # the overlap of each found video's moment
        for place, (video, start, end) in enumerate(found):
            for other, begin, stop in true:
                if video != other:
                    continue
                both = max(0, min(end, stop) - max(start, begin))
                share = both / ((end - start) + (stop - begin) - both)
                best[place] = max(best.get(place, 0), share)
        if not best:
            continue
        first = min(best)
        for k in (1, 5, 10, 100):
            wanted[f"R@{k}"] += first < k
        for least in (0.3, 0.5, 0.7):
            wanted[f"R1@IoU={least}"] += best.get(0, 0) >= least
            wanted[f"moment@IoU={least}"] += best[first] >= least
        wanted["mIoU"] += best[first]
    wanted = {name: 100 * total / len(answers) for name, total in wanted.items()}
    assert metrics(answers) == pytest.approx(wanted)
    assert 0 < wanted["R1@IoU=0.3"] < wanted["moment@IoU=0.3"] < 100


def test_a_video_that_was_not_found_counts_at_no_rank():
    answer = Answer([Span("a", 0, 1)], [Span("b", 0, 1)])
    assert rank(answer) == 2
    assert set(metrics([answer]).values()) == {0.0}
    assert metrics([Answer([], [Span("b", 0, 1)])])["R@100"] == 0


def test_what_cannot_be_evaluated_is_refused():
    with pytest.raises(ValueError, match="nothing to evaluate"):
        metrics([])
    with pytest.raises(ValueError, match="not one true moment"):
        metrics([Answer([Span("a", 0, 1)], [])])
    with pytest.raises(ValueError, match="every video once"):
        metrics([Answer([Span("a", 0, 1), Span("a", 1, 2)], [Span("a", 0, 1)])])
