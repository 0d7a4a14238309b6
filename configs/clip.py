"""The family on CLIP features, with the hyper-parameters of MSC's authors.

    python -m hlformer_jax.main --config=configs/clip.py:hlformer-tvr --workdir=DIR \
        --config.data.manual_dir=PATH

Behind the colon stand the model (hlformer, the default, gmmformer_v2, gmmformer, ms_sl,
clip4clip_meanp or clip4clip_seqtransf) and the data; with -debug behind it, or with debug alone, it
is a variant that runs in seconds. PATH holds folders of these layouts (docs/data.md):

| data | features | layout |
| --- | --- | --- |
| tvr, anet, charades | CLIP ViT-L/14 | MSC's |
| tvr_b32, anet_b32 | CLIP ViT-B/32, a vector a sentence | DL-DKD's |
| qv, qv_clips | SlowFast and CLIP ViT-B/32, QVHighlights | Moment-DETR's |

QVHighlights is regrouped by video (`qv`, as MSC reports it) or has single clips (`qv_clips`). Of
`tvr_b32` UEM's texts are `--config.data.feature=clip_B32_ours`, and `clip_B32_ours_word` with
`--config.data.max_words=77`. Features that this package's own encoders made are another source of
these settings: `configs/own.py:DIR,hlformer,tvr`. A model keeps its blocks and the losses that are
its own. Published
SumR, by MSC's paper (HLFormer's is not known):

| | ActivityNet Captions | TVR | Charades-STA | QVHighlights, regrouped |
| --- | --- | --- | --- | --- |
| GMMFormer v2 | 196.9 | 258.1 | 94.2 | 225.2 |
| GMMFormer | 187.1 | 241.1 | 89.3 | 211.1 |
| MS-SL | 186.7 | 251.0 | 96.0 | 222.5 |
| zero-shot CLIP | 172.9 | 167.2 | 73.1 | |

CLIP4Clip (Luo et al. 2021) trains CLIP itself; here its features stay, and linear maps of them, and
seqTransf's transformer, are trained at its rate of new layers. QVHighlights has no texts for it.

MSC pools every video to 128 frames, repeating those of a short one, and merges these to clips by
their likeness; here frames and clips are made as of all other features. On CLIP ViT-B/32 the
hyper-parameters are those of the same data set, and nothing is published.
"""

from pathlib import Path

from ml_collections import ConfigDict

from hlformer_jax.config import load, of_model, on_data_set, parts_of, variant

MODELS = ("hlformer", "gmmformer_v2", "gmmformer", "ms_sl")
VECTORS = ("clip4clip_meanp", "clip4clip_seqtransf")

L14 = {"feature": "clip_L14", "visual_dim": 768, "text_dim": 768, "max_words": 77}
B32 = {"feature": "clip_B32", "visual_dim": 512, "text_dim": 512, "max_words": 1}
QV = {"feature": "slowfast_clip", "visual_dim": 2816, "text_dim": 512, "max_words": 32}

DATA = {
    "tvr": L14,
    "anet": L14,
    "charades": L14,
    "tvr_b32": B32,
    "anet_b32": B32,
    "qv": QV | {"collection": "qvhighlights_youtube"},
    "qv_clips": QV | {"collection": "qvhighlights"},
}

# Of all models; learning rate, dropouts, margin, temperature, margin of the diversity, weight of
# the clips' contrastive term.
SETTINGS = {
    "tvr": (3e-4, 0.2, 0.1, 0.09, 0.15, 0.05),
    "anet": (2.5e-4, 0.31, 0.2, 0.6, 0.2, 0.02),
    "charades": (2e-4, 0.25, 0.2, 0.6, 0.2, 0.02),
    "qv": (2.5e-4, 0.31, 0.2, 0.6, 0.2, 0.02),
}


def get_config(name: str = "") -> ConfigDict:
    """Returns the configuration of a model and a data set; "debug" runs in seconds."""
    known = [f"{model}-{data}" for model in MODELS for data in DATA]
    known += [f"{model}-{data}" for model in VECTORS for data in DATA if DATA[data] in (L14, B32)]
    both, size = parts_of(name, tuple(known))
    model, data = both.split("-")
    data_set = data.split("_")[0]
    start = "anet" if data_set == "qv" else data_set
    here = Path(__file__).parent
    if model == "hlformer":
        config = load(here / f"{start}.py")
    elif model in VECTORS:
        config = on_data_set(of_model(model), start)
    else:
        config = load(here / f"{model}.py", start)
    rate, dropout, margin, temperature, diversity_margin, clip_nce = SETTINGS[data_set]
    config.update(
        {
            "seed": 9527,
            "data": DATA[data],
            "model": {
                "input_dropout": dropout,
                "dropout": dropout,
                "temperature": temperature,
                "clip_weight": 0.4,
                "frame_weight": 0.6,
            },
            "loss": {
                "margin": margin,
                "diversity_margin": diversity_margin,
                "clip_nce": clip_nce,
                "frame_nce": 0.04,
                "hard_negative_epoch": 20,
            },
            "optim": {"learning_rate": rate},
            "train": {"baseline": True},
        }
    )
    if model in VECTORS:
        config.model.hidden_size = DATA[data]["text_dim"]
        config.loss.frame_nce = 0.5  # the mean of both directions
        config.optim.learning_rate = 1e-4
    return variant(config, size)
