"""A library for tests of the page: three real videos of one colour a second, searched by name.

It has the members that `hlformer_jax.search.serve` needs: these tests need no encoder.
"""

import contextlib
import hashlib
import http.client
import io
import itertools
import os
import socket
import threading
import time
from datetime import datetime

import av
import httpx
import numpy as np
import uvicorn
from PIL import Image

from hlformer_jax import search
from hlformer_jax.errors import UserError
from hlformer_jax.search import times
from hlformer_jax.search.index import Entry
from hlformer_jax.search.query.results import Results
from hlformer_jax.search.serve import guard
from hlformer_jax.search.serve.app import build_app
from hlformer_jax.search.signals.transcript.passages import Passage
from hlformer_jax.search.signals.transcript.transcripts import Problem

COLOURS = {
    "red": (200, 40, 45),
    "green": (40, 150, 80),
    "blue": (45, 90, 200),
    "yellow": (230, 190, 60),
    "violet": (130, 70, 170),
    "grey": (120, 125, 130),
}
RATE = 10

# The date of each video's file, and its colour in each second.
VIDEOS = {
    "garden.mp4": ("2026-03-01", "grey grey grey green green grey grey grey red grey"),
    "trips/lake/boat ride.mp4": (
        "2026-06-15",
        "grey grey blue blue grey grey grey grey blue blue blue grey",
    ),
    "trips/Küche & <b>Herd.mp4": (
        "2026-09-20",
        "yellow grey grey grey grey grey red red red grey grey grey grey violet",
    ),
}


def colour_of(image):
    """Return a space and the name of a picture's colour, or "" for None."""
    if image is None:
        return ""
    with Image.open(io.BytesIO(image)) as opened:
        pixel = np.array(opened.convert("RGB").getpixel((0, 0)))
    return " " + min(COLOURS, key=lambda name: np.abs(pixel - COLOURS[name]).sum())


class RefusedError(UserError, ValueError):
    """A query that the library refuses."""


def render(path, colours):
    """Render a film in H.264 in which a square moves over each second's colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=RATE, options={"g": str(RATE)})
        stream.width, stream.height, stream.pix_fmt = 320, 180, "yuv420p"
        for i in range(len(colours) * RATE):
            shade = np.linspace(1.0, 0.7, 180)[:, None, None]
            image = np.full((180, 320, 3), COLOURS[colours[i // RATE]]) * shade
            x = 20 + 2 * i % 240
            image[60:120, x : x + 60] = (245, 245, 240)
            frame = av.VideoFrame.from_ndarray(image.astype(np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


class Library(search.Library):
    """The videos of `VIDEOS`, which are rendered into a folder if they are missing."""

    encoder_name = "colours-by-name"
    has_demo_encoder = False

    def __init__(self, folder):
        self.queries = []
        self.gate = threading.Event()  # closed to keep queries waiting
        self.gate.set()
        self.inside = threading.Event()  # set when a query has begun
        self.entries = []
        self.colours = {}
        for video, (day, words) in VIDEOS.items():
            path = folder / video
            if not path.exists():
                render(path, words.split())
            modified = datetime.fromisoformat(day + "T12:00").timestamp()
            os.utime(path, (modified, modified))
            self.colours[video] = words.split()
            self.entries.append(
                Entry(
                    id=hashlib.sha256(path.read_bytes()).hexdigest()[:16],
                    video=video,
                    folder=os.path.dirname(video),
                    path=path,
                    size=path.stat().st_size,
                    modified=modified,
                    duration=float(len(words.split())),
                    frames=len(words.split()),
                    state="indexed",
                    reason="",
                )
            )
        self.entries.append(
            Entry(
                id="f" * 16, video="broken.mp4", folder="", path=folder / "broken.mp4", size=3,
                modified=0.0, duration=0.0, frames=0, state="failed", reason="holds no video",
            )
        )  # fmt: skip

    def id(self, part):
        return next(entry.id for entry in self.entries if part in entry.video)

    def videos(self):
        return list(self.entries)

    def entry(self, id):
        return {entry.id: entry for entry in self.entries}[id]

    def change(self, id, **fields):
        """Replace fields of an entry."""
        self.entries = [
            entry._replace(**fields) if entry.id == id else entry for entry in self.entries
        ]

    def transcript(self, id):
        spoken = {"garden": [(1.0, 3.0, "look"), (4.0, 6.0, "the captain's ship")]}
        return spoken.get(self.entry(id).video.removesuffix(".mp4"), [])

    def subtitle_problems(self):
        return [Problem("walk.srt", "it holds no cue", "walk.mp4")]

    def tag(self, id, add, drop):
        tags = tuple(sorted({*self.entry(id).tags, *add} - {*drop}))
        self.change(id, tags=tags)
        return tags

    def status(self):
        return {"rate": np.float32(1.0), "path": self.entries[0].path, "age": float("inf")}

    def query(self, query):
        self.queries.append(query)
        self.inside.set()
        assert self.gate.wait(20)
        text = " ".join(query.text)
        if text == "refuse":
            raise RefusedError("the text\nis refused")
        if text == "crash":
            raise RuntimeError("a secret")
        results = []
        for entry in self.entries:
            if entry.state == "failed":
                continue
            if query.folder and not entry.folder.startswith(query.folder):
                continue
            if query.since and entry.date < times.date_span(query.since)[0]:
                continue
            if not {*query.tags} <= {*entry.tags}:
                continue
            if query.until and entry.date >= times.date_span(query.until)[1]:
                continue
            words = text.lower() + colour_of(query.image)
            if query.like is not None:
                id, second = query.like
                words += f" {self.colours[self.entry(id).video][int(second)]}"
                if entry.id == id:
                    continue
            results.append(self.result(entry, words, query.moments))
        if "captain" in text.lower():
            passage = Passage(4.0, 6.0, "the captain's ship", 1.0)
            results[0] = results[0]._replace(passages=(passage,), signals=("transcript",))
        results = sorted(results, key=lambda result: -result.score)
        if text == "nothing":
            return Results()
        return Results(results)[query.offset : query.offset + query.k]

    def result(self, entry, sentence, count):
        colours = self.colours[entry.video]
        times = np.arange(len(colours), dtype=np.float64)
        waves = 0.08 * np.sin(1.7 * times + len(colours))
        scores = 0.12 + waves + 0.7 * np.array([colour in sentence for colour in colours])
        moments, end = [], 0
        for match, run in itertools.groupby(colour in sentence for colour in colours):
            start, end = end, end + len(list(run))
            peak = start + int(np.argmax(scores[start:end]))
            moments += [search.Moment(start, end, peak, scores[peak])] if match else []
        best = int(np.argmax(scores))
        moments = sorted(moments, key=lambda moment: -moment.score)
        return search.Result(
            *(entry.id, entry.video, entry.folder, entry.path, float(scores.max()), "cosine"),
            moments[:count] or [search.Moment(best, best + 1, best, scores[best])],
            *(times, scores.astype(np.float32), entry.duration, entry.date, entry.date_of),
            tags=entry.tags,
        )


@contextlib.contextmanager
def running(library, **options):
    """Run a server in a thread until the block ends, and yield its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        config = uvicorn.Config(
            build_app(library, **options),
            http=guard.Protocol,
            log_level="critical",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        runner = uvicorn.Server(config)
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not runner.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            runner.should_exit = True
            thread.join(10)


def client_of(url):
    """Return an HTTP client of a server."""
    return httpx.Client(base_url=url, timeout=20)


def raw(client, path, **headers):
    """Send a request whose path is not normalised; return status, headers and body."""
    url = client.base_url
    connection = http.client.HTTPConnection(url.host, url.port, timeout=10)
    with contextlib.closing(connection):
        connection.putrequest("GET", path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def work(pulse, end):
    """Call `pulse` for 20 seconds, or until it raises; then call `end` with the seconds left."""
    limit = time.monotonic() + 20
    try:
        while time.monotonic() < limit:
            pulse()
            time.sleep(0.01)
    finally:
        end(limit - time.monotonic())
