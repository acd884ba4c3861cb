"""Each batch of a writer is loaded once.

The last batch that a writer loaded into a table is a record of the commit that loaded it. A batch that is not beyond it
was done: loading it again answers what it was answered, and changes nothing. Writers that are jobs (`job:…`) load one
batch and never come back, so theirs are forgotten after a week; a stream may replay a batch after a month.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import LoadWriter, decode_record, encode_record
from tablecast.engine.decision import Command, Decision, Record, View
from tablecast.errors import InvalidRequest
from tablecast.storage.base import Family, Reader

MAX_WRITER_ID_BYTES = 200  # a Spark query id has 36
JOB = "job:"  # what the id of a writer that loads once begins with
JOB_KEPT_MS = 7 * 24 * 3600 * 1000
_MAX_BATCH_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LoadCommitted:
    """`row_count` is how many rows the commit wrote or removed; 0 if only a later batch is remembered. `total_rows` counts
    those of every batch that the writer has committed into the table."""

    seq: int
    row_count: int
    already: bool = False
    total_rows: int = 0


@dataclass(frozen=True, slots=True)
class BatchName:
    """Which batch of which writer, into which table."""

    table_id: int
    writer_id: str
    batch_id: int

    def check(self) -> None:
        size = len(self.writer_id.encode(errors="replace"))
        if not 1 <= size <= MAX_WRITER_ID_BYTES or not self.writer_id.isprintable():
            raise InvalidRequest(f"a writer id is 1 to {MAX_WRITER_ID_BYTES} bytes of printable text", bytes=size)
        if not 0 <= self.batch_id <= _MAX_BATCH_ID:
            raise InvalidRequest(f"a batch id is 0 or more and fits 63 bits, not {self.batch_id}")

    @property
    def key(self) -> bytes:
        return records.load_writer_key(self.table_id, self.writer_id)

    def recall(self, reader: Reader | View) -> LoadCommitted | None:
        """What this batch was answered; None if it was not loaded yet."""
        last = self._last(reader)
        if last is None or self.batch_id > last.batch_id:
            return None
        rows = last.rows if last.batch_id == self.batch_id else 0
        return LoadCommitted(last.seq, rows, already=True, total_rows=_total(last))

    def _last(self, reader: Reader | View) -> LoadWriter | None:
        stored = reader.get(Family.META, self.key)
        return None if stored is None else decode_record(LoadWriter, stored)

    def committed(self, decision: Decision, view: View, rows: int) -> None:
        """Makes `decision` the commit of this batch: its record, and the answer."""
        last = self._last(view)
        total = rows + (0 if last is None else _total(last))
        writer = LoadWriter(self.writer_id, self.batch_id, view.seq, rows, view.ts_ms, total)
        decision.records += self._remembered(writer)
        decision.response = LoadCommitted(view.seq, rows, total_rows=total)

    def _remembered(self, writer: LoadWriter) -> list[Record]:
        saved: list[Record] = [(Family.META, self.key, encode_record(writer))]
        ends_ms = forgotten_ms(writer)
        if ends_ms is not None:
            saved.append((Family.EXPIRY, keys.expiry_key(ends_ms, Family.META, self.key), b""))
        return saved


def _total(writer: LoadWriter) -> int:
    return max(writer.total_rows, writer.rows)


def forgotten_ms(writer: LoadWriter) -> int | None:
    """When a writer is forgotten; None for never, as long as its table is there."""
    return writer.ts_ms + JOB_KEPT_MS if writer.writer_id.startswith(JOB) else None


@dataclass(slots=True)
class OncePerBatch:
    """Another command, done once per batch; its answer becomes a `LoadCommitted`."""

    name: BatchName
    command: Command

    @property
    def weight(self) -> int:
        return max(1, self.command.weight)

    def decide(self, view: View) -> Decision:
        known = self.name.recall(view)
        if known is not None:
            return Decision(known)
        decision = self.command.decide(view)
        count: int = decision.response.count
        self.name.committed(decision, view, count)
        return decision


@dataclass(slots=True)
class RecallBatch:
    """Asks the writer for `recall`: what it knows is durable when it says so."""

    name: BatchName
    weight: int = 1

    def decide(self, view: View) -> Decision:
        return Decision(self.name.recall(view))


@dataclass(slots=True)
class TakeLoadNumber:
    """A number that no load had before."""

    weight: int = 1

    def decide(self, view: View) -> Decision:
        stored = view.get(Family.META, records.IDS_KEY)
        ids = records.NextIds() if stored is None else decode_record(records.NextIds, stored)
        following = records.NextIds(ids.table, ids.topic, ids.load + 1)
        return Decision(ids.load, records=[(Family.META, records.IDS_KEY, encode_record(following))])
