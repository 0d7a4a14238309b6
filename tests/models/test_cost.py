"""The cost of a model: counted by hand, and the same however it is computed."""

import tiny

from hlformer_jax.models.cost import cost

PLAIN = {
    "model.name": "gmmformer_v2",
    "model.gaze": False,
    "model.euclidean_blocks": 1,
    "model.lorentz_blocks": 0,
    "model.fusion": "mean",
    "model.hidden_size": 32,
    "data.visual_dim": 48,
    "data.text_dim": 24,
}


def _dense(inside, outside):
    return inside * outside + outside


def test_parameters_and_products_are_those_counted_by_hand():
    found = cost(tiny.config(**PLAIN))
    h, norm = 32, 2 * 32
    block = 3 * _dense(h, h) + _dense(h, 4 * h) + _dense(4 * h, h) + 2 * norm
    branch = lambda width, positions: 2 * width + _dense(width, h) + positions * h + norm + block
    # The query's encoder pools its words by one vector.
    assert found.parameters == branch(48, tiny.FRAMES) + branch(24, tiny.WORDS) + h

    def products(rows, width):
        inner = 3 * h * h + 2 * rows * h + 8 * h * h
        return 2 * rows * (width * h + inner)

    video, caption = products(tiny.CLIPS, 48), products(tiny.WORDS, 24) + 4 * tiny.WORDS * h
    # Beside products there are normalisation and softmax: tens of operations an element.
    assert 1 <= found.flops_video / video < 1.2
    assert 1 <= found.flops_caption / caption < 1.2


def test_parts_of_a_batch_do_not_change_the_count():
    other = tiny.config(**PLAIN, **{"train.encode_parts": 4})
    assert cost(other) == cost(tiny.config(**PLAIN))
    assert other.train.encode_parts == 4
