"""Opening a database for one command, and closing it however the command ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tablecast.sql.database import MEMORY, Database, open


@contextmanager
def opened(path: str, *, create: bool = False) -> Iterator[Database]:
    """Closed at the end also after an error or Ctrl-C: what DuckDB holds must go before the interpreter does."""
    database = open(path, create=create)
    try:
        yield database
    finally:
        database.close()


__all__ = ["MEMORY", "opened"]
