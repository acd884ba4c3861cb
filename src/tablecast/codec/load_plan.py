"""A plan: what somebody far away must know of tables to read them, or to make rows and messages for them.

    byte 0   format version, 1
    rest     MessagePack array: tables (schemas), routes (arrays of topic and route)

A load's plan has one table and its insert routes; a topic's has the tables and routes that feed it; a snapshot's its
one table.
Whoever holds a plan has the very schema and routes that the server had when it answered: nothing is guessed from names.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tablecast.errors import CorruptData
from tablecast.model.schema import TableSchema
from tablecast.model.topic import Route, Topic

PLAN_FORMAT = 1
_FORMAT_BYTE = bytes([PLAN_FORMAT])


class Plan(msgspec.Struct, frozen=True, array_like=True):
    tables: tuple[TableSchema, ...]
    routes: tuple[tuple[Topic, Route], ...] = ()

    @property
    def table(self) -> TableSchema:
        """Of a plan that is about one table."""
        if len(self.tables) != 1:
            raise CorruptData(f"a plan for one table has {len(self.tables)}")
        return self.tables[0]


def encode_plan(tables: Iterable[TableSchema], routes: Iterable[tuple[Topic, Route]] = ()) -> bytes:
    return _FORMAT_BYTE + msgspec.msgpack.encode(Plan(tuple(tables), tuple(routes)))


def decode_plan(data: bytes) -> Plan:
    if data[:1] != _FORMAT_BYTE:
        found = data[0] if data else "nothing"
        raise CorruptData(f"a plan has format {found}; this tablecast reads {PLAN_FORMAT}")
    try:
        return msgspec.msgpack.decode(data[1:], type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise CorruptData(f"a plan does not decode: {e}") from e
