"""A message: one change as one topic tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tablecast.errors import InvalidRequest
from tablecast.model.change import Op
from tablecast.model.topic import PayloadMode


class RowReader(msgspec.Struct, frozen=True, dict=True):
    """Reads the rows of messages. It is no part of what a message says: it has no fields, so all are equal."""

    @classmethod
    def of(cls, read: Callable[[Message], dict[str, Any]]) -> RowReader:
        made = cls()
        made.__dict__["read"] = read
        return made

    def row(self, message: Message) -> dict[str, Any]:
        row: dict[str, Any] = self.__dict__["read"](message)
        return row


def _unknown(message: Message) -> dict[str, Any]:
    raise InvalidRequest("the table of this message is not known: `row` is for messages that consume() gave")


_UNKNOWN = RowReader.of(_unknown)


class Message(msgspec.Struct, frozen=True, gc=False):
    """`key` and `payload` are UTF-8 JSON: an array of the primary key's values, and an object.

    `delivery` counts how often a group was given this message, this time included; 1 outside groups.
    """

    topic_id: int
    partition_id: int
    offset: int
    message_id: int
    source_table: str
    op: Op
    ts: int
    payload_mode: PayloadMode
    key: bytes
    payload: bytes
    user_id: str | None
    seq: int
    content_hash: int
    delivery: int = 1
    reader: RowReader = _UNKNOWN

    @property
    def value(self) -> dict[str, Any]:
        """The payload, decoded."""
        decoded: dict[str, Any] = msgspec.json.decode(self.payload)
        return decoded

    @property
    def row(self) -> dict[str, Any]:
        """The payload with the Python values of its table's types: int, Decimal, datetime, UUID, bytes and so on.

        A `key` payload has the key columns; in the diff of an update a changed column has its values as `old` and `new`.
        Raises UnknownTable if the table is not there any more, PayloadMismatch if it is another one now.
        """
        return self.reader.row(self)


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """A message before it has a place in the log."""

    source_table: str
    op: Op
    payload_mode: PayloadMode
    user_id: str | None
    key: bytes
    payload: bytes
    content_hash: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """`next_offset` is where a stateless reader of one partition goes on; None when several were read. `next_offsets` says
    it of each partition: of all that a stateless reader asked for, and of those that gave a group something.
    `skipped` are ranges (partition, from, to) that retention took before the group read them. `consumer` is whose claim
    it is: the name that was asked for, or one that was made for it; None without a group. `given` are ranges (partition,
    from, to) of what the group was given: what is acknowledged when this is handed to the next consume. `waited_seconds`
    is how long a consume that may wait took to find this."""

    messages: list[Message]
    next_offset: int | None
    has_more: bool
    skipped: tuple[tuple[int, int, int], ...] = ()
    consumer: str | None = None
    given: tuple[tuple[int, int, int], ...] = ()
    next_offsets: Mapping[int, int] = field(default_factory=dict)
    waited_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Consecutive messages of one partition as they are stored (codec.log). `deliveries` counts each message's
    deliveries; empty: it is the first of all of them."""

    partition_id: int
    data: bytes
    deliveries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumedLog:
    """As `Consumed`, for whoever passes the messages on: nobody has looked into them."""

    topic_id: int
    slices: list[LogSlice]
    count: int
    next_offset: int | None
    has_more: bool
    skipped: tuple[tuple[int, int, int], ...]
    consumer: str
    next_offsets: Mapping[int, int]
    waited_seconds: float = 0.0
