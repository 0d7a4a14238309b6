"""Busemann functions against the limit that defines them; HoroPCA finds planted directions."""

from pathlib import Path

import ball_reference as ball
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import reference
from compiled import horopca as compiled
from compiled import lorentz, poincare
from derivatives import check_curvature, check_finite, check_slopes
from mpmath import mpf
from reference import BOUND, DTYPES, pairs

from hlformer_jax.ops import horopca
from hlformer_jax.ops.horopca import ComponentsError, HoroPCA

GOLDEN = Path(__file__).parents[1] / "golden" / "horopca.npz"
COUNT, DIMENSION = 40, 5


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_against_80_digits(dtype):
    x, ideal, c, kinds = pairs(dtype, 3)
    got = compiled.lorentz_busemann(lorentz.from_space(x, c), ideal, c)
    p, q, k, _ = ball.pairs(dtype, 3)
    largest = np.abs(q).max(-1, keepdims=True)
    q = np.where(largest == 0, 1, q / np.where(largest == 0, 1, largest)).astype(dtype)
    of_ball = compiled.poincare_busemann(p, q, k)
    for i, kind in enumerate(kinds):
        point, way, curvature = *map(reference.vector, (x[i], ideal[i])), mpf(float(c[i]))
        root = mpmath.sqrt(curvature)
        along = reference.dot(point, way) / reference.norm(way)
        want = mpmath.log(root * (reference.time(point, curvature) - along)) / root
        reach = reference.distance([mpf(0)] * 3, point, curvature)
        assert abs(float(got[i]) - want) <= BOUND[dtype] * reach, (kind, float(c[i]))
    eps = float(jnp.finfo(dtype).eps)
    for i in range(len(p)):
        point, way, curvature = *map(reference.vector, (p[i], q[i])), mpf(float(k[i]))
        root, size = mpmath.sqrt(curvature), reference.norm(way)
        gap = ball.plus(ball.times(1 / size, way), ball.times(-root, point))
        room = 1 - curvature * reference.dot(point, point)
        want = mpmath.log(reference.dot(gap, gap) / room) / root
        reach = ball.distance([mpf(0)] * 3, point, curvature)
        bound = max(BOUND[dtype], 16 * eps / float(room))
        assert abs(float(of_ball[i]) - want) <= bound * reach + mpf(10) ** -70, (i, float(k[i]))


@pytest.mark.usefixtures("float64")
def test_it_is_the_difference_of_distances_to_a_point_far_away():
    c = 0.7
    x = lorentz.exp_map0(np.random.default_rng(0).normal(size=(5, 3)), c)
    ideal = np.array([[0.6, 0, 0.8]])
    far = lorentz.exp_map0(40 * jnp.asarray(ideal), c)
    want = lorentz.distance(x, far, c) - 40
    np.testing.assert_allclose(compiled.lorentz_busemann(x, 3 * ideal, c), want, atol=1e-11)


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
def test_the_projection_keeps_busemann_functions_and_points_of_its_own():
    rng = np.random.default_rng(0)
    c = np.array([0.3, 2.0])
    u = rng.normal(size=(6, 2, 5)) * np.array([0.01, 0.1, 0.5, 1, 2, 4])[:, None, None]
    x = lorentz.exp_map0(u, c)
    directions = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    project, busemann = compiled.lorentz_horospherical, compiled.lorentz_busemann
    in_ball = poincare.from_lorentz(x, c)
    for count in (1, 2, 5):
        chosen = directions[:count]
        y = project(x, chosen, c)
        assert y.shape == (6, 2, count + 1)
        for way, axis in zip(chosen, np.eye(count), strict=True):
            kept = busemann(y, axis[None, None], c)
            want = busemann(x, way[None, None], c)
            np.testing.assert_allclose(kept, want, rtol=1e-8, atol=1e-10)
        again = project(y, np.eye(count), c)
        np.testing.assert_allclose(again, y, rtol=1e-6, atol=1e-9)  # a root near 0 of its squares
        through_ball = compiled.poincare_horospherical(in_ball, chosen, c)
        np.testing.assert_allclose(poincare.to_lorentz(through_ball, c), y, rtol=1e-6, atol=1e-8)
    # It keeps the distance of points that differ along one direction alone.
    way = rng.normal(size=(4, 1)) * directions[:1]
    line = lorentz.exp_map0(way, 1.0)
    shadow = project(line, directions[:2])
    between = lorentz.pairwise_distance(line, line)
    got = lorentz.pairwise_distance(shadow, shadow)
    np.testing.assert_allclose(got, between, rtol=1e-7, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("check", [check_slopes, check_curvature])
def test_derivatives(check):
    rng = np.random.default_rng(1)
    x = np.concatenate([np.zeros((1, 3)), rng.normal(size=(4, 3)) * 1.5])
    ideal, directions = rng.normal(size=(5, 3)), np.linalg.qr(rng.normal(size=(3, 3)))[0][:2]

    def everything(x, ideal, c):
        a = lorentz.from_space(x, c)
        p = poincare.from_lorentz(a, c)
        return (
            compiled.lorentz_busemann(a, ideal, c),
            compiled.poincare_busemann(p, ideal, c),
            compiled.lorentz_horospherical(a, directions, c),
            compiled.poincare_horospherical(p, directions, c),
        )

    check(everything, (x, ideal, np.full(5, 0.7)))


@pytest.mark.usefixtures("float64")
def test_values_and_gradients_are_finite_everywhere():
    directions = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0][:2]
    way = np.array([0.6, -0.64, 0.48])
    sizes = [0, 1e-30, 1e-6, 1, 80, 1e6]
    far = jnp.asarray([s * r * way for r in sizes for s in (1, -1)], jnp.float32)
    c = jnp.float32(0.7)
    args = (far, jnp.asarray(np.tile(way, (len(far), 1)), jnp.float32))
    narrow = jnp.asarray(directions, jnp.float32)

    def again(x, ideal):
        a = lorentz.from_space(x, c)
        return compiled.lorentz_busemann(a, ideal, c), compiled.lorentz_horospherical(a, narrow, c)

    check_finite(again, args, "float32")


def _frame(seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(DIMENSION, DIMENSION)))[0]


def _cloud(spread, seed=0, c=1.0, base=None):
    """Points whose logarithms at a base point have these deviations along a random frame."""
    rng = np.random.default_rng(seed)
    tangent = rng.normal(size=(COUNT, DIMENSION)) * np.asarray(spread) @ _frame().T
    points = lorentz.exp_map0(jnp.asarray(tangent / np.sqrt(c), jnp.float32), c)
    return points if base is None else lorentz.boost(base[None], points, c)


def _point(norm=1.5):
    way = np.random.default_rng(5).normal(size=DIMENSION)
    return lorentz.exp_map0(jnp.asarray(norm * way / np.linalg.norm(way), jnp.float32))


def _distances(points, c=1.0):
    return np.asarray(lorentz.pairwise_distance(points, points, c))


@pytest.fixture(scope="module")
def cloud():
    return _cloud((1.2, 0.5, 0.2, 0.1, 0.05))


@pytest.fixture(scope="module")
def fitted(cloud):
    return horopca.fit(cloud)


@pytest.fixture(
    params=["planted", pytest.param("fitted", marks=pytest.mark.slow)]  # fitting takes seconds
)
def components(request, cloud):
    """Two components: those along which the cloud was drawn, or those that were fitted to it."""
    if request.param == "fitted":
        return request.getfixturevalue("fitted")
    return HoroPCA(_point(), jnp.asarray(_frame()[:, :2].T, jnp.float32), jnp.float32(1.0))


@pytest.mark.slow  # it compiles for seconds
def test_planted_geodesics_are_found_from_the_points_alone():
    base = _point()
    points = _cloud((1.5, 0.6, 0, 0, 0), base=base)
    found = horopca.fit(points, base=base)
    span = np.linalg.svd(np.asarray(found.directions) @ _frame()[:, :2])[1]
    # Cosines of the angles between the planes: below a degree.
    np.testing.assert_array_less(np.cos(np.radians(1)), span)
    # On their side of the geodesic between the ideal points the projection is exact.
    seen = lorentz.boost(lorentz.antipode(base)[None], points)
    near = np.asarray(seen[:, 0] - (seen[:, 1:] @ found.directions.T).sum(axis=-1)) > 0
    again = horopca.embed(found, horopca.project(found, points))
    assert near.sum() > COUNT / 2
    assert float(lorentz.distance(again, points)[near].max()) < 0.02
    line = _cloud((1.5, 0, 0, 0, 0), base=base)
    [way] = np.asarray(horopca.fit(line, 1, base=base).directions)
    assert abs(way @ _frame()[:, 0]) > np.cos(np.radians(1))


@pytest.mark.slow
def test_the_projection_is_the_identity_on_its_submanifold(components, cloud):
    projected = horopca.project(components, cloud)
    embedded = horopca.embed(components, projected)
    np.testing.assert_allclose(horopca.project(components, embedded), projected, atol=2e-5)
    before, after = (
        lorentz.boost(lorentz.antipode(components.base)[None], x) for x in (cloud, embedded)
    )
    for way in components.directions:  # Busemann functions of the ideal points are kept
        want = horopca.lorentz_busemann(before, way[None])
        np.testing.assert_allclose(horopca.lorentz_busemann(after, way[None]), want, atol=2e-5)


@pytest.mark.slow  # it takes seconds
def test_no_distance_grows(components, cloud):
    assert (_distances(compiled.project(components, cloud)) <= _distances(cloud) + 1e-5).all()


@pytest.mark.slow  # it compiles for seconds
def test_components_keep_more_than_any_random_ones_and_joint_ones_more_yet(fitted, cloud):
    np.testing.assert_allclose(fitted.directions @ fitted.directions.T, np.eye(2), atol=1e-6)
    kept = lambda found: float(horopca.variance(horopca.project(found, cloud)))
    random = [
        kept(fitted._replace(directions=jnp.asarray(_frame(seed)[:, :2].T, jnp.float32)))
        for seed in range(30)
    ]
    joint = horopca.fit(cloud, joint=True)
    assert max(random) < kept(fitted) <= kept(joint) <= float(horopca.variance(cloud))


@pytest.mark.slow  # it compiles for seconds
def test_isometries_and_curvatures_change_only_the_frame(fitted, cloud):
    want = float(horopca.variance(horopca.project(fitted, cloud)))
    moved = lorentz.boost(
        _point()[None], lorentz.rotate(jnp.asarray(_frame(3), jnp.float32), cloud)
    )
    found = horopca.fit(moved)
    # Other starts, other rounding: the same optimum to 0.1 %.
    assert float(horopca.variance(horopca.project(found, moved))) == pytest.approx(want, rel=1e-3)
    c = 0.25
    wide = _cloud((1.2, 0.5, 0.2, 0.1, 0.05), c=c)
    stretched = horopca.fit(wide, c=c)
    np.testing.assert_allclose(stretched.directions, fitted.directions, atol=2e-3)
    here = _distances(horopca.project(fitted, cloud))
    there = _distances(horopca.project(stretched, wide), c)
    np.testing.assert_allclose(np.sqrt(c) * there, here, atol=5e-3)


def test_the_base_point_is_any_point_of_the_submanifold(cloud):
    way = jnp.asarray(_frame()[:, :1].T, jnp.float32)
    origin, c = lorentz.origin(DIMENSION, dtype=jnp.float32), jnp.float32(1.0)
    along = lorentz.exp_map0(0.7 * way)[0]  # of the geodesic through both
    one, other = (
        compiled.project(HoroPCA(base, way, c), cloud) for base in (origin, along)
    )  # a boost along the direction leaves its ideal point where it is
    np.testing.assert_allclose(one[:, 1], np.sinh(np.arcsinh(other[:, 1]) + 0.7), atol=2e-4)


@pytest.mark.slow  # it compiles for seconds
def test_the_same_seed_gives_the_same_bits_and_equal_points_give_numbers(cloud):
    first, second = (horopca.fit(cloud, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.directions, second.directions)
    same = jnp.broadcast_to(cloud[:1], cloud.shape)
    found = horopca.fit(same)
    assert np.isfinite(found.directions).all()
    np.testing.assert_allclose(horopca.project(found, same)[:, 1:], 0, atol=1e-3)


def test_components_that_cannot_be_are_refused(cloud):
    with pytest.raises(ComponentsError, match="num_components must be from 1 to 5, .* got 6"):
        horopca.fit(cloud, 6)
    with pytest.raises(ComponentsError, match="points must be two or more, got 1"):
        horopca.fit(cloud[:1])


def _recorded(name):
    return poincare.to_lorentz(jnp.asarray(np.load(GOLDEN)[name], jnp.float32))


def test_projections_are_those_of_the_authors_code():
    recorded = np.load(GOLDEN)
    origin = lorentz.origin(DIMENSION, dtype=jnp.float32)
    theirs = HoroPCA(origin, jnp.asarray(recorded["directions"], jnp.float32), jnp.float32(1.0))
    ours = compiled.project(theirs, _recorded("centred"))
    # Float32 against float64, of distances up to 5; their distances of equal points are not 0.
    off = ~np.eye(len(ours), dtype=bool)
    np.testing.assert_allclose(_distances(ours)[off], recorded["distances"][off], atol=2e-5)


@pytest.mark.slow  # it compiles for seconds
def test_the_optimum_is_the_best_of_the_authors_runs():
    points = _recorded("points")
    found = horopca.fit(points, joint=True)
    kept = float(horopca.variance(horopca.project(found, points)))
    # Their mean stops within 1e-5 of a step, and ours ends within rounding of the optimum.
    assert kept == pytest.approx(float(np.load(GOLDEN)["variance"]), rel=1e-3)
