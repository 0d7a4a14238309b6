"""Search in PostgreSQL: schemas, interrupted uploads, and the same ranking as without it.

The server is a real one, started for the tests.
"""

import datetime
import os
import re
import socket
import subprocess
import sys
import threading
import time

import archive
import numpy as np
import processes
import pytest

from hlformer_jax.errors import MissingExtra, SearchError
from hlformer_jax.search.index import Index
from hlformer_jax.search.signals import postgres
from hlformer_jax.search.signals.postgres import Store, UploadCounts
from hlformer_jax.search.signals.rankers import UntrainedRanker

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")

SENTENCES = ("red", "blue", "green white", "yellow", "black red")


@pytest.fixture
def films(tmp_path):
    """Films whose order, dates and equal contents a store has to keep."""
    return archive.varied_folder(tmp_path / "films")


def opened(index, store, **options):
    """Open the library of an index on a store; None for a library without a store."""
    return archive.opened(index, store=store, **options)


def agree(results, expected, tolerance=1e-6):
    """Check that results have equal videos, scores and moments, up to rounding."""
    assert [hit.video for hit in results] == [hit.video for hit in expected]
    for hit, expected_hit in zip(results, expected, strict=True):
        assert hit.score == pytest.approx(expected_hit.score, abs=tolerance)
        assert len(hit.moments) == len(expected_hit.moments)
        np.testing.assert_allclose(hit.scores, expected_hit.scores, atol=tolerance)
        for moment, expected_moment in zip(hit.moments, expected_hit.moments, strict=True):
            assert moment == pytest.approx(expected_moment, abs=tolerance)


def sql(address, text):
    """Execute a statement in the schema of an address; return the rows."""
    server, _, schema = address.partition("&schema=")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'SET search_path = "{schema}"')
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else None


@pytest.mark.parametrize(
    "address",
    ["folder/store", "http://h:6333/films", "localhost:5432", "postgresql", "x://me:secret@h/d"],
)
def test_bad_address_of_a_database_is_refused(address):
    with pytest.raises(SearchError, match="is not the address") as refused:
        Store(address)
    assert "secret" not in str(refused.value)


def test_address_with_two_schemas_is_refused():
    with pytest.raises(SearchError, match="names 2 schemas: give one"):
        Store("postgresql://h/d?schema=a&schema=b")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:se/cret@h/d", "postgresql://me:se?cret@h/d", "postgresql://me:s cret@h/d",
        "postgresql://me:12/cret@h/d", "postgresql://me:'cret@h/d'", "dbname=x password=cret",
        "dbname=x password = 'a cret'", "postgresql://h/d?password", "x://h/?p%61ssword=cret",
        "postgresql://me:cret@h:port/d", "postgresql://me:cret@h/d?a=b&cret@x",
    ],
)  # fmt: skip
def test_no_address_shows_its_password(address):
    try:
        shown = Store(address).address
    except SearchError as refused:
        assert "is not the address" in str(refused)
        shown = str(refused)
    assert "cret" not in shown


@pytest.mark.parametrize(
    ("address", "server", "schema"),
    [
        ("postgresql:///db?host=/run/postgresql", None, "hlformer"),
        ("postgresql:///db?host=/run/postgresql&schema=mine",
         "postgresql:///db?host=/run/postgresql", "mine"),
        ("postgresql://%2Frun%2Fpostgresql/db?schema=a%20b", "postgresql://%2Frun%2Fpostgresql/db",
         "a b"),
        ("postgres://me:p%40ss@a:1,b:2/db?options=-c%20x", None, "hlformer"),
        ("postgresql://me@[::1]:5432/db", None, "hlformer"),
        ("postgresql://me:p#w+d@h/db?application_name=a+b", None, "hlformer"),
        ("postgresql:///", None, "hlformer"),
    ],
)  # fmt: skip
def test_all_address_options_except_schema_go_to_libpq(address, server, schema):
    store = Store(address)
    assert (store._server, store._name) == (server or address, schema)
    psycopg.conninfo.conninfo_to_dict(store._server)
    for secret in ("p%40ss", "p@ss", "p#w+d"):
        assert secret not in store.address + repr(store)


def test_server_error_does_not_show_the_password(monkeypatch, index):
    store = Store("postgresql://me:s%20cret@h/d?sslpassword=k%26y")

    def refuse(*_, **__):
        raise psycopg.OperationalError("connection with 's cret', s%20cret, k&y and k%26y failed")

    monkeypatch.setattr(psycopg, "connect", refuse)
    with pytest.raises(SearchError, match="failed") as refused:
        store.check(index, UntrainedRanker("best_frame", index, None))
    assert not any(secret in str(refused.value) for secret in ("cret", "k&y", "k%26y"))


@pytest.mark.parametrize(
    "address",
    ["postgresql://me:secret@{}/films", "postgresql://me@{}/films?password=secret&schema=s"],
)
def test_unreachable_server_gives_one_line_without_password(index, address):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    library = opened(index, address.format(f"127.0.0.1:{port}"))
    with pytest.raises(SearchError, match="refused") as refused:
        library.query("red")
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


def test_missing_client_is_reported_with_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"needs more packages: .*\[postgres\]"):
        Store("postgresql://h/films")


@pytest.mark.slow  # PostgreSQL starts in seconds
class TestServer:
    def test_schema_of_another_archive_or_program_is_refused(
        self, index, films, tmp_path, monkeypatch, address
    ):
        with pytest.raises(SearchError, match="has no schema .*upload"):
            opened(index, address).query("red")
        opened(index, address).upload()
        options = re.escape(address.partition("?")[2].partition("&schema=")[0])
        with pytest.raises(SearchError, match=rf"name another one, .*\?{options}&schema=NAME$"):
            opened(index, address, ranker="segments").query("red")
        with pytest.raises(SearchError, match=r"ranker \(best_frame there, segments here\)"):
            opened(index, address, ranker="segments").query("red")
        faster = archive.create(tmp_path / "faster", films, fps=2)
        archive.fill(faster)
        for act in (lambda library: library.upload(), lambda library: library.query("red")):
            with pytest.raises(SearchError, match="frames a second .1.0 there, 2.0 here"):
                act(opened(faster, address))
        unrelated = archive.indexed(tmp_path / "unrelated", archive.folder(tmp_path / "others"))
        with pytest.raises(SearchError, match="whose videos an upload would delete"):
            opened(unrelated, address).upload()
        monkeypatch.setattr(archive.Encoder, "name", "other")
        monkeypatch.setattr(archive.Encoder, "preprocessing", "another")
        renamed = archive.indexed(tmp_path / "renamed", films)
        with pytest.raises(SearchError, match=r"another encoder \(colours there, other here\)"):
            opened(renamed, address).upload()
        with pytest.raises(SearchError, match="not made by this version"):
            opened(renamed, address.partition("&")[0] + "&schema=public").upload()
        assert sql(address, "SELECT count(*) FROM contents") == [(len(index.contents()),)]
        foreign = address.replace("&schema=", "&schema=foreign")
        with psycopg.connect(address.partition("&")[0], autocommit=True) as connection:
            name = foreign.partition("schema=")[2]
            connection.execute(f'CREATE SCHEMA "{name}"')
            connection.execute(f'CREATE TABLE "{name}".facts (fact text)')
        with pytest.raises(SearchError, match="not made by this version"):
            opened(renamed, foreign).query("red")
        sql(address, "ALTER TABLE rows ALTER place TYPE bigint")
        with pytest.raises(SearchError, match="not made by this version"):
            opened(renamed, address).query("red")

    @pytest.mark.parametrize("ranker", ["best_frame", "top_3_frames", "segments"])
    def test_ranking_agrees_with_and_without_a_store(self, index, ranker, address):
        library = opened(index, address, ranker=ranker)
        count = len(index.contents())
        assert count < 18 and library.upload() == UploadCounts(sent=count)
        plain = opened(index, None, ranker=ranker)
        for sentence in SENTENCES:
            for k in (1, 2, 5, 100):
                agree(library.query(sentence, k=k), plain.query(sentence, k=k))
        for position in (0, 7):
            evidence, expected = (
                opened_library.examiner()[1]("red", position) for opened_library in (library, plain)
            )
            np.testing.assert_allclose(evidence[0], expected[0], atol=1e-6)
            agree([evidence[2]], [expected[2]])

    def test_contents_that_tie_with_the_last_result_are_ranked(self, tmp_path, address):
        for i, colours in enumerate((["red"], ["blue", "red"], ["white", "red"], ["green"])):
            archive.film(tmp_path / "films" / f"{i}.film", colours)
        index = archive.indexed(tmp_path / "index", tmp_path / "films")
        opened(index, address).upload()
        ranker = UntrainedRanker("best_frame", index, None)
        stored = postgres.StoreRanker(Store(address), ranker, index, list(index.contents()))
        scores = stored.best(ranker.encode(archive.Encoder(), "red"), 1, np.ones(4, bool))
        assert sorted(np.isfinite(scores)) == [False, True, True, True]

    def test_normalised_score_is_refused(self, index, address):
        with pytest.raises(SearchError, match="cannot compute"):
            opened(index, address, normalise=True).upload()

    def test_filters_agree_with_and_without_a_store(self, index, address):
        library, plain = opened(index, address), opened(index, None)
        library.upload()
        library.query("red")
        assert not (index.directory / "packed").exists()  # no local matrix of all vectors is made
        days = [datetime.datetime.fromtimestamp(entry.date) for entry in plain.videos()]
        for filters in (
            {"folder": "trips"}, {"folder": "f1"}, {"folder": "f0", "since": days[3]},
            {"since": days[3], "until": days[3]}, {"since": "2001-09-12", "until": "2001-09-14"},
        ):  # fmt: skip
            agree(library.query("red", k=20, **filters), plain.query("red", k=20, **filters))

    def test_absent_videos_are_queried_once_per_change(self, index, address, monkeypatch):
        library, uploader = opened(index, address), opened(index, address)
        library.upload()
        queries, execute = [], postgres._Session.__call__

        def recording(session, text, *values, **parts):
            queries.append(text)
            return execute(session, text, *values, **parts)

        changes = [
            (lambda: None, []),
            (lambda: sql(address, "DELETE FROM contents WHERE number = 2"), ["1 of "]),
            (uploader.upload, []),
            (lambda: sql(address, "DELETE FROM contents WHERE number = 3"
                         "; INSERT INTO contents (content) VALUES ('x')"), ["1 of "]),
        ]  # fmt: skip
        monkeypatch.setattr(postgres._Session, "__call__", recording)
        for change, expected in changes:
            change()
            queries.clear()
            for _ in range(2):
                assert [line[:5] for line in library.query("red").warnings] == expected
            assert queries.count(postgres._ABSENT) == 1 and queries.count(postgres._BEST) == 2

    def test_upload_sends_new_videos_and_deletes_removed_ones(self, index, films, address):
        library, steps = opened(index, address), []
        assert library.upload(lambda *step: steps.append(step)).sent == 15
        assert steps == [(done, 15) for done in range(1, 16)]
        assert library.upload() == UploadCounts(unchanged=15)
        (films / "a.film").rename(films / "trips" / "moved.film")
        os.utime(films / "b.film", (5, 5))
        archive.film(films / "f0" / "0.film", ["white"] * 9)
        archive.film(films / "new.film", ["yellow"] * 4)
        archive.fill(Index.open(index.directory))
        # Until the upload, only stored contents are found, at their current paths.
        [line] = [x for x in library.query("yellow").warnings if "store" in x]
        assert line.startswith("2 of 19 videos are not in the store and left out ('")
        videos = {hit.video for hit in library.query("red", k=50)}
        assert "trips/moved.film" in videos and "new.film" not in videos
        assert library.upload() == UploadCounts(sent=2, unchanged=14, removed=1)
        plain = opened(index, None)
        for options in ({}, {"folder": "trips"}, {"until": "1970"}):
            agree(library.query("red", k=50, **options), plain.query("red", k=50, **options))

    @pytest.mark.parametrize("lost", ["place >= 0", "place > 0"], ids=["all", "some"])
    def test_content_that_lost_rows_is_named_and_uploaded_again(self, index, address, lost):
        library = opened(index, address)
        library.upload()
        total = sql(address, "SELECT count(*) FROM rows")
        sql(address, f"DELETE FROM rows WHERE number IN (2, 3) AND {lost}")
        store = opened(index, address)
        results = store.query("red", k=50)
        [line] = results.warnings
        assert " not in the store and left out" in line
        assert len({hit.path.read_bytes() for hit in results}) == len(index.contents()) - 2
        assert library.upload() == UploadCounts(sent=2, unchanged=len(index.contents()) - 2)
        assert sql(address, "SELECT count(*) FROM rows") == total
        reopened = opened(index, address)
        agree(reopened.query("red", k=50), opened(index, None).query("red", k=50))
        assert not reopened.query("red").warnings

    def test_killed_upload_is_continued_by_the_next(self, index, address, tmp_path):
        # The upload stops during the sixth content.
        program = tmp_path / "upload.py"
        program.write_text(
            "import sys, time, archive\n"
            "from hlformer_jax import search\n"
            "from hlformer_jax.search.signals.postgres import Upload\n"
            "add, sent = Upload.add, []\n"
            "def slow(self, content, branches):\n"
            "    def rows():\n"
            "        yield from branches\n"
            "        if len(sent) == 5:\n"
            "            print('sixth content', flush=True)\n"
            "            time.sleep(100)\n"
            "    add(self, content, rows())\n"
            "    sent.append(content)\n"
            "Upload.add = slow\n"
            "search.open(sys.argv[1], encoder=archive.Encoder(), store=sys.argv[2]).upload()\n"
        )
        with subprocess.Popen(
            [sys.executable, program, index.directory, address], text=True,
            stdout=subprocess.PIPE, env=processes.environment(),
        ) as process:  # fmt: skip
            assert process.stdout.readline() == "sixth content\n"
            library = opened(index, address)
            with pytest.raises(SearchError, match="another upload is running"):
                library.upload()
            assert len({hit.path.read_bytes() for hit in library.query("red", k=50)}) == 5
            process.kill()
        deadline = time.monotonic() + 20
        while "the server has not seen the end of the connection":
            try:
                assert library.upload() == UploadCounts(sent=10, unchanged=5)
                break
            except SearchError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        agree(library.query("red", k=50), opened(index, None).query("red", k=50))

    def test_query_fails_once_after_a_lost_connection(self, index, address, server):
        library = opened(index, address)
        library.upload()
        expected = library.query("red")
        connection = psycopg.connect(server)
        schema = address.partition("schema=")[2]
        connection.execute(f'LOCK TABLE "{schema}".rows')  # makes a query wait
        ended = threading.Thread(target=end_queries, args=(server,))
        ended.start()
        with connection, pytest.raises(SearchError, match="PostgreSQL failed"):
            library.query("red")
        ended.join()
        agree(library.query("red"), expected)

    @pytest.mark.parametrize("encoding", ["SQL_ASCII", "UTF8"])
    def test_archive_is_found_whatever_bytes_its_names_have(self, tmp_path, server, encoding):
        database = f"names_{encoding.lower()}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(
                f"CREATE DATABASE {database} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
            )
        films = archive.varied_folder(tmp_path / os.fsdecode(b"films \xff"))
        index = archive.indexed(tmp_path / "index", films)
        place, _, options = server.partition("?")
        address = f"{place.rpartition('/')[0]}/{database}?{options}&schema=100%25%20{{}}%25s"
        count = len(index.contents())
        assert opened(index, address).upload() == UploadCounts(sent=count)
        assert opened(index, address).upload() == UploadCounts(unchanged=count)
        agree(opened(index, address).query("red"), opened(index, None).query("red"))

    def test_failed_content_is_not_stored_in_part(self, index, address):
        store, ranker = Store(address), UntrainedRanker("best_frame", index, None)
        with store.uploading(index, ranker) as upload:
            wrong = [np.zeros((2, ranker.width), np.float32), np.zeros((1, 3), np.float32)]
            with pytest.raises(psycopg.Error):
                upload.add("x", wrong)
            assert upload.contents() == set()


def end_queries(server):
    """End the connections that wait for a lock, like a server that is stopped."""
    with psycopg.connect(server, autocommit=True) as connection:
        waiting = "FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if connection.execute(f"SELECT pg_terminate_backend(pid) {waiting}").fetchall():
                return
            time.sleep(0.05)
