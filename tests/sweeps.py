"""A sweep of one's own, and results of its runs without running them."""

from processes import ROOT

from hlformer_jax.sweep.definition import METRICS, define

HERE = str(ROOT / "configs" / "sweeps" / "here.py")


def sweep(variants, name="", base="../anet.py", **more):
    """A sweep as a file in configs/sweeps/ would define it."""
    return define(HERE, name, title="a | title", base=base, variants=variants, **more)


def result(run, sum_recall):
    """What a run with that SumR leaves in result.json."""
    metrics = dict(zip(METRICS, (1.0, 2.0, 3.0, sum_recall - 6, sum_recall), strict=True))
    cost = {"parameters": 1234567, "flops_video": 2.5e9, "flops_caption": 1.5e6}
    return {
        "variant": run.variant, "corpus": run.corpus, "seed": run.seed, "metrics": metrics,
        "seconds_per_epoch": 1.5,
        "versions": {"jax": "0"}, **cost,
    }  # fmt: skip
