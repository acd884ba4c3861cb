"""What the word before the cursor may become.

Behind a word that asks for one kind of name (FROM, INTO, TOPIC, …) only that kind is offered, elsewhere keywords and
the columns of the tables that the statement names, or of all tables if it names none. Names come from the system tables;
whoever may not read those is offered keywords.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tablecast.codec.result import Result
from tablecast.engine.system import SYSTEM_TABLES
from tablecast.errors import TablecastError

KEPT_SECONDS = 2.0  # what is known: tables come and go while a shell is open, and a server is a way off

_KEYWORDS = """
    ACK ADD ALIAS ALL ALTER AND ANY AS ASC BACKFILL BEGIN BETWEEN BIGINT BOOLEAN BY BYTES CANCEL CASE CAST CHECK CLEAR COLUMN
    COMMIT CONFLICT CONSUME COUNT CREATE CROSS CURRENT_USER() DATE DECIMAL DEFAULT DELETE DESC DESCRIBE DISTINCT DO
    DOUBLE DROP EARLIEST ELSE END EXCEPT EXECUTE EXISTS FALSE FLOAT FROM FULL GROUP HAVING IF IN INNER INSERT INT
    INTERSECT INTO IS JOB JOIN JSON KEY LATEST LEFT LIKE LIMIT MAX MIN NACK NAMESPACE NAMESPACES NOT NOTHING NOW() NULL
    OFFSET ON OR ORDER OUTER OVER PARTITION PARTITIONS PAYLOAD PRIMARY REDRIVE RENAME RESET RETURNING RIGHT ROLLBACK SELECT SET
    SHARED SHOW SMALLINT SNOWFLAKE_ID() SOURCE STREAM SUM TABLE TABLES TEXT THEN TIME TIMESTAMP TO TOPIC TOPICS
    TRANSACTION TRUE UNION UPDATE UPTO USER USING UUID UUID_V7() VALUES WHEN WHERE WITH
"""
KEYWORDS = tuple(_KEYWORDS.split())
COMMANDS = ("\\?", "\\d", "\\dt", "\\format", "\\groups", "\\q", "\\timing", "\\topics", "\\watch")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_BEFORE_TABLE = ("FROM", "JOIN", "INTO", "UPDATE", "TABLE", "DESCRIBE", "SOURCE", "\\D")
_BEFORE_TOPIC = ("TOPIC", "CONSUME FROM", "ACK", "NACK")


_KNOWN = """
SELECT namespace || '.' || table_name, table_name, name FROM system.columns ORDER BY position;
SELECT namespace || '.' || name, alias FROM system.topics
"""


class Known(NamedTuple):
    columns: tuple[tuple[str, str, str], ...] = ()  # table with its namespace, table, column
    topics: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class Names:
    """`peek` runs queries; `namespace` is the one that need not be named."""

    def __init__(self, peek: Callable[[str], list[Result]], namespace: str) -> None:
        self._peek = peek
        self._namespace = namespace
        self._kept = Known()
        self._kept_until = 0.0

    def complete(self, before: str) -> tuple[str, list[str]]:
        """The word at the end of `before`, and what it may become, sorted."""
        if before.startswith("\\") and " " not in before:
            return before, [command for command in COMMANDS if command.startswith(before)]
        found = _WORD.search(before)
        word = found[0] if found else ""
        offered = self._offered(before[: len(before) - len(word)].upper().split(), before)
        return word, sorted({name for name in offered if name.lower().startswith(word.lower())})

    def _offered(self, words: list[str], text: str) -> Iterable[str]:
        last, last_two = words[-1:], " ".join(words[-2:])
        if last_two.endswith(_BEFORE_TOPIC) and last:
            return self._topics()
        if last and last[0] in _BEFORE_TABLE:
            return self._tables()
        return (*KEYWORDS, *self._columns(text)) if words else KEYWORDS

    def _known(self) -> Known:
        if time.monotonic() >= self._kept_until:
            self._kept = self._looked_up()
            self._kept_until = time.monotonic() + KEPT_SECONDS
        return self._kept

    def _looked_up(self) -> Known:
        try:
            columns, topics = self._peek(_KNOWN)
        except TablecastError:
            return Known()
        aliases = tuple(alias for _, alias in topics if alias is not None)
        return Known(tuple(columns), tuple(topic for topic, _ in topics), aliases)

    def _topics(self) -> list[str]:
        known = self._known()
        return [*known.topics, *known.aliases, *self._bare(known.topics)]

    def _tables(self) -> list[str]:
        names = {table for table, _, _ in self._known().columns}
        return [*names, *self._bare(names), *(f"system.{name}" for name in SYSTEM_TABLES)]

    def _bare(self, names: Iterable[str]) -> list[str]:
        """Those of the session's namespace, which need not be named."""
        prefix = f"{self._namespace}."
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def _columns(self, text: str) -> set[str]:
        columns = self._known().columns
        said = set(re.findall(r"[a-z_][a-z0-9_]*", text.lower()))
        named = [column for column in columns if column[1] in said]
        return {column for _, _, column in named or columns}
