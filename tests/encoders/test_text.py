import dataclasses

import jax
import numpy as np
import pytest

from hlformer_jax.encoders import text
from hlformer_jax.encoders.config import LARGEST_ID


@pytest.mark.parametrize(("kind", "ahead"), [("old_clip", False), ("siglip", True)])
def test_tokens_of_a_clip_read_those_before_them_and_a_siglips_read_all(loaded, kind, ahead):
    encoder = loaded(kind)
    states = jax.jit(lambda ids: text.states(encoder.params["text"], encoder.config, ids))
    ids = np.arange(5, 13, dtype=np.int32)[None]
    other = ids.copy()
    other[0, 4] = 20
    before, after = np.asarray(states(ids)), np.asarray(states(other))
    assert before.shape == (1, 8, encoder.config.text.width)
    assert np.array_equal(before[:, :4], after[:, :4]) != ahead
    assert (before[:, 4:] != after[:, 4:]).any(axis=-1).all()


@pytest.mark.parametrize(
    ("kind", "eos", "positions"),
    [
        ("old_clip", LARGEST_ID, (4, 1)),  # the first of the largest ids
        ("new_clip", 7, (2, 3)),  # the first end of the sentence
        ("siglip", 7, (5, 5)),
    ],
)
def test_a_sentence_is_pooled_at_its_end_or_a_siglips_at_the_last_position(
    loaded, kind, eos, positions
):
    encoder = loaded(kind)
    sizes = encoder.config
    sizes = dataclasses.replace(sizes, text=dataclasses.replace(sizes.text, eos=eos))
    ids = np.array([[3, 5, 7, 7, 9, 9], [3, 9, 5, 7, 9, 0]], np.int32)
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2, 6, sizes.text.width)).astype(np.float32)
    found = text.pool(encoder.params["text"], sizes, hidden, ids)
    head = encoder.params["text"]["head"]
    expected = hidden[np.arange(2), positions] @ np.asarray(head["kernel"])
    np.testing.assert_allclose(found, expected + np.asarray(head.get("bias", 0)), atol=2e-6)


def test_vectors_of_sentences_have_norm_1_and_come_with_the_states_of_tokens(loaded):
    encoder = loaded("siglip")
    params, config = encoder.params["text"], encoder.config
    ids = np.arange(12, dtype=np.int32).reshape(2, 6)
    vectors, hidden = jax.jit(lambda ids: text.encode(params, config, ids))(ids)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    pooled = np.asarray(text.pool(params, config, hidden, ids))
    np.testing.assert_allclose(
        vectors, pooled / np.linalg.norm(pooled, axis=1, keepdims=True), atol=2e-6
    )
