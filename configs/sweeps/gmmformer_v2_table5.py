"""Table 5 of GMMFormer v2: the number of Gaussian blocks, of v2 and of GMMFormer.

    python -m hlformer_jax.sweep --config=configs/sweeps/gmmformer_v2_table5.py --workdir=DIR \
        --config.base.data.manual_dir=PATH

The paper samples the blocks "uniformly" and does not say which widths this gives. Here they are
evenly spaced in the sorted list of all eight widths, including its ends. "No window", which is
written as 0, counts as an infinite width. GMMFormer with four blocks is the unchanged configuration
of GMMFormer.
"""

from ml_collections import ConfigDict

from hlformer_jax.sweep import PUBLISHED_ON, define, metrics

WIDTHS = {
    2: (0.0, 0.1),
    4: (0.0, 0.1, 1.0, 8.0),
    6: (0.0, 0.1, 0.5, 3.0, 5.0, 10.0),
    8: (0.0, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0),
}
PUBLISHED = {
    "GMMFormer": {2: 142.2, 4: 146.0, 6: 145.4, 8: 144.6},
    "GMMFormer v2": {2: 151.0, 4: 152.5, 6: 153.8, 8: 154.9},
}


def get_config(name: str = "") -> ConfigDict:
    """Return the sweep; "debug" is a rehearsal that takes minutes."""
    names = {(model, count): f"{model}, {count}" for model in PUBLISHED for count in WIDTHS}
    bank = {
        count: {"model": {"euclidean_blocks": count, "euclidean_widths": widths}}
        for count, widths in WIDTHS.items()
    }
    variants = {}
    for (model, count), key in names.items():
        own = model == "GMMFormer" and count == 4
        variants[key] = ({} if own else bank[count]) | (
            {"base": "gmmformer"} if model == "GMMFormer" else {}
        )
    return define(
        __file__,
        name,
        title="GMMFormer v2, Table 5: number of Gaussian blocks",
        base="../gmmformer_v2.py:anet",
        bases={"gmmformer": "../gmmformer.py:anet"},
        variants=variants,
        published_on=PUBLISHED_ON["anet"],
        published={key: metrics(PUBLISHED[model][count]) for (model, count), key in names.items()},
        quantity="Gaussian blocks",
        values={key: count for (_, count), key in names.items()},
        series={key: model for (model, _), key in names.items()},
    )
