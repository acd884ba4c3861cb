"""What is written down while a system under test runs.

One event is one JSON line. `at` is the time of recording in nanoseconds of a clock that all recorders of one
test share (on one machine the monotonic clock is such a one); it orders the events of different processes.

    writers      invoke   a write is about to be sent
                 ok       it was acknowledged, with its commit number
                 fail     it was definitely refused
                          neither: the outcome is unknown, the writer did not live to see it
    consumers    started  a group was (re)set to a position
                 delivered, acked
    at the end   rows     the whole content of a table, in parts
                 logged   the whole content of a topic, in parts
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from tablecast.model.message import Message
from tablecast.testing.history.values import canonical_key

WRITE_OPS = frozenset({"insert", "update", "delete", "upsert"})


class RowKey(NamedTuple):
    """One row of one table; `user_id` is its owner in tables that keep users apart."""

    table: str
    user_id: str | None
    key: str

    def __str__(self) -> str:
        owner = f" of {self.user_id}" if self.user_id is not None else ""
        return f"{self.table}{owner} {self.key}"


class Seen(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A message as somebody got it; `payload` is its JSON, as it was."""

    partition: int
    offset: int
    message_id: int
    table: str
    op: str
    mode: str
    key: str
    payload: msgspec.Raw
    ts: int
    seq: int
    user_id: str | None = None
    delivery: int = 1

    @classmethod
    def of(cls, message: Message) -> Seen:
        return cls(
            partition=message.partition_id,
            offset=message.offset,
            message_id=message.message_id,
            table=message.source_table,
            op=message.op.label,
            mode=message.payload_mode.value,
            key=canonical_key(message.key),
            payload=msgspec.Raw(message.payload),
            ts=message.ts,
            seq=message.seq,
            user_id=message.user_id,
            delivery=message.delivery,
        )

    @property
    def row_key(self) -> RowKey:
        return RowKey(self.table, self.user_id, self.key)

    @property
    def value(self) -> dict[str, Any]:
        """The payload, decoded."""
        decoded: dict[str, Any] = msgspec.json.decode(self.payload)
        return decoded

    def __str__(self) -> str:
        return f"partition {self.partition} offset {self.offset} ({self.op} {self.row_key}, seq {self.seq})"


class Event(msgspec.Struct, frozen=True, gc=False, tag_field="event", omit_defaults=True):
    at: int


class Invoke(Event, frozen=True, tag="invoke"):
    write_id: str
    table: str
    op: str
    key: str
    row: dict[str, Any] | None = None
    txn_id: str | None = None
    user_id: str | None = None


class Ok(Event, frozen=True, tag="ok"):
    """Acknowledged. `seq` is None when the write changed nothing, and so has nothing to publish."""

    write_ids: tuple[str, ...]
    seq: int | None = None


class Fail(Event, frozen=True, tag="fail"):
    write_ids: tuple[str, ...]
    error: str


class Started(Event, frozen=True, tag="started"):
    """From now on the group reads each partition from this offset, whatever it acknowledged before."""

    group: str
    topic: str
    starts: dict[int, int]


class Delivered(Event, frozen=True, tag="delivered"):
    """`asked` is when the consumer sent its request: the messages were handed out at some time after it."""

    group: str
    consumer: str
    topic: str
    asked: int
    messages: tuple[Seen, ...]


class Acked(Event, frozen=True, tag="acked"):
    group: str
    topic: str
    partition: int
    upto: int | None = None
    offsets: tuple[int, ...] = ()


class Rows(Event, frozen=True, tag="rows"):
    """Part of what is in a table. Part 0 begins an observation, `last` completes it."""

    table: str
    part: int
    last: bool
    rows: tuple[tuple[str, dict[str, Any]], ...]  # key and row
    user_id: str | None = None


class Logged(Event, frozen=True, tag="logged"):
    """Part of what is on a topic. `starts` are the log starts of partitions that do not begin at 0."""

    topic: str
    part: int
    last: bool
    messages: tuple[Seen, ...]
    starts: dict[int, int] = {}


AnyEvent = Invoke | Ok | Fail | Started | Delivered | Acked | Rows | Logged
