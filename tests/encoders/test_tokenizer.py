"""Inputs of encoders: tokens of texts, and resized pictures."""

import json

import numpy as np
import pytest
import tokenizers
from PIL import Image

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError, images, tokenizer
from hlformer_jax.encoders.families import FAMILIES


def test_ids_agree_with_transformers(encoder, expected, sentences):
    ids, real = encoder.tokenizer(sentences)
    np.testing.assert_array_equal(ids, expected.ids)
    assert ids.dtype == np.int32 and real.dtype == bool and real.shape == ids.shape


def test_long_sentence_is_cut_and_keeps_its_end_mark(encoder, sentences):
    ids, real = encoder.tokenizer(sentences)
    assert ids.shape[1] == encoder.max_tokens
    assert real[-1].all() and not real[1].all()
    end = ids[1][real[1]][-1]  # of the empty sentence, whose last real token is its end mark
    assert ids[-1, -1] == end


def test_rest_is_the_end_that_is_cut_off(encoder):
    text = " ".join(f"a dog runs {number}" for number in range(90))
    rest = encoder.rest(text)
    assert rest and text.endswith(rest)
    [beginning, ids_of_all], _ = encoder.tokenizer([text.removesuffix(rest), text])
    np.testing.assert_array_equal(beginning[:-2], ids_of_all[:-2])  # a word may be cut in two
    assert encoder.rest("dog") == encoder.rest("") == ""


def test_empty_sentence_has_its_marks(loaded):
    for kind, marks in [("old_clip", 2), ("new_clip", 2), ("siglip", 1), ("siglip2", 1)]:
        _, real = loaded(kind).tokenizer([""])
        assert real.sum() == marks
        vector = loaded(kind).encode_texts(["", "   "])
        np.testing.assert_allclose(np.linalg.norm(vector, axis=1), 1, atol=1e-6)


def test_capitals_and_punctuation_follow_the_training(loaded):

    def are_equal(kind, first, second):
        return np.array_equal(*loaded(kind).tokenizer([first, second])[0])

    assert are_equal("siglip", "A red, circle!", "a red circle")
    assert are_equal("siglip2", "A red circle", "a red circle")
    assert not are_equal("siglip2", "a red, circle!", "a red circle")
    assert are_equal("old_clip", "A RED  circle", "a red circle")


def test_siglip2_keeps_the_letters_of_ten_scripts(loaded):
    """Encode as bytes the characters that the vocabulary lacks."""
    reader = loaded("siglip2").tokenizer
    for sentence in (
        "Ein Hund läuft", "ΕΝΑΣ ΣΚΥΛΟΣ", "Собака бежит", "كلب يجري", "כלב רץ", "कुत्ता", "หมาวิ่ง",
        "一只狗在跑", "犬が走る", "개가 달린다",
    ):  # fmt: skip
        (ids,), (real,) = reader([sentence])
        *tokens, end = map(reader.backend.id_to_token, ids[real])
        pieces = [
            bytes([int(token[3:5], 16)])
            if token.startswith("<0x")
            else token.replace("▁", " ").encode()
            for token in tokens
        ]
        assert b"".join(pieces).decode() == sentence.lower() and end == "<eos>"


def test_lone_surrogate_is_encoded(encoder):
    assert encoder.encode_texts(["a \ud800 file"]).shape == (1, encoder.width)


def test_named_token_pads(copy):
    """Read the padding of the file: SigLIP attends to it, so it changes every embedding."""
    folder = copy("siglip")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())

    def ids():
        return encoders.load(folder).tokenizer(["a"])[0][0]

    assert ids()[-1] == 1
    path.write_text(json.dumps(settings | {"pad_token": "<unk>"}))
    assert ids()[-1] == 2
    path.write_text(json.dumps(settings | {"pad_token": "<unk>", "padding_side": "left"}))
    assert ids()[0] == 2 and ids()[-1] == 1
    # without a named token: the default of config.json
    path.write_text(json.dumps({"tokenizer_class": "SiglipTokenizer"}))
    assert ids()[-1] == 1
    # without the file, it is unknown how texts are normalised
    path.unlink()
    with pytest.raises(EncoderError, match=r"tokenizer_config\.json"):
        ids()


def test_configuration_decides_about_end_marks(copy):
    folder = copy("siglip2")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"add_bos_token": True}))
    ids, real = encoders.load(folder).tokenizer(["a"])
    assert ids[0][real[0]][0] == 2 and ids[0][real[0]][-1] == 1
    path.write_text(json.dumps(settings | {"add_bos_token": True, "bos_token": "<s>"}))
    with pytest.raises(EncoderError, match="<s>"):
        encoders.load(folder)


def test_missing_tokenizer_file_says_how_to_write_it(copy):
    folder = copy("siglip")
    (folder / "tokenizer.json").unlink()
    (folder / "spiece.model").write_bytes(b"a model of sentencepiece")
    with pytest.raises(EncoderError, match="save_pretrained") as caught:
        encoders.load(folder)
    assert "\n" not in str(caught.value) and f"{folder}: lacks tokenizer.json" in str(caught.value)
    assert "SigLIP" in str(caught.value)  # transformers writes no tokenizer.json for it


def test_damaged_tokenizer_is_named(copy):
    for kind, name, part in [
        ("siglip", "tokenizer.json", "not a tokenizer"),
        ("siglip2", "tokenizer_config.json", "not JSON"),
        ("old_clip", "tokenizer.json", "not a tokenizer"),
    ]:
        folder = copy(kind)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(b"a b c d" + content[: len(content) // 2])
        with pytest.raises(EncoderError, match=part) as caught:
            encoders.load(folder)
        assert "\n" not in str(caught.value) and name in str(caught.value)


def test_tokenizer_of_another_model_is_refused(loaded):
    backend = tokenizers.Tokenizer.from_str(loaded("new_clip").tokenizer.backend.to_str())
    with pytest.raises(EncoderError, match="another model"):
        tokenizer.build(backend, b"", {}, loaded("siglip").config, "f")


def preprocessing(content, family):
    return images.read(content, FAMILIES[family].image_settings, "f")


CLIP = {"size": 32, "crop_size": 32}
SIGLIP = {"size": {"height": 32, "width": 32}}


def test_inputs_agree_with_transformers(encoder, expected, pictures):
    processor = encoder.image_processor
    pixels = np.stack([encoder.preprocess(picture) for picture in pictures])
    assert pixels.dtype == np.uint8
    normal = (pixels - np.array(processor.shift)) * np.array(processor.scale)
    np.testing.assert_allclose(
        normal.transpose(0, 3, 1, 2)[:, :, ::3], expected.pixels, atol=1e-6, rtol=0
    )


def test_image_of_the_right_size_is_unchanged():
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    for content, family in ((CLIP, "clip"), (SIGLIP, "siglip")):
        np.testing.assert_array_equal(preprocessing(content, family).apply(image), image)


def test_image_smaller_than_the_crop_is_framed_in_black():
    clip = preprocessing({"size": 20, "crop_size": 23}, "clip")
    pixels = clip.apply(np.full((20, 20, 3), 9, np.uint8))
    # transformers puts the odd row above and the odd column to the left
    assert pixels.shape == (23, 23, 3) and pixels.sum() == 20 * 20 * 3 * 9
    assert pixels[2:22, 2:22].min() == 9


@pytest.mark.parametrize("shape", [(31, 500, 3), (500, 31, 3), (1, 300, 3)])
def test_long_image_is_cropped_like_in_transformers(shape):
    """Compare with its Pillow processor: resize, round the sides down, crop the middle."""
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    tall, wide = (int(32 * side / min(shape[:2])) for side in shape[:2])
    resized = np.asarray(Image.fromarray(image).resize((wide, tall), Image.Resampling.BICUBIC))
    rows, columns = (slice((side - 32) // 2, (side + 32) // 2) for side in (tall, wide))
    pixels = preprocessing(CLIP, "clip").apply(image)
    np.testing.assert_array_equal(pixels, resized[rows, columns])


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize("shape", [(1, 50_000, 3), (50_000, 1, 3), (3, 200_000, 3)])
def test_very_long_image_takes_little_memory(shape, monkeypatch):
    sizes = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, size, *rest: sizes.append(size) or resize(self, size)
    )
    pixels = preprocessing(CLIP, "clip").apply(np.full(shape, 77, np.uint8))
    assert pixels.shape == (32, 32, 3) and (pixels == 77).all()
    assert max(tall * wide for tall, wide in sizes) <= 2**24


@pytest.mark.usefixtures("unchecked")
def test_images_must_be_uint8_with_three_channels():
    siglip = preprocessing(SIGLIP, "siglip")
    for wrong in (
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ):
        with pytest.raises(EncoderError, match="array"):
            siglip.apply(wrong)


def test_preprocessing_is_described_in_words():
    assert str(preprocessing({}, "clip")) == (
        "resize 224 crop 224 bicubic, mean 0.4815,0.4578,0.4082, std 0.2686,0.2613,0.2758 v1"
    )
    assert str(preprocessing({"resample": 2}, "siglip")) == (
        "resize 224 bilinear, mean 0.5, std 0.5 v1"
    )


@pytest.mark.parametrize("off", [False, None])
def test_rescaling_and_normalising_may_be_off(off):
    processor = preprocessing({"do_rescale": off, "do_normalize": off}, "siglip")
    assert (processor.factor, processor.mean, processor.std) == (1.0, (0.0,) * 3, (1.0,) * 3)
    assert processor.scale == (1.0,) * 3 and processor.shift == (0.0,) * 3


@pytest.mark.parametrize(
    "content",
    [
        {"size": {"height": 40, "width": 40}, "image_mean": [0.1, 0.2, 0.3]},
        {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": 36},
    ],
)
def test_image_settings_are_written_and_read_again(content):
    processor = preprocessing(content, "siglip")
    assert preprocessing(images.write(processor, "SiglipImageProcessor"), "siglip") == processor


def test_number_as_size_is_shortest_edge_for_every_family():
    for family in ("clip", "siglip"):
        content = {"size": 32, "do_center_crop": True, "crop_size": 24}
        assert preprocessing(content, family).edge == 32
        square = preprocessing(content | {"default_to_square": True, "crop_size": 32}, family)
        assert (square.size, square.edge) == (32, None)


@pytest.mark.parametrize(
    ("content", "family", "name"),
    [
        ({"use_square_size": True}, "clip", "use_square_size"),
        ({"do_resize": None}, "clip", "do_resize"),
        ({"size": {"height": 20, "width": 30}}, "siglip", "20 x 30"),
        ({"size": {"longest_edge": 20}}, "siglip", "size"),
        ({"size": {"height": 40, "width": 40}, "crop_size": 20}, "clip", "crop_size"),
        ({"resample": 9}, "clip", "resample 9"),
        ({"image_std": [0.5, 0.5, 0]}, "clip", "image_std"),
    ],
)
def test_invalid_setting_is_named(content, family, name):
    with pytest.raises(EncoderError, match=f"^f: .*{name}"):
        preprocessing(content, family)
