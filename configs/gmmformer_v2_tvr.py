"""GMMFormer v2 on TVR, with the released hyper-parameters (Table 7 of the paper).

    python -m hlformer_jax.main --config=configs/gmmformer_v2_tvr.py --workdir=DIR \
        --config.data.manual_dir=PATH

PATH holds `tvr/` as released. Published: R@1 16.2, R@5 37.6, R@10 48.8, R@100 86.4,
SumR 189.1.
"""

from ml_collections import ConfigDict

from hlformer_jax.config import default, variant


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration; "debug" is a variant that runs in seconds."""
    config = default()
    config.update(
        {
            "data": {
                "collection": "tvr",
                "feature": "i3d_resnet",
                "visual_dim": 3072,
                "text_dim": 768,
            },
            "model": {
                "name": "gmmformer_v2",
                "euclidean_blocks": 8,
                "lorentz_blocks": 0,
                "euclidean_widths": (0.0, 0.5, 1.0, 5.0, 10.0, 3.0, 0.1, 8.0),
                "fusion": "consolidation",
                "temperature": 0.09,
                "input_dropout": 0.2,
                "dropout": 0.2,
            },
            "loss": {
                "margin": 0.1,
                "diversity_margin": 0.15,
                "clip_nce": 0.05,
                "query_diversity": 8e-5,
                "partial_order": 0.0,
                "optimal_matching": 0.09,
            },
            "optim": {"learning_rate": 3e-4},
        }
    )
    return variant(config, name)
