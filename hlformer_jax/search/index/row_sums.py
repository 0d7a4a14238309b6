"""A checksum of all rows of a database, which a transaction updates at the cost of its changes.

It is the sum of the CRC-32 of each row. The setting `row_sum` has the version of the database that
the sum belongs to (programs that do not know it change rows without it), the version of SQLite,
which determines how `quote` writes numbers, and the sum.

Temporary triggers collect the old and the new text of each changed row. They run no Python code,
because SQLite would hide a Ctrl-C that comes meanwhile.
"""

import sqlite3
import zlib
from collections.abc import Iterable

_ROWS_OF_EVENT = {"INSERT": ("NEW",), "DELETE": ("OLD",), "UPDATE": ("OLD", "NEW")}


class Changes:
    """The rows that a transaction changes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Collect the changes that a connection makes."""
        self._connection = connection
        self._rows: dict[str, list[bytes]] = {"OLD": [], "NEW": []}
        for row, texts in self._rows.items():
            connection.create_function(f"collect_{row}", 1, texts.append)
        connection.execute("PRAGMA temp_store = MEMORY")  # the disk may be full
        connection.execute("PRAGMA recursive_triggers = ON")  # for rows that REPLACE deletes
        for table in _tables(connection):
            for event, rows in _ROWS_OF_EVENT.items():
                calls = [
                    f"SELECT collect_{row}({_text(connection, table, f'{row}.')})"
                    f"{_condition(table, f'{row}.')};"
                    for row in rows
                ]
                connection.execute(
                    f'CREATE TEMP TRIGGER IF NOT EXISTS "{table} {event}"'
                    f' AFTER {event} ON main."{table}" BEGIN {" ".join(calls)} END'
                )

    def begin(self) -> None:
        """Forget the changes of the transaction before."""
        for texts in self._rows.values():
            texts.clear()

    def store(self) -> None:
        """Increment the version of the database, and store the sum of its rows."""
        row_sum = read(self._connection)
        if row_sum is None:
            row_sum = compute(self._connection)
        else:
            row_sum += _sum(self._rows["NEW"]) - _sum(self._rows["OLD"])
        self._connection.execute("UPDATE settings SET value = value + 1 WHERE name = 'version'")
        self._connection.execute(
            "INSERT OR REPLACE INTO settings SELECT 'row_sum', value || ? FROM settings"
            " WHERE name = 'version'",
            [f" {sqlite3.sqlite_version} {row_sum}"],
        )


def read(connection: sqlite3.Connection) -> int | None:
    """Return the stored sum of the rows; None if it is missing or belongs to another version."""
    rows = connection.execute(
        "SELECT CAST(sums.value AS BLOB), CAST(versions.value AS BLOB)"
        " FROM settings AS sums, settings AS versions"
        " WHERE sums.name = 'row_sum' AND versions.name = 'version'"
    ).fetchall()
    for text, version in rows:
        *versions, row_sum = text.split(b" ")
        if versions == [version, sqlite3.sqlite_version.encode()] and row_sum.isdigit():
            return int(row_sum)
    return None


def compute(connection: sqlite3.Connection) -> int:
    """Read all rows and return their sum."""
    return sum(
        _sum(
            text
            for [text] in connection.execute(
                f'SELECT {_text(connection, table)} FROM main."{table}"{_condition(table)}'
            )
        )
        for table in _tables(connection)
    )


def verify(connection: sqlite3.Connection) -> bool:
    """Verify the structure and the rows of a database; return whether the sum of its rows is known.

    Raises:
      sqlite3.DatabaseError: if the database is damaged.
    """
    check_structure(connection, "integrity_check")
    row_sum = read(connection)
    if row_sum is None:
        if connection.execute("PRAGMA foreign_key_check").fetchone():
            raise sqlite3.DatabaseError("a row refers to a missing row")
    elif row_sum != compute(connection):
        raise sqlite3.DatabaseError("the checksum of its rows does not match")
    return row_sum is not None


def check_structure(connection: sqlite3.Connection, check: str) -> None:
    """Verify the structure of a database by "integrity_check" or "quick_check" of SQLite.

    Raises:
      sqlite3.DatabaseError: if the database is damaged.
    """
    [verdict] = connection.execute(f"PRAGMA {check}(1)").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(" ".join(verdict.split()))


def _sum(texts: Iterable[bytes]) -> int:
    return sum(map(zlib.crc32, texts))


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")
    return [name for [name] in rows.fetchall()]


def _text(connection: sqlite3.Connection, table: str, prefix: str = "") -> str:
    """Return the expression of a row's text; generated columns are left out."""
    columns = connection.execute("SELECT name FROM pragma_table_info(?)", [table]).fetchall()
    values = "||','||".join(f'quote({prefix}"{name}")' for [name] in columns)
    return f"CAST('{table},'||{values} AS BLOB)"


def _condition(table: str, prefix: str = "") -> str:
    """Return the condition of the rows that are summed."""
    if table != "settings":
        return ""
    return f" WHERE {prefix}name NOT IN ('version', 'row_sum')"
