import json

import numpy as np
import pytest
import tokenizers

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError, tokenizer


def test_ids_agree_with_transformers(encoder, expected, sentences):
    ids, real = encoder.tokenizer(sentences)
    np.testing.assert_array_equal(ids, expected.ids)
    assert ids.dtype == np.int32 and real.dtype == bool and real.shape == ids.shape


def test_a_long_sentence_is_cut_and_keeps_its_end(encoder, sentences):
    ids, real = encoder.tokenizer(sentences)
    assert ids.shape[1] == encoder.max_tokens
    assert real[-1].all() and not real[1].all()
    end = ids[1][real[1]][-1]  # of the empty sentence, whose last real token is its end mark
    assert ids[-1, -1] == end


def test_the_empty_sentence_has_its_marks(loaded):
    for kind, marks in [("old_clip", 2), ("new_clip", 2), ("siglip", 1), ("siglip2", 1)]:
        _, real = loaded(kind).tokenizer([""])
        assert real.sum() == marks
        vector = loaded(kind).sentences(["", "   "])
        np.testing.assert_allclose(np.linalg.norm(vector, axis=1), 1, atol=1e-6)


def test_capitals_and_punctuation_as_each_was_trained(loaded):
    same = lambda kind, a, b: np.array_equal(*loaded(kind).tokenizer([a, b])[0])
    assert same("siglip", "A red, circle!", "a red circle")
    assert same("siglip2", "A red circle", "a red circle")
    assert not same("siglip2", "a red, circle!", "a red circle")
    assert same("old_clip", "A RED  circle", "a red circle")


def test_a_lone_surrogate_is_no_accident(encoder):
    assert encoder.sentences(["a \ud800 file"]).shape == (1, encoder.width)


def test_padding_is_that_of_the_named_token(copy):
    """SigLIP reads its padding, so that another one changes every embedding."""
    folder = copy("siglip")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    ids = lambda: encoders.load(folder).tokenizer(["a"])[0][0]
    assert ids()[-1] == 1
    path.write_text(json.dumps(settings | {"pad_token": "<unk>"}))
    assert ids()[-1] == 2
    path.write_text(json.dumps(settings | {"pad_token": "<unk>", "padding_side": "left"}))
    assert ids()[0] == 2 and ids()[-1] == 1
    # nothing named: config.json's default
    path.unlink()
    assert ids()[-1] == 1


def test_ends_are_marked_as_the_configuration_asks(copy):
    folder = copy("siglip2")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"add_bos_token": True}))
    ids, real = encoders.load(folder).tokenizer(["a"])
    assert ids[0][real[0]][0] == 2 and ids[0][real[0]][-1] == 1
    path.write_text(json.dumps(settings | {"add_bos_token": True, "bos_token": "<s>"}))
    with pytest.raises(EncoderError, match="<s>"):
        encoders.load(folder)


def test_a_tokenizer_without_its_file_says_what_to_do(copy):
    folder = copy("siglip")
    (folder / "tokenizer.json").unlink()
    (folder / "spiece.model").write_bytes(b"of which one can be written")
    with pytest.raises(EncoderError, match="save_pretrained") as caught:
        encoders.load(folder)
    assert "\n" not in str(caught.value) and f"{folder}: lacks tokenizer.json" in str(caught.value)


def test_a_damaged_tokenizer_is_one_line(copy):
    for kind, name, part in [
        ("siglip", "tokenizer.json", "no tokenizer"),
        ("siglip2", "tokenizer_config.json", "no JSON"),
        ("old_clip", "tokenizer.json", "no tokenizer"),
    ]:
        folder = copy(kind)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(b"a b c d" + content[: len(content) // 2])
        with pytest.raises(EncoderError, match=part) as caught:
            encoders.load(folder)
        assert "\n" not in str(caught.value) and name in str(caught.value)


def test_a_tokenizer_of_another_model_is_refused(loaded):
    backend = tokenizers.Tokenizer.from_str(loaded("new_clip").tokenizer.backend.to_str())
    with pytest.raises(EncoderError, match="another model"):
        tokenizer.build(backend, b"", {}, loaded("siglip").config, "f")
