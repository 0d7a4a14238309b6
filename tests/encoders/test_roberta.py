"""RoBERTa's token features agree with transformers, for files of either naming."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError, config, families
from hlformer_jax.encoders.families.roberta import RobertaConfig

AGREEMENT = 1e-5
"""Largest difference of float32 states, relative to their norm; 7e-7 if XLA optimises."""

ROUNDED = 2**-5
"""Largest difference in bfloat16; see test_encoder.py."""


@pytest.fixture(scope="module")
def roberta(golden):
    return encoders.load_text(golden / "roberta")


@pytest.fixture
def kind():
    return "roberta"


def difference(actual, reference):
    distance = np.linalg.norm(actual - reference, axis=-1)
    return float((distance / np.linalg.norm(reference, axis=-1)).max())


def test_tokens_and_their_features_agree_with_transformers(roberta, expected, sentences):
    ids, real = roberta.tokenizer(sentences)
    np.testing.assert_array_equal(ids, expected.ids)
    features = roberta.encode_tokens(sentences)
    for actual, reference, mask in zip(features, expected.tokens, real, strict=True):
        assert actual.shape == (mask.sum(), 24) and actual.dtype == np.float32
        assert difference(actual, reference[mask]) < AGREEMENT
    assert [len(features[1]), len(features[4])] == [2, 30]  # marks alone; cut, with its end mark
    assert ids[4, -1] == 2
    assert (roberta.kind, roberta.token_width, roberta.max_tokens) == ("roberta", 24, 30)


@pytest.mark.slow  # it takes seconds
def test_padding_does_not_change_features(roberta, sentences):
    ids, real = roberta.tokenizer(sentences[:1])
    count = int(real.sum())

    def states(ids, real):
        family = families.text_family(roberta.config)
        params = roberta.params["text"]
        return family.token_states(params, roberta.config, jnp.asarray(ids), jnp.asarray(real))

    padded = states(ids, real)[:, :count]
    np.testing.assert_allclose(padded, states(ids[:, :count], real[:, :count]), atol=2e-6)
    other_padding = np.where(real, ids, 7)
    np.testing.assert_array_equal(padded, states(other_padding, real)[:, :count])
    batched = roberta.encode_tokens(sentences * 9)
    np.testing.assert_allclose(batched[5], roberta.encode_tokens(sentences[:1])[0], atol=5e-6)


def test_bfloat16_is_used_for_kernels_and_is_near_float32(golden, expected, sentences):
    encoder = encoders.load_text(golden / "roberta", dtype="bfloat16")
    _, real = encoder.tokenizer(sentences)
    features = np.concatenate(encoder.encode_tokens(sentences))
    assert features.dtype == np.float32
    assert 1e-4 < difference(features, expected.tokens[real]) < ROUNDED
    dtypes = {
        jax.tree_util.keystr(path): leaf.dtype
        for path, leaf in jax.tree_util.tree_leaves_with_path(encoder.params)
    }
    small = {name for name, dtype in dtypes.items() if dtype == ml_dtypes.bfloat16}
    assert small == {n for n in dtypes if n.endswith("['kernel']") or "tokens" in n}


def test_names_may_lack_the_prefix_and_include_a_pooler(copy, roberta, sentences):
    folder = copy("roberta")
    path = folder / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    bare = {
        name.removeprefix("roberta."): value
        for name, value in tensors.items()
        if name.startswith("roberta.")
    }
    bare["pooler.dense.weight"] = np.zeros((24, 24), np.float32)
    bare["embeddings.position_ids"] = np.arange(34)[None]
    safetensors.numpy.save_file(bare, path)
    for actual, reference in zip(
        encoders.load_text(folder).encode_tokens(sentences),
        roberta.encode_tokens(sentences),
        strict=True,
    ):
        np.testing.assert_array_equal(actual, reference)
    safetensors.numpy.save_file(bare | {"encoder.layer.2.output.dense.bias": np.zeros(24)}, path)
    with pytest.raises(EncoderError, match="unknown tensor"):
        encoders.load_text(folder)


def test_defaults_and_sizes_of_files_of_the_hub():
    large = {
        "model_type": "roberta", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": 514,
        "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    }  # fmt: skip
    read = families.read_config(large, "f", text_only=True)
    text = config.Text(1024, 4096, 24, 16, "gelu", 1e-5, 50265, 512, 0, 1)
    assert read == RobertaConfig("roberta", text, 1)
    bare = families.read_config({"model_type": "roberta"}, "f", text_only=True)
    assert bare.text == config.Text(768, 3072, 12, 12, "gelu", 1e-12, 50265, 510, 0, 1)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"position_embedding_type": "relative_key"}, "relative"),
        ({"max_position_embeddings": 2}, "max_position_embeddings"),
        ({"type_vocab_size": 2}, "token_type_embeddings"),
    ],
)
def test_misfitting_value_is_named(copy, changed, name):
    path = copy("roberta") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(EncoderError, match=f"^{path.parent}.*{name}"):
        encoders.load_text(path.parent)


def test_image_text_encoder_has_token_features(golden, loaded, sentences):
    with pytest.raises(EncoderError, match="image-text"):
        encoders.load(golden / "roberta")
    both, alone = loaded("siglip"), encoders.load_text(golden / "siglip")
    np.testing.assert_array_equal(
        both.encode_tokens(sentences)[0], alone.encode_tokens(sentences)[0]
    )
    assert both.fingerprint == alone.fingerprint
