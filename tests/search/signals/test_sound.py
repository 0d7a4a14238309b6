"""A third signal, defined in this file, is searched, listed and fused like the other two."""

import json
from typing import NamedTuple

import archive
import numpy as np
import pytest
from starlette.testclient import TestClient

from hlformer_jax.errors import QueryError
from hlformer_jax.retrieval.moments import Moment
from hlformer_jax.search.__main__ import main
from hlformer_jax.search.cli import console
from hlformer_jax.search.serve.app import build_app
from hlformer_jax.search.signals import SIGNALS
from hlformer_jax.search.signals.protocol import Evidence

NOTES = {"bark": 0, "bell": 1, "rain": 2}
THRESHOLD = 0.9
"""Smallest cosine of a matching second of sound."""


def encode_text(text):
    """Return the sum of the axes of the words that name sounds."""
    return sum((np.eye(len(NOTES))[NOTES[word]] for word in text.split() if word in NOTES), 0.0)


def encode_sound(path):
    """Return an embedding of each second of the file beside a film: a noisy axis of its sound."""
    sounds = path.with_suffix(".sound").read_text().split()
    noise = np.random.default_rng(0).normal(0, 0.05, (len(sounds), len(NOTES)))
    return np.asarray([encode_text(sound) for sound in sounds]) + noise


class SoundMatches(NamedTuple):
    """Moments by content; all copies of a content have the same."""

    moments: dict
    score_kind: str = "cosine"
    is_selective: bool = True

    def rank(self, count, scope):
        allowed = scope.allowed_contents()
        numbers = {content: i for i, content in enumerate(scope.contents) if allowed[i]}
        matching = [content for content in self.moments if content in numbers]
        return [scope.group(numbers[x], self.moments[x][0].score) for x in matching[:count]]

    def evidence(self, group, scope, count):
        moments = self.moments.get(scope.videos[group.position].content)
        return moments and Evidence(True, moments[0].score, [*moments[:count]])


class Sound:
    """Embeddings of the sound of each second."""

    name = "sound"
    embeddings = {}  # by content

    def __init__(self, archive):
        self.notes, self._contents = [], [record.content for record in archive.records]

    @classmethod
    def update(cls, index, encoder, report, pulse):
        for entry in index.entries():
            pulse()
            if entry.path.with_suffix(".sound").exists():
                cls.embeddings[entry.content] = encode_sound(entry.path)

    def accepts(self, query):
        return query.single_text is not None

    def explain_empty(self):
        return "" if self.embeddings else "no sound was encoded"

    def search(self, query):
        sound, moments_by_content = encode_text(query.single_text), {}
        for content in self.embeddings.keys() & {*self._contents} if np.any(sound) else ():
            rows = self.embeddings[content]
            cosines = rows @ sound / np.linalg.norm(rows, axis=1) / np.linalg.norm(sound)
            seconds = [i for i in np.argsort(-cosines).tolist() if cosines[i] >= THRESHOLD]
            moments = [Moment(i, i + 1, i, float(cosines[i])) for i in seconds]
            if moments:
                moments_by_content[content] = moments
        ranked = sorted(moments_by_content.items(), key=lambda pair: -pair[1][0].score)
        return SoundMatches(dict(ranked))


@pytest.fixture
def index(tmp_path, films, monkeypatch):
    """Three films; a dog barks in the second, and a bell rings in two."""
    monkeypatch.setitem(SIGNALS, "sound", Sound)
    monkeypatch.setattr(Sound, "embeddings", {})
    (films / "a.sound").write_text("rain bell rain rain")
    (films / "b.sound").write_text("rain rain bark bell")
    (films / "b.srt").write_text(json.dumps([[12, 14, "the red bell rings"]]))
    index = archive.create(tmp_path / "index", films)
    archive.fill(index, video=archive.SUBTITLED)
    return index


def test_video_is_found_by_its_sound(index):
    [result] = archive.opened(index).query("a loud bark", signals="sound")
    assert result.video == "b.film" and result.moments[0][:2] == (2, 3)
    assert result.score > THRESHOLD and result.score_kind == "cosine"
    assert result.signals == ("sound",) and result.is_match
    assert archive.opened(index).query("silence", signals="sound") == []


def test_added_signal_is_used_in_every_query_it_accepts(index):
    library = archive.opened(index)
    results = {result.video: result for result in library.query("red bell rings")}
    assert results["b.film"].signals == ("transcript", "sound")
    assert results["a.film"].signals == ("sound",)
    sums = dict.fromkeys(results, 0.0)
    for name in SIGNALS:
        for rank, result in enumerate(library.query("red bell rings", signals=name), 1):
            # The first tenth of the visual ranking counts in full: one video of these.
            if name != "visual" or rank == 1 or not results[result.video].signals:
                sums[result.video] += 1 / (60 + rank)
    assert [*results] == sorted(sums, key=lambda video: -sums[video])
    assert library.query("red", then="blue")[0].signals == ()
    with pytest.raises(QueryError) as refused:
        library.query("red", then="blue", signals="sound")
    assert refused.value.field == "signals"


def test_command_line_and_the_server_have_the_signal(index, monkeypatch, capsys):
    monkeypatch.setattr(console, "open_library", lambda options: archive.opened(index))
    query = ["query", "bark", f"--index={index.directory}"]
    assert main([*query, "--signals=sound"]) == 0
    assert "b.film" in capsys.readouterr().out
    assert main([*query, "--signals=smell"]) == 1
    line = capsys.readouterr().err
    assert "--signals" in line and "visual, transcript, sound" in line
    with TestClient(build_app(archive.opened(index)), base_url="http://127.0.0.1") as client:
        assert client.get("/api/folders").json()["signals"] == ["visual", "transcript", "sound"]
        [result] = client.get("/api/query?q=bark&signals=sound").json()["results"]
    assert result["signals"] == ["sound"] and result["video"] == "b.film"
