"""Public transformations of optax on points: each learns, or is refused before the first step."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import optax.transforms
import pytest
import test_optim
from compiled import compile_space

from hlformer_jax.ops.manifolds import Lorentz, Poincare, Sphere
from hlformer_jax.ops.optim import ManifoldError, riemannian

RATE = 0.05
STEPS = 30

# Modules of optax whose public functions do not transform gradients.
HELPER_MODULES = (
    *("losses", "schedules._schedule", "schedules._join", "microbatching", "tree_utils"),
    *("_src.linear_algebra", "_src.numerics", "_src.update", "_src.utils"),
)
# Public functions that are not transformations, in the modules of transformations.
HELPER_FUNCTIONS = {
    *("init_empty_state", "value_and_grad_from_state", "schedule_free_eval_params"),
    *("skip_large_updates", "skip_not_finite", "unitwise_clip", "unitwise_norm"),
    *("per_example_global_norm_clip", "per_example_layer_norm_clip"),
}


def _public():
    """Return the public functions of optax that make transformations, by name."""
    functions = {}
    for module in (optax, optax.contrib, optax.transforms):
        for name, value in vars(module).items():
            is_maker = inspect.isfunction(value) or name == "MultiSteps"
            place = getattr(value, "__module__", "").removeprefix("optax.")
            if is_maker and name[0] != "_" and not place.startswith(HELPER_MODULES):
                functions[name] = value
    return {name: value for name, value in functions.items() if name not in HELPER_FUNCTIONS}


PUBLIC = _public()


def _descend(*transformations):
    return optax.chain(*transformations, optax.scale(-RATE))


COMPONENTS = {
    *("scale_by_adam", "scale_by_adamax", "scale_by_adan"),
    *("scale_by_amsgrad", "scale_by_belief", "scale_by_distance_over_gradients"),
    *("scale_by_factored_rms", "scale_by_lion", "scale_by_novograd"),
    *("scale_by_optimistic_gradient", "scale_by_param_block_norm", "scale_by_param_block_rms"),
    *("scale_by_radam", "scale_by_rms", "scale_by_rss", "scale_by_sign"),
    *("scale_by_sm3", "scale_by_trust_ratio", "scale_by_yogi"),
    *("scale_by_acprop", "scale_by_ademamix", "scale_by_adopt", "scale_by_cocob"),
    "scale_by_galore",
    *("centralize", "identity", "keep_params_nonnegative", "normalize_by_update_norm"),
    *("zero_nans", "normalize"),
}
WRAPPERS = {
    "flatten": lambda inner: optax.flatten(inner),
    "freeze": lambda inner: optax.chain(
        inner, optax.freeze(lambda params: jax.tree.map(lambda _: False, params))
    ),
    "inject_stateful_hyperparams": lambda inner: optax.inject_stateful_hyperparams(optax.sgd)(RATE),
    "lookahead": lambda inner: optax.lookahead(inner, 5, 0.5),
    "measure_with_ema": lambda inner: optax.chain(
        inner, optax.monitor({"norm": optax.measure_with_ema(optax.global_norm, 0.9)})
    ),
    "mechanize": lambda inner: optax.contrib.mechanize(inner),
    "monitor": lambda inner: optax.chain(inner, optax.monitor({"norm": optax.global_norm})),
    "sam": lambda inner: optax.contrib.sam(inner, optax.sgd(RATE), opaque_mode=True),
    "schedule_free": lambda inner: optax.contrib.schedule_free(inner, RATE),
    "snapshot": lambda inner: optax.chain(inner, optax.snapshot("norm", optax.global_norm)),
    "split_real_and_imaginary": lambda inner: optax.contrib.split_real_and_imaginary(inner),
}
# test_optim.py compares the steps of these wrappers with the wrapped optimiser.
EXACT_WRAPPERS = test_optim.WRAPPERS.keys() & PUBLIC.keys()
MAKERS = {
    "adadelta": lambda: optax.adadelta(1.0),
    "adaptive_grad_clip": lambda: _descend(optax.adaptive_grad_clip(0.1)),
    "add_decayed_weights": lambda: _descend(optax.add_decayed_weights(0.01)),
    "add_noise": lambda: _descend(optax.add_noise(1e-4, 0.55, key=0)),
    "apply_every": lambda: _descend(optax.apply_every(2)),
    "clip": lambda: _descend(optax.clip(1.0)),
    "clip_by_block_rms": lambda: _descend(optax.clip_by_block_rms(1.0)),
    "clip_by_global_norm": lambda: _descend(optax.clip_by_global_norm(1.0)),
    "cocob": lambda: optax.contrib.cocob(),
    "differentially_private_aggregate": lambda: _descend(
        optax.contrib.differentially_private_aggregate(10.0, 1e-3, key=0)
    ),
    "dpsgd": lambda: optax.contrib.dpsgd(RATE, 10.0, 1e-3, seed=0),
    "ema": lambda: _descend(optax.ema(0.9)),
    "hutchinson_estimator_diag_hessian": lambda: _descend(
        optax.contrib.hutchinson_estimator_diag_hessian()
    ),
    "lars": lambda: optax.lars(20 * RATE),
    "lbfgs": lambda: optax.lbfgs(RATE, linesearch=None),
    "optimistic_adam": lambda: optax.optimistic_adam(RATE, 1.0),
    "reduce_on_plateau": lambda: _descend(optax.contrib.reduce_on_plateau()),
    "scale": lambda: optax.scale(-RATE),
    "scale_by_adadelta": lambda: optax.chain(optax.scale_by_adadelta(), optax.scale(-1.0)),
    "scale_by_simplified_ademamix": lambda: optax.chain(
        optax.contrib.scale_by_simplified_ademamix(), optax.scale(-RATE / 100)
    ),
    "simplified_ademamix": lambda: optax.contrib.simplified_ademamix(RATE / 100),
    "scale_by_backtracking_linesearch": lambda: optax.chain(
        optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10)
    ),
    "scale_by_lbfgs": lambda: _descend(optax.scale_by_lbfgs()),
    "scale_by_learning_rate": lambda: optax.scale_by_learning_rate(RATE),
    "scale_by_madgrad": lambda: optax.contrib.scale_by_madgrad(RATE),
    "scale_by_muon": lambda: _descend(
        optax.contrib.scale_by_muon(
            weight_dimension_numbers=lambda params: jax.tree.map(
                lambda _: optax.contrib.MuonDimensionNumbers(), params
            )
        )
    ),
    "scale_by_polyak": lambda: optax.chain(optax.scale_by_polyak(), optax.scale(-1.0)),
    "scale_by_rprop": lambda: optax.chain(optax.scale_by_rprop(RATE), optax.scale(-1.0)),
    "scale_by_stddev": lambda: _descend(optax.scale_by_stddev(eps=0.01)),
    "scale_by_schedule": lambda: optax.scale_by_schedule(lambda step: -RATE),
    "scale_by_zoom_linesearch": lambda: optax.chain(
        optax.sgd(1.0), optax.scale_by_zoom_linesearch(10)
    ),
    "set_to_zero": lambda: optax.set_to_zero(),
    "sgd": lambda: optax.sgd(RATE, momentum=0.5),
    "stateless": lambda: _descend(optax.stateless(lambda updates, params: updates)),
    "stateless_with_tree_map": lambda: _descend(
        optax.stateless_with_tree_map(lambda update, param: update)
    ),
    "trace": lambda: _descend(optax.trace(0.5)),
}


def make(name):
    """Make a transformation of this name that descends, wrapped or completed by scaling."""
    if name in WRAPPERS:
        return WRAPPERS[name](optax.adam(RATE))
    if name in MAKERS:
        return MAKERS[name]()
    return _descend(PUBLIC[name]()) if name in COMPONENTS else PUBLIC[name](RATE)


SPACES = {"ball": Poincare(0.7), "hyperboloid": Lorentz(0.7), "sphere": Sphere(0.5)}
# These take a gradient per example, with a leading axis.
PER_EXAMPLE = {"differentially_private_aggregate", "dpsgd"}
# Has no meaning for points.
MEANINGLESS = {"keep_params_nonnegative"}
# Move nothing, by definition.
UNMOVED = {"set_to_zero"}
# Their states hold coordinates of points, or cannot be transported.
REFUSED = {
    *("cocob", "scale_by_cocob", "dadapt_adamw", "dog", "dowg", "flatten", "galore"),
    *("scale_by_galore", "hutchinson_estimator_diag_hessian", "sophia", "lbfgs", "scale_by_lbfgs"),
    *("lookahead", "madgrad", "scale_by_madgrad", "mechanize", "momo", "momo_adam", "prodigy"),
    *("sam", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"),
    *("scale_by_distance_over_gradients", "schedule_free", "schedule_free_adamw"),
    "schedule_free_sgd",
}
# Missing in optax 0.2.5, the oldest supported version.
NEWER = {
    *("galore", "madgrad", "measure_with_ema", "monitor", "scale_by_galore", "scale_by_madgrad"),
    "snapshot",
}
# Tested without --all: two that scale by the norm of a parameter, and each kind of refusal.
DAILY = {"adaptive_grad_clip", "adafactor", "cocob", "lookahead"}


@jax.jit
def _losses(params, goals):
    """Return the mean squared distance to the goals in each space; it is geodesically convex."""
    pairs = zip(SPACES.items(), goals.values(), strict=True)
    return {name: jnp.mean(space.distance(params[name], y) ** 2) for (name, space), y in pairs}


def _points(seed):
    u = np.random.default_rng(seed).normal(0.3, 0.3, size=(4, 3)).astype(np.float32)
    return {name: compile_space(space).exp_map0(u) for name, space in SPACES.items()}


def test_every_public_transformation_has_a_case():
    cases = {*COMPONENTS, *WRAPPERS, *EXACT_WRAPPERS, *MAKERS, *PER_EXAMPLE, *REFUSED, *UNMOVED}
    assert cases - PUBLIC.keys() <= NEWER and len(PUBLIC) > 100


# Optax warns of deprecated names and of missing keys.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Specifying a key:UserWarning")
@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in DAILY else pytest.mark.slow)
        for n in sorted(PUBLIC.keys() - EXACT_WRAPPERS - MEANINGLESS)
    ],
)
def test_transformation_learns_or_is_refused(name):
    start, goals = _points(0), _points(1)
    optimizer = riemannian(make(name), SPACES)
    if name in REFUSED:
        with pytest.raises(ManifoldError, match="riemannian: "):
            optimizer.init(optax.LookaheadParams(start, start) if name == "lookahead" else start)
        return

    def total(params):
        return sum(_losses(params, goals).values())

    # Compiled once, or twice if a monitor adds to its state in the first step. In a loop of XLA the
    # step would always be compiled twice.
    @jax.jit
    def step(params, state):
        value, gradients = jax.value_and_grad(total)(params)
        if name in PER_EXAMPLE:
            gradients = jax.tree.map(lambda g: g[None], gradients)
        updates, state = optimizer.update(
            gradients, state, params, value=value, grad=gradients, value_fn=total
        )
        return optax.apply_updates(params, updates), state

    params, state = start, jax.jit(optimizer.init)(start)
    for _ in range(STEPS):
        params, state = step(params, state)
    before, after = _losses(start, goals), _losses(params, goals)
    for space in SPACES:
        assert np.isfinite(after[space])
        learns = bool(after[space] < 0.9 * before[space])
        assert learns is not (name in UNMOVED), (space, after, before)
