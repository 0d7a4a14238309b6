import json
import os

import numpy as np
import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError


def test_a_saved_encoder_is_read_back_the_same(loaded, tmp_path, pictures, sentences):
    for kind in ("siglip", "siglip2"):
        before = loaded(kind)
        encoders.save(before, tmp_path / kind)
        after = encoders.load(tmp_path / kind)
        pixels = np.stack([before.preprocess(picture) for picture in pictures])
        np.testing.assert_array_equal(before.images(pixels), after.images(pixels))
        np.testing.assert_array_equal(before.sentences(sentences), after.sentences(sentences))
        assert after.config == before.config and after.kind == kind
        assert (after.scale, after.bias) == (before.scale, before.bias)
        assert not [path for path in (tmp_path / kind).iterdir() if path.name.startswith(".")]


def test_only_a_siglip_in_float32_is_saved(loaded, tmp_path):
    for encoder in (loaded("old_clip"), loaded("siglip", "bfloat16")):
        with pytest.raises(EncoderError, match="only a SigLIP in float32"):
            encoders.save(encoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_could_not_be_written_is_no_encoders(loaded, tmp_path, monkeypatch):
    from hlformer_jax.encoders import folder

    encoders.save(loaded("siglip"), tmp_path)

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder.files, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        encoders.save(loaded("siglip"), tmp_path)
    with pytest.raises(EncoderError, match=r"has no config\.json"):
        encoders.load(tmp_path)


def test_the_fingerprint_tells_what_changes_a_result(copy, loaded):
    folder = copy("siglip")
    before = encoders.load(folder)
    assert before.fingerprint == loaded("siglip").fingerprint  # a copy elsewhere
    assert len(before.fingerprint) == 64
    found = {before.fingerprint}
    for name, change in [
        ("model.safetensors", lambda x: x[:-1] + bytes([x[-1] ^ 1])),
        ("tokenizer.json", lambda x: x.replace(b'"Metaspace"', b'"Metaspace"', 1) + b"\n"),
        (
            "preprocessor_config.json",
            lambda x: json.dumps(json.loads(x) | {"resample": 2}).encode(),
        ),
        ("tokenizer_config.json", lambda x: x.replace(b'"</s>", "special', b'"<unk>", "special')),
        (
            "tokenizer_config.json",
            lambda x: json.dumps(json.loads(x) | {"pad_token": "a"}).encode(),
        ),
        ("config.json", lambda x: json.dumps(json.loads(x) | {"unrelated": 1}).encode()),
    ]:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))
        found.add(encoders.load(folder).fingerprint)
    # the weights, the tokenizer, the resampling and the padding, but nothing unrelated
    assert len(found) == 5


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "preprocessor_config.json"])
def test_a_missing_file_is_named(copy, name):
    folder = copy("siglip")
    (folder / name).unlink()
    with pytest.raises(EncoderError, match=name) as caught:
        encoders.load(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_configurations_that_disagree_are_refused(copy):
    folder = copy("siglip")
    content = {"size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    with pytest.raises(EncoderError, match="prepared to 32 pixels, but the encoder reads 36"):
        encoders.load(folder)


def test_an_unknown_dtype_is_refused(golden):
    with pytest.raises(EncoderError, match="'float16' is none of float32, bfloat16"):
        encoders.load(golden / "siglip", dtype="float16")


def test_an_encoder_needs_its_folder_no_longer(copy, sentences):
    folder = copy("siglip")
    encoder = encoders.load(folder)
    for name in os.listdir(folder):
        (folder / name).unlink()
    assert np.isfinite(encoder.sentences(sentences)).all()
