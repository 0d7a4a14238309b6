"""Windows: recorded values' formula rewritten row by row, and their edges."""

import jax.numpy as jnp
import numpy as np
import pytest

from hlformer_jax.ops.windows import KINDS, attention_windows, log_attention_windows


def _released(width, length):
    """As the released code computes it: a list of centres against a linear space."""
    rows = []
    for centre in np.linspace(0, 1, length + 1)[:-1]:
        sigma = max(width, 1e-2) / 9
        weight = (
            0.3989422804014327
            / sigma
            * np.exp(-((np.linspace(0, 1, length) - centre) ** 2) / (2 * sigma**2))
        )
        rows.append(weight / weight.max())
    return np.stack(rows)


@pytest.mark.parametrize("length", [2, 7, 32])
@pytest.mark.parametrize("width", [0.5, 2.0, 10.0])
def test_released_window(float64, length, width):
    ours = attention_windows((width,), length, dtype=jnp.float64)[0]
    np.testing.assert_allclose(ours, _released(width, length), rtol=1e-12)


def test_released_windows_are_the_same_below_a_width_of_a_hundredth(float64):
    # As narrow as the formula of the released code still has a number for each row.
    ours = attention_windows((0.015, 0.01, 0.005), 64, dtype=jnp.float64)
    for window, width in zip(ours, (0.015, 0.01, 0.01), strict=True):
        np.testing.assert_allclose(window, _released(width, 64), rtol=1e-9, atol=1e-300)


def test_printed_window_is_equation_10(float64):
    ours = attention_windows((3.0,), 6, "printed", jnp.float64)[0]
    i, j = np.mgrid[:6, :6]
    np.testing.assert_allclose(ours, np.exp(-((j - i) ** 2) / 9.0) / (2 * np.pi), rtol=1e-14)


def test_width_zero_is_no_window():
    np.testing.assert_array_equal(attention_windows((0.0,), 5)[0], np.ones((5, 5)))
    printed = attention_windows((0.0,), 5, "printed")[0]
    np.testing.assert_allclose(printed, np.full((5, 5), 1 / (2 * np.pi)), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_logarithms_stay_finite_where_the_window_underflows(kind):
    log_window = log_attention_windows((0.01, 0.1, 1.0), 128, kind)
    assert np.all(np.isfinite(log_window))
    window = attention_windows((0.01, 0.1, 1.0), 128, kind)
    assert np.any(window == 0)
    np.testing.assert_allclose(
        window, np.exp(np.asarray(log_window, np.float64)), rtol=2e-5, atol=1e-37
    )


@pytest.mark.parametrize("width", [0.1, 2.0, 5.0])
def test_boxcar_and_bartlett_have_the_standard_deviation_of_the_gaussian(float64, width):
    length, middle = 1001, 500
    offset = (np.arange(length) - middle) / length
    for kind in ("boxcar", "bartlett"):
        row = np.asarray(attention_windows((width,), length, kind, jnp.float64)[0, middle])
        assert row[middle] == row.max() == 1
        np.testing.assert_array_equal(row, row[::-1])
        if width < 3:  # wider ones reach beyond the ends
            deviation = np.sqrt(np.sum(row * offset**2) / row.sum())
            np.testing.assert_allclose(deviation, width / 9, rtol=0.02)
    i, j = np.mgrid[:length, :length]
    distance, sigma = np.abs(j - i) / length, width / 9
    box = attention_windows((width,), length, "boxcar", jnp.float64)[0]
    np.testing.assert_array_equal(box, distance <= np.sqrt(3) * sigma)
    triangle = attention_windows((width,), length, "bartlett", jnp.float64)[0]
    want = np.maximum(1 - distance / (np.sqrt(6) * sigma), 0)
    np.testing.assert_allclose(triangle, want, rtol=1e-9, atol=1e-15)


def test_every_position_sees_itself_under_the_narrowest_window():
    for kind in KINDS:
        window = np.asarray(attention_windows((1e-9,), 128, kind)[0])
        assert np.all(window.max(axis=-1) > 0)


def test_a_bank_is_the_stack_of_its_windows():
    bank = attention_windows((0.0, 2.0, 8.0), 9)
    for row, width in zip(bank, (0.0, 2.0, 8.0), strict=True):
        np.testing.assert_array_equal(row, attention_windows((width,), 9)[0])


def test_one_position():
    np.testing.assert_array_equal(attention_windows((2.0,), 1), np.ones((1, 1, 1)))


@pytest.mark.parametrize(
    "arguments", [((1.0,), 4, "hann"), ((-1.0,), 4, "released"), ((1.0,), 0, "printed")]
)
def test_what_makes_no_sense_is_refused(arguments):
    with pytest.raises(ValueError, match="window"):
        log_attention_windows(*arguments)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_the_narrowest_windows_are_finite(kind, dtype):
    log = log_attention_windows((1e-200, 0.01), 128, kind, dtype)
    assert np.isfinite(np.asarray(log)).all()
    assert np.isfinite(np.asarray(attention_windows((1e-200,), 2, kind))).all()
