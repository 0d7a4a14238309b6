"""The models of partially relevant video retrieval on CLIP features, with MSC's hyper-parameters.

    python -m hlformer_jax.main --config=configs/clip.py:hlformer-tvr --workdir=DIR \
        --config.data.manual_dir=PATH

The colon is followed by the model and the data. Models: hlformer (the default), gmmformer_v2,
gmmformer, ms_sl, clip4clip_meanp, clip4clip_seqtransf. `-debug` after them, or `debug` alone,
selects a variant that runs in seconds. PATH contains folders of these layouts (docs/data.md):

| data | features | layout |
| --- | --- | --- |
| tvr, anet, charades | CLIP ViT-L/14 | MSC's |
| tvr_b32, anet_b32 | CLIP ViT-B/32, one vector per sentence | DL-DKD's |
| qv, qv_clips | SlowFast and CLIP ViT-B/32, QVHighlights | Moment-DETR's |

QVHighlights has either joined clips of each YouTube video (`qv`, as MSC reports it) or single clips
(`qv_clips`). For `tvr_b32`, `--config.data.feature=clip_B32_ours` selects UEM's sentence vectors,
and `clip_B32_ours_word` with `--config.data.max_words=77` UEM's tokens.
`configs/own.py:DIR,hlformer,tvr` applies these settings to features extracted by this package's
encoders. Each model keeps its own blocks and losses. SumR published in MSC's paper (no value for
HLFormer is known):

| | ActivityNet Captions | TVR | Charades-STA | QVHighlights, regrouped |
| --- | --- | --- | --- | --- |
| GMMFormer v2 | 196.9 | 258.1 | 94.2 | 225.2 |
| GMMFormer | 187.1 | 241.1 | 89.3 | 211.1 |
| MS-SL | 186.7 | 251.0 | 96.0 | 222.5 |
| zero-shot CLIP | 172.9 | 167.2 | 73.1 | |

CLIP4Clip (Luo et al. 2021) trains CLIP itself. Here the features of CLIP stay fixed. Linear maps of
them, and the transformer of seqTransf, are trained at CLIP4Clip's learning rate of new layers. The
text features of QVHighlights do not fit CLIP4Clip.

MSC pools every video to 128 frames, repeating those of a short video, and merges these to clips by
similarity. Here frames and clips are made as for all other features. On CLIP ViT-B/32 the
hyper-parameters are those of the same data set; no results are published.
"""

from pathlib import Path

from ml_collections import ConfigDict

from hlformer_jax.config import load, of_model, on_data_set, parts_of, variant

MODELS = ("hlformer", "gmmformer_v2", "gmmformer", "ms_sl")
VECTORS = ("clip4clip_meanp", "clip4clip_seqtransf")
"""Models with one vector per video."""

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


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration of MODEL-DATA; "-debug" after it makes it run in seconds."""
    names = [f"{model}-{data}" for model in MODELS for data in DATA]
    names += [f"{model}-{data}" for model in VECTORS for data in DATA if DATA[data] in (L14, B32)]
    choice, size = parts_of(name, tuple(names))
    model, data = choice.split("-")
    config = _start(model, data)
    config.seed = 9527
    config.data.update(DATA[data])

    # MSC's hyper-parameters, the same for every model. QVHighlights has ActivityNet's.
    data_set = data.split("_")[0]
    is_tvr = data_set == "tvr"
    rates = {"tvr": 3e-4, "anet": 2.5e-4, "charades": 2e-4, "qv": 2.5e-4}
    dropouts = {"tvr": 0.2, "anet": 0.31, "charades": 0.25, "qv": 0.31}
    config.optim.learning_rate = rates[data_set]
    config.model.input_dropout = dropouts[data_set]
    config.model.dropout = dropouts[data_set]
    config.model.temperature = 0.09 if is_tvr else 0.6
    config.model.clip_weight = 0.4
    config.model.frame_weight = 0.6
    config.loss.margin = 0.1 if is_tvr else 0.2
    config.loss.diversity_margin = 0.15 if is_tvr else 0.2
    config.loss.clip_nce = 0.05 if is_tvr else 0.02
    config.loss.frame_nce = 0.04
    config.loss.hard_negative_epoch = 20
    config.train.baseline = True

    if model in VECTORS:
        config.model.hidden_size = DATA[data]["text_dim"]
        config.loss.frame_nce = 0.5  # the mean of both directions
        config.optim.learning_rate = 1e-4
    return variant(config, size)


def _start(model: str, data: str) -> ConfigDict:
    """Return the model's configuration on the data set; QVHighlights has that of ActivityNet."""
    data_set = data.split("_")[0]
    if data_set == "qv":
        data_set = "anet"
    folder = Path(__file__).parent
    if model == "hlformer":
        return load(folder / f"{data_set}.py")
    if model in VECTORS:
        return on_data_set(of_model(model), data_set)
    return load(folder / f"{model}.py", data_set)
