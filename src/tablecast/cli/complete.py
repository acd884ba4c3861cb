"""What the word before the cursor may become.

Behind a word that asks for one kind of name (FROM, INTO, TOPIC, …) only that kind is offered, elsewhere keywords and
the columns of the tables that the statement names, or of all tables if it names none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tablecast.engine.catalog import Catalog
from tablecast.engine.system import SYSTEM_TABLES

_KEYWORDS = """
    ACK ADD ALIAS ALL ALTER AND ANY AS ASC BACKFILL BEGIN BETWEEN BIGINT BOOLEAN BY BYTES CASE CAST CHECK CLEAR COLUMN
    COMMIT CONFLICT CONSUME COUNT CREATE CROSS CURRENT_USER() DATE DECIMAL DEFAULT DELETE DESC DESCRIBE DISTINCT DO
    DOUBLE DROP EARLIEST ELSE END EXCEPT EXECUTE EXISTS FALSE FLOAT FROM FULL GROUP HAVING IF IN INNER INSERT INT
    INTERSECT INTO IS JOIN JSON KEY LATEST LEFT LIKE LIMIT MAX MIN NACK NAMESPACE NAMESPACES NOT NOTHING NOW() NULL
    OFFSET ON OR ORDER OUTER OVER PARTITION PARTITIONS PAYLOAD PRIMARY REDRIVE RESET RETURNING RIGHT ROLLBACK SELECT SET
    SHARED SHOW SMALLINT SNOWFLAKE_ID() SOURCE STREAM SUM TABLE TABLES TEXT THEN TIME TIMESTAMP TO TOPIC TOPICS
    TRANSACTION TRUE UNION UPDATE UPTO USER USING UUID UUID_V7() VALUES WHEN WHERE WITH
"""
KEYWORDS = tuple(_KEYWORDS.split())
COMMANDS = ("\\?", "\\d", "\\dt", "\\format", "\\groups", "\\q", "\\timing", "\\topics")

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*\Z")
_BEFORE_TABLE = ("FROM", "JOIN", "INTO", "UPDATE", "TABLE", "DESCRIBE", "SOURCE", "\\D")
_BEFORE_TOPIC = ("TOPIC", "CONSUME FROM", "ACK", "NACK")


class Names:
    """Reads the catalog anew each time: tables come and go while the shell is open."""

    def __init__(self, catalog: Callable[[], Catalog], namespace: str) -> None:
        self._catalog = catalog
        self._namespace = namespace

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

    def _topics(self) -> list[str]:
        return [*self._catalog().topic_ids, *self._bare(self._catalog().topic_ids)]

    def _tables(self) -> list[str]:
        names = self._catalog().table_ids
        return [*names, *self._bare(names), *(f"system.{name}" for name in SYSTEM_TABLES)]

    def _bare(self, names: Iterable[str]) -> list[str]:
        """Those of the session's namespace, which need not be named."""
        prefix = f"{self._namespace}."
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def _columns(self, text: str) -> set[str]:
        schemas = [table.schema for table in self._catalog().tables.values()]
        said = set(re.findall(r"[a-z_][a-z0-9_]*", text.lower()))
        named = [schema for schema in schemas if schema.name in said]
        return {column for schema in named or schemas for column in schema.column_names}
