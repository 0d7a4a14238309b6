"""What a checkpoint says of its model, compared by what it means."""

import json

import tiny

from hlformer_jax.models.description import describe, meaning


def test_a_description_is_json_and_leaves_out_what_may_differ():
    fields = describe(tiny.config())
    assert json.loads(json.dumps(fields)) == fields
    assert fields == describe(tiny.config(**{"model.dropout": 0.5, "model.clip_weight": 0.1}))
    for other in ({"model.hidden_size": 12}, {"data.max_words": 5}, {"model.fusion": "mean"}):
        assert describe(tiny.config(**other)) != fields


def test_widths_mean_the_same_however_they_are_written():
    means = lambda **options: meaning(describe(tiny.config(**options)))
    assert means() == means(**{"model.euclidean_widths": (0.0, 2.0)})
    assert means(**{"model.lorentz_widths": (3.0,)}) == means(
        **{"model.lorentz_widths": (3.0, 3.0)}
    )
    assert means() != means(**{"model.euclidean_widths": (0.0, 4.0)})
    # MS-SL's one block without a window, which converted checkpoints write as [0.0].
    one = {"model.euclidean_blocks": 1, "model.lorentz_blocks": 0}
    assert means(**one) == means(**one, **{"model.euclidean_widths": (0.0,)})
    assert means(**one) == means(**one, **{"model.lorentz_dim": 3})  # of no block
    assert means() != means(**{"model.lorentz_dim": 3})
