"""Rows that a replicated table had before there was replication.

Directory formats 1 and 2 kept `REPLICATE = TRUE` and did nothing about it. When such a database is opened, each of these
rows gets its version and its event, as if it was written now. The rows themselves do not change, so topics and live
queries hear nothing.

It happens before anybody else can write, in the order of the keys. So the last row of a table says whether any is left,
also after a crash in the middle; then all of them are told again, which peers take for a newer version of the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tablecast.codec import keys
from tablecast.codec.versions import version_key
from tablecast.core.merkle import bucket_of
from tablecast.engine.catalog import Table
from tablecast.engine.decision import Decision, View
from tablecast.model.change import ChangeRun, Op
from tablecast.storage.base import Family, Reader

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine

ROWS_AT_ONCE = 1_000  # in one commit: bounds its memory


@dataclass(slots=True)
class AdoptRows:
    """Tells the next rows from `start` on. Answers where to go on; None at the end."""

    table_id: int
    start: bytes
    weight: int = ROWS_AT_ONCE

    def decide(self, view: View) -> Decision:
        table = view.catalog.tables[self.table_id]
        end = keys.after(keys.table_prefix(self.table_id))
        found = list(islice(view.scan(Family.ROWS, self.start, end), ROWS_AT_ONCE + 1))
        there = found[:ROWS_AT_ONCE]
        rows = [table.codec.decode(value) for _, value in there]
        run = ChangeRun(self.table_id, table.schema.version, Op.INSERT, [key for key, _ in there], [], rows, [], None)
        return Decision(found[-1][0] if len(found) > len(there) else None, untold=[run])


def adopt_rows(engine: Engine) -> None:
    for table in engine.catalog.tables.values():
        if table.replica is not None and _is_untold(engine.store, table):
            start: bytes | None = keys.table_prefix(table.table_id)
            while start is not None:
                start = engine.execute(AdoptRows(table.table_id, start))


def _is_untold(reader: Reader, table: Table) -> bool:
    assert table.replica is not None
    prefix = keys.table_prefix(table.table_id)
    for key, _ in reader.scan(Family.ROWS, prefix, keys.after(prefix), reverse=True):
        bucket = bucket_of(table.replica.key_at(key, len(prefix)))
        return reader.get(Family.VERSIONS, version_key(table.table_id, bucket, key)) is None
    return False
