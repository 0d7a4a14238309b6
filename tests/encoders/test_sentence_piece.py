import numpy as np
import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError


def test_ids_from_a_model_file_agree_with_transformers(copy, sentences, loaded):
    folder = copy("siglip")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()  # which an old folder may lack too
    encoder = encoders.load(folder)
    expected = np.load(folder / "expected.npz")["ids"]
    np.testing.assert_array_equal(encoder.tokenizer(sentences)[0], expected)
    assert encoder.fingerprint != loaded("siglip").fingerprint


@pytest.mark.parametrize("kept", [0, 1, 2, 40, 300])
def test_a_cut_off_file_is_one_line(copy, kept):
    path = copy("siglip") / "spiece.model"
    (path.parent / "tokenizer.json").unlink()
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(EncoderError, match="no unigram SentencePiece model") as caught:
        encoders.load(path.parent)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_model_of_merged_pieces_is_refused(copy):
    path = copy("siglip") / "spiece.model"
    (path.parent / "tokenizer.json").unlink()
    # A later trainer section, of the type "byte pairs".
    path.write_bytes(path.read_bytes() + bytes([2 * 8 + 2, 2, 3 * 8, 2]))
    with pytest.raises(EncoderError, match="no unigram SentencePiece model"):
        encoders.load(path.parent)
