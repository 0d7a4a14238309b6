"""Which frames and words a node reads: inside of its span, and the same whenever it is asked."""

import math
from fractions import Fraction

import jax
import numpy as np

from hlformer_jax.data.trees import nodes

SPANS = np.array([[0.0, 10.0], [3.0, 4.0], [9.0, 30.0], [20.0, 20.5], [25.0, 40.0], [6.0, 5.0]])
DURATION = np.full(6, 30.0)
L = np.array([60, 60, 60, 7, 7, 60], np.int32)
F = 12


def test_the_rows_of_a_span_are_its_share_of_the_video():
    rows = nodes.row_range(SPANS, DURATION, L)
    for (start, end), length, (first, last) in zip(SPANS, L, rows, strict=True):
        assert first == min(math.floor(Fraction(start) / 30 * int(length)), length - 1)
        assert last == min(math.floor(Fraction(max(start, end)) / 30 * int(length)), length - 1)
    # The last span ends after its video, the one before begins and ends within one frame.
    assert rows.dtype == np.int32 and rows[3].tolist() == [4, 4] and rows[4].tolist() == [5, 6]


def test_a_second_is_its_frame_at_a_frame_a_second():
    for length in range(1, 200):
        seconds = np.arange(length, dtype=float)
        spans = np.stack([seconds, seconds], axis=1)
        every = np.full(length, length)
        rows = nodes.row_range(spans, every.astype(float), every.astype(np.int32))
        np.testing.assert_array_equal(rows[:, 0], np.arange(length), str(length))


def test_an_evaluation_reads_rows_at_equal_distances_within_the_span():
    rows = nodes.row_range(SPANS, DURATION, L)
    places = nodes.evaluation_rows(rows, L, F)
    for (first, last), own in zip(rows.tolist(), places.tolist(), strict=True):
        assert own == [int(first + (last - first) * k / (F - 1) + 1e-9) for k in range(F)]
        assert (own[0], own[-1]) == (first, last)
    assert len(set(places[1].tolist())) == 3, "a short span repeats its frames"


def test_training_intervals_cover_the_span_and_meet_at_their_ends():
    rows = nodes.row_range(SPANS, DURATION, L)
    low, count = nodes.training_intervals(rows, L, F)
    high = low + count - 1
    assert (low[:, 0] == rows[:, 0]).all() and (high[:, -1] == rows[:, 1]).all()
    np.testing.assert_array_equal(high[:, :-1], low[:, 1:])
    assert (count >= 1).all()


def test_a_short_video_may_be_read_whole_whatever_the_span():
    rows = nodes.row_range(SPANS, DURATION, L)
    places = nodes.evaluation_rows(rows, L, F, "whole")
    low, count = nodes.training_intervals(rows, L, F, "whole")
    whole = [0, 1, 2, 3, 4, 5, 6, *[-1] * 5]
    for short in (3, 4):
        assert places[short].tolist() == low[short].tolist() == whole
        assert (count[short] == 1).all()
    inside = [0, 1, 2, 5]
    np.testing.assert_array_equal(places[inside], nodes.evaluation_rows(rows, L, F)[inside])
    np.testing.assert_array_equal(low[inside], nodes.training_intervals(rows, L, F)[0][inside])


def test_draws_are_uniform_in_their_intervals_and_a_function_of_seed_step_and_node():
    count = np.broadcast_to(np.arange(1, F + 1, dtype=np.int32), (400, F))
    number = np.arange(400, dtype=np.int32)
    draw = jax.jit(nodes.draw, static_argnums=0)
    drawn = np.asarray(draw(3, np.int32(5), number, count))
    assert drawn.dtype == np.int32 and (drawn >= 0).all() and (drawn < count).all()
    # Expected are (k - 1) / 2; the standard error is below sqrt(12^2 / 12 / 400) = 0.18.
    np.testing.assert_allclose(drawn.mean(0), (count[0] - 1) / 2, atol=4 * 0.18)
    assert all(set(drawn[:, k]) == set(range(k + 1)) for k in range(F))
    again = draw(3, np.int32(5), number[::-1].copy(), count)
    np.testing.assert_array_equal(np.asarray(again)[::-1], drawn, "whatever stands beside a node")
    for seed, step in ((4, 5), (3, 6)):
        assert (np.asarray(draw(seed, np.int32(step), number, count)) != drawn).mean() > 0.5


def test_the_words_of_a_parent_are_those_of_its_leaves_in_order_cut_at_most():
    counts = np.array([3, 0, 4, 2], np.int32)
    rows = nodes.word_rows([(0,), (2,), (0, 2), (0, 1, 2, 3), (3, 0)], counts, 6)
    assert rows.tolist() == [
        [0, 1, 2, -1, -1, -1],
        [3, 4, 5, 6, -1, -1],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5],
        [7, 8, 0, 1, 2, -1],
    ]
