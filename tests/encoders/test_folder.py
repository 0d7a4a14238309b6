"""Folders of this machine, and fetched from a small imitation of the hub."""

import hashlib
import http.server
import json
import os
import threading

import numpy as np
import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError
from hlformer_jax.encoders import folder as folders

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ID = "someone/tiny"


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
        drafts = {path.name for path in (tmp_path / kind).glob(".*")} - {folders.files.WRITTEN}
        assert not drafts


def test_only_a_siglip_in_float32_is_saved(loaded, tmp_path):
    for encoder in (loaded("old_clip"), loaded("siglip", "bfloat16")):
        with pytest.raises(EncoderError, match="only a SigLIP in float32"):
            encoders.save(encoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_could_not_be_written_is_no_encoders(loaded, tmp_path, monkeypatch):
    encoders.save(loaded("siglip"), tmp_path)

    def full(path, content, replace):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders.files, "write_bytes", full)
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


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers what huggingface_hub asks of a model with one commit."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        files = self.server.files
        self.server.asked.append(self.path)
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
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
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


def test_an_id_is_fetched_once_and_says_so_before(server, tmp_path, loaded, sentences):
    said = []
    tell = lambda line: said.append((line, len(list(tmp_path.rglob("*.safetensors")))))
    encoder = encoders.load(ID, tell=tell)
    ((line, there),) = said
    assert there == 0  # before anything was fetched
    wanted = [name for name in server.files if name not in ("expected.npz", "README.md")]
    wanted.remove("pytorch_model.bin")
    size = sum(len(server.files[name]) for name in wanted) / 1000
    assert f"{ID} from http://127.0.0.1" in line and f"{len(wanted)} files, {size:.0f} kB" in line
    assert encoder.name == ID
    assert not list(tmp_path.rglob("*.bin")) and not list(tmp_path.rglob("README.md"))
    own = loaded("new_clip")
    np.testing.assert_array_equal(encoder.sentences(sentences), own.sentences(sentences))
    assert encoder.fingerprint == own.fingerprint  # the cache's names of files are their SHA-256

    server.asked.clear()
    encoders.load(ID, tell=tell)
    encoders.load(ID, offline=True, tell=tell)
    assert len(said) == 1 and server.asked == []


def test_offline_is_one_line(server, monkeypatch):
    from huggingface_hub import constants

    with pytest.raises(EncoderError, match="offline was asked for"):
        encoders.load(ID, offline=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError, match="HF_HUB_OFFLINE is set") as caught:
        encoders.load(ID)
    assert ID in str(caught.value) and "\n" not in str(caught.value)
    assert server.asked == []


def test_no_network_is_one_line(server, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing answers there
    with pytest.raises(EncoderError, match="is there a network") as caught:
        encoders.load(ID)
    assert ID in str(caught.value) and "\n" not in str(caught.value)


def test_what_the_hub_lacks_is_one_line(server):
    for name, revision, part in [
        ("someone/else", None, "neither a folder here nor a model at http"),
        (ID, "nowhere", "no revision 'nowhere'"),
    ]:
        with pytest.raises(EncoderError, match=part) as caught:
            encoders.load(name, revision=revision)
        assert "\n" not in str(caught.value)


def test_a_model_of_pickles_is_refused_before_anything_is_fetched(server):
    said = []
    server.files = {n: c for n, c in server.files.items() if "safetensors" not in n}
    with pytest.raises(EncoderError, match=r"no model\.safetensors; pickles"):
        encoders.load(ID, tell=said.append)
    assert said == []


def test_an_interrupted_fetch_goes_on(server):
    whole = server.files.pop("model-00003-of-00003.safetensors")
    with pytest.raises(EncoderError, match="lacks model-00003-of-00003"):
        encoders.load(ID, tell=lambda _: None)
    server.files["model-00003-of-00003.safetensors"] = whole
    said = []
    encoders.load(ID, tell=said.append)
    assert len(said) == 1 and f"1 files, {len(whole) / 1000:.0f} kB" in said[0]


@pytest.mark.parametrize("name", ["nowhere", "./no/where", "/no/where", "a/b/c", "", "~/nowhere"])
def test_neither_a_folder_nor_an_id(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EncoderError) as caught:
        encoders.load(name)
    assert "no such folder" in str(caught.value) or "config.json" in str(caught.value)


def test_a_file_is_no_folder(golden):
    with pytest.raises(EncoderError, match="is a file"):
        encoders.load(golden / "siglip" / "model.safetensors")


def test_what_a_folder_lacks(copy):
    folder = copy("new_clip")
    assert folders.missing(folder) == []
    for name in ("config.json", "tokenizer.json", "processor_config.json"):
        (folder / name).unlink()
    assert folders.missing(folder) == ["config.json", "tokenizer.json", "preprocessor_config.json"]
