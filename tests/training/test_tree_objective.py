"""HOVER's objective against loops over its definition, and against recorded numbers."""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest

from hlformer_jax.config import default, preset
from hlformer_jax.models import hover
from hlformer_jax.models.hover import Points
from hlformer_jax.training.hover import build_objective
from hlformer_jax.typing import Nodes, Subtrees, TreeBatch

# Two trees and a chain. Tree 0: leaves 0 1 2, parents 3 = (0, 1), 4 = (1, 2), root 5 = (3, 4).
# Tree 1: leaves 6 7, root 8. Tree 2, a chain: leaf 9, root 10.
ITEMS = ((5, 3, 4), (3, 0, 1), (4, 1, 2), (8, 6, 7), (10, 9, 9))
PAIR = (True, True, True, True, False)
DESCENDANTS = {5: (0, 1, 2, 3, 4), 3: (0, 1), 4: (1, 2), 8: (6, 7), 10: (9,)}
TREE = (0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2)
LEVEL = (0, 0, 0, 1, 1, 2, 0, 0, 1, 0, 1)
POSITION = (0, 1, 2, 0, 1, 0, 0, 1, 0, 0, 0)


def _trees(items=(0, 1, 2, 3, 4), padding=0):
    """Return a batch of some of the items, followed by padded items and nodes."""
    count, rows = len(TREE) + padding, np.zeros((len(items) + padding, 3), np.int32)
    rows[: len(items)] = [ITEMS[k] for k in items]
    used = np.zeros(count, bool)
    used[np.unique(rows[: len(items)])] = True
    descends = np.zeros((count, count), bool)
    for node, descendants in DESCENDANTS.items():
        descends[node, list(descendants)] = True
    real = np.arange(len(items) + padding) < len(items)
    pair = np.array([PAIR[k] for k in items] + [False] * padding)
    empty = np.zeros((count, 1, 1), np.float32)
    nodes = Nodes(empty, np.ones((count, 1), bool), empty, np.ones((count, 1), bool), used)
    return TreeBatch(nodes, Subtrees(rows, pair, real), descends)


def _points(seed=0, padding=0, poison=0.0, n=3):
    """Return points of the unit ball for all nodes of both modalities; padding is `poison`."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(2, len(TREE), n))
    drawn *= rng.uniform(0.2, 0.8, (2, len(TREE), 1)) / np.linalg.norm(
        drawn, axis=-1, keepdims=True
    )
    padded = np.full((2, padding, n), poison)
    return np.concatenate([drawn, padded], axis=1).astype(np.float32)


SCALE, DIRECTION = 3.0, np.array([0.5, -1.0, 2.0], np.float32)
MARGIN, ORDER_MARGIN, CONE = 0.1, 0.05, 0.25
ALL_ITEMS = tuple(range(len(ITEMS)))


def _config(**options):
    """Return a configuration, by default of Euclidean space, whose programs compile quickly."""
    config = default("hover")
    config.model.update(geometry="euclidean")
    config.model.update(hyperbolic_dim=3, hidden_size=4, scale=SCALE, learned_scale=False)
    config.loss.update(tree=1.0, chain=1.0, order=1.0, mask_related="none")
    config.loss.update(chain_margin=MARGIN, order_margin=ORDER_MARGIN)
    config.update_from_flattened_dict(options)
    return config


@functools.cache
def _program(options):
    config = _config(**dict(options))
    objective = build_objective(config, hover.build(config))

    def terms(points, batch):
        params = {"direction": DIRECTION}
        return objective.evaluate(params, Points(*points), batch)[1]

    def total(points, batch, weights):
        return sum(weights[name] * value for name, value in terms(points, batch).items())

    # The weights are arguments, so that a single program computes the gradient of each term.
    return jax.jit(terms), jax.jit(jax.grad(total))


def _terms(points, batch, **options):
    terms = _program(tuple(sorted(options.items())))[0](points, batch)
    return {name: float(value) for name, value in terms.items()}


def _gradient(term, points, batch, **options):
    names = ("align", "tree", "chain", "order")
    weights = {name: np.float32(name == term) for name in names}
    gradient = _program(tuple(sorted(options.items())))[1](points, batch, weights)
    return np.asarray(gradient)


# --- the definitions, in loops -------------------------------------------------------------------
def _euclidean(x, y):
    return np.linalg.norm(np.float64(x) - np.float64(y))


def _poincare(x, y):
    x, y = np.float64(x), np.float64(y)
    ratio = np.sum((x - y) ** 2) / ((1 - x @ x) * (1 - y @ y))
    return np.arccosh(1 + 2 * ratio)


def _cross_entropy(anchors, candidates, allowed, distance=_euclidean):
    """Return the mean over rows; the positive of a row is on the diagonal."""
    values = []
    for i, anchor in enumerate(anchors):
        logits = {
            j: -SCALE * distance(anchor, y) for j, y in enumerate(candidates) if allowed(i, j)
        }
        values.append(np.log(sum(np.exp(x) for x in logits.values())) - logits[i])
    return np.mean(values)


def _hinge(low, high, form, margin=MARGIN):
    """Return the loss of two numbers, the first of which should be lower."""
    if form == "corrected":
        return max(low - high + margin, 0)
    return -max(high - low + margin, 0)


def _related(u, w):
    return u == w or w in DESCENDANTS.get(u, ()) or u in DESCENDANTS.get(w, ())


def _expected(points, items, form="corrected", masked="none", distance=_euclidean):
    (video, text), items = points.astype(np.float64), [ITEMS[k] for k in items]
    slots = (0, 1) if form == "released" else (1, 2)
    align = tree = chain = order = 0.0
    for slot in range(3):
        rows = [item[slot] for item in items]
        for a, b in ((video, text), (text, video)):
            align += _cross_entropy(a[rows], b[rows], lambda i, j: True, distance) / 2
    parents = [item[0] for item in items]
    for slot in slots:
        rows = [item[slot] for item in items]

        def allowed(i, j, rows=rows):
            return i == j or masked == "none" or not _related(parents[i], rows[j])

        for a, b in ((video, text), (text, video)):
            tree += _cross_entropy(a[parents], b[rows], allowed, distance) / 2
    if form == "printed":
        tree *= len(items)  # a sum in place of the mean

    def hinge(parent, child):
        norms = [np.linalg.norm(x, axis=-1) for x in (video, text)]
        return sum(_hinge(a[parent], b[child], form) / 2 for a, b in (norms, norms[::-1]))

    if form == "released":
        chain = sum(np.mean([hinge(item[0], item[slot]) for item in items]) for slot in slots)
    else:
        chain = np.mean([hinge(item[0], child) for item in items for child in set(item[1:])])
    unit = DIRECTION / np.linalg.norm(DIRECTION)
    cosines = [x @ unit / np.linalg.norm(x, axis=-1) for x in (video, text)]
    ordered = [item for item in items if item[1] != item[2] or form == "released"]
    if ordered:
        order = np.mean(
            [
                _hinge(a[item[2]], b[item[1]], form, ORDER_MARGIN)
                for item in ordered
                for a, b in (cosines, cosines[::-1])
            ]
        )
    return {"align": align, "tree": tree, "chain": chain, "order": order}


BALL = {"model.geometry": "poincare"}
CASES = {
    "corrected": {},
    "corrected, in the ball": BALL,
    "printed": {"loss.form": "printed", "loss.tree_reduction": "sum"},
    "released": {"loss.form": "released"},
    "relatives masked": {"loss.mask_related": "tree"},
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(x, marks=pytest.mark.slow if "ball" in x else ()) for x in CASES],  # seconds
)
def test_every_form_equals_loops_over_its_definition(case):
    options = CASES[case]
    batch, points = _trees(), _points()
    expected = _expected(
        points,
        ALL_ITEMS,
        options.get("loss.form", "corrected"),
        options.get("loss.mask_related", "none"),
        _poincare if "model.geometry" in options else _euclidean,
    )
    terms = _terms(points, batch, **options)
    for name, value in expected.items():
        # float32 distances times a scale of 3, in sums of a few: some 1e-6.
        assert terms[name] == pytest.approx(value, rel=1e-5, abs=2e-6), name


@pytest.mark.parametrize(
    "case",
    [
        {"loss.mask_related": "tree", "loss.chain_form": "cone", "loss.min_radius": CONE},
        pytest.param(BALL, marks=pytest.mark.slow),  # half a minute, to compile its gradient
    ],
    ids=["relatives masked and cones", "ball"],
)
def test_padding_changes_neither_value_nor_gradient(case):
    clean, padded = _trees((0, 3, 4)), _trees((0, 3, 4), padding=2)
    points = _points()
    poisoned = _points(padding=2, poison=np.nan)
    # A node of the batch that is in none of the items is padding as well.
    poisoned[:, ~padded.nodes.mask] = np.nan
    terms, padded_terms = _terms(points, clean, **case), _terms(poisoned, padded, **case)
    for name in terms:
        assert padded_terms[name] == pytest.approx(terms[name], rel=2e-6), name
        gradient = _gradient(name, poisoned, padded, **case)
        assert np.all(np.isfinite(gradient)), name
        np.testing.assert_array_equal(gradient[:, ~padded.nodes.mask], 0)


def test_single_item_has_no_negatives():
    terms = _terms(_points(), _trees((3,)))
    assert terms["align"] == terms["tree"] == 0


def test_terms_do_not_depend_on_the_order_of_items():
    points = _points()
    reordered = _terms(points, _trees(ALL_ITEMS[::-1]))
    assert reordered == pytest.approx(_terms(points, _trees()), rel=2e-6)


# --- printed, released and corrected forms --------------------------------------------------------
def _perfect():
    """Return levels at radii .8, .6 and .4, and leaves in time order along the time direction."""
    unit = DIRECTION / np.linalg.norm(DIRECTION)
    across = np.cross(unit, [1.0, 0.0, 0.0])
    across /= np.linalg.norm(across)
    points = np.zeros((2, len(TREE), 3))
    for node, level in enumerate(LEVEL):
        angle = 0.3 + 0.5 * POSITION[node] + 0.1 * level
        points[:, node] = (0.8 - 0.2 * level) * (np.cos(angle) * unit + np.sin(angle) * across)
    return points.astype(np.float32)


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("term", ["chain", "order"])
def test_perfect_embedding_has_no_loss_or_gradient(term):
    points, batch = _perfect(), _trees()
    assert _terms(points, batch)[term] == 0
    np.testing.assert_array_equal(_gradient(term, points, batch), 0)
    # The printed form has a negative loss and moves the points forever.
    assert _terms(points, batch, **{"loss.form": "printed"})[term] < 0
    assert np.any(_gradient(term, points, batch, **{"loss.form": "printed"}))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("term", ["chain", "order"])
def test_only_the_corrected_form_pulls_far_violations(term):
    batch, points = _trees((3,)), _perfect()
    # Tree 1: its root is moved out, its leaves are moved in and have the wrong order of time.
    points[:, [6, 7]] = points[:, [7, 6]] * 0.5
    points[:, 8] *= 1.4
    assert np.any(_gradient(term, points, batch))
    np.testing.assert_array_equal(_gradient(term, points, batch, **{"loss.form": "printed"}), 0)


@pytest.mark.slow
def test_released_form_ignores_the_right_child():
    points, batch = _points(), _trees((1, 3))
    for term in ("tree", "chain"):
        gradient = _gradient(term, points, batch, **{"loss.form": "released"})
        np.testing.assert_array_equal(gradient[:, [1, 7]], 0)
        assert np.any(gradient[:, [0, 6]])
        assert np.any(_gradient(term, points, batch)[:, [1, 7]])


def test_time_direction_reverses_with_left_and_right():
    # The sign of the direction is arbitrary.
    points, batch = _points(), _trees((1, 3))
    rows = batch.subtrees.nodes[:, [0, 2, 1]]
    turned = batch._replace(subtrees=batch.subtrees._replace(nodes=rows))
    config = _config()
    objective = build_objective(config, hover.build(config))

    @jax.jit
    def order(batch, direction):
        return objective.evaluate({"direction": direction}, Points(*points), batch)[1]["order"]

    assert float(order(batch, DIRECTION)) == pytest.approx(float(order(turned, -DIRECTION)), 1e-5)


def _move(points, by):
    """Return the Möbius sum of `by` and the points, computed in float64."""
    x, y = np.float64(by), points.astype(np.float64)
    xy, xx, yy = (y @ x)[..., None], x @ x, np.sum(y * y, -1, keepdims=True)
    moved = ((1 + 2 * xy + yy) * x + (1 - xx) * y) / (1 + 2 * xy + xx * yy)
    return moved.astype(np.float32)


def test_isometries_change_only_the_expected_terms():
    points, batch = _points(), _trees()
    moved, rotation = _move(points, [0.2, -0.1, 0.15]), np.linalg.qr(np.eye(3) + 0.5)[0]
    terms, moved_terms = _terms(points, batch, **BALL), _terms(moved, batch, **BALL)
    for name in ("align", "tree"):
        assert moved_terms[name] == pytest.approx(terms[name], rel=2e-5)
    assert abs(moved_terms["chain"] - terms["chain"]) > 1e-3
    rotated_terms = _terms((points @ rotation.T).astype(np.float32), batch, **BALL)
    for name in ("align", "tree", "chain"):
        assert rotated_terms[name] == pytest.approx(terms[name], rel=2e-5)
    # The order term, whose direction is fixed, ignores the lengths of the points only.
    shorter = points * np.linspace(0.5, 1, points.shape[1], dtype=np.float32)[None, :, None]
    assert _terms(shorter, batch, **BALL)["order"] == pytest.approx(terms["order"], rel=1e-5)
    assert abs(rotated_terms["order"] - terms["order"]) > 1e-3


# --- options --------------------------------------------------------------------------------------
def _outside(x, y):
    """Return the angle by which y lies outside the Euclidean entailment cone of x."""
    x, y = np.float64(x), np.float64(y)
    difference = y - x
    angle = np.arccos(x @ difference / np.linalg.norm(x) / np.linalg.norm(difference))
    return max(angle - np.arcsin(min(CONE / np.linalg.norm(x), 1)), 0)


def test_cone_chain_is_the_angle_outside():
    points, batch = _points(), _trees()
    options = {"loss.chain_form": "cone", "loss.min_radius": CONE}
    video, text = points
    expected = [
        _outside(a[item[0]], b[child])
        for item in ITEMS
        for child in set(item[1:])
        for a, b in ((video, text), (text, video))
    ]
    assert np.mean(expected) > 0.1
    # Angles in float32, in means of up to 18.
    assert _terms(points, batch, **options)["chain"] == pytest.approx(np.mean(expected), rel=2e-5)


@pytest.mark.slow  # it takes seconds
def test_children_behind_parents_lie_in_every_cone():
    batch = _trees((3, 4))
    points = np.zeros((2, len(TREE), 3), np.float32)
    points[:] = np.array([0.3, 0.1, -0.2], np.float32)
    points[:, [6, 7, 9]] *= 2
    for geometry in ("euclidean", "poincare", "lorentz"):
        options = {"loss.chain_form": "cone", "model.geometry": geometry}
        options |= {f"loss.{name}": 0.0 for name in ("align", "tree", "order")}
        assert _terms(points, batch, **options) == {"chain": 0}
        turned = points * np.array([1, -1, 1], np.float32)
        turned[0] = points[0]  # texts across from their videos' cones
        assert _terms(turned, batch, **options)["chain"] > 0.1


def test_released_direction_is_not_normalised():
    points, batch = _points(), _trees((3,))
    order = _terms(points, batch, **{"loss.order_base": "released"})["order"]
    product = points @ DIRECTION / np.linalg.norm(points, axis=-1)
    values = [_hinge(product[1 - a, 7], product[a, 6], "corrected", ORDER_MARGIN) for a in (0, 1)]
    assert order == pytest.approx(np.mean(values), rel=1e-5)


def test_term_without_weight_is_not_computed():
    config = preset(default("hover"), "released")
    objective = build_objective(config, hover.build(config))
    assert objective.terms == ("align", "tree", "chain")


RECORDED = np.load(Path(__file__).parents[1] / "golden" / "hover_losses.npz")
ALPHA = {"align": 1.0, "tree": 1.0, "chain": 1.0, "order": 0.2}
"""Weights of the terms in the released modules."""


MAX_ITEMS = 5
"""Items of the largest case; smaller cases are padded to it, so that they share a program."""


def _batch(items):
    """Return items that share no node: the parents, then the left, then the right children."""
    real = np.arange(MAX_ITEMS) < items
    rows = np.arange(3 * MAX_ITEMS, dtype=np.int32)
    empty, mask = np.zeros((3 * MAX_ITEMS, 1, 1), np.float32), np.ones((3 * MAX_ITEMS, 1), bool)
    nodes = Nodes(empty, mask, empty, mask, np.tile(real, 3))
    subtrees = Subtrees(rows.reshape(3, MAX_ITEMS).T * real[:, None], real, real)
    return TreeBatch(nodes, subtrees, np.zeros((3 * MAX_ITEMS, 3 * MAX_ITEMS), bool))


@functools.cache
def _released():
    config = preset(default("hover"), "released")
    config.model.update(hyperbolic_dim=6)
    config.loss.order = 0.2
    objective = build_objective(config, hover.build(config))

    def total(points, batch, scale, weights):
        params = {"direction": RECORDED["base"], "log_scale": jax.numpy.log(scale)}
        flat = Points(*points.reshape(2, -1, 6))
        terms = objective.evaluate(params, flat, batch)[1]
        return sum(weights[name] * value for name, value in terms.items())

    return jax.jit(jax.value_and_grad(total))


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("case", ["near", "far", "one"])
def test_values_and_gradients_equal_the_released_modules(case):
    recorded = {
        name.partition("/")[2]: RECORDED[name]
        for name in RECORDED.files
        if name.startswith(f"{case}/")
    }
    points = recorded["points"]  # modality, slot, item, coordinate
    items = points.shape[2]
    padded = np.pad(points, ((0, 0), (0, 0), (0, MAX_ITEMS - items), (0, 0)))
    for name, alpha in ALPHA.items():
        weights = {term: np.float32(term == name) for term in ALPHA}
        value, gradient = _released()(padded, _batch(items), recorded["scale"], weights)
        # The released distances add 1e-5 to denominators, and both are float32.
        assert float(value) == pytest.approx(recorded[name] / alpha, rel=2e-4, abs=1e-6)
        expected = recorded[f"{name}_gradient"] / alpha
        size = np.abs(expected).max()
        np.testing.assert_allclose(gradient[:, :, :items], expected, atol=1e-3 * size + 1e-7)
