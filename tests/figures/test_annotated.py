"""Which videos are shown, and of which moments."""

import itertools

import numpy as np
import pytest

from hlformer_jax.data.spans import Span
from hlformer_jax.figures import annotated
from hlformer_jax.figures.drawing import NotApplicable


def test_the_most_moments_that_do_not_overlap_are_found():
    rng = np.random.default_rng(0)
    for _ in range(20):
        ends = np.sort(rng.integers(0, 12, (6, 2)), axis=1)
        spans = [None, *(Span(float(a), float(b), 12.0) for a, b in ends)]
        found = annotated.apart(spans)
        real = [k for k, span in enumerate(spans) if span is not None and span.end > span.start]
        free = lambda chosen, spans=spans: all(
            spans[a].end <= spans[b].start or spans[b].end <= spans[a].start
            for a, b in itertools.combinations(chosen, 2)
        )
        subsets = itertools.chain.from_iterable(
            itertools.combinations(real, size) for size in range(len(real) + 1)
        )
        assert free(found)
        assert len(found) == max(len(chosen) for chosen in subsets if free(chosen))


def test_videos_are_those_of_most_such_moments():
    one = [Span(0.0, 1.0, 9.0)]
    spans = [[None], one, [*one, Span(2.0, 3.0, 9.0)], [*one, Span(0.5, 2.0, 9.0)]]
    assert annotated.most_apart(spans, 3) == [2, 1, 3]
    assert annotated.most_apart(spans, 9) == [2, 1, 3]


def test_a_video_that_there_is_not_is_named(subject, options):
    known = subject.split(options).video_ids
    assert annotated.chosen(subject, options._replace(videos=(known[3],)), 1) == [3]
    wrong = options._replace(videos=(known[3] + "x",))
    with pytest.raises(NotApplicable, match=f"no such video; did you mean '{known[3]}'"):
        annotated.chosen(subject, wrong, 1)


def test_runs_on_other_data_are_refused_and_those_of_another_family_left_out(
    subject, plain, trees, options, monkeypatch
):
    kept, said = annotated.on_one_split([subject, trees, plain], options)
    assert kept == [subject, plain]
    assert said == " Left out: HOVER embeds nodes of action trees, and not videos and captions."
    monkeypatch.setattr(plain.split(options), "video_ids", ("another",))
    with pytest.raises(NotApplicable, match="was trained on another data set than"):
        annotated.on_one_split([subject, plain], options)
