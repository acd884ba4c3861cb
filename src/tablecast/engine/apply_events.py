"""Taking in events of other nodes: an ordinary commit, decided by versions.

For each event: is it one, and a row of ours? Was it taken in before? Does it win over what is here? If so its row, version
and bucket change, and the change goes to topics and live queries like any other; to the outbox it never goes, so nothing
goes round in circles. An event that cannot be taken in is set aside with the reason, and the rest goes on.

Numbers that were seen are remembered per node, and skip the rest of the work for what a broker delivers twice. They are
a shortcut: an event that is taken in again has the version that is here already, and changes nothing. What anti-entropy
brings (`SYNC`) is not asked for its number: it was asked for because something is missing here, whatever was seen. An
event that was set aside is not remembered as seen, since the table it needs may be made later.

An event of our own that is not in our log, in the present epoch, says that our files are older than what we published. The
commit that takes it in begins a new epoch, so that the next write does not get a number that stands for something else.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final, NamedTuple

from tablecast.codec import catalog as records
from tablecast.codec.catalog import decode_record, encode_record
from tablecast.codec.events import decode_event
from tablecast.codec.rows import Row
from tablecast.codec.versions import Kept
from tablecast.core.conflict import MAX_TIMESTAMP_MS, beats, is_ahead
from tablecast.core.replicated_rows import is_bare, table_of
from tablecast.core.watermark import Watermark
from tablecast.engine.catalog import Catalog, Table
from tablecast.engine.decision import Decision, Record, View
from tablecast.engine.identity import lost_state, node_record, stored_node, with_new_epoch
from tablecast.engine.logs import OUTBOX
from tablecast.engine.quarantine import not_an_event, quarantine_records, set_aside
from tablecast.engine.rows import RunBuilder, check_row, encode_rows
from tablecast.engine.versions import VersionWrites, tombstone_ends_ms
from tablecast.errors import InvalidEvent, TablecastError
from tablecast.model.change import Op
from tablecast.model.replication import Event, Node, Quarantined, SeenEvents
from tablecast.storage.base import Family

LIVE: Final = "live"  # from a broker, which may deliver twice
SYNC: Final = "sync"  # from anti-entropy, which asked for it


class Status(enum.StrEnum):
    APPLIED = "applied"
    BEATEN = "beaten"  # what is here is of the same write, or of a later one
    SEEN = "seen"
    QUARANTINED = "quarantined"


class Outcome(NamedTuple):
    """What became of an event. `ahead`: its writer's clock is more than five minutes ahead of ours."""

    status: Status
    reason: str = ""
    ahead: bool = False


class ApplyEvents:
    """Takes in events, given as their bytes. Answers a list of outcomes, one per event."""

    def __init__(self, events: Sequence[bytes], source: str = LIVE) -> None:
        self._given = [_Given(data, *_decoded(data)) for data in events]
        self._source = source

    @property
    def weight(self) -> int:
        return len(self._given)

    def decide(self, view: View) -> Decision:
        taking = _Taking(view, self._source)
        found = [taking.find(given) for given in self._given]
        taking.look([place for place in found if isinstance(place, _Found)])
        outcomes = [taking.take(given, place) for given, place in zip(self._given, found, strict=True)]
        return taking.decision(outcomes)


class _Given(NamedTuple):
    data: bytes
    event: Event | None
    fault: str


def _decoded(data: bytes) -> tuple[Event | None, str]:
    try:
        return decode_event(data), ""
    except InvalidEvent as e:
        return None, e.message


class _Found(NamedTuple):
    """The row that an event speaks of: its table, where it and its version are stored, and what it says of it."""

    table: Table
    row_key: bytes
    place: bytes
    row: Row | None


class _Taking:
    """One decision about many events; each sees what those before it left."""

    def __init__(self, view: View, source: str) -> None:
        self._view = view
        self._source = source
        self._own = stored_node(view)
        self._tables = _replicated_tables(view.catalog)
        self._versions = VersionWrites(view)
        self._rows: dict[bytes, Row | None] = {}
        self._seen: dict[str, Watermark] = {}
        self._runs: dict[int, RunBuilder] = {}
        self._set_aside: list[tuple[int, Quarantined]] = []
        self._begun: Node | None = None  # this node in a new epoch, if one begins here

    # --- which row ---

    def find(self, given: _Given) -> _Found | str:
        """Or why there is none. Not looked for if the event was seen."""
        if given.event is None:
            return given.fault
        event = given.event
        if self._was_seen(event):
            return "it was seen"
        if event.version.timestamp_ms > MAX_TIMESTAMP_MS:
            return f"its timestamp_ms is {event.version.timestamp_ms}, beyond all time: the limit is 2^62"
        name = table_of(event.key)
        table = self._tables.get(name)
        if table is None:
            return f"there is no replicated table {name}" if name else "there is no replicated table of bare keys"
        assert table.replica is not None
        try:
            if event.value is None:
                row, row_key = None, table.replica.storage_key(event.key)
            else:
                row = table.replica.row(event.key, event.value)
                row_key = table.codec.key_of_row(table.codec.prefix(None), row)
        except InvalidEvent as e:
            return e.message
        return _Found(table, row_key, self._versions.place(table.table_id, event.key, row_key), row)

    def look(self, found: Sequence[_Found]) -> None:
        """Reads at once what deciding will ask for."""
        self._versions.look([f.place for f in found])
        for f, value in zip(found, self._view.get_many(Family.ROWS, [f.row_key for f in found]), strict=True):
            self._rows[f.row_key] = None if value is None else f.table.codec.decode(value)

    # --- what becomes of it ---

    def take(self, given: _Given, found: _Found | str) -> Outcome:
        event = given.event
        if event is not None:
            if self._was_seen(event):
                return Outcome(Status.SEEN)
            self._notice_lost_state(event)
        if event is None or isinstance(found, str):
            return self._refuse(given, str(found))
        stored = self._versions.at(found.place)
        ahead = is_ahead(event.version, self._view.ts_ms)
        is_over = found.row is None and tombstone_ends_ms(event.version) <= self._view.ts_ms
        if (stored is None and is_over) or (stored is not None and not beats(event.version, stored.version)):
            self._remember(event)
            return Outcome(Status.BEATEN, ahead=ahead)
        try:
            self._check(found)
        except TablecastError as e:
            return self._refuse(given, e.message)
        self._write(event, found, None if is_over else Kept(event.version, found.row is None))
        self._remember(event)
        return Outcome(Status.APPLIED, ahead=ahead)

    def _check(self, found: _Found) -> None:
        """What would fail the whole commit later: here it is one event's fault."""
        before = self._rows[found.row_key]
        op = _op(before, found.row)
        if found.row is not None:
            check_row(found.table, found.row)
            encode_rows(found.table, [found.row])
        for route in () if op is None else found.table.routes[op]:
            row = before if op is Op.DELETE else found.row
            if route.matches is not None and route.matches(row) is not True:
                continue
            if route.partition_bytes is not None:
                route.partition_bytes(row)

    def _write(self, event: Event, found: _Found, kept: Kept | None) -> None:
        before = self._rows[found.row_key]
        op = _op(before, found.row)
        if op is not None:
            runs = self._runs.get(found.table.table_id)
            if runs is None:
                runs = self._runs[found.table.table_id] = RunBuilder(found.table, None)
            runs.add(op, found.row_key, before, found.row)
        self._rows[found.row_key] = found.row
        self._versions.put(found.place, event.key, kept)

    def _refuse(self, given: _Given, reason: str) -> Outcome:
        now_ms = self._view.ts_ms
        if given.event is None:
            self._set_aside.append(not_an_event(given.data, reason, now_ms))
        else:
            size = len(given.data)
            self._set_aside.append(set_aside(given.event, reason, outgoing=False, size=size, time_ms=now_ms))
        return Outcome(Status.QUARANTINED, reason)

    # --- numbers ---

    def _was_seen(self, event: Event) -> bool:
        if self._source == SYNC:
            return False
        node_id, seq = event.version.node_id, event.version.seq
        if self._own is not None and node_id == self._own.node_id and self._own.is_present(seq):
            offset = self._own.offset_of(seq)
            return offset is not None and offset < self._view.log_end(*OUTBOX)
        return seq in self._watermark(node_id)

    def _notice_lost_state(self, event: Event) -> None:
        node_id, seq = event.version.node_id, event.version.seq
        if self._own is not None and node_id == self._own.node_id and lost_state(self._view, self._own, seq):
            self._own = self._begun = with_new_epoch(self._view, self._own)

    def _remember(self, event: Event) -> None:
        self._watermark(event.version.node_id).add(event.version.seq)

    def _watermark(self, node_id: str) -> Watermark:
        known = self._seen.get(node_id)
        if known is None:
            stored = self._view.get(Family.META, records.seen_key(node_id))
            spans = () if stored is None else decode_record(SeenEvents, stored).spans
            known = self._seen[node_id] = Watermark(spans)
        return known

    def _seen_records(self) -> list[Record]:
        changed = [(node_id, mark.spans) for node_id, mark in self._seen.items() if mark.changed]
        return [
            (Family.META, records.seen_key(node_id), encode_record(SeenEvents(spans))) for node_id, spans in changed
        ]

    def decision(self, outcomes: list[Outcome]) -> Decision:
        written = [
            *self._versions.records,
            *self._seen_records(),
            *quarantine_records(self._view, self._set_aside),
            *([] if self._begun is None else [node_record(self._begun)]),
        ]
        runs = [run for builder in self._runs.values() for run in builder.done()]
        return Decision(outcomes, runs, records=written, arrived=True, sums=self._versions.sums)


def _op(before: Row | None, after: Row | None) -> Op | None:
    if after is None:
        return None if before is None else Op.DELETE
    return Op.INSERT if before is None else Op.UPDATE


def _replicated_tables(catalog: Catalog) -> dict[str | None, Table]:
    """By full name; that of bare keys by None."""
    found = [table for table in catalog.tables.values() if table.replica is not None]
    return {None if is_bare(table.schema) else table.schema.full_name: table for table in found}
