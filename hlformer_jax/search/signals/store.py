"""Search in PostgreSQL: the rows of an index in a server's tables, where pgvector ranks them.

A schema of a database holds one archive for one ranker. The score of a content, the bytes of one
or of several equal videos, is

    Σ_b weight_b · (mean of the `top` largest ⟨query_b, row⟩ of branch b)

with one branch for the rankers without training; a trained model has one for its clips and one for
its frames. There is no approximate index. The moments of the best videos are computed here, from
their files in the index. docs/search.md says what an upload does. The tables of the schema:

    facts      name, value                     of which encoder, ranker and folder the rows are
    contents   number, content                 SHA-256 of a video's bytes
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

from hlformer_jax.cli import command_line
from hlformer_jax.encoders.protocol import Encoder
from hlformer_jax.errors import SearchError
from hlformer_jax.lazy import optional
from hlformer_jax.search.index.database import Index
from hlformer_jax.search.index.storage import VideoArrays
from hlformer_jax.search.signals.rankers import RowRanker
from hlformer_jax.text import without_passwords

SCHEMA = "hlformer"
"""The schema of an address that names none."""

CONNECT_SECONDS, ANSWER_SECONDS = 10, 120
"""Limits of waiting for a connection to a server, and for its answers."""

FACTS = {
    "encoder": "encoder", "fps": "number of frames a second", "key": "form of the encoder",
    "ranker": "ranker", "folder": "folder, whose videos an upload would delete",
}  # fmt: skip
"""Names of the facts of a schema in messages; only an upload checks the folder."""

COLUMNS = frozenset(
    {("facts", "name"), ("facts", "value"), ("contents", "number"), ("contents", "content"),
     ("rows", "number"), ("rows", "branch"), ("rows", "place"), ("rows", "vector")}
)  # fmt: skip
"""Tables and columns that a schema of ours has."""

# Plain: a scan of vectors that PostgreSQL moves beside the table takes four times as long.
_TABLES = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.facts (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE {schema}.contents (
  number int PRIMARY KEY GENERATED ALWAYS AS IDENTITY, content text NOT NULL UNIQUE);
CREATE TABLE {schema}.rows (
  number int NOT NULL REFERENCES {schema}.contents ON DELETE CASCADE,
  branch smallint NOT NULL, place int NOT NULL, vector {type} NOT NULL);
ALTER TABLE {schema}.rows ALTER vector SET STORAGE PLAIN;
CREATE INDEX ON {schema}.rows (number);
"""

_BEST = """
SELECT content, score FROM (
  SELECT number, sum(best)::real AS score FROM (
    SELECT number, {best} AS best FROM (
      SELECT number, branch, CASE branch {products} END AS product FROM {schema}.rows
      WHERE number IN (SELECT number FROM {schema}.contents WHERE content = ANY(%(among)s))
    ) AS products GROUP BY number, branch
  ) AS branches GROUP BY number
) AS scores JOIN {schema}.contents USING (number)
ORDER BY score DESC FETCH FIRST %(count)s ROWS WITH TIES
"""
_ADDRESS = re.compile(
    # several hosts may stand there, IPv6 in brackets, or none where a socket is
    r"postgres(?:ql)?://(?:[^/@:]*(?::[^/@]*)?@)?{host}(?:,{host})*(?:/[^@]*)?".format(
        host=r"(?:\[[0-9A-Fa-f:.%]+\]|[^/@:,\[\]]*)(?::[0-9]*)?"
    )
)
_LARGEST = "max(product)"
_MEAN = "(SELECT avg(x) FROM unnest((array_agg(product ORDER BY product DESC))[:{top}]) AS x)"


class Store:
    """The schema of an archive in a PostgreSQL database that has the extension pgvector."""

    def __init__(self, address: str) -> None:
        """Reads postgresql://USER@HOST/DATABASE?schema=NAME; connects to nothing yet.

        Whatever else the address has is libpq's, as are its environment (PGHOST) and ~/.pgpass.

        Raises:
          SearchError: when it is no such address.
          MissingExtra: when the client is not installed.
        """
        self.address = without_passwords(address, [address])
        place, _, query = address.partition("?")
        # Not taken apart and put together again: libpq knows addresses that urllib does not.
        options = [option for option in query.split("&") if option]
        schemas = [option for option in options if option.startswith("schema=")]
        if not _ADDRESS.fullmatch(place) or not all("=" in option for option in options):
            raise SearchError(
                f"--store={self.address} is no address of a PostgreSQL database: give"
                " postgresql://USER@HOST/DATABASE?schema=NAME, with / ? @ : # % in a password"
                " written as %2F %3F %40 %3A %23 %25"
            )
        self._name = unquote(schemas[-1].partition("=")[2]) if schemas else ""
        self._name = self._name or SCHEMA
        others = "&".join(option for option in options if option not in schemas)
        self._server = f"{place}?{others}" if others else place
        self._secrets = _secrets(place, options)
        self._client = optional("psycopg", "postgres")

    def check(self, index: Index, ranker: RowRanker) -> None:
        """Refuses a schema that is not there, or of another encoder or ranker."""
        with self._session() as ask:
            self._check(ask, index, ranker, uploads=False)

    def best(
        self, queries: Sequence[Float[np.ndarray, " w"]], top: int, among: Sequence[str], count: int
    ) -> list[tuple[str, float]]:
        """Contents and scores of the best `count`, and of all as good as the last, best first.

        Args:
          queries: the query of each branch, times its weight.
          top: the score of a branch is the mean of so many largest products.
          among: the contents that are ranked; of these, what was not uploaded is left out.
          count: how many.
        """
        values = {f"query{i}": str(query.tolist()) for i, query in enumerate(queries)}
        # Rows may be float16; the query is not to be rounded to that.
        products = " ".join(
            f"WHEN {i} THEN -(vector::vector <#> %(query{i})s::vector)" for i in range(len(values))
        )
        best = _LARGEST if top == 1 else _MEAN.format(top=top)
        with self._session() as ask:
            asked = values | {"among": list(among), "count": count}
            ranked: list[tuple[str, float]] = ask(_BEST, asked, products=products, best=best)
        return ranked

    def vectors(self, content: str, branches: int) -> list[Float[np.ndarray, "_ w"]]:
        """The rows of each branch of a content, float32."""
        with self._session() as ask:
            rows = ask(
                "SELECT branch, vector::vector::real[] FROM {schema}.rows JOIN {schema}.contents"
                " USING (number) WHERE content = %s ORDER BY place",
                [content],
            )
        if not rows:
            raise SearchError(f"{self.address} lacks a video of the index: upload it again")
        return [
            np.asarray([row for own, row in rows if own == i], np.float32) for i in range(branches)
        ]

    @contextlib.contextmanager
    def uploading(self, index: Index, ranker: RowRanker) -> Iterator["Upload"]:
        """The schema to write to, made where there is none, for one process at a time.

        Raises:
          SearchError: when another process uploads, or it is of another encoder, ranker or folder.
        """
        with self._session() as ask:
            # A lock of the session, which a killed process loses with its connection.
            [[free]] = ask("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [self._name])
            if not free:
                raise SearchError(f"{self.address}: another upload is at work, wait for its end")
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
            line = ["upload", f"--index={index.directory}", f"--store={self.address}"]
            raise SearchError(
                f"{self.address} has no schema {self._name!r}: make it by"
                f" {command_line('search', *line)}"
            )
        other = f"name another one, {self.address.partition('?')[0]}?schema=NAME"
        columns = ask(
            "SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid"
            " JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = %s",
            [self._name],
        )
        if not COLUMNS <= set(columns):
            raise SearchError(f"the schema {self._name!r} was not made by this program: {other}")
        theirs, ours = dict(ask("SELECT name, value FROM {schema}.facts")), _facts(index, ranker)
        for fact, name in FACTS.items():
            if theirs.get(fact) != ours[fact] and (uploads or fact != "folder"):
                raise SearchError(
                    f"the schema {self._name!r} is of another {name} ({theirs.get(fact)}, and here"
                    f" {ours[fact]}): {other}"
                )

    @contextlib.contextmanager
    def _session(self) -> Iterator["_Session"]:
        """A connection; what goes wrong with it, in one line."""
        try:
            with self._client.connect(
                self._server, autocommit=True, connect_timeout=CONNECT_SECONDS
            ) as connection:
                connection.execute(f"SET statement_timeout = '{ANSWER_SECONDS}s'")
                yield _Session(connection, self._client.sql, self._name)
        except (self._client.Error, UnicodeError) as error:
            why = without_passwords(" ".join(str(error).split()))[:300]
            for secret in self._secrets:
                why = why.replace(secret, "…")
            raise SearchError(f"--store={self.address}: PostgreSQL says: {why}") from None


class _Session:
    """Asks on a connection, with the schema's name and other parts put into the text."""

    def __init__(self, connection: Any, sql: Any, schema: str) -> None:
        self._connection, self._sql = connection, sql
        self._schema = sql.Identifier(schema)
        self.transaction = connection.transaction

    def _query(self, text: str, parts: Mapping[str, str]) -> Any:
        own = {name: self._sql.SQL(part) for name, part in parts.items()}
        return self._sql.SQL(text).format(schema=self._schema, **own)

    def __call__(self, text: str, values: Any = (), **parts: str) -> list[Any]:
        # Without values a text may have several statements.
        cursor = self._connection.execute(self._query(text, parts), values or None)
        return cursor.fetchall() if cursor.description else []

    def copy(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        """Sends rows in the binary format."""
        with self._connection.cursor().copy(self._query(text, {})) as copy:
            copy.set_types(["int4", "int2", "int4", "bytea"])
            for row in rows:
                copy.write_row(row)


def _secrets(place: str, options: Sequence[str]) -> list[str]:
    """Return the passwords of an address, as they stand in it and decoded, the longest first."""
    user = place.partition("://")[2].rpartition("@")[0]
    found = [user.partition(":")[2]]
    parts = (option.partition("=") for option in options)
    found += [value for key, _, value in parts if "password" in unquote(key).lower()]
    both = {*found, *map(unquote, found)} - {""}
    return sorted(both, key=len, reverse=True)


class Upload:
    """The contents of a schema, while this process alone may write them."""

    def __init__(self, ask: _Session, dtype: str) -> None:
        self._ask, self._dtype = ask, np.dtype(dtype).newbyteorder(">")

    def contents(self) -> set[str]:
        """What is there."""
        return {content for (content,) in self._ask("SELECT content FROM {schema}.contents")}

    def add(self, content: str, branches: Sequence[Float[np.ndarray, "_ w"]]) -> None:
        """Adds a content, with the rows of its branches, or nothing of it."""
        with self._ask.transaction():
            [[number]] = self._ask(
                "INSERT INTO {schema}.contents (content) VALUES (%s) RETURNING number", [content]
            )
            # pgvector's binary format: the length and a zero, then the numbers, big-endian.
            rows = (
                (number, branch, place, struct.pack(">hh", len(row), 0) + row.tobytes())
                for branch, own in enumerate(branches)
                for place, row in enumerate(own.astype(self._dtype))
            )
            self._ask.copy("COPY {schema}.rows FROM STDIN (FORMAT BINARY)", rows)

    def delete(self, contents: Collection[str]) -> None:
        """Deletes contents and their rows."""
        self._ask("DELETE FROM {schema}.contents WHERE content = ANY(%s)", [list(contents)])


def _facts(index: Index, ranker: RowRanker) -> dict[str, str]:
    """What a schema keeps of its making."""
    known = index.manifest
    return {
        "key": known.key, "encoder": known.encoder.name, "fps": str(known.fps),
        "folder": str(known.root), "ranker": ranker.identity,
    }  # fmt: skip


class Stored:
    """A ranker, made without the contents' rows, which a store has; see `rankers.Ranker`."""

    def __init__(
        self, store: Store, ranker: RowRanker, index: Index, contents: Sequence[str]
    ) -> None:
        _weights(ranker)
        store.check(index, ranker)
        self._store, self._ranker = store, ranker
        self._contents = {content: i for i, content in enumerate(contents)}
        self.calibrated = ranker.calibrated

    def encode(self, encoder: Encoder, sentence: str) -> Float[np.ndarray, " H"]:
        """The ranker's query; see `Ranker`."""
        return self._ranker.encode(encoder, sentence)

    def scores(self, query: Float[np.ndarray, " H"]) -> Float[np.ndarray, " V"]:
        """Scores of all contents; -inf of those that were not uploaded; see `Ranker`."""
        return self.best(query, len(self._contents), np.ones(len(self._contents), bool))

    def best(
        self, query: Float[np.ndarray, " H"], count: int, among: Bool[np.ndarray, " V"]
    ) -> Float[np.ndarray, " V"]:
        """Scores of the best contents, -inf of the others; see `Ranker`."""
        parts = self._ranker.rounded(query)
        queries = [weight * parts[name] for name, weight in _weights(self._ranker).items()]
        asked = [content for content, i in self._contents.items() if among[i]]
        scores = np.full(len(self._contents), -np.inf, np.float32)
        for content, score in self._store.best(queries, self._ranker.top, asked, count):
            scores[self._contents[content]] = score
        return scores

    def over_time(
        self, content: int, arrays: VideoArrays, query: Float[np.ndarray, " H"]
    ) -> Float[np.ndarray, " F"]:
        """Scores of the frames, of a trained model from its rows in the store; see `Ranker`."""
        names, name = list(_weights(self._ranker)), list(self._contents)[content]
        vectors = lambda: dict(zip(names, self._store.vectors(name, len(names)), strict=True))
        return self._ranker.over_time(content, arrays, query, vectors)


def _weights(ranker: RowRanker) -> dict[str, float]:
    """The weight of each branch of a ranker's score, or a `SearchError`."""
    if ranker.branches is None:
        raise SearchError(
            "the score of this ranker is no sum of maxima or of means of the largest, which is what"
            " a store computes: search without --store"
        )
    return ranker.branches


class Uploaded(NamedTuple):
    """What an upload did, in numbers of contents: equal videos count once."""

    sent: int = 0
    kept: int = 0  # there already
    removed: int = 0  # no longer in the index
    damaged: int = 0  # not sent; what is there of them stays


def upload(
    store: Store,
    index: Index,
    ranker: RowRanker,
    progress: Callable[[int, int], None] = lambda done, total: None,
    damaged: Collection[str] = (),
) -> Uploaded:
    """Brings a store up to date with an index; makes the schema where there is none.

    `ranker` has the contents of the index but for the damaged, in their order. Raises as
    `Library.upload`, and DamagedError when a file of the index was damaged meanwhile.
    """
    names = list(_weights(ranker))
    wanted = index.contents()
    whole = [content for content in wanted if content not in damaged]
    with store.uploading(index, ranker) as schema:
        there = schema.contents()
        for i, content in enumerate(whole):
            if content not in there:
                vectors = ranker.vectors(i, index.read(content))
                schema.add(content, [vectors[name] for name in names])
            progress(i + 1, len(whole))
        gone = there.difference(wanted)
        schema.delete(gone)
    sent = len(set(whole) - there)
    return Uploaded(sent, len(whole) - sent, len(gone), len(wanted) - len(whole))
