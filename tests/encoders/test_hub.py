"""Fetching, from a small imitation of the hub on this machine."""

import hashlib
import http.server
import json
import threading

import numpy as np
import pytest

from hlformer_jax import encoders
from hlformer_jax.encoders import EncoderError, hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ID = "someone/tiny"


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
    assert hub.missing(folder) == []
    for name in ("config.json", "tokenizer.json", "processor_config.json"):
        (folder / name).unlink()
    assert hub.missing(folder) == ["config.json", "tokenizer.json", "preprocessor_config.json"]
