"""Search in PostgreSQL: a server stores the rows of an index, and pgvector ranks them.

A schema of a database holds one archive for one ranker. A content is the bytes that one or several
videos have. Its score is

    Σ_b weight_b · (mean of the `top` largest ⟨query_b, row⟩ of branch b)

A ranker without training has one branch; a trained model has one for its clips and one for its
frames. The scan is exact: no approximate index is used. The moments of the best videos are computed
on this machine, from the index. docs/search/scale.md describes an upload. The tables of the schema:

    facts      name, value                     encoder, ranker and folder of the rows
    contents   number, content, row_count      SHA-256 of a video's bytes, and its number of rows
    rows       number, branch, place, vector   halfvec where the ranker's rows are float16
"""

import contextlib
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
from jaxtyping import Bool, Float

from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import QueryError, SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.search.index import Index
from hlformer_jax.search.index.records import VideoArrays
from hlformer_jax.search.signals.rankers import RowRanker
from hlformer_jax.text import without_passwords

SCHEMA = "hlformer"
"""The schema that is used if an address names none."""

CONNECT_SECONDS, ANSWER_SECONDS = 10, 120
"""Longest waits for a connection to the server, and for its answer to a statement."""

FACTS = {
    "encoder": "encoder", "fps": "number of frames a second", "key": "form of the encoder",
    "ranker": "ranker", "folder": "folder, whose videos an upload would delete",
}  # fmt: skip
"""Facts that a schema stores, with their names in messages; only an upload checks the folder."""

COLUMNS = frozenset(
    {("facts", "name", "text"), ("facts", "value", "text"),
     ("contents", "number", "int4"), ("contents", "content", "text"),
     ("contents", "row_count", "int4"),
     ("rows", "number", "int4"), ("rows", "branch", "int2"), ("rows", "place", "int4"),
     ("rows", "vector", "vector")}
)  # fmt: skip
"""Tables, columns and types of a schema that this program has made; halfvec counts as vector."""

# STORAGE PLAIN keeps the vectors in the table: a scan takes four times as long otherwise.
_TABLES = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.facts (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {schema}.contents (
  number int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, content text NOT NULL UNIQUE,
  row_count int NOT NULL DEFAULT 0);
CREATE TABLE {schema}.rows (
  number int NOT NULL REFERENCES {schema}.contents ON DELETE CASCADE,
  branch smallint NOT NULL, place int NOT NULL, vector {type} NOT NULL);
ALTER TABLE {schema}.rows ALTER vector SET STORAGE PLAIN;
CREATE INDEX ON {schema}.rows (number);
"""

_BEST = """
SELECT content, score FROM (
  SELECT number, sum(best)::real AS score, sum(found) AS found FROM (
    SELECT number, {best} AS best, count(*) AS found FROM (
      SELECT number, branch, CASE branch {products} END AS product FROM {schema}.rows
      WHERE number IN (SELECT number FROM {schema}.contents WHERE content = ANY(%(among)s))
    ) AS products GROUP BY number, branch
  ) AS branches GROUP BY number
) AS scores JOIN {schema}.contents USING (number) WHERE found = row_count
ORDER BY score DESC FETCH FIRST %(count)s ROWS WITH TIES
"""
_IS_COMPLETE = """\
row_count = (
  SELECT count(*) FROM {schema}.rows WHERE rows.number = contents.number)
"""
_ABSENT = f"""
SELECT wanted FROM unnest(%s::text[]) AS wanted
WHERE NOT EXISTS (
  SELECT 1 FROM {{schema}}.contents WHERE content = wanted AND {_IS_COMPLETE})
"""
_STATE = "SELECT count(*), max(number) FROM {schema}.contents"  # no number is used again
_ADDRESS = re.compile(
    # there may be several hosts, IPv6 addresses in brackets, or no host for a Unix socket
    r"postgres(?:ql)?://(?:[^/@:]*(?::[^/@]*)?@)?{host}(?:,{host})*(?:/[^@]*)?".format(
        host=r"(?:\[[0-9A-Fa-f:.%]+\]|[^/@:,\[\]]*)(?::[0-9]*)?"
    )
)
_LARGEST = "max(product)"
_MEAN = "(SELECT avg(x) FROM unnest((array_agg(product ORDER BY product DESC))[:{top}]) AS x)"


class Absent(NamedTuple):
    """The contents of an index that a store lacks."""

    state: tuple[int, int | None]
    """A value that differs after every change of the store's contents."""
    contents: set[str]


class Store:
    """The schema of an archive in a PostgreSQL database that has the extension pgvector."""

    def __init__(self, address: str) -> None:
        """Parse an address, without a connection to the server yet.

        Args:
          address: postgresql://USER@HOST/DATABASE?schema=NAME. All other options of the address go
            to libpq, which also reads its environment variables (PGHOST) and ~/.pgpass.

        Raises:
          QueryError: if it is not such an address.
          MissingExtra: if the client (psycopg) is not installed.
        """
        self.address = without_passwords(address, [address])
        place, _, query = address.partition("?")
        # Not parsed and rebuilt with urllib: libpq accepts addresses that urllib does not.
        options = [option for option in query.split("&") if option]
        schemas = [option for option in options if option.startswith("schema=")]
        if len(schemas) > 1:
            raise QueryError(
                "{store} {address} names {count} schemas: give one",
                field="store", address=self.address, count=len(schemas),
            )  # fmt: skip
        if not _ADDRESS.fullmatch(place) or not all("=" in option for option in options):
            raise QueryError(
                "{store} {address} is not the address of a PostgreSQL database: give"
                " postgresql://USER@HOST/DATABASE?schema=NAME, and in a password write / ? @"
                " : # % as %2F %3F %40 %3A %23 %25",
                field="store", address=self.address,
            )  # fmt: skip
        self._name = unquote(schemas[-1].partition("=")[2]) if schemas else ""
        self._name = self._name or SCHEMA
        libpq_options = "&".join(option for option in options if option not in schemas)
        self._server = f"{place}?{libpq_options}" if libpq_options else place
        self._secrets = _secrets(place, options)
        self._client = optional("psycopg", "postgres")

    def check(self, index: Index, ranker: RowRanker) -> None:
        """Check that the schema belongs to the encoder of an index and to a ranker.

        Raises:
          SearchError: if the schema is missing, or belongs to another encoder, ranker or program.
        """
        with self._session() as ask:
            self._check(ask, index, ranker, uploads=False)

    def best(
        self,
        queries: Sequence[Float[np.ndarray, " w"]],
        top: int,
        allowed: Sequence[str],
        count: int,
    ) -> list[tuple[str, float]]:
        """Return the best `count` contents with their scores, and all that equal the last of them.

        Args:
          queries: the query of each branch, multiplied by the branch's weight.
          top: number of largest products whose mean is the score of a branch.
          allowed: the contents to rank; contents that were not uploaded are left out.
          count: number of contents.

        Returns:
          Pairs of a content and its score, best first.

        Raises:
          SearchError: if the server does not answer.
        """
        values = {f"query{i}": str(query.tolist()) for i, query in enumerate(queries)}
        # Rows may be float16. They are converted to float32, so that the query is not rounded.
        products = " ".join(
            f"WHEN {i} THEN -(vector::vector <#> %(query{i})s::vector)" for i in range(len(values))
        )
        best = _LARGEST if top == 1 else _MEAN.format(top=top)
        with self._session() as ask:
            parameters = values | {"among": list(allowed), "count": count}
            ranked: list[tuple[str, float]] = ask(_BEST, parameters, products=products, best=best)
        return ranked

    def absent(self, contents: Sequence[str], before: Absent | None = None) -> Absent:
        """Return those of some contents that were not uploaded, or have lost rows.

        Args:
          contents: the contents.
          before: an earlier result for them, which is returned if the store has not changed.

        Raises:
          SearchError: if the server does not answer.
        """
        with self._session() as ask:
            [state] = ask(_STATE)
            if before is not None and state == before.state:
                return before
            absent = ask(_ABSENT, [list(contents)])
            return Absent(state, {content for (content,) in absent})

    def vectors(self, content: str, branches: int) -> list[Float[np.ndarray, "_ w"]]:
        """Return the rows of each branch of a content, float32.

        Raises:
          SearchError: if the content was not uploaded or has lost rows, or the server does not
            answer.
        """
        with self._session() as ask:
            rows = ask(
                "SELECT branch, vector::vector::real[], row_count FROM {schema}.rows"
                " JOIN {schema}.contents USING (number) WHERE content = %s ORDER BY place",
                [content],
            )
        if not rows or len(rows) != rows[0][2]:
            raise SearchError(f"{self.address} lacks a video of the index: upload the index again")
        return [
            np.asarray([row for branch, row, _ in rows if branch == i], np.float32)
            for i in range(branches)
        ]

    @contextlib.contextmanager
    def uploading(self, index: Index, ranker: RowRanker) -> Iterator["Upload"]:
        """Open the schema for writing by this process alone; create it if it is missing.

        Raises:
          SearchError: if another process is uploading, or the schema belongs to another encoder,
            ranker, folder or program.
        """
        with self._session() as ask:
            # A lock of the session: it ends with the connection of a killed process.
            [[free]] = ask("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [self._name])
            if not free:
                raise SearchError(f"{self.address}: another upload is running: wait until it ends")
            if not self._exists(ask):
                with ask.transaction():
                    ask("CREATE EXTENSION IF NOT EXISTS vector")
                    kind = "halfvec" if ranker.dtype == "float16" else "vector"
                    ask(_TABLES, type=f"{kind}({ranker.width})")
                    for fact in _facts(index, ranker).items():
                        ask("INSERT INTO {schema}.facts VALUES (%s, %s)", fact)
            self._check(ask, index, ranker, uploads=True)
            yield Upload(ask, ranker.dtype)

    def _exists(self, ask: "_Session") -> bool:
        return bool(ask("SELECT 1 FROM pg_namespace WHERE nspname = %s", [self._name]))

    def _check(self, ask: "_Session", index: Index, ranker: RowRanker, uploads: bool) -> None:
        if not self._exists(ask):
            raise SearchError(
                f"{self.address} has no schema {self._name!r}: upload the index to it first"
            )
        place, _, query = self.address.partition("?")
        options = [x for x in query.split("&") if x and not x.startswith("schema=")]
        advice = f"name another one, {place}?{'&'.join([*options, 'schema=NAME'])}"
        columns = ask(
            "SELECT relname, attname, CASE typname WHEN 'halfvec' THEN 'vector' ELSE typname END"
            " FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid"
            " JOIN pg_namespace ON pg_namespace.oid = relnamespace"
            " JOIN pg_type ON pg_type.oid = atttypid WHERE nspname = %s",
            [self._name],
        )
        if not COLUMNS <= set(columns):
            raise SearchError(
                f"the schema {self._name!r} was not made by this version of the program: {advice}"
            )
        stored, current = dict(ask("SELECT name, value FROM {schema}.facts")), _facts(index, ranker)
        for fact, name in FACTS.items():
            if stored.get(fact) != current[fact] and (uploads or fact != "folder"):
                raise SearchError(
                    f"the schema {self._name!r} was uploaded with another {name}"
                    f" ({stored.get(fact)} there, {current[fact]} here): {advice}"
                )

    @contextlib.contextmanager
    def _session(self) -> Iterator["_Session"]:
        """Connect; raise an error of the server as a SearchError of one line, without passwords."""
        try:
            with self._client.connect(
                self._server, autocommit=True, connect_timeout=CONNECT_SECONDS,
                client_encoding="utf8",  # a database of SQL_ASCII sends bytes otherwise
            ) as connection:  # fmt: skip
                connection.execute(f"SET statement_timeout = '{ANSWER_SECONDS}s'")
                yield _Session(connection, self._client.sql, self._name)
        except (self._client.Error, UnicodeError) as error:
            why = without_passwords(" ".join(str(error).split()))[:300]
            for secret in self._secrets:
                why = why.replace(secret, "…")
            raise SearchError(f"{self.address}: PostgreSQL failed: {why}") from None


class _Session:
    """Executor of SQL statements that fills in the schema's name and other parts of their text."""

    def __init__(self, connection: Any, sql: Any, schema: str) -> None:
        self._connection, self._sql, self._schema = connection, sql, schema
        self.transaction = connection.transaction

    def _query(self, text: str, parts: Mapping[str, str], has_values: bool = False) -> Any:
        statements = {name: self._sql.SQL(part) for name, part in parts.items()}
        # In a text with values, a single % begins a placeholder.
        schema = self._schema.replace("%", "%%") if has_values else self._schema
        return self._sql.SQL(text).format(schema=self._sql.Identifier(schema), **statements)

    def __call__(self, text: str, values: Any = (), **parts: str) -> list[Any]:
        # None instead of (): only without values may a text have several statements.
        query = self._query(text, parts, has_values=bool(values))
        cursor = self._connection.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []

    def copy(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        """Send rows in PostgreSQL's binary format."""
        with self._connection.cursor().copy(self._query(text, {})) as copy:
            copy.set_types(["int4", "int2", "int4", "bytea"])
            for row in rows:
                copy.write_row(row)


def _secrets(place: str, options: Sequence[str]) -> list[str]:
    """Return the passwords of an address, both as written and decoded, the longest first."""
    user = place.partition("://")[2].rpartition("@")[0]
    passwords = [user.partition(":")[2]]
    parts = (option.partition("=") for option in options)
    passwords += [value for key, _, value in parts if "password" in unquote(key).lower()]
    forms = {*passwords, *map(unquote, passwords)} - {""}
    return sorted(forms, key=len, reverse=True)


class Upload:
    """Changes to the contents of a schema, while only this process may write to it."""

    def __init__(self, ask: _Session, dtype: str) -> None:
        self._ask, self._dtype = ask, np.dtype(dtype).newbyteorder(">")

    def contents(self) -> set[str]:
        """Return the uploaded contents, after those that have lost rows are deleted."""
        self._ask(f"DELETE FROM {{schema}}.contents WHERE NOT ({_IS_COMPLETE})")
        return {content for (content,) in self._ask("SELECT content FROM {schema}.contents")}

    def add(self, content: str, branches: Sequence[Float[np.ndarray, "_ w"]]) -> None:
        """Add a content with the rows of its branches, in one transaction."""
        with self._ask.transaction():
            [[number]] = self._ask(
                "INSERT INTO {schema}.contents (content) VALUES (%s) RETURNING number", [content]
            )
            # pgvector's binary format: the length and a zero, then the numbers, big-endian.
            rows = (
                (number, branch, place, struct.pack(">hh", len(row), 0) + row.tobytes())
                for branch, vectors in enumerate(branches)
                for place, row in enumerate(vectors.astype(self._dtype))
            )
            self._ask.copy("COPY {schema}.rows FROM STDIN (FORMAT BINARY)", rows)
            self._ask(
                "UPDATE {schema}.contents SET row_count ="
                " (SELECT count(*) FROM {schema}.rows WHERE rows.number = contents.number)"
                " WHERE number = %s",
                [number],
            )

    def delete(self, contents: Collection[str]) -> None:
        """Delete contents and their rows."""
        self._ask("DELETE FROM {schema}.contents WHERE content = ANY(%s)", [list(contents)])


def _facts(index: Index, ranker: RowRanker) -> dict[str, str]:
    """Return the facts of an upload that a schema stores."""
    folder = str(index.root).encode(errors="backslashreplace").decode()  # may be no UTF-8
    return {
        "key": index.key, "encoder": index.encoder.name, "fps": str(index.fps),
        "folder": folder, "ranker": ranker.identity,
    }  # fmt: skip


class StoreRanker:
    """A ranker whose rows are in a store; see `rankers.Ranker`."""

    def __init__(
        self, store: Store, ranker: RowRanker, index: Index, contents: Sequence[str]
    ) -> None:
        _weights(ranker)
        store.check(index, ranker)
        self._store, self._ranker = store, ranker
        self._contents = {content: i for i, content in enumerate(contents)}
        self._absent: Absent | None = None
        self.calibrated, self.score_kind = ranker.calibrated, ranker.score_kind
        self.is_trained, self.max_tokens = ranker.is_trained, ranker.max_tokens

    def encode(self, encoder: Encoder, sentence: str) -> Float[np.ndarray, " H"]:
        """Return the ranker's query; see `Ranker`."""
        return self._ranker.encode(encoder, sentence)

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """Return scores of all contents, -inf if they were not uploaded; see `Ranker`."""
        return self.best(query, len(self._contents), np.ones(len(self._contents), bool))

    def best(
        self, query: Float[np.ndarray, " H"], count: int, allowed: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """Return scores of the best contents, -inf for all others; see `Ranker`."""
        parts = self._ranker.rounded(query)
        queries = [weight * parts[name] for name, weight in _weights(self._ranker).items()]
        contents = [content for content, i in self._contents.items() if allowed[i]]
        scores = np.full(len(self._contents), -np.inf, np.float32)
        for content, score in self._store.best(queries, self._ranker.top, contents, count):
            scores[self._contents[content]] = score
        return scores

    def absent(self) -> set[str]:
        """Return the contents of the index that were not uploaded."""
        self._absent = self._store.absent(list(self._contents), self._absent)
        return self._absent.contents

    def over_time(
        self, content: int, arrays: VideoArrays, query: Float[np.ndarray, " H"]
    ) -> Float[np.ndarray, " F"]:
        """Return scores of the frames; see `Ranker`. A trained model reads the stored rows."""
        names, digest = list(_weights(self._ranker)), list(self._contents)[content]

        def vectors() -> dict[str, np.ndarray]:
            return dict(zip(names, self._store.vectors(digest, len(names)), strict=True))

        return self._ranker.over_time(content, arrays, query, vectors)


def _weights(ranker: RowRanker) -> dict[str, float]:
    """Return the weight of each branch of a ranker's score.

    Raises:
      QueryError: if PostgreSQL cannot compute the score.
    """
    if ranker.branches is None:
        raise QueryError(
            "PostgreSQL cannot compute this ranker's score: use another ranker, or leave out"
            " {store}",
            field="store",
        )
    return ranker.branches


class UploadCounts(NamedTuple):
    """Numbers of contents in an upload; videos with equal bytes count once."""

    sent: int = 0
    unchanged: int = 0  # uploaded before
    removed: int = 0  # no longer in the index
    damaged: int = 0  # not sent; their rows in the store stay


def upload(
    store: Store,
    index: Index,
    ranker: RowRanker,
    contents: Sequence[str],
    damaged: Collection[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> UploadCounts:
    """Bring a store up to date with an index; create the schema if it is missing.

    Args:
      store: the store.
      index: the index.
      ranker: a ranker over the contents.
      contents: the contents of the index that are not damaged, in the order of the ranker.
      damaged: the contents with damaged embeddings, whose stored rows are left as they are.
      progress: takes the number of contents that are done, and the number of all.

    Raises:
      QueryError: if PostgreSQL cannot compute the ranker's score.
      SearchError: as `Store.uploading`.
      DamagedError: if another content turns out to be damaged.
    """
    names = list(_weights(ranker))
    with store.uploading(index, ranker) as schema:
        uploaded = schema.contents()
        for i, content in enumerate(contents):
            if content not in uploaded:
                vectors = ranker.vectors(i, index.read(content))
                schema.add(content, [vectors[name] for name in names])
            progress(i + 1, len(contents))
        removed = uploaded.difference(contents, damaged)
        schema.delete(removed)
    sent = len(set(contents) - uploaded)
    return UploadCounts(sent, len(contents) - sent, len(removed), len(damaged))
