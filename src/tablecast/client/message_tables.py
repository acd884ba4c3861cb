"""The tables that messages come from, as a client knows them: what `Message.row` needs.

A table's columns are asked for when its first message arrives, and again when a message has a column that is not among
them, or after KNOWN_SECONDS: a table may have been dropped and made anew.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from tablecast.codec.message_rows import TABLE
from tablecast.errors import NotFound, TablecastError, UnknownTable
from tablecast.model.message import Message
from tablecast.model.schema import ColumnType
from tablecast.model.topic import PayloadMode

KNOWN_SECONDS = 60.0
Types = Mapping[str, ColumnType]


class MessageTables:
    """Bound to one event loop; only `types_of` is thread-safe."""

    def __init__(self, ask: Callable[[str], Awaitable[Types]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, Types | TablecastError]] = {}

    async def learn(self, messages: Sequence[Message]) -> None:
        """Asks for what the messages need. What cannot be had is told by `types_of`: reading messages goes on."""
        now = self._monotonic()
        unknown = {m.source_table for m in messages if self._known.get(m.source_table, (0.0, None))[0] <= now}
        for table in unknown | self._outdated(messages):
            self._known[table] = (now + KNOWN_SECONDS, await self._asked(table))

    async def _asked(self, table: str) -> Types | TablecastError:
        try:
            return await self._ask(table)
        except NotFound:
            return gone(table)
        except TablecastError as error:
            return error

    def _outdated(self, messages: Sequence[Message]) -> set[str]:
        """Tables of which a message has a new column. Columns are only added, so the last whole row tells of all."""
        found: set[str] = set()
        seen: set[tuple[str, int]] = set()
        for message in reversed(messages):
            types = self._known.get(message.source_table, (0.0, None))[1]
            place = message.source_table, message.partition_id
            if message.payload_mode is PayloadMode.KEY or place in seen or not isinstance(types, Mapping):
                continue
            if message.payload_mode is PayloadMode.FULL:
                seen.add(place)
            if not message.value.keys() - {TABLE} <= types.keys():
                found.add(message.source_table)
        return found

    def types_of(self, table: str) -> Types:
        types = self._known[table][1]
        if isinstance(types, TablecastError):
            raise types
        return types


def gone(table: str) -> UnknownTable:
    return UnknownTable(
        f"{table}, which the message is from, is not there any more: message.value has the payload", table=table
    )
