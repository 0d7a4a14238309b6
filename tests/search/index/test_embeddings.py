"""Rows of embeddings: only appended, computed anew if damaged, and compacted."""

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


def query_red(directory, **options):
    library = search.open(directory, encoder=archive.Encoder(), **options)
    return [(hit.video, hit.id, round(hit.score, 5)) for hit in library.query("red", k=9)]


def generation(index):
    return index._database.setting("generation")


def embedding_path(index, suffix):
    return index.embeddings.path(generation(index), suffix)


@pytest.mark.parametrize("suffix", [FRAMES, TIMES])
def test_any_changed_byte_is_damage(index, suffix):
    path = embedding_path(index, suffix)
    content = path.read_bytes()
    for offset in [*range(0, len(content), 61), len(content) - 1]:
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        damaged = index.verify()
        assert len(damaged) == 1 and "index the folder again" in next(iter(damaged.values()))
    path.write_bytes(content)
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
    before, ranked = archive.vectors(index), query_red(index.directory)
    damage(embedding_path(index, suffix))
    damaged = index.verify()
    assert damaged and set(damaged) <= set(before)
    try:
        results = archive.opened(index).query("red", k=9)
        assert len(results) == 3 - len(damaged) and len(results.warnings) == 1
        assert all(".film' " in line and "\n" not in line for line in results.warnings)
    except DamagedError:
        assert len(damaged) == 3
    encoder = archive.Encoder()
    report, lines = archive.fill(Index.open(index.directory), encoder)
    assert report.indexed == len(damaged) == sum("computed anew" in line for line in lines)
    assert archive.vectors(index) == before and index.verify() == {}
    assert query_red(index.directory) == ranked


def test_run_reports_few_of_many_damaged_embeddings(index, monkeypatch):
    monkeypatch.setattr(extract, "MAX_DAMAGE_LINES", 1)
    for path in index.directory.glob("embeddings-*"):
        path.unlink()
    report, lines = archive.fill(Index.open(index.directory))
    assert report.indexed == 3 and len(lines) == 2 and "computed anew" in lines[0]
    assert lines[1] == "the embeddings of 2 more videos were damaged or missing"


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EACCES, "may not be read or written by this user"), (errno.EIO, "cannot be read")],
)
def test_unreadable_embeddings_end_the_run(index, monkeypatch, number, reason):
    os_open, lines, encoder = os.open, [], archive.Encoder()

    def failing(path, *values, **options):
        if Path(path).name == "embeddings-1.f16":
            raise OSError(number, os.strerror(number), str(path))
        return os_open(path, *values, **options)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(SearchError, match=f"embeddings-1.f16 {reason}"):
        archive.fill(Index.open(index.directory), encoder, report=lines.append)
    assert not lines and not encoder.seen


def test_unreadable_rows_are_computed_anew(index, monkeypatch):
    read = os.preadv

    def failing(file, buffers, offset):
        if offset == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    report, lines = archive.fill(Index.open(index.directory))
    assert report.indexed == 1 and len(lines) == 1
    assert "Input/output error" in lines[0] and "computed anew" in lines[0]


def test_damage_is_reported_if_the_video_is_unreadable(index, films, monkeypatch):
    archive.damage(index, "a.film")
    archive.damage(index, "b.film")
    (films / "a.film").unlink()

    def failing(path, pulse):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(extract, "digest", failing)
    _, lines = archive.fill(Index.open(index.directory))
    assert lines == [
        "b.film: Input/output error; its embeddings are damaged",
        "a.film: its embeddings are damaged, and its file cannot be read",
    ]


def test_undecodable_video_keeps_its_transcript(index):
    archive.damage(index, "a.film")
    record, cues = index.videos["a.film"], "SELECT content FROM cues"
    with index.writing() as writer:
        writer.execute("INSERT INTO cues VALUES (?, 0, 'speech', '{}', x'')", record.content)

    def sample(path, fps, size):
        raise archive.FilmError("cannot be read")
        yield

    video = archive.VIDEO._replace(sample=sample)
    report, lines = archive.fill(Index.open(index.directory), video=video)
    assert "a.film: cannot be read; its embeddings are damaged" in lines
    assert (report.failed, report.unreadable) == (0, 1) and index.videos["a.film"] == record
    assert index.select(cues) == [(record.content,)]
    assert archive.fill(Index.open(index.directory))[0].indexed == 1
    assert index.select(cues) == [(record.content,)] and index.verify() == {}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("suffix", [ROUNDED, BOUNDS])
def test_search_recomputes_damaged_quantised_rows(index, large, damage, suffix):
    ranked, content = query_red(index.directory), embedding_path(index, suffix).read_bytes()
    damage(embedding_path(index, suffix))
    assert list(index.verify()) == [embedding_path(index, ROUNDED).name]
    assert query_red(index.directory) == ranked
    assert embedding_path(index, suffix).read_bytes() == content and index.verify() == {}


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_unwritable_quantised_rows_stay_in_memory(index, large, make):
    ranked = query_red(index.directory)
    embedding_path(index, ROUNDED).unlink()
    make(embedding_path(index, ROUNDED))
    assert query_red(index.directory) == ranked
    assert list(index.verify()) == [embedding_path(index, ROUNDED).name]
    index.remove(["a.film", "b.film"])  # compaction does not wait for the writer of a pipe
    assert index.videos.keys() == {"trips/c.film"} and not embedding_path(index, ROUNDED).is_file()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("foreign")])
def test_special_file_at_an_embedding_path_is_kept(index, films, make):
    path = embedding_path(index, FRAMES)
    path.unlink()
    make(path)
    archive.film(films / "new.film", ["white"] * 4)
    with pytest.raises(SearchError, match="is not a regular file: move it away"):
        archive.fill(index)
    assert not path.is_file() and not (index.directory / "foreign").exists()
    path.rmdir() if path.is_dir() else path.unlink()
    assert archive.fill(index)[0].failed == 0 and index.verify() == {}


def test_rows_of_a_failed_change_are_overwritten(index, films, tmp_path):
    before = {suffix: embedding_path(index, suffix).read_bytes() for suffix in (FRAMES, TIMES)}
    rows, times = np.ones((7, archive.WIDTH), np.float16), np.arange(7.0)
    end = index._database.setting("rows_end")
    index.embeddings.append(generation(index), end, times, rows)  # as a run that was killed
    assert all(embedding_path(index, s).read_bytes().startswith(x) for s, x in before.items())
    assert index.verify() == {} and len(query_red(index.directory)) == 3
    archive.film(films / "new.film", ["red"] * 4)
    archive.fill(index)
    assert query_red(index.directory) == query_red(
        archive.indexed(tmp_path / "fresh", films).directory
    )
    assert all(embedding_path(index, s).read_bytes().startswith(x) for s, x in before.items())


def test_only_new_rows_are_written_and_needed_rows_read(index, films, monkeypatch):
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
def test_dead_rows_change_no_result_and_are_compacted(varied, tmp_path, ranker, large):
    index = varied

    def row_count():
        return index._database.setting("rows_end")

    names = [name for name in sorted(index.videos) if name.startswith("f")]
    before = generation(index), row_count()
    library = archive.opened(index, ranker=ranker)
    library.query("red")
    earlier_index = Index.open(index.directory)
    contents = {name: earlier_index.videos[name].content for name in names[3:]}
    index.remove([names[0]])
    assert (generation(index), row_count()) == before  # too few dead rows to compact
    fresh = archive.create(tmp_path / "fresh", index.root)
    with fresh.writing() as writer:
        writer.exclude(names[0], "")
    archive.fill(fresh)
    assert query_red(index.directory, ranker=ranker) == query_red(fresh.directory, ranker=ranker)
    for name in names[1:]:
        if generation(index) > before[0]:
            break
        index.remove([name])
    assert generation(index) == before[0] + 1 and row_count() < 0.76 * before[1]
    assert not index.embeddings.path(before[0], FRAMES).exists()
    remaining = [content for name, content in contents.items() if name in index.videos]
    assert remaining and index.verify() == {}
    for content in remaining:
        earlier_index.read(content)
    with fresh.writing() as writer:
        for name in set(fresh.videos) - set(index.videos):
            writer.exclude(name, "")
            writer.forget([name])
    assert query_red(index.directory, ranker=ranker) == query_red(fresh.directory, ranker=ranker)
    assert library.query("red", k=9)[0].video == query_red(index.directory, ranker=ranker)[0][0]


def test_scores_with_dead_rows_agree_with_brute_force(varied, large):
    index = varied
    names = sorted(index.videos)
    index.remove(names[4:6])
    index = Index.open(index.directory)
    records = index.records()
    contents = list(records)
    rows = index.frames(contents)
    rounded = index.rounded_frames(contents)
    query = archive.Encoder().encode_texts(["red blue"])[0]
    expected = [
        (index.read(content).vectors.astype(np.float64) @ query).max() for content in contents
    ]
    products = packed.multiply(rows.matrix, query)
    np.testing.assert_allclose(rows.maxima(products), expected, atol=1e-6)
    scores = rows.find_best(rounded, query, 3, np.ones(len(contents), bool))
    np.testing.assert_allclose(np.sort(scores)[-3:], np.sort(expected)[-3:], atol=1e-6)
    assert rows.total == sum(record.frames for record in records.values()) < len(rows.matrix)
    vectors = np.concatenate([index.read(content).vectors for content in contents])
    np.testing.assert_array_equal(rows.sample(10**6), vectors)


def test_failed_compaction_keeps_the_change_and_leaves_no_files(index):
    pwrite = os.pwrite

    def half_written(file, data, offset):
        pwrite(file, data[: len(data) // 2], offset)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", half_written)
        assert index.remove(["a.film"]) == 1
    assert generation(index) == 1 and not list(index.directory.glob("embeddings-2.*"))
    embedding_path(index, ROUNDED).unlink()  # which compaction reads
    assert index.remove(["b.film"]) == 1
    assert generation(index) == 1 and index.videos.keys() == {"trips/c.film"}
    archive.fill(Index.open(index.directory))  # computes the quantised rows anew
    assert generation(index) == 2 and index.verify() == {}


def test_rows_of_a_killed_compaction_are_deleted(index):
    leftovers = [index.embeddings.path(number, FRAMES) for number in (2, 7)]
    for path in leftovers:
        path.write_bytes(b"rows")
    archive.fill(index)
    assert not any(path.exists() for path in leftovers) and index.verify() == {}
