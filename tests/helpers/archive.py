"""An archive that needs neither FFmpeg nor weights: videos of plain colours, and an encoder.

A file with the suffix .film is a NumPy file with the colour of each frame, [T, 3] bytes. The
encoder multiplies the mean colour of an image by a random matrix; for a text, it uses the colours
that the text names. Functions are defined at the top level, because decoding processes import them.
"""

import errno
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from hlformer_jax import search
from hlformer_jax.errors import UserError
from hlformer_jax.search.index import Index
from hlformer_jax.search.ingest.decoding import VideoFunctions
from hlformer_jax.search.ingest.extract import index_folder
from hlformer_jax.search.signals.transcript.transcripts import SubtitleReader

COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}
WIDTH = 12
PROJECTION = np.random.default_rng(7).normal(size=(4, WIDTH))


FOREIGN = [
    ".env.local", ".gitlab-ci.yml", ".pre-commit-config.yaml", "notes.txt",
    "videos/.env.local", "videos/holiday.npz", "texts/.x.vectors.host.1", "videos/a.film",
    f"texts/.{'0' * 64}.txt.hlformer-0123456789abcdef.part", "embeddings.f16", "embeddings-x.i8",
    "packed/.b.c", "packed/segments-notes.npy", "packed/rows.json",
]  # fmt: skip
"""Files of a person that an index leaves unchanged in any folder."""


class FilmError(UserError, ValueError):
    """A film that cannot be read."""


def preprocess(image):
    return image[:4, :4]


class Encoder:
    """The encoder; `probable` gives it a learned scale and bias."""

    name = "colours"
    preprocessing = "mean colour v1"
    width = token_width = WIDTH
    max_tokens = 8
    image_size = 4
    preprocess = staticmethod(preprocess)

    def __init__(self, fingerprint="f" * 64, probable=False):
        self.fingerprint = fingerprint
        self.probable = probable
        self.seen = 0

    def encode_images(self, pixels):
        self.seen += len(pixels)
        return embed(pixels.astype(np.float64).mean(axis=(1, 2)))

    def encode_texts(self, texts):
        return np.concatenate([embed(self._colours(text).mean(0, keepdims=True)) for text in texts])

    def encode_tokens(self, texts):
        return [embed(self._colours(text)) for text in texts]

    def probability(self, cosine):
        return 1 / (1 + np.exp(-(20 * cosine - 18))) if self.probable else None

    def _colours(self, text):
        colours = [COLOURS[word] for word in text.split() if word in COLOURS]
        return np.asarray(colours or [COLOURS["white"]], float)


def embed(colours):
    inputs = np.concatenate([colours / 127.5 - 1, np.ones((len(colours), 1))], axis=-1)
    vectors = inputs @ PROJECTION
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def find(folder, report, pulse=lambda: None):
    films = []
    for directory, _, names in os.walk(folder):
        if "unlisted" in directory:
            report(f"{directory} may not be listed")
            continue
        films += [Path(directory, name) for name in names if name.endswith(".film")]
    return sorted(films)


def probe(path):
    return SimpleNamespace(duration=float(len(_read(path))))


def sample(path, fps, size):
    if path.name.startswith("killer"):
        os.kill(os.getpid(), 9)
    if path.name.startswith("hanging"):
        time.sleep(600)
    for i, colour in enumerate(_read(path)):
        if path.name.startswith("once killer") and i == 35:
            trace = path.with_name("killed once")
            if not trace.exists():
                trace.touch()
                os.kill(os.getpid(), 9)
        if path.name.startswith("slow"):
            time.sleep(0.01)
        yield SimpleNamespace(time=float(i), image=np.broadcast_to(colour, (6, 8, 3)))


def _read(path):
    if path.read_bytes()[:6] == b"broken":
        raise FilmError(f"{str(path)!r} is not a film: copy it again")
    return np.load(path, allow_pickle=False)


VIDEO = VideoFunctions(find, probe, sample)


def beside(path, video=None):
    """Return the cues of a file, which is JSON here."""
    try:
        return [tuple(cue) for cue in json.loads(path.read_text())]
    except ValueError:
        raise FilmError(f"{path.name} is broken: write it again") from None


def inside(path):
    """Return the cues in a film: only c.film has any."""
    return [(0, 2, "recorded inside")] if path.name == "c.film" else []


SUBTITLED = VIDEO._replace(texts=SubtitleReader(frozenset({".srt"}), inside, beside))
"""The functions of `VIDEO`, and those that read subtitles."""


def film(path, colours):
    """Write a film of these colours, words or numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [COLOURS[colour] if isinstance(colour, str) else colour for colour in colours]
    with path.open("wb") as file:
        np.save(file, np.asarray(rows, np.uint8).reshape(-1, 3))
    return path


def random_film(path, frames, seed=0):
    """Write a film whose colour changes every few frames, by chance."""
    rng = np.random.default_rng(seed)
    scene = np.cumsum(rng.random(frames) < 0.2)
    base = rng.integers(30, 220, size=(frames + 1, 3))[scene]
    return film(path, (base + rng.integers(-20, 20, size=base.shape)))


def folder(path):
    """Write three films, one of them in a folder below; return the folder."""
    film(path / "a.film", ["black"] * 5 + ["red"] * 3 + ["black"] * 6 + ["red"] * 2)
    film(path / "b.film", ["green"] * 20)
    film(path / "trips" / "c.film", ["black"] * 10 + ["blue"] * 4 + ["black"] * 4)
    return path


def varied_folder(path):
    """Write 18 films of different dates, some of them equal; return the folder."""
    folder(path)
    for i in range(12):
        random_film(path / f"f{i % 3}" / f"{i}.film", 8 + 5 * i, seed=i)
    for name in ("0.film", "z.film", "f1/y.film"):
        (path / name).write_bytes((path / "b.film").read_bytes())
    for i, film in enumerate(sorted(path.rglob("*.film"))):
        os.utime(film, (1e9 + 86400 * i + 0.25, 1e9 + 86400 * i + 0.25))
    return path


def create(directory, root, **options):
    """Create an index of a folder, without videos."""
    return Index.create(directory, root, Encoder(), **options)


def fill(index, encoder=None, **options):
    """Update an index in this process; return the report and the printed lines."""
    lines = []
    options = {"workers": 0, "video": VIDEO, "report": lines.append, **options}
    return index_folder(index, encoder or Encoder(), **options), lines


def indexed(directory, root):
    """Return the complete index of a folder."""
    index = create(directory, root)
    fill(index)
    return index


def opened(index, **options):
    """Open the library of an index; options as for `search.open`."""
    return search.open(index.directory, **{"encoder": Encoder(), **options})


def best_video(directory, text):
    """Return the best video of a text; the index knows its encoder."""
    return search.open(directory).query(text, k=1)[0].video


def everything(directory):
    """Return the bytes of each file below a directory by its relative path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def vectors(index):
    """Return the times and vectors of each content as bytes."""
    bytes_by_content = {}
    for content in index.contents():
        arrays = index.read(content)
        bytes_by_content[content] = b"".join(np.asarray(array).tobytes() for array in arrays)
    return bytes_by_content


def recognise(recogniser, path):
    """Recognise the text of a file; return the outcome."""
    steps = recogniser.recognise(path, None)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value


def fail_on_full_disk(file, data, offset):
    """Fail as `os.pwrite` does on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def flip(path, offset):
    """Flip a bit of a file at an offset."""
    path.write_bytes(flipped(path.read_bytes(), offset))


def flipped(content, offset):
    """Return bytes with one bit flipped."""
    offset %= len(content)
    return content[:offset] + bytes([content[offset] ^ 4]) + content[offset + 1 :]


def damage(index, video, suffix="f16"):
    """Flip a bit of the embeddings of a video."""
    [row] = index._database.select(
        "SELECT first_row, value FROM contents JOIN settings ON name = 'generation' WHERE hash = ?",
        [index.videos[video].content],
    )
    path = index.embeddings.path(row[1], suffix)
    width = {"f16": 2 * WIDTH, "times": 8, "i8": WIDTH, "bounds": 8}[suffix]
    with path.open("r+b") as file:
        file.seek(row[0] * width + 5)
        byte = file.read(1)[0]
        file.seek(row[0] * width + 5)
        file.write(bytes([byte ^ 16]))
    return path
