"""Queries of a library: ranking, moments, filters, warnings, refusals and concurrent changes."""

import copy
import dataclasses
import datetime
import errno
import io
import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import archive
import numpy as np
import processes
import pytest
from PIL import Image

from hlformer_jax import encoders, search
from hlformer_jax.encoders import EncoderError
from hlformer_jax.errors import DamagedError, QueryError, SearchError, UnreadableError
from hlformer_jax.search import times
from hlformer_jax.search.index import packed
from hlformer_jax.search.query import filters
from hlformer_jax.search.query.query import Query
from hlformer_jax.search.query.search import Search
from hlformer_jax.search.signals import visual

DAYS = {"a.film": 1, "b.film": 2, "trips/c.film": 3}


@pytest.fixture
def films(tmp_path):
    films = archive.folder(tmp_path / "films")
    for name, day in DAYS.items():
        time = datetime.datetime(2026, 3, day, 12).timestamp()
        os.utime(films / name, (time, time))
    return films


@pytest.fixture
def library(index):
    return archive.opened(index)


@pytest.mark.parametrize("ranker", ["best_frame", "top_3_frames", "segments", None])
def test_video_and_moment_of_a_text_come_first(index, ranker):
    library = archive.opened(index, ranker=ranker)
    [hit] = library.query("blue", k=1)
    assert (hit.video, hit.folder, hit.path.name) == ("trips/c.film", "trips", "c.film")
    assert (hit.moments[0].start, hit.moments[0].end) == (10, 14)
    assert hit.duration == 18 and len(hit.times) == len(hit.scores) == 18
    assert hit.id == library.entry(hit.id).id
    assert library.encoder_name == "colours" and library.ranker_name == (ranker or "best_frame")


def test_one_tag_may_be_a_string(library):
    assert library.tag("a.film", add="Oma") == ("Oma",)
    assert [hit.video for hit in library.query("red", tags="oma")] == ["a.film"]
    assert library.tag("a.film", drop="oma") == ()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda vectors: 7 * vectors, "norm 7: it should be 1"),
        (lambda vectors: np.nan * vectors, "norm nan"),
        (lambda vectors: vectors[:, :-1], "shape (1, "),
        (lambda vectors: vectors[0], "for one text or image"),
    ],
)
def test_wrong_embedding_of_an_encoder_is_refused(index, wrong, message, tmp_path):
    class WrongEncoder(archive.Encoder):
        def encode_texts(self, texts):
            return wrong(super().encode_texts(texts))

        def encode_images(self, images):
            return wrong(super().encode_images(images))

    Image.new("RGB", (8, 8), "red").save(picture := tmp_path / "red.png")
    for query in (Query("red"), Query(["red", "blue"]), Query(image=picture)):
        with pytest.raises(EncoderError, match=re.escape(message)):
            search.open(index.directory, encoder=WrongEncoder()).query(query)


def test_accents_are_composed_in_queries(library, monkeypatch):
    texts, encode_texts = [], library.encoder.encode_texts
    monkeypatch.setattr(
        library.encoder, "encode_texts", lambda x: texts.extend(x) or encode_texts(x)
    )
    for form in ("NFC", "NFD"):
        library.query(unicodedata.normalize(form, "café 강아지"))
    assert texts == ["café 강아지"] * 2


def test_moments_are_separate_and_sorted_by_score(index):
    library = archive.opened(index, ranker="best_frame")
    hit = library.query("red")[0]
    assert hit.video == "a.film"
    assert [(m.start, m.end) for m in hit.moments] == [(5, 8), (14, 16)]
    assert hit.score == pytest.approx(hit.moments[0].score)
    assert len(library.query("red", moments=1)[0].moments) == 1


def test_scores_are_probabilities_if_the_encoder_has_them(index):
    plain = archive.opened(index, ranker="best_frame")
    learned = archive.Encoder(probable=True)
    probable = archive.opened(index, ranker="best_frame", encoder=learned)
    for cosine, probability in zip(plain.query("red"), probable.query("red"), strict=True):
        assert probability.video == cosine.video
        assert probability.score == pytest.approx(learned.probability(cosine.score), rel=1e-5)
        assert probability.moments[0].score == pytest.approx(probability.scores.max())
        assert probability.moments[0][:3] == cosine.moments[0][:3]
        assert (probability.score_kind, cosine.score_kind) == ("probability", "cosine")
    for ranker in ("top_3_frames", "segments"):  # their scores are not cosines of a frame
        plain, probable = (archive.opened(index, ranker=ranker, encoder=encoder).query("red")
                           for encoder in (archive.Encoder(), learned))  # fmt: skip
        assert [hit.score for hit in plain] == [hit.score for hit in probable]


def videos(hits):
    return sorted(hit.video for hit in hits)


def videos_of(hits):
    return [hit.video for hit in hits]


def test_filters_by_folder_and_date(library):
    assert videos(library.query("red")) == list(DAYS)
    assert videos(library.query("red", folder="/trips/")) == ["trips/c.film"]
    with pytest.raises(SearchError, match="'trips'"):
        library.query("red", folder="trip")
    assert videos(library.query("red", since="2026-03-02")) == ["b.film", "trips/c.film"]
    day = datetime.date(2026, 3, 2)
    assert videos(library.query("red", since=day, until=day)) == ["b.film"]
    assert library.query("red", k=1)[0].date_of == "file"
    assert videos(library.query("red", folder="trips", until="2026-03-02")) == []
    with pytest.raises(SearchError, match="'yesterday'"):
        library.query("red", since="yesterday")


def test_picture_finds_similar_videos_alone_and_with_text(library, films, index, tmp_path):
    archive.film(films / "d.film", ["white"] * 4 + ["blue"] * 2)
    archive.fill(index)
    image = tmp_path / "blue.png"
    Image.new("RGBA", (9, 6), (0, 0, 255, 255)).save(image)
    hits = library.query(image=image)
    assert [hit.video for hit in hits[:2]] == ["d.film", "trips/c.film"]
    assert hits[0].score == pytest.approx(1, abs=1e-3)
    assert library.query(image=image.read_bytes())[0].score == hits[0].score
    with pytest.raises(SearchError, match="not an image"):
        library.query(image=b"text")
    # The video of the instant and its copies are left out; an id names it, too.
    (films / "copy.film").write_bytes((films / "d.film").read_bytes())
    archive.fill(index)
    for video in ("d.film", str(films / "copy.film"), library.videos()[3].id):
        like = library.query(like=(video, 4.6))
        assert like[0].video == "trips/c.film" and like[0].moments[0][:2] == (10, 14)
        assert {hit.video for hit in like} == set(DAYS)
    # With a text, the query is the normalised mean of both vectors.
    encoder = archive.Encoder()
    vectors = archive.embed(np.asarray([archive.COLOURS["blue"], archive.COLOURS["red"]], float))
    query_vector = vectors.sum(0) / np.linalg.norm(vectors.sum(0))
    for hit in library.query("red", like=("d.film", 5), k=9):
        frames = encoder.encode_images(np.load(hit.path)[:, None, None])
        assert hit.score == pytest.approx((frames @ query_vector).max(), abs=1e-3)


def test_scores_of_pictures_are_cosines_for_every_encoder(index):
    pair = [archive.opened(index, encoder=archive.Encoder(probable=p)) for p in (0, 1)]
    plain, probable = (library.query("red", like=("b.film", 0)) for library in pair)
    assert [hit.score for hit in plain] == [hit.score for hit in probable]
    # The archive is too small for an estimated threshold.
    assert {(hit.score_kind, hit.is_match) for hit in [*plain, *probable]} == {("cosine", None)}


@pytest.mark.parametrize("ranker", ["best_frame", "top_3_frames"])
def test_cosines_of_frames_are_at_most_one(tmp_path, ranker):
    colours = np.random.default_rng(0).integers(0, 256, (20, 3)).repeat(3, axis=0)
    archive.film(tmp_path / "films/first.film", colours)
    archive.film(tmp_path / "films/again.film", colours[::-1])
    index = archive.indexed(tmp_path / "index", tmp_path / "films")
    rows = np.concatenate([index.read(content).vectors for content in index.contents()])
    assert np.linalg.norm(rows.astype(np.float32), axis=-1).max() > 1  # they are of float16
    library = archive.opened(index, ranker=ranker)
    results = [library.query(like=("first.film", second))[0] for second in range(0, 60, 3)]
    scores = [[x.score, *x.scores, *(moment.score for moment in x.moments)] for x in results]
    assert {hit.score_kind for hit in results} == {"cosine"}
    assert 0.999 < np.concatenate(scores).max() <= 1


def test_only_cosines_of_frames_have_thresholds_of_probabilities(index, monkeypatch):
    monkeypatch.setattr(visual, "MIN_FRAMES_FOR_THRESHOLD", 1)
    matches = {
        (ranker, probable): [hit.is_match for hit in archive.opened(
            index, ranker=ranker, encoder=archive.Encoder(probable=probable)
        ).query("red", k=3)]
        for ranker in ("best_frame", "top_3_frames") for probable in (False, True)
    }  # fmt: skip
    assert matches["top_3_frames", True] == matches["top_3_frames", False] == [False] * 3
    assert matches["best_frame", False] == [False] * 3 and matches["best_frame", True][0]
    probable = archive.opened(index, encoder=archive.Encoder(probable=True))
    assert not any(hit.is_match for hit in probable.query(like=("a.film", 0)))
    encoder = archive.Encoder(probable=True)
    normalised = archive.opened(index, ranker="best_frame", normalise=True, encoder=encoder)
    results = normalised.query("red")
    assert [(hit.is_match, hit.score_kind) for hit in results] == [(None, None)] * 3


def test_equal_contents_are_one_result_and_ties_follow_paths(films, index):
    for name in ("z.film", "0.film", "trips/b.film"):
        (films / name).write_bytes((films / "b.film").read_bytes())
    archive.film(films / "a green.film", ["green"] * 3)
    archive.fill(index)
    library = archive.opened(index)
    first, second = library.query("green", k=2)
    assert (first.video, first.copies) == ("0.film", ("b.film", "trips/b.film", "z.film"))
    assert (second.video, second.copies) == ("a green.film", ()) and first.score == second.score
    assert library.query("green", k=1, folder="trips")[0].video == "trips/b.film"
    (films / "0.film").unlink()
    assert library.query("green", k=2)[1].copies == ("trips/b.film", "z.film")


def test_offset_and_min_score_select_results(library):
    results = library.query("red", k=9)
    pages = [hit for start in range(4) for hit in library.query("red", k=1, offset=start)]
    assert [hit.video for hit in pages] == [hit.video for hit in results] == videos_by(results)
    assert library.query("red", offset=3) == []
    best = library.query("red", min_score=results[1].score)
    assert [hit.video for hit in best] == [hit.video for hit in results[:2]]


def test_empty_results_say_why(library, films, tmp_path):

    def results(**fields):
        return library.query("red", **fields)

    assert results(since="2999").reason == "no video is of 2999 or later"
    assert results(until="1999").reason == "no video is of 1999 or earlier"
    assert results(longer=99).reason == "no video is 99 s long or longer"
    assert results(shorter=9).reason == "no video is 9 s long or shorter"
    assert "though some videos pass each" in results(longer=19, folder="trips").reason
    assert results(offset=9).reason == "there are only 3"
    assert results(min_score=2).reason == "no video reaches the score 2"
    assert results(min_score=2, offset=1).reason == "no further video reaches the score 2"
    assert results().reason == "" == results()[:0].reason
    for name in ("a.film", "b.film"):
        (films / name).unlink()
    like = library.query(like=("trips/c.film", 1))
    assert like == [] and like.reason == like.verdict == "no other video that can be read is left"
    (films / "trips/c.film").unlink()
    assert results().reason == "no video that can be read is left" and results().warnings


def videos_by(hits):
    return [hit.video for hit in sorted(hits, key=lambda hit: -hit.score)]


def test_results_keep_their_warnings_when_sliced(library):
    results = library.query("red", k=3)
    results.warnings.append("a disk is offline")
    part = results[1:]
    assert videos_of(part) == videos_of(results)[1:]
    assert part.warnings == ["a disk is offline"] and part[0] == results[1]
    assert results.copy().warnings == part.warnings


def test_results_of_two_queries_can_be_compared(library, index):
    first, second = library.query("red"), library.query("red")
    assert first == second and not first != second and second[1] in first
    assert first.index(second[1]) == 1 and first[0] != second[1] and first[0] != "red"
    for copied in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first), copy.copy(first)):
        assert copied == first and type(copied) is type(first)
    changed = first[0]._replace(scores=first[0].scores + 1)
    assert changed != first[0] and changed._replace(scores=first[0].scores) == first[0]
    with pytest.raises(TypeError, match="unhashable"):
        hash(first[0])
    a, b = (index.read(index.videos[name].content) for name in ("a.film", "b.film"))
    assert a != b and a == index.read(index.videos["a.film"].content)


@pytest.mark.slow  # the new process compiles the encoder
def test_spawned_process_searches_after_a_query_of_this_one(films, tmp_path):
    folder = Path(__file__).parents[2] / "encoders/golden/siglip"
    encoder = encoders.load(folder)
    directory = tmp_path / "index"
    index = search.Index.create(directory, films, encoder, places=(str(folder),))
    archive.fill(index, encoder)
    here = archive.best_video(directory, "blue")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        assert processes.submit(archive.best_video, directory, "blue").result(120) == here


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_picture_may_be_any_kind_of_bytes(library, kind):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "png")
    assert library.query(image=kind(file.getvalue()))[0].video == "a.film"


def test_any_kind_of_path_is_accepted(index, films, tmp_path):
    def as_path(path):  # an os.PathLike that is not a pathlib.Path
        with os.scandir(path.parent) as entries:
            return next(entry for entry in entries if entry.name == path.name)

    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    for convert in (str, as_path):
        library = search.open(convert(index.directory), encoder=archive.Encoder())
        assert library.query(image=convert(tmp_path / "red.png"))[0].video == "a.film"
        assert search.Index.open(convert(index.directory)).videos
    created = search.Index.create(str(tmp_path / "new"), as_path(films), archive.Encoder())
    assert created.directory == tmp_path / "new"


def test_unknown_instant_or_video_is_refused(library, index):
    for options, message in (
        ({"like": ("b.flim", 0)}, "did you mean 'b.film'"),
        ({"like": ("b.film", 21)}, "has no second 21"),
    ):
        with pytest.raises(SearchError, match=message):
            library.query(**options)
    with pytest.raises(SearchError, match="'x'"):
        library.entry("x")
    with pytest.raises(QueryError) as refused:
        archive.opened(index, normalise=True).query(like=("b.film", 0))
    assert refused.value.field == "normalise"


def test_open_library_finds_newly_indexed_videos(library, films, index):
    assert library.query("white", k=1)[0].video != "new.film"
    archive.film(films / "new.film", ["white"] * 4)
    (films / "b.film").unlink()
    archive.fill(index)
    assert library.query("white", k=1)[0].video == "new.film"
    assert videos(library.query("green")) == ["a.film", "new.film", "trips/c.film"]
    states = {entry.video: entry.state for entry in library.videos()}
    assert states.pop("b.film") == "offline" and set(states.values()) == {"indexed"}
    assert library.status()["videos"] == 4 and library.status()["offline"] == 1


def test_failed_videos_are_listed_and_not_searched(library, films, index):
    (films / "bad.film").write_bytes(b"broken")
    archive.fill(index)
    assert "bad.film" not in videos(library.query("red"))
    [bad] = [entry for entry in library.videos() if entry.video == "bad.film"]
    assert bad.state == "failed" and "not a film" in bad.reason
    status = library.status()
    assert (status["videos"], status["failed"], status["ranker"]) == (3, 1, "best_frame")
    assert status["seconds"] == 54 and status["bytes"] > 0


@pytest.mark.parametrize("ranker", ["best_frame", "segments"])
@pytest.mark.parametrize("has_queried", [False, True])
def test_damaged_vectors_are_left_out_with_a_line(index, ranker, has_queried):

    def open_library():
        return archive.opened(index, ranker=ranker)

    library = open_library()
    if has_queried:  # rows are packed, so the damage shows when moments are computed
        library.query("red")
        library = open_library()
    archive.damage(index, "b.film")
    if ranker == "best_frame":  # threads read the rows for queries of several parts
        hits = open_library().query("black", then="green", k=9)
        assert "b.film" not in videos(hits) and "'b.film'" in hits.warnings[0]
    for opened_library in (library, open_library()):
        hits = opened_library.query("red", k=9)
        assert videos(hits) == ["a.film", "trips/c.film"]
        [line] = hits.warnings
        assert "'b.film'" in line and "index the folder again" in line
    archive.fill(index)
    assert videos(library.query("red", k=9)) == list(DAYS)
    for path in index.directory.glob("embeddings-*"):
        path.unlink()
    shutil.rmtree(index.directory / "packed", ignore_errors=True)
    with pytest.raises(DamagedError) as error:
        open_library().query("red")
    assert "of 3 videos are damaged or missing, for example: the embeddings of" in str(error.value)
    assert str(error.value).count("embeddings-") == 1


def test_concurrent_queries_may_meet_the_same_damage(index, monkeypatch):
    library = archive.opened(index)
    library.query("red")
    archive.damage(index, "b.film")
    results, meanwhile = Search.results, []

    def query_meanwhile(*args):
        try:
            return results(*args)
        except DamagedError:
            monkeypatch.undo()
            meanwhile.append(library.query("red"))
            raise

    monkeypatch.setattr(Search, "results", query_meanwhile)
    assert [hit.video for hit in library.query("red")] == ["a.film", "trips/c.film"]
    assert [hit.video for hit in meanwhile[0]] == ["a.film", "trips/c.film"]


def test_damage_of_several_videos_is_one_line(index):
    for video in ("a.film", "b.film"):
        archive.damage(index, video)
    hits = archive.opened(index).query("red")
    assert videos(hits) == ["trips/c.film"]
    [line] = hits.warnings
    assert "the embeddings of 2 videos are damaged or missing, for example: the embeddi" in line


def test_offline_videos_are_left_out_and_come_back(library, films, tmp_path, index):

    def summary(hits):
        return [(hit.video, hit.score, hit.moments) for hit in hits]

    hits = library.query("red", k=9)
    expected = summary(hits)
    assert not hits.warnings
    paths_by_name = {"trips": ["trips/c.film"], "b.film": ["b.film"], "": list(DAYS)}
    for name, paths in paths_by_name.items():
        place = films / name
        place.rename(tmp_path / "elsewhere")
        hits = library.query("red", k=9)
        assert summary(hits) == [hit for hit in expected if hit[0] not in paths]
        [line] = hits.warnings
        assert "left out" in line
        assert [e.video for e in library.videos() if e.state == "offline"] == paths
        assert archive.opened(index).query("red", k=9).warnings
        (tmp_path / "elsewhere").rename(place)
        assert summary(library.query("red", k=9)) == expected
    films.rename(tmp_path / "elsewhere")
    films.mkdir()  # where a disk was mounted
    assert library.query("red") == [] and library.status()["offline"] == 3
    assert archive.fill(index)[0].offline == 3
    films.rmdir()
    (tmp_path / "elsewhere").rename(films)
    assert summary(library.query("red", k=9)) == expected


def test_video_may_be_replaced_while_the_index_is_read(films, index, monkeypatch):
    entries, records = search.Index.entries, search.Index.records
    writer = search.open(index.directory).open_index()

    def replace_after(read):
        def reading(self):
            rows = read(self)
            monkeypatch.undo()
            archive.film(films / "b.film", ["red"] * 9)
            archive.fill(writer)
            return rows

        return reading

    monkeypatch.setattr(search.Index, "entries", replace_after(entries))
    monkeypatch.setattr(search.Index, "records", replace_after(records))
    library = archive.opened(index)
    assert library.query("red")[0].video == "a.film"
    assert [hit.video for hit in library.query("red", k=2)] == ["a.film", "b.film"]


def test_embeddings_that_cannot_be_read_are_read_again(library, monkeypatch):
    expected = library.query("red")
    read = packed.read_at

    def fail_once(*arguments):
        monkeypatch.setattr(packed, "read_at", read)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(packed, "read_at", fail_once)
    incomplete = library.query("red", k=9)
    assert len(incomplete) == 2 and "(Too many open files)" in incomplete.warnings[0]
    results = library.query("red")
    assert [hit.video for hit in results] == [hit.video for hit in expected]
    assert results.warnings == []


def test_many_embeddings_that_cannot_be_read_are_an_error(library, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    library.query("green")
    monkeypatch.setattr(packed, "read_at", fail)
    results = library.query("red")
    assert results == [] and "of 3 videos" in results.warnings[0]
    monkeypatch.setattr("hlformer_jax.search.query.library.MAX_UNREADABLE", 2)
    with pytest.raises(UnreadableError, match="Input/output error"):
        library.query("red")


def test_warning_about_a_missing_root_is_linear_in_its_videos(library, films, tmp_path):
    snapshot, _ = library._ready()
    films.rename(tmp_path / "elsewhere")

    def seconds(count):
        many = [snapshot.videos[0]._replace(video=f"trips/{i}.film") for i in range(count)]
        large = dataclasses.replace(snapshot, videos=many, missing=set(range(count)))
        started = time.process_time()
        [line] = large.warnings(np.ones(count, bool))
        assert f"{films} is missing" in line
        return time.process_time() - started

    assert seconds(20_000) < 8 * seconds(5_000) + 0.1


def test_folder_that_is_not_listed_stays_in_the_warnings(library, films, index):
    (films / "trips").rename(films / "unlisted")
    (films / "unlisted" / "more").mkdir()
    for _ in range(2):
        archive.fill(index)
        [_, line] = library.query("red").warnings
        assert f"{films}/unlisted may not be listed (and 1 more)" in line
        assert len(index.unlisted) == 2 == len(archive.opened(index).query("red").warnings)
    archive.fill(index, only=[films / "a.film"])  # lists no folder
    assert len(index.unlisted) == 2
    (films / "unlisted").rename(films / "trips")
    archive.fill(index)
    assert index.unlisted == () and not library.query("red").warnings


def test_results_whose_files_were_replaced_are_named(library, films):
    assert library.query("red").warnings == []
    archive.film(films / "a.film", ["white"] * 4)
    [line] = library.query("red", k=2).warnings
    assert line.startswith(
        "1 of these videos has another size or time than when indexed ('a.film')"
    )
    os.utime(films / "b.film", (5, 5))
    assert library.query("red").warnings[0].startswith("2 of these videos have another")
    assert library.query("red", folder="trips").warnings == []


def test_ignored_end_of_a_long_text_is_named(library, monkeypatch):
    monkeypatch.setattr(archive.Encoder, "rest", lambda self, text: text[40:], raising=False)
    assert library.query("red").warnings == []
    text = "a red circle beside nothing that anyone would ever see"
    [line] = library.query(["red", text]).warnings
    assert line.endswith("compared with its end, 'would ever see'; shorten the text")
    assert len(library.query("red", without=[text], then=[text]).warnings) == 2


def test_concurrent_queries_get_the_same_answers(library):
    expected = [hit.video for hit in library.query("red", k=3)]
    with ThreadPoolExecutor(3) as threads:
        rankings = list(threads.map(lambda _: library.query("red", k=3), "abc"))
    assert [[hit.video for hit in hits] for hits in rankings] == [expected] * 3


def test_error_in_a_thread_is_raised_for_that_query_only(library, monkeypatch):
    def fail(*arguments):
        raise SearchError("broken")

    snapshot = library._ready()[0]
    transcript, visual = snapshot.signals["transcript"], snapshot.visual
    for owner, name in ((transcript, "search"), (visual, "search"), (Search, "result")):
        with monkeypatch.context() as patch, pytest.raises(SearchError, match="broken"):
            patch.setattr(owner, name, fail)
            library.query("red")
    assert library.query("red")


def test_opening_an_index_loads_neither_jax_nor_vectors(index):
    program = (
        "import sys\nfrom hlformer_jax import search\nlibrary = search.open(sys.argv[1])\n"
        "assert len(library.videos()) == 3\n"
        "print([name for name in ('jax', 'pywt', 'av', 'fastapi', 'flax') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(index.directory)],
        capture_output=True, text=True, env=processes.environment(), check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"


# Filters


def entry(folder, modified=0.0, recorded=0.0):
    return search.Entry("", "", folder, None, 0, modified, 1.0, 1, "indexed", "", recorded=recorded)


def test_filters_agree_with_a_loop_over_random_entries():
    rng = np.random.default_rng(0)
    folders = ["", "a", "a/b", "ab", "a/b/c"]
    day = datetime.date(2026, 1, 1)
    start, *_ = times.date_span(day)
    entries = [
        entry(str(rng.choice(folders)), start + 86400 * t, rng.choice([0.0, start + 86400 * u]))
        for t, u in rng.integers(0, 20, (50, 2)) / 2  # half at midnight
    ]
    for folder in (None, *folders):
        first, last = sorted(rng.integers(0, 10, 2).tolist())
        since, until = (day + datetime.timedelta(days=n) for n in (first, last))
        passing = filters.passing(
            entries, Query("x", folder=folder, since=since, until=until.isoformat())
        )
        for candidate, passes in zip(entries, passing, strict=True):
            within = (
                not folder
                or candidate.folder == folder
                or candidate.folder.startswith(folder + "/")
            )
            date = candidate.recorded or candidate.modified
            days = (datetime.datetime.fromtimestamp(date).date() - day).days
            assert passes == (within and first <= days <= last)


def test_filters_of_any_case_agree_with_a_loop():
    rng = np.random.default_rng(1)
    entries = [
        entry(str(rng.choice(["Trips/Sea", "trips", "x"])))._replace(
            duration=float(seconds), tags=tuple(map(str, rng.choice(["Oma", "b", "c"], 2, False)))
        )
        for seconds in rng.integers(0, 20, 40)
    ]
    for longer, shorter, tags, folder in (
        (5, None, (), None), (None, 9, (), "TRIPS"),
        (3, 15, ["oma"], None), (0, 19, ["B", "oma"], "x"),
    ):  # fmt: skip
        passing = filters.passing(
            entries, Query("x", folder=folder, longer=longer, shorter=shorter, tags=tags)
        )
        for candidate, passes in zip(entries, passing, strict=True):
            folded_tags = {tag.lower() for tag in candidate.tags}
            assert passes == (
                (longer is None or candidate.duration >= longer)
                and (shorter is None or candidate.duration <= shorter)
                and {tag.lower() for tag in tags} <= folded_tags
                and (not folder or candidate.folder.lower().split("/")[0] == folder.lower())
            )
        assert 0 < passing.sum() < len(entries)
    with pytest.raises(SearchError, match="did you mean 'Oma'"):
        filters.passing(entries, Query("x", tags=["Omi"]))


def test_folder_name_that_is_not_utf8_is_chosen_as_shown():
    entries = [entry(os.fsdecode(b"caf\xe9/x")), entry("caf")]
    assert filters.passing(entries, Query("x", folder="caf\ufffd")).tolist() == [True, False]


def test_folder_is_chosen_however_its_accents_are_encoded():
    entries = [entry("cafe\u0301/x"), entry("caf")]
    assert filters.passing(entries, Query("x", folder="CAF\u00c9")).tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "first", "after"),
    [
        ("2026", (2026, 1, 1), (2027, 1, 1)),
        ("2026-01", (2026, 1, 1), (2026, 2, 1)),
        ("2026-12", (2026, 12, 1), (2027, 1, 1)),
        ("2024-02-29", (2024, 2, 29), (2024, 3, 1)),
        ("20260110", (2026, 1, 10), (2026, 1, 11)),
        ("2026-01-10T18", (2026, 1, 10, 18), (2026, 1, 10, 19)),
        ("2026-01-10 18:30", (2026, 1, 10, 18, 30), (2026, 1, 10, 18, 31)),
        ("20260110T183015", (2026, 1, 10, 18, 30, 15), (2026, 1, 10, 18, 30, 16)),
        (" 2026-01-10T23:59:59.5 ", (2026, 1, 10, 23, 59, 59, 500_000),
         (2026, 1, 10, 23, 59, 59, 500_001)),
        (datetime.date(2026, 1, 10), (2026, 1, 10), (2026, 1, 11)),
        (datetime.datetime(2026, 1, 10, 5), (2026, 1, 10, 5), (2026, 1, 10, 5, 0, 0, 1)),
    ],
)  # fmt: skip
def test_date_covers_its_whole_span(text, first, after):
    expected = [datetime.datetime(*fields).timestamp() for fields in (first, after)]
    assert list(times.date_span(text)) == expected


def test_repeated_hour_of_summer_time_counts_twice(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    spans = [times.date_span(f"2024-10-27T02{minute}") for minute in ("", ":00", ":59")]
    hour_before = times.date_span("2024-10-27T01")
    missing_hour = times.date_span("2024-03-31T01:59")
    monkeypatch.undo()
    time.tzset()
    start = 1729987200  # 02:00 in summer time, an hour before it begins again
    assert spans == [(start, start + 7200), (start, start + 3660), (start + 3540, start + 7200)]
    assert hour_before == (start - 3600, start)
    assert missing_hour == (1711846740, 1711846800)


def test_time_with_a_zone_is_parsed():
    for text in ("2026-01-10T18:30Z", "2026-01-10T19:30+01:00", "20260110T1130-0700"):
        assert times.date_span(text) == (1768069800, 1768069860)


@pytest.mark.usefixtures("unchecked")
def test_bad_date_is_one_line():
    for text in (
        "", "0001-01-01", "202601", "1767225600", "2026-13", "2026-02-30", "2026-1",
        "2026-01T10:00", "2026-01-10T25", "2026-01-10T10:00+99", "2026-W02", "-2026",
        "\uff12\uff10\uff12\uff16", "2026\n2027", "\udcff", 2026, None, datetime.datetime(1, 1, 1),
    ):  # fmt: skip
        with pytest.raises(SearchError) as refused:
            times.date_span(text)
        assert "2026-01" in str(refused.value) and "\n" not in str(refused.value)


def test_last_dates_have_a_start_and_no_end():
    for text in ("9999", "9999-12", "9999-12-31", "9999-12-31T23:59:59"):
        start, end = times.date_span(text)
        assert 253_370_000_000 < start < end == float("inf")


def test_dates_of_every_year_are_formatted():
    assert times.format_date(1768069800.25)[:10] in ("2026-01-10", "2026-01-11")
    assert times.date_span(times.format_date(1768069800))[0] == 1768069800
    assert times.format_date(-1e11).startswith("-") and times.format_date(9e9 * 100)[-1] == "Z"


def test_query_of_an_empty_index_says_why(films, tmp_path, monkeypatch):
    def reason(index):
        with pytest.raises(SearchError) as caught:
            archive.opened(index).query("red")
        line = str(caught.value)
        start = f"{index.directory} has no indexed video: "
        assert line.startswith(start)
        return line.removeprefix(start)

    index = archive.create(tmp_path / "index", films)
    ended = "the last indexing run ended before it stored a video; "
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwrite", archive.fail_on_full_disk)
        with pytest.raises(SearchError, match="is full"):
            archive.fill(index)
    assert reason(index) == f"{ended}index its folder again"
    with monkeypatch.context() as disk:
        disk.setattr(tempfile, "TemporaryFile", lambda dir: archive.fail_on_full_disk(0, b"", 0))
        advice = "make room, and repeat the command"
        assert reason(index) == f"{ended}the disk of {index.directory} is full: {advice}"
        error = PermissionError(errno.EACCES, "Permission denied", f"{index.directory}/tmp1")
        disk.setattr(tempfile, "TemporaryFile", mock.Mock(side_effect=error))
        assert reason(index).startswith(f"{ended}{index.directory} may not be read or written by")
    with index.running():
        assert reason(index) == "an indexing run has not stored its first video yet: wait for it"
    for name in DAYS:
        (films / name).write_bytes(b"broken")
    archive.fill(index)
    assert reason(index).startswith("3 files could not be read, for example 'a.film' (")
    index.remove(DAYS)
    assert reason(index) == "3 removed videos stay out until they are added again"
