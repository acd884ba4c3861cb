"""What a command, a script and the shell need to run statements, wherever those run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from tablecast.codec.result import Result


class Runner(Protocol):
    """Who runs statements. Ctrl-C raises KeyboardInterrupt out of any of them."""

    took_ms: float  # the last statement

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, sql: str, *, quiet: bool = False) -> list[Result]:
        """One statement of a script or shell. A server's transaction answers all at once, when it is committed."""
        ...

    def execute_text(self, sql: str, params: Sequence[Any]) -> Iterator[Result]:
        """Several statements, parsed together: a slip in the last one and none of them runs."""
        ...

    def peek(self, sql: str) -> list[Result]:
        """Queries about the catalog, apart from whatever else goes on. Any thread may call it."""
        ...
