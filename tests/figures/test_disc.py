"""The disc: what is of two dimensions stays, what is of more stays within its distances."""

import numpy as np
import pytest

from hlformer_jax.figures import disc
from hlformer_jax.ops import lorentz
from hlformer_jax.plots import style


def test_two_dimensions_stay_as_they_are_at_any_curvature():
    c = 0.3
    tangent = np.array([[0.6, 0.8], [0.0, 0.0], [-3.0, 0.0]], np.float32)
    found = disc.to_disc(np.asarray(lorentz.exp_map0(tangent, c)), c, 0)
    norm = np.linalg.norm(tangent, axis=1)
    np.testing.assert_allclose(np.hypot(*found.T), np.tanh(np.sqrt(c) * norm / 2), atol=1e-6)
    np.testing.assert_allclose(found[0], np.tanh(np.sqrt(c) / 2) * tangent[0], atol=1e-6)


@pytest.mark.parametrize(("radius", "limit"), [(0.9, 1.02), (0.01, 0.0112)])
def test_as_much_of_the_disc_as_points_need_is_shown_with_circles_at_whole_distances(radius, limit):
    axes = style.Figure().add_subplot()
    disc.prepare(axes, np.array([[radius, 0.0], [0.0, -radius / 2]]))
    assert axes.get_xlim() == pytest.approx((-limit, limit))
    said = {text.get_text(): -text.get_position()[1] for text in axes.texts}
    assert 2 <= len(said) <= 6
    for distance, place in said.items():
        assert place == pytest.approx(np.tanh(float(distance) / 2), rel=0.05)
