"""Rows of embeddings: appended, never rewritten; damage is named and healed, dead rows go."""

import errno
import os
from pathlib import Path

import archive
import numpy as np
import pytest

from hlformer_jax import search
from hlformer_jax.errors import DamagedError, SearchError
from hlformer_jax.search.index import Index, packed
from hlformer_jax.search.index.embeddings import BOUNDS, FRAMES, ROUNDED, TIMES
from hlformer_jax.search.ingest import extract


def hits(directory, **options):
    library = search.open(directory, encoder=archive.Encoder(), **options)
    return [(hit.video, hit.id, round(hit.score, 5)) for hit in library.query("red", k=9)]


def generation(index):
    return index._database.setting("generation")


def place(index, suffix):
    return index.embeddings.path(generation(index), suffix)


@pytest.mark.parametrize("suffix", [FRAMES, TIMES])
def test_any_byte_that_differs_is_damage(index, suffix):
    path = place(index, suffix)
    whole = path.read_bytes()
    for offset in [*range(0, len(whole), 61), len(whole) - 1]:
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        damaged = index.verify()
        assert len(damaged) == 1 and "index the folder again" in next(iter(damaged.values()))
    path.write_bytes(whole)
    assert index.verify() == {}


DAMAGES = {
    "a flipped bit": lambda path: archive.flip(path, 700),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "missing": lambda path: path.unlink(),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("suffix", [FRAMES, TIMES])
def test_damaged_embeddings_are_named_and_recomputed(index, films, damage, suffix):
    before, ranked = archive.vectors(index), hits(index.directory)
    damage(place(index, suffix))
    wrong = index.verify()
    assert wrong and set(wrong) <= set(before)
    try:
        found = archive.opened(index).query("red", k=9)
        assert len(found) == 3 - len(wrong) and len(found.warnings) == 1
        assert all(".film' " in line and "\n" not in line for line in found.warnings)
    except DamagedError:
        assert len(wrong) == 3
    encoder = archive.Encoder()
    report, told = archive.fill(Index.open(index.directory), encoder)
    assert report.indexed == len(wrong) == sum("computed anew" in line for line in told)
    assert archive.vectors(index) == before and index.verify() == {}
    assert hits(index.directory) == ranked


def test_run_reports_few_of_many_damaged_embeddings(index, monkeypatch):
    monkeypatch.setattr(extract, "MAX_DAMAGE_LINES", 1)
    for path in index.directory.glob("embeddings-*"):
        path.unlink()
    report, told = archive.fill(Index.open(index.directory))
    assert report.indexed == 3 and len(told) == 2 and "computed anew" in told[0]
    assert told[1] == "the embeddings of 2 more videos were damaged or missing"


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.EACCES, "may not be read or written by this user"), (errno.EIO, "cannot be read")],
)
def test_unreadable_embeddings_are_not_promised_anew(index, monkeypatch, number, said):
    opened, told, encoder = os.open, [], archive.Encoder()

    def failing(path, *values, **options):
        if Path(path).name == "embeddings-1.f16":
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *values, **options)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(SearchError, match=f"embeddings-1.f16 {said}"):
        archive.fill(Index.open(index.directory), encoder, report=told.append)
    assert not told and not encoder.seen


def test_unreadable_rows_are_computed_anew_elsewhere(index, monkeypatch):
    read = os.preadv

    def failing(file, buffers, offset):
        if offset == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    report, told = archive.fill(Index.open(index.directory))
    assert report.indexed == 1 and len(told) == 1
    assert "Input/output error" in told[0] and "computed anew" in told[0]


def test_damaged_embeddings_of_unreachable_videos_are_not_promised_anew(index, films, monkeypatch):
    archive.damage(index, "a.film")
    archive.damage(index, "b.film")
    (films / "a.film").unlink()

    def failing(path, pulse):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(extract, "digest", failing)
    _, told = archive.fill(Index.open(index.directory))
    assert told == [
        "b.film: Input/output error; its embeddings are damaged",
        "a.film: its embeddings are damaged, and its file cannot be read",
    ]


def test_transcript_is_kept_if_embeddings_cannot_be_computed_anew(index):
    archive.damage(index, "a.film")
    record, cues = index.videos["a.film"], "SELECT content FROM cues"
    with index.writing() as writer:
        writer.execute("INSERT INTO cues VALUES (?, 0, 'speech', '{}', x'')", record.content)

    def sample(path, fps, size):
        raise archive.FilmError("cannot be read")
        yield

    video = archive.VIDEO._replace(sample=sample)
    report, told = archive.fill(Index.open(index.directory), video=video)
    assert "a.film: cannot be read; its embeddings are damaged" in told
    assert (report.failed, report.unreadable) == (0, 1) and index.videos["a.film"] == record
    assert index.select(cues) == [(record.content,)]
    assert archive.fill(Index.open(index.directory))[0].indexed == 1
    assert index.select(cues) == [(record.content,)] and index.verify() == {}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("suffix", [ROUNDED, BOUNDS])
def test_search_recomputes_damaged_quantised_rows(index, large, damage, suffix):
    ranked, whole = hits(index.directory), place(index, suffix).read_bytes()
    damage(place(index, suffix))
    assert list(index.verify()) == [place(index, ROUNDED).name]
    assert hits(index.directory) == ranked
    assert place(index, suffix).read_bytes() == whole and index.verify() == {}


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_unwritable_quantised_rows_stay_in_memory(index, large, make):
    ranked = hits(index.directory)
    place(index, ROUNDED).unlink()
    make(place(index, ROUNDED))
    assert hits(index.directory) == ranked
    assert list(index.verify()) == [place(index, ROUNDED).name]
    index.remove(["a.film", "b.film"])  # compaction does not wait for the writer of a pipe
    assert index.videos.keys() == {"trips/c.film"} and not place(index, ROUNDED).is_file()


@pytest.mark.parametrize("what", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("theirs")])
def test_other_file_types_at_an_embedding_path_are_kept(index, films, what):
    path = place(index, FRAMES)
    path.unlink()
    what(path)
    archive.film(films / "new.film", ["white"] * 4)
    with pytest.raises(SearchError, match="is not a regular file: move it away"):
        archive.fill(index)
    assert not path.is_file() and not (index.directory / "theirs").exists()
    path.rmdir() if path.is_dir() else path.unlink()
    assert archive.fill(index)[0].failed == 0 and index.verify() == {}


def test_rows_of_a_failed_change_are_overwritten(index, films, tmp_path):
    before = {suffix: place(index, suffix).read_bytes() for suffix in (FRAMES, TIMES)}
    rows, times = np.ones((7, archive.WIDTH), np.float16), np.arange(7.0)
    end = index._database.setting("rows_end")
    index.embeddings.append(generation(index), end, times, rows)  # as a run that was killed
    assert all(place(index, s).read_bytes().startswith(x) for s, x in before.items())
    assert index.verify() == {} and len(hits(index.directory)) == 3
    archive.film(films / "new.film", ["red"] * 4)
    archive.fill(index)
    assert hits(index.directory) == hits(archive.indexed(tmp_path / "fresh", films).directory)
    assert all(place(index, s).read_bytes().startswith(x) for s, x in before.items())


def test_only_new_rows_are_written_and_rows_of_results_read(index, films, monkeypatch):
    written, read, pwrite, preadv = [], [], os.pwrite, os.preadv

    def writing(file, data, offset):
        written.append(len(data))
        return pwrite(file, data, offset)

    def reading(file, buffers, offset):
        read.extend(map(len, buffers))
        return preadv(file, buffers, offset)

    monkeypatch.setattr(os, "pwrite", writing)
    archive.film(films / "new.film", ["red", "green", "blue", "white", "white"])
    archive.fill(index)
    assert sum(written) == 4 * index.embeddings.size(1)
    monkeypatch.setattr(os, "preadv", reading)
    index.read(index.videos["new.film"].content)
    assert sum(read) == 4 * (2 * archive.WIDTH + 8)


@pytest.fixture
def varied(tmp_path):
    """The index of a folder of 18 films."""
    return archive.indexed(tmp_path / "varied", archive.varied_folder(tmp_path / "many"))


@pytest.mark.parametrize(
    "ranker", ["best_frame", pytest.param("top_3_frames", marks=pytest.mark.slow)]
)
def test_dead_rows_change_no_result_and_go_when_they_are_many(varied, tmp_path, ranker, large):
    index = varied
    rows = lambda: index._database.setting("rows_end")
    names = [name for name in sorted(index.videos) if name.startswith("f")]
    before = generation(index), rows()
    library = archive.opened(index, ranker=ranker)
    library.query("red")
    open_ = Index.open(index.directory)
    kept = {name: open_.videos[name].content for name in names[3:]}
    index.remove([names[0]])
    assert (generation(index), rows()) == before  # few rows are dead
    fresh = archive.create(tmp_path / "fresh", index.root)
    with fresh.writing() as writer:
        writer.exclude(names[0], "")
    archive.fill(fresh)
    for one in (index, fresh):
        assert hits(one.directory, ranker=ranker) == hits(fresh.directory, ranker=ranker)
    for name in names[1:]:
        if generation(index) > before[0]:
            break
        index.remove([name])
    assert generation(index) == before[0] + 1 and rows() < 0.76 * before[1]
    assert not index.embeddings.path(before[0], FRAMES).exists()
    left = [one for name, one in kept.items() if name in index.videos]
    assert left and index.verify() == {}
    for content in left:  # by an index that was opened before
        open_.read(content)
    with fresh.writing() as writer:
        for name in set(fresh.videos) - set(index.videos):
            writer.exclude(name, "")
            writer.forget([name])
    assert hits(index.directory, ranker=ranker) == hits(fresh.directory, ranker=ranker)
    assert library.query("red", k=9)[0].video == hits(index.directory, ranker=ranker)[0][0]


def test_scores_with_dead_rows_are_those_of_brute_force(varied, large):
    index = varied
    names = sorted(index.videos)
    index.remove(names[4:6])
    index = Index.open(index.directory)
    records = index.records()
    contents = list(records)
    rows = index.frames(contents)
    rounded = index.rounded_frames(contents)
    query = archive.Encoder().encode_texts(["red blue"])[0]
    wanted = [
        (index.read(content).vectors.astype(np.float64) @ query).max() for content in contents
    ]
    products = packed.multiply(rows.matrix, query)
    np.testing.assert_allclose(rows.maxima(products), wanted, atol=1e-6)
    found = rows.find_best(rounded, query, 3, np.ones(len(contents), bool))
    if found is not None:
        np.testing.assert_allclose(np.sort(found)[-3:], np.sort(wanted)[-3:], atol=1e-6)
    assert rows.total == sum(record.frames for record in records.values()) < len(rows.matrix)
    every = np.concatenate([index.read(content).vectors for content in contents])
    np.testing.assert_array_equal(rows.sample(10**6), every)


def test_compaction_that_fails_keeps_the_change_and_leaves_no_copy(index):
    pwrite = os.pwrite

    def half_written(file, data, offset):
        pwrite(file, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", half_written)
        assert index.remove(["a.film"]) == 1
    assert generation(index) == 1 and not list(index.directory.glob("embeddings-2.*"))
    place(index, ROUNDED).unlink()  # which compaction reads
    assert index.remove(["b.film"]) == 1
    assert generation(index) == 1 and index.videos.keys() == {"trips/c.film"}
    archive.fill(Index.open(index.directory))  # computes the quantised rows anew
    assert generation(index) == 2 and index.verify() == {}


def test_rows_of_a_killed_compaction_are_deleted(index):
    left = [index.embeddings.path(number, FRAMES) for number in (2, 7)]
    for path in left:
        path.write_bytes(b"rows")
    archive.fill(index)
    assert not any(path.exists() for path in left) and index.verify() == {}
