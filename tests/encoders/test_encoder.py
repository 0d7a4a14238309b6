"""Encoders agree with transformers, and load from folders and an imitation of the hub."""

import dataclasses
import hashlib
import http.server
import json
import os
import threading

import ml_dtypes
import numpy as np
import pytest
from scipy import special

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError, config, families, hub, transformer
from hlformer_jax.encoders import encoder as module
from hlformer_jax.encoders.families.clip import LARGEST_ID

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ID = "someone/tiny"

AGREEMENT = 2e-6
"""Largest difference of unit vectors in float32; it is 4e-7 if the compiler optimises."""

ROUNDED = 2**-5
"""Largest difference of unit vectors in bfloat16.

Its 8 bits round an operand by 2**-9 at most. Some three dozen products in a row (9 a layer, up to 3
layers, a few around them) add up like a random walk to six of these, 0.012; the largest one seen is
0.015, and the bound is twice that.
"""


def inputs(encoder, pictures):
    return np.stack([encoder.preprocess(picture) for picture in pictures])


def distance(actual, reference):
    return np.linalg.norm(actual - reference, axis=-1).max()


@pytest.mark.slow  # it takes seconds
def test_images_agree_with_transformers(encoder, expected, pictures):
    vectors = encoder.encode_images(inputs(encoder, pictures))
    assert vectors.dtype == np.float32 and vectors.shape == (3, encoder.width)
    assert distance(vectors, expected.images) < AGREEMENT


def test_sentences_agree_with_transformers(encoder, expected, sentences):
    vectors = encoder.encode_texts(sentences)
    assert type(vectors) is np.ndarray  # on the host
    assert vectors.dtype == np.float32 and vectors.shape == (len(sentences), encoder.width)
    assert distance(vectors, expected.sentences) < AGREEMENT


def test_token_features_agree_with_transformers(encoder, expected, sentences):
    features = encoder.encode_tokens(sentences[: len(expected.tokens)])
    _, real = encoder.tokenizer(sentences)
    for actual, reference, mask in zip(features, expected.tokens, real, strict=False):
        assert actual.shape == (mask.sum(), encoder.token_width)
        # Hidden states are not unit vectors: compare relative to their norm.
        scale = np.linalg.norm(reference[mask], axis=-1, keepdims=True)
        assert distance(actual / scale, reference[mask] / scale) < AGREEMENT


@pytest.mark.parametrize("kind", ["old_clip", "siglip"])
def test_bfloat16_is_near_float32(kind, expected, loaded, sentences, pictures):
    encoder = loaded(kind, "bfloat16")
    images, texts = (
        encoder.encode_images(inputs(encoder, pictures)),
        encoder.encode_texts(sentences),
    )
    assert images.dtype == texts.dtype == np.float32
    difference = max(distance(images, expected.images), distance(texts, expected.sentences))
    assert 1e-4 < difference < ROUNDED
    np.testing.assert_allclose(np.linalg.norm(texts, axis=1), 1, atol=1e-6)


@pytest.mark.slow  # it takes seconds
def test_embedding_does_not_depend_on_the_batch(loaded, sentences):
    encoder = loaded("siglip")
    at_once = module.IMAGES_AT_ONCE["cpu"]
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2 * at_once + 3, 36, 36, 3), np.uint8)
    batched = encoder.encode_images(pixels)
    one_by_one = np.concatenate([encoder.encode_images(pixels[i : i + 1]) for i in (0, 17, 34)])
    np.testing.assert_allclose(batched[[0, 17, 34]], one_by_one, atol=5e-7)
    texts = [f"{text} {i}" for i in range(9) for text in sentences]
    batched, batched_tokens = encoder.encode_texts(texts), encoder.encode_tokens(texts)
    assert len(batched) == len(texts) > module.TEXTS_AT_ONCE
    for i in (0, 31, 32, 44):
        np.testing.assert_allclose(encoder.encode_texts([texts[i]])[0], batched[i], atol=5e-7)
        single_tokens = encoder.encode_tokens([texts[i]])[0]
        np.testing.assert_allclose(single_tokens, batched_tokens[i], atol=5e-6)


def test_images_compile_once_and_sentences_twice(loaded, sentences):
    encoder = loaded("new_clip", "bfloat16")  # no other test compiles this kind in bfloat16
    before = module.encode_images._cache_size(), module._encode_texts._cache_size()
    for count in (1, 3, 16, 20):
        encoder.encode_images(np.zeros((count, 36, 36, 3), np.uint8))
        encoder.encode_texts(sentences[:1] * count)
        encoder.encode_tokens(sentences)
    assert module.encode_images._cache_size() == before[0] + 1
    assert module._encode_texts._cache_size() == before[1] + 2


def test_empty_input_gives_empty_output(loaded):
    encoder = loaded("siglip")
    assert encoder.encode_images(np.zeros((0, 36, 36, 3), np.uint8)).shape == (0, 24)
    assert encoder.encode_texts([]).shape == (0, 24)
    assert encoder.encode_tokens([]) == []


def test_properties_of_an_encoder(loaded):
    clip, siglip = loaded("old_clip"), loaded("siglip")
    assert (clip.name, clip.kind, siglip.kind) == ("old_clip", "clip", "siglip")
    assert loaded("siglip2").kind == "siglip2"
    assert (clip.width, clip.token_width, clip.max_tokens, clip.image_size) == (12, 16, 77, 32)
    assert siglip.max_tokens == 64 and siglip.image_size == 36
    assert siglip.scale == pytest.approx(np.exp(1.7)) and siglip.bias == pytest.approx(-2.3)
    assert clip.bias == 0.0
    assert siglip.preprocessing == "resize 36 bicubic, mean 0.5, std 0.5 v1"


def test_probability_is_the_sigmoid_of_the_trained_loss(loaded):
    siglip = loaded("siglip")
    cosines = np.array([-1.0, 0.0, 0.3, 1.0])
    logits = np.exp(1.7) * cosines - 2.3
    np.testing.assert_allclose(siglip.probability(cosines), 1 / (1 + np.exp(-logits)), rtol=1e-6)
    assert float(siglip.probability(0.3)) == pytest.approx(siglip.probability(cosines)[2])
    assert loaded("old_clip").probability(cosines) is None


@pytest.mark.usefixtures("unchecked")
def test_wrong_inputs_are_refused(loaded):
    encoder = loaded("siglip")
    with pytest.raises(EncoderError, match="preprocess them first"):
        encoder.encode_images(np.zeros((1, 32, 32, 3), np.uint8))
    for texts in ("one string", b"bytes", None, 3):
        with pytest.raises(EncoderError, match="list of texts, not"):
            encoder.encode_texts(texts)
    for texts in ([], (), iter(()), np.array([], str)):
        assert encoder.encode_texts(texts).shape == (0, encoder.width)
        assert encoder.encode_tokens(texts) == []
    two = encoder.encode_texts(["a", "b c"])
    np.testing.assert_array_equal(encoder.encode_texts(text for text in ("a", "b c")), two)
    np.testing.assert_array_equal(encoder.encode_texts(np.array(["a", "b c"])), two)
    with pytest.raises(EncoderError, match="not 3"):
        encoder.encode_texts(["a", 3])


@pytest.mark.slow  # it takes seconds
def test_saved_encoder_is_read_back_the_same(loaded, tmp_path, pictures, sentences):
    for kind in ("siglip", "siglip2"):
        before = loaded(kind)
        encoders.save(before, tmp_path / kind)
        after = encoders.load(tmp_path / kind)
        pixels = np.stack([before.preprocess(picture) for picture in pictures])
        np.testing.assert_array_equal(before.encode_images(pixels), after.encode_images(pixels))
        np.testing.assert_array_equal(before.encode_texts(sentences), after.encode_texts(sentences))
        assert after.config == before.config and after.kind == kind
        assert (after.scale, after.bias) == (before.scale, before.bias)
        drafts = {path.name for path in (tmp_path / kind).glob(".*")} - {hub.files.WRITTEN}
        assert not drafts


def test_only_siglip_in_float32_can_be_saved(loaded, tmp_path):
    for encoder in (loaded("old_clip"), loaded("siglip", "bfloat16")):
        with pytest.raises(EncoderError, match="saved"):
            encoders.save(encoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_incomplete_folder_is_refused(loaded, tmp_path, monkeypatch):
    encoders.save(loaded("siglip"), tmp_path)

    def full(path, content, replace):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hub.files, "write_bytes", full)
    with pytest.raises(OSError, match="space"):
        encoders.save(loaded("siglip"), tmp_path)
    with pytest.raises(EncoderError, match=r"config\.json"):
        encoders.load(tmp_path)


def test_fingerprint_covers_all_that_changes_a_result(copy, loaded):
    folder = copy("siglip")
    before = encoders.load(folder)
    assert before.fingerprint == loaded("siglip").fingerprint  # a copy elsewhere
    assert len(before.fingerprint) == 64
    fingerprints = {before.fingerprint}

    def with_values(**changed):
        return lambda content: json.dumps(json.loads(content) | changed).encode()

    for name, change in [
        ("model.safetensors", lambda x: x[:-1] + bytes([x[-1] ^ 1])),
        ("tokenizer.json", lambda x: x + b"\n"),
        ("preprocessor_config.json", with_values(resample=2)),
        ("tokenizer_config.json", with_values(pad_token="a")),
        ("config.json", with_values(unrelated=1)),
    ]:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))
        fingerprints.add(encoders.load(folder).fingerprint)
    # the weights, the tokenizer, the resampling and the padding, but nothing unrelated
    assert len(fingerprints) == 5


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("siglip", "config.json"),
        ("siglip", "model.safetensors"),
        ("siglip", "preprocessor_config.json"),
        ("new_clip", "model-00002-of-00003.safetensors"),
    ],
)
def test_missing_file_is_named(copy, kind, name):
    folder = copy(kind)
    (folder / name).unlink()
    with pytest.raises(EncoderError, match=name) as caught:
        encoders.load(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_configurations_that_disagree_are_refused(copy):
    folder = copy("siglip")
    content = {"size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    with pytest.raises(EncoderError, match="32 .*36"):
        encoders.load(folder)


def test_image_settings_of_transformers_5_take_precedence(copy):
    folder = copy("siglip")
    former = json.loads((folder / "preprocessor_config.json").read_text())
    path = folder / "processor_config.json"
    path.write_text(json.dumps({"image_processor": former | {"resample": 2}}))
    assert encoders.load(folder).image_processor.filter == "bilinear"
    path.write_text(json.dumps({"processor_class": "SiglipProcessor"}))  # of transformers 4
    assert encoders.load(folder).image_processor.filter == "bicubic"
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(EncoderError, match="lacks preprocessor_config"):
        encoders.load(folder)


def test_unknown_dtype_is_refused(golden):
    with pytest.raises(EncoderError, match="'float16'"):
        encoders.load(golden / "siglip", dtype="float16")


def test_loaded_encoder_does_not_need_its_folder(copy, sentences):
    folder = copy("siglip")
    encoder = encoders.load(folder)
    for name in os.listdir(folder):
        (folder / name).unlink()
    assert np.isfinite(encoder.encode_texts(sentences)).all()


class Hub(http.server.BaseHTTPRequestHandler):
    """Imitates the Hugging Face Hub for a model with one commit."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        files = self.server.files
        self.server.requests.append(self.path)
        path = self.path.partition("?")[0]
        resolve = f"/{ID}/resolve/"
        if path.startswith(f"/api/models/{ID}"):
            revision = path.rpartition("/revision/")[2] if "/revision/" in path else "main"
            siblings = [{"rfilename": name, "size": len(files[name])} for name in files]
            content = json.dumps({"id": ID, "sha": COMMIT, "siblings": siblings}).encode()
            if revision in ("main", COMMIT):
                return self.answer(200, content)
            return self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if path.startswith(resolve):
            name = path.removeprefix(resolve).partition("/")[2]
            if name in files:
                etag = hashlib.sha256(files[name]).hexdigest()
                headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
                return self.answer(200, files[name], headers)
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def answer(self, status, content, headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path, golden):
    from huggingface_hub import constants

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files = {path.name: path.read_bytes() for path in (golden / "new_clip").iterdir()}
    server.files |= {"pytorch_model.bin": b"a pickle", "README.md": b"words"}
    server.requests = []
    poll = {"poll_interval": 0.01}  # seconds until a shutdown is noticed
    thread = threading.Thread(target=server.serve_forever, kwargs=poll, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_model_is_fetched_once_and_announced(server, tmp_path, loaded, sentences):
    lines = []

    def report(line):
        lines.append((line, len(list(tmp_path.rglob("*.safetensors")))))

    encoder = encoders.load(ID, report=report)
    ((line, fetched),) = lines
    assert fetched == 0  # before anything was fetched
    names = [name for name in server.files if name not in ("expected.npz", "README.md")]
    names.remove("pytorch_model.bin")
    size = sum(len(server.files[name]) for name in names) / 1000
    assert f"{ID} from http://127.0.0.1" in line and f"{len(names)} files, {size:.0f} kB" in line
    assert encoder.name == ID
    assert not list(tmp_path.rglob("*.bin")) and not list(tmp_path.rglob("README.md"))
    local = loaded("new_clip")
    np.testing.assert_array_equal(encoder.encode_texts(sentences), local.encode_texts(sentences))
    assert encoder.fingerprint == local.fingerprint  # the cache's names of files are their SHA-256

    server.requests.clear()
    encoders.load(ID, report=report)
    encoders.load(ID, offline=True, report=report)
    assert len(lines) == 1 and server.requests == []


def test_offline_names_the_missing_model(server, monkeypatch):
    from huggingface_hub import constants

    with pytest.raises(EncoderError, match="offline"):
        encoders.load(ID, offline=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError, match="HF_HUB_OFFLINE") as caught:
        encoders.load(ID)
    assert ID in str(caught.value) and "\n" not in str(caught.value)
    assert server.requests == []


def test_missing_network_is_named(server, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing answers there
    with pytest.raises(EncoderError, match="network") as caught:
        encoders.load(ID)
    assert ID in str(caught.value) and "\n" not in str(caught.value)


def test_missing_model_or_revision_is_named(server):
    for name, revision, part in [
        ("someone/else", None, "neither a folder here nor a model at http"),
        (ID, "nowhere", "no revision 'nowhere'"),
    ]:
        with pytest.raises(EncoderError, match=part):
            encoders.load(name, revision=revision)


@pytest.mark.parametrize(
    ("left_out", "message"),
    [("safetensors", "pickles"), ("tokenizer.json", "save_pretrained")],
)
def test_model_without_a_needed_file_is_not_fetched(server, left_out, message):
    lines = []
    server.files = {n: c for n, c in server.files.items() if left_out not in n}
    with pytest.raises(EncoderError, match=message):
        encoders.load(ID, report=lines.append)
    assert lines == []


def test_interrupted_fetch_continues(server):
    shard = server.files.pop("model-00003-of-00003.safetensors")
    with pytest.raises(EncoderError, match="model-00003-of-00003"):
        encoders.load(ID, report=lambda _: None)
    server.files["model-00003-of-00003.safetensors"] = shard
    lines = []
    encoders.load(ID, report=lines.append)
    assert len(lines) == 1 and f"1 files, {len(shard) / 1000:.0f} kB" in lines[0]


@pytest.mark.parametrize("name", ["nowhere", "/no/where", "~nobody-of-this", ""])
def test_name_without_an_encoder_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EncoderError, match=r"no such folder|config\.json"):
        encoders.load(name)


def test_file_instead_of_a_folder_is_refused(golden):
    with pytest.raises(EncoderError, match="is a file"):
        encoders.load(golden / "siglip" / "model.safetensors")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def draw(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def test_bfloat16_products_are_summed_in_float32(rng):
    kernel = draw(rng, 500, 2).astype(ml_dtypes.bfloat16)
    x = draw(rng, 3, 500)
    product = transformer.linear({"kernel": kernel}, x)
    expected = x.astype(ml_dtypes.bfloat16).astype(np.float64) @ kernel.astype(np.float64)
    assert product.dtype == np.float32
    np.testing.assert_allclose(product, expected, atol=1e-4)


ACTIVATIONS = {
    "quick_gelu": lambda x: x * special.expit(1.702 * x),
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_new": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x * special.expit(x),
}
ACTIVATIONS["gelu_pytorch_tanh"] = ACTIVATIONS["gelu_new"]


@pytest.mark.parametrize("name", config.ACTIVATIONS)
def test_activations_match_their_definitions(name):
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    np.testing.assert_allclose(transformer.activation(name, x), ACTIVATIONS[name](x), atol=2e-6)


def test_unit_vectors_have_norm_1_and_zero_stays_zero(rng):
    x = draw(rng, 3, 5) * np.float32([[0], [1e-12], [1e12]])
    vectors = np.asarray(transformer.unit(x))
    assert not vectors[0].any()
    np.testing.assert_allclose(np.linalg.norm(vectors[1:], axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "eos", "positions"),
    [
        ("old_clip", LARGEST_ID, (4, 1)),  # the first of the largest ids
        ("new_clip", 7, (2, 3)),  # the first end of the sentence
        ("siglip", 7, (5, 5)),
    ],
)
def test_text_is_pooled_at_its_end_or_last_position(loaded, kind, eos, positions):
    encoder = loaded(kind)
    sizes = encoder.config
    sizes = dataclasses.replace(sizes, text=dataclasses.replace(sizes.text, eos=eos))
    ids = np.array([[3, 5, 7, 7, 9, 9], [3, 9, 5, 7, 9, 0]], np.int32)
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2, 6, sizes.text.width)).astype(np.float32)
    family = families.image_text_family(sizes)
    vectors = family.pool_texts(encoder.params["text"], sizes, hidden, ids)
    head = encoder.params["text"]["head"]
    expected = hidden[np.arange(2), positions] @ np.asarray(head["kernel"])
    np.testing.assert_allclose(vectors, expected + np.asarray(head.get("bias", 0)), atol=2e-6)


def test_hidden_states_of_patches_agree_with_transformers(encoder, expected, pictures):
    processor = encoder.image_processor
    pixels = encoder.preprocess(pictures[0])[None].astype(np.float32)
    normal = (pixels - np.float32(processor.shift)) * np.float32(processor.scale)
    family = families.image_text_family(encoder.config)
    states = np.asarray(family.image_states(encoder.params["vision"], encoder.config, normal))
    scale = np.linalg.norm(expected.patches, axis=-1, keepdims=True)
    difference = np.linalg.norm(states / scale - expected.patches / scale, axis=-1)
    assert difference.max() < AGREEMENT
