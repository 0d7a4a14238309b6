"""MS-SL on the three data sets, with the released hyper-parameters.

    python -m hlformer_jax.main --config=configs/ms_sl.py:tvr --workdir=DIR \
        --config.data.manual_dir=PATH

The colon is followed by the data set: anet (the default), tvr or charades. `-debug` after it, or
`debug` alone, selects a variant that runs in seconds. PATH contains `activitynet/`, `tvr/` or
`charades/` as released. Published:

| | R@1 | R@5 | R@10 | R@100 | SumR |
| --- | --- | --- | --- | --- | --- |
| ActivityNet Captions | 7.1 | 22.5 | 34.7 | 75.8 | 140.1 |
| TVR | 13.5 | 32.1 | 43.4 | 83.4 | 172.4 |
| Charades-STA | 1.8 | 7.1 | 11.8 | 47.7 | 68.4 |
"""

from ml_collections import ConfigDict

from hlformer_jax.config import of_model, on_data_set, parts_of, variant


def get_config(name: str = "") -> ConfigDict:
    """Return the configuration of a data set; "-debug" after it makes it run in seconds."""
    data_set, size = parts_of(name)
    config = of_model("ms_sl")
    config.seed = 0

    # Features that MS-SL's authors released.
    on_data_set(config, data_set)
    config.data.max_frames = 128
    config.data.max_clips = 32
    config.data.max_words = 30

    # One Transformer layer without a window in each branch.
    config.model.hidden_size = 384
    config.model.num_heads = 4
    config.model.euclidean_blocks = 1
    config.model.lorentz_blocks = 0
    config.model.euclidean_widths = ()
    config.model.fusion = "mean"
    config.model.input_dropout = 0.1
    config.model.dropout = 0.1

    # Ranking: weights of the frame branch and the clip branch.
    config.model.gaze = True
    config.model.glance = True
    config.model.video_level = False
    config.model.frame_weight = {"anet": 0.3, "tvr": 0.3, "charades": 0.5}[data_set]
    config.model.clip_weight = {"anet": 0.7, "tvr": 0.7, "charades": 0.5}[data_set]

    # Similarity loss of both branches; no other term.
    config.loss.clip_triplet = 1.0
    config.loss.frame_triplet = 1.0
    config.loss.clip_nce = 0.02
    config.loss.frame_nce = 0.04
    config.loss.margin = {"anet": 0.2, "tvr": 0.1, "charades": 0.2}[data_set]
    config.loss.hard_negative_epoch = 20
    config.loss.hard_pool_size = 20
    config.loss.query_diversity = 0.0
    config.loss.partial_order = 0.0
    config.loss.optimal_matching = 0.0

    # BERT's Adam: linear warm-up and decay.
    config.optim.learning_rate = 2.5e-4
    config.optim.warmup = 0.01
    config.optim.beta1 = 0.9
    config.optim.beta2 = 0.999
    config.optim.epsilon = 1e-6
    config.optim.weight_decay = 0.01
    config.optim.clip_norm = 1.0

    config.train.epochs = 100
    config.train.batch_size = 128
    config.train.patience = 11  # the released code says 10 and stops after 11
    config.eval.select = "SumR"
    return variant(config, size)
