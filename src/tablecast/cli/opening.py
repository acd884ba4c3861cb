"""Opening a database for one command, and closing it however the command ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tablecast.sql import database


@contextmanager
def opened(path: str, *, create: bool = False) -> Iterator[database.Database]:
    """Closed at the end also after an error or Ctrl-C: what DuckDB holds must go before the interpreter does."""
    found = database.open(path, create=create)
    try:
        yield found
    finally:
        found.close()
