"""Every layout is trained on and tested by the name of its configuration."""

import json

import corpora
import pytest
from processes import ROOT

from hlformer_jax.config import load
from hlformer_jax.training import loop

LAYOUTS = [  # configuration, what writes the layout, its feature, videos and queries of the test
    ("ms_sl:tvr", "write_hdf5", "feat", (2, 3)),
    ("clip:ms_sl-tvr", "write_clip", "clip_L14", (2, 3)),
    ("clip:clip4clip_seqtransf-tvr", "write_clip", "clip_L14", (2, 3)),
    ("clip:ms_sl-tvr_b32", "write_b32", "clip_B32", (2, 3)),
    ("clip:clip4clip_meanp-anet_b32", "write_b32", "clip_B32_ours", (2, 3)),
    ("clip:ms_sl-anet_b32", "write_b32", "clip_B32_ours_word", (2, 3)),
    ("clip:ms_sl-qv", "write_clip", "slowfast_clip", (2, 3)),  # MSC's file
    ("clip:ms_sl-qv", "", "slowfast_clip", (2, 2)),
    ("clip:ms_sl-qv_clips", "", "slowfast_clip", (1, 1)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "write", "feature", "sizes"), LAYOUTS)
def test_a_layout_is_trained_on(tiny, tmp_path, name, write, feature, sizes):
    file, data = name.split(":")
    config = load(ROOT / "configs" / f"{file}.py", f"{data}-debug")
    manual = tmp_path / "manual"
    config.data.update(manual_dir=str(manual), data_dir=str(tmp_path / "prepared"))
    if write:
        # Sentences and frames of CLIP have one width.
        tiny.frames = {video: frames[:, :5] for video, frames in tiny.frames.items()}
        getattr(tiny, write)(manual, **({} if write == "write_hdf5" else {"feature": feature}))
        config.data.update(collection="tiny", visual_dim=5, text_dim=5, feature=feature)
    else:
        corpora.write_qvhighlights(manual)
        assert config.data.feature == feature
    config.train.update(epochs=1, batch_size=2)
    loop.train(config, tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "test_metrics.json").read_text())
    assert (metrics["videos"], metrics["queries"]) == sizes
    assert metrics["R@100"] == 100
