"""Messages as a result of SQL: one row per message, payload as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from tablecast.codec.keys import timestamp_from_us
from tablecast.codec.result import Result
from tablecast.model.message import Message
from tablecast.model.schema import ColumnType, TypeName

_COLUMNS = {
    "partition_id": TypeName.INT,
    "offset": TypeName.BIGINT,
    "message_id": TypeName.BIGINT,
    "source_table": TypeName.TEXT,
    "op": TypeName.TEXT,
    "ts": TypeName.TIMESTAMP,
    "payload_mode": TypeName.TEXT,
    "key": TypeName.JSON,
    "payload": TypeName.JSON,
    "user_id": TypeName.TEXT,
    "seq": TypeName.BIGINT,
    "delivery": TypeName.INT,
}


def messages_result(messages: Sequence[Message]) -> Result:
    rows = [
        (m.partition_id, m.offset, m.message_id, m.source_table, m.op.label, timestamp_from_us(m.ts * 1000),
         m.payload_mode.value, m.key.decode(), m.payload.decode(), m.user_id, m.seq, m.delivery)
        for m in messages
    ]  # fmt: skip
    types = tuple(ColumnType(name) for name in _COLUMNS.values())
    return Result.of_rows(tuple(_COLUMNS), types, rows, message=f"CONSUME {len(rows)}")
