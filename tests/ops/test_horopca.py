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
def test_busemann_values_against_80_digits(dtype):
    x, ideal, c, kinds = pairs(dtype, 3)
    got = compiled.lorentz_busemann(lorentz.from_space(x, c), ideal, c)
    p, q, k, _ = ball.pairs(dtype, 3)
    largest = np.abs(q).max(-1, keepdims=True)
    q = np.where(largest == 0, 1, q / np.where(largest == 0, 1, largest)).astype(dtype)
    of_ball = compiled.poincare_busemann(p, q, k)
    for i, kind in enumerate(kinds):
        point, direction, curvature = *map(reference.vector, (x[i], ideal[i])), mpf(float(c[i]))
        root = mpmath.sqrt(curvature)
        along = reference.dot(point, direction) / reference.norm(direction)
        want = mpmath.log(root * (reference.time(point, curvature) - along)) / root
        radius = reference.distance([mpf(0)] * 3, point, curvature)
        assert abs(float(got[i]) - want) <= BOUND[dtype] * radius, (kind, float(c[i]))
    eps = float(jnp.finfo(dtype).eps)
    for i in range(len(p)):
        point, direction, curvature = *map(reference.vector, (p[i], q[i])), mpf(float(k[i]))
        root, size = mpmath.sqrt(curvature), reference.norm(direction)
        gap = ball.plus(ball.times(1 / size, direction), ball.times(-root, point))
        height = 1 - curvature * reference.dot(point, point)
        want = mpmath.log(reference.dot(gap, gap) / height) / root
        radius = ball.distance([mpf(0)] * 3, point, curvature)
        bound = max(BOUND[dtype], 16 * eps / float(height))
        assert abs(float(of_ball[i]) - want) <= bound * radius + mpf(10) ** -70, (i, float(k[i]))


@pytest.mark.usefixtures("float64")
def test_busemann_is_the_limit_of_distance_differences():
    c = 0.7
    x = lorentz.exp_map0(np.random.default_rng(0).normal(size=(5, 3)), c)
    ideal = np.array([[0.6, 0, 0.8]])
    distant_point = lorentz.exp_map0(40 * jnp.asarray(ideal), c)
    want = lorentz.distance(x, distant_point, c) - 40
    np.testing.assert_allclose(compiled.lorentz_busemann(x, 3 * ideal, c), want, atol=1e-11)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", [1, 2])
def test_projection_keeps_digits_near_origin_and_ideal_points(count):
    rng, c = np.random.default_rng(0), 0.7
    directions = np.eye(3, dtype=np.float32)[:count]
    near_ideal = np.array([[600, 0.3, 0.4], [9e4, 0.0, 0.4]])
    space = np.concatenate([1e-6 * rng.normal(size=(2, 3)), near_ideal]).astype(np.float32)
    got = compiled.lorentz_horospherical(lorentz.from_space(space, np.float32(c)), directions, c)
    c = mpf(float(np.float32(c)))
    for s, point in zip(space, got, strict=True):
        x = [mpmath.sqrt(c) * a for a in reference.vector(s)]
        tau = mpmath.sqrt(1 + reference.dot(x, x))
        b = [tau - a for a in x[:count]]
        delta = (tau - sum(x[:count])) ** 2 + (count - 1) * reference.dot(x[count:], x[count:])
        time = (1 + reference.dot(b, b)) / (sum(b) + mpmath.sqrt(delta))
        want = [(time - value) / mpmath.sqrt(c) for value in b]
        assert reference.relative_error(point[1:], want) < 16 * 1.2e-7 * tau, s


@pytest.mark.slow  # it takes seconds
@pytest.mark.usefixtures("float64")
def test_projection_keeps_busemann_functions_and_is_idempotent():
    rng = np.random.default_rng(0)
    c = np.array([0.3, 2.0])
    u = rng.normal(size=(6, 2, 5)) * np.array([0.01, 0.1, 0.5, 1, 2, 4])[:, None, None]
    x = lorentz.exp_map0(u, c)
    directions = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    project, busemann = compiled.lorentz_horospherical, compiled.lorentz_busemann
    in_ball = poincare.from_lorentz(x, c)
    for count in (1, 2, 5):
        subset = directions[:count]
        y = project(x, subset, c)
        assert y.shape == (6, 2, count + 1)
        for direction, axis in zip(subset, np.eye(count), strict=True):
            projected = busemann(y, axis[None, None], c)
            want = busemann(x, direction[None, None], c)
            np.testing.assert_allclose(projected, want, rtol=1e-8, atol=1e-10)
        repeated = project(y, np.eye(count), c)
        # The root of a sum of squares near 0 loses digits.
        np.testing.assert_allclose(repeated, y, rtol=1e-6, atol=1e-9)
        through_ball = compiled.poincare_horospherical(in_ball, subset, c)
        np.testing.assert_allclose(poincare.to_lorentz(through_ball, c), y, rtol=1e-6, atol=1e-8)
    # The projection keeps distances of points that differ along one direction only.
    tangent = rng.normal(size=(4, 1)) * directions[:1]
    line = lorentz.exp_map0(tangent, 1.0)
    projected_line = project(line, directions[:2])
    distances = lorentz.pairwise_distance(line, line)
    got = lorentz.pairwise_distance(projected_line, projected_line)
    np.testing.assert_allclose(got, distances, rtol=1e-7, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("check", [check_slopes, check_curvature])
def test_busemann_functions_have_two_derivatives(check):
    rng = np.random.default_rng(1)
    x = np.concatenate([np.zeros((1, 3)), rng.normal(size=(4, 3)) * 1.5])
    ideal, directions = rng.normal(size=(5, 3)), np.linalg.qr(rng.normal(size=(3, 3)))[0][:2]

    def evaluate(x, ideal, c):
        a = lorentz.from_space(x, c)
        p = poincare.from_lorentz(a, c)
        return (
            compiled.lorentz_busemann(a, ideal, c),
            compiled.poincare_busemann(p, ideal, c),
            compiled.lorentz_horospherical(a, directions, c),
            compiled.poincare_horospherical(p, directions, c),
        )

    check(evaluate, (x, ideal, np.full(5, 0.7)))


@pytest.mark.usefixtures("float64")
def test_horopca_functions_are_finite_everywhere():
    directions = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0][:2]
    direction = np.array([0.6, -0.64, 0.48])
    sizes = [0, 1e-30, 1e-6, 1, 80, 1e6]
    points = jnp.asarray([s * r * direction for r in sizes for s in (1, -1)], jnp.float32)
    c = jnp.float32(0.7)
    args = (points, jnp.asarray(np.tile(direction, (len(points), 1)), jnp.float32))
    narrow = jnp.asarray(directions, jnp.float32)

    def repeated(x, ideal):
        a = lorentz.from_space(x, c)
        return compiled.lorentz_busemann(a, ideal, c), compiled.lorentz_horospherical(a, narrow, c)

    check_finite(repeated, args, "float32")


def _frame(seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(DIMENSION, DIMENSION)))[0]


def _cloud(spread, seed=0, c=1.0, base=None):
    """Draw points whose logarithms at a base point have these deviations along a random frame."""
    rng = np.random.default_rng(seed)
    tangent = rng.normal(size=(COUNT, DIMENSION)) * np.asarray(spread) @ _frame().T
    points = lorentz.exp_map0(jnp.asarray(tangent / np.sqrt(c), jnp.float32), c)
    return points if base is None else lorentz.boost(base[None], points, c)


def _point(norm=1.5):
    direction = np.random.default_rng(5).normal(size=DIMENSION)
    return lorentz.exp_map0(jnp.asarray(norm * direction / np.linalg.norm(direction), jnp.float32))


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
    """Return two components: the planted ones of the cloud, or fitted ones."""
    if request.param == "fitted":
        return request.getfixturevalue("fitted")
    return HoroPCA(_point(), jnp.asarray(_frame()[:, :2].T, jnp.float32), jnp.float32(1.0))


@pytest.mark.slow  # it compiles for seconds
def test_fit_finds_planted_geodesics():
    base = _point()
    points = _cloud((1.5, 0.6, 0, 0, 0), base=base)
    components = horopca.fit(points, base=base)
    span = np.linalg.svd(np.asarray(components.directions) @ _frame()[:, :2])[1]
    # Cosines of the angles between the planes: below a degree.
    np.testing.assert_array_less(np.cos(np.radians(1)), span)
    # The projection is exact on one side of the geodesic between the ideal points.
    centred = lorentz.boost(lorentz.antipode(base)[None], points)
    is_near_side = (
        np.asarray(centred[:, 0] - (centred[:, 1:] @ components.directions.T).sum(axis=-1)) > 0
    )
    repeated = horopca.embed(components, horopca.project(components, points))
    assert is_near_side.sum() > COUNT / 2
    assert float(lorentz.distance(repeated, points)[is_near_side].max()) < 0.02
    line = _cloud((1.5, 0, 0, 0, 0), base=base)
    [direction] = np.asarray(horopca.fit(line, 1, base=base).directions)
    assert abs(direction @ _frame()[:, 0]) > np.cos(np.radians(1))


@pytest.mark.slow
def test_projection_is_the_identity_on_its_submanifold(components, cloud):
    projected = horopca.project(components, cloud)
    embedded = horopca.embed(components, projected)
    np.testing.assert_allclose(horopca.project(components, embedded), projected, atol=2e-5)
    before, after = (
        lorentz.boost(lorentz.antipode(components.base)[None], x) for x in (cloud, embedded)
    )
    for direction in components.directions:  # Busemann functions of the ideal points are kept
        want = horopca.lorentz_busemann(before, direction[None])
        np.testing.assert_allclose(
            horopca.lorentz_busemann(after, direction[None]), want, atol=2e-5
        )


@pytest.mark.slow  # it takes seconds
def test_projection_shortens_distances(components, cloud):
    assert (_distances(compiled.project(components, cloud)) <= _distances(cloud) + 1e-5).all()


@pytest.mark.slow  # it compiles for seconds
def test_fitted_components_keep_more_variance_than_random_ones(fitted, cloud):
    np.testing.assert_allclose(fitted.directions @ fitted.directions.T, np.eye(2), atol=1e-6)

    def kept_variance(components):
        return float(horopca.variance(horopca.project(components, cloud)))

    random = [
        kept_variance(fitted._replace(directions=jnp.asarray(_frame(seed)[:, :2].T, jnp.float32)))
        for seed in range(30)
    ]
    joint = horopca.fit(cloud, joint=True)
    assert (
        max(random)
        < kept_variance(fitted)
        <= kept_variance(joint)
        <= float(horopca.variance(cloud))
    )


@pytest.mark.slow  # it compiles for seconds
def test_fit_is_equivariant_to_isometries_and_curvature(fitted, cloud):
    want = float(horopca.variance(horopca.project(fitted, cloud)))
    moved = lorentz.boost(
        _point()[None], lorentz.rotate(jnp.asarray(_frame(3), jnp.float32), cloud)
    )
    refitted = horopca.fit(moved)
    # Different starts and rounding reach the same optimum within 0.1 %.
    assert float(horopca.variance(horopca.project(refitted, moved))) == pytest.approx(
        want, rel=1e-3
    )
    c = 0.25
    wide = _cloud((1.2, 0.5, 0.2, 0.1, 0.05), c=c)
    stretched = horopca.fit(wide, c=c)
    np.testing.assert_allclose(stretched.directions, fitted.directions, atol=2e-3)
    distances = _distances(horopca.project(fitted, cloud))
    stretched_distances = _distances(horopca.project(stretched, wide), c)
    np.testing.assert_allclose(np.sqrt(c) * stretched_distances, distances, atol=5e-3)


def test_projection_does_not_depend_on_the_base_point(cloud):
    direction = jnp.asarray(_frame()[:, :1].T, jnp.float32)
    origin, c = lorentz.origin(DIMENSION, dtype=jnp.float32), jnp.float32(1.0)
    along = lorentz.exp_map0(0.7 * direction)[0]  # on the geodesic through both
    from_origin, from_point = (
        compiled.project(HoroPCA(base, direction, c), cloud) for base in (origin, along)
    )  # a boost along the direction leaves its ideal point where it is
    np.testing.assert_allclose(
        from_origin[:, 1], np.sinh(np.arcsinh(from_point[:, 1]) + 0.7), atol=2e-4
    )


@pytest.mark.slow  # it compiles for seconds
def test_fit_is_deterministic_and_finite_for_equal_points(cloud):
    first, second = (horopca.fit(cloud, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.directions, second.directions)
    equal_points = jnp.broadcast_to(cloud[:1], cloud.shape)
    components = horopca.fit(equal_points)
    assert np.isfinite(components.directions).all()
    np.testing.assert_allclose(horopca.project(components, equal_points)[:, 1:], 0, atol=1e-3)


def test_impossible_numbers_of_components_are_refused(cloud):
    with pytest.raises(ComponentsError, match="num_components must be from 1 to 5, .* got 6"):
        horopca.fit(cloud, 6)
    with pytest.raises(ComponentsError, match="points must be two or more, got 1"):
        horopca.fit(cloud[:1])


@pytest.mark.usefixtures("unchecked")
def test_base_and_points_of_other_shapes_are_refused(cloud, fitted):
    with pytest.raises(ValueError, match=r"base must have shape \(6,\), got \(1, 6\)"):
        horopca.fit(cloud, base=cloud[:1])
    with pytest.raises(ValueError, match=r"points must have shape \[N, n \+ 1\], got the shape"):
        horopca.fit(cloud[None])
    with pytest.raises(ValueError, match=r"projected must have shape \(.*, 3\), got \(.*, 6\)"):
        horopca.embed(fitted, cloud)


@pytest.mark.usefixtures("float64")
def test_base_of_a_wider_dtype_is_not_rounded():
    points = lorentz.exp_map0(np.random.default_rng(0).normal(size=(8, 3)))
    base = points[0]
    components = horopca.fit(points.astype(np.float32), 1, base=base, starts=1, steps=1)
    assert components.directions.dtype == np.float64
    np.testing.assert_array_equal(components.base, base)


def _recorded(name):
    return poincare.to_lorentz(jnp.asarray(np.load(GOLDEN)[name], jnp.float32))


def test_projections_equal_the_authors_code():
    recorded = np.load(GOLDEN)
    origin = lorentz.origin(DIMENSION, dtype=jnp.float32)
    components = HoroPCA(origin, jnp.asarray(recorded["directions"], jnp.float32), jnp.float32(1.0))
    projected = compiled.project(components, _recorded("centred"))
    # float32 against float64, for distances up to 5. The authors' diagonal is not 0.
    off = ~np.eye(len(projected), dtype=bool)
    np.testing.assert_allclose(_distances(projected)[off], recorded["distances"][off], atol=2e-5)


@pytest.mark.slow  # it compiles for seconds
def test_fit_reaches_the_optimum_of_the_authors_code():
    points = _recorded("points")
    components = horopca.fit(points, joint=True)
    variance = float(horopca.variance(horopca.project(components, points)))
    # The authors' mean stops within 1e-5 of a step; `fit` ends within rounding of the optimum.
    assert variance == pytest.approx(float(np.load(GOLDEN)["variance"]), rel=1e-3)
