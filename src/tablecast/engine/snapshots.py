"""Snapshots of tables that outlive a request: one table at one commit, read in parts by whoever knows its id.

    open ──▶ rows, rows, … (any ranges, in parallel, again) ──▶ close, or gone after IDLE_MS without a read

A snapshot pins what the store would otherwise free: old files, and memory tables until they are written out. So there
are few, each ends by itself, and none survives the process. The clock is an argument; only differences count.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tablecast.engine.catalog import Table
from tablecast.engine.reading import PIECE_ROWS, WHOLE, columns_schema, key_bounds, values_batch
from tablecast.engine.rows import is_live
from tablecast.engine.splits import split_keys
from tablecast.errors import InvalidRequest, Overloaded, SnapshotGone
from tablecast.model.schema import Actor, Role
from tablecast.storage.base import Family, Reader

IDLE_MS = 600_000  # a reader that comes back every few seconds is never late; one that died is over soon
MAX_SNAPSHOTS = 256  # open at a time: each keeps replaced files, and some memory, from being freed
SNAPSHOTS_PER_USER = 64  # of those, unless a server's settings say otherwise: one user cannot take all
RESERVED_SNAPSHOTS = 64  # of MAX_SNAPSHOTS, for roles from service on: accounts of role user cannot take all together
MAX_SPLITS = 1_024  # parts of one snapshot; more would each be too small to be worth a request
PIECE_BYTES = 2 * 1024 * 1024  # of stored rows in a record batch

Bounds = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One user's view of a table as of commit `seq`; a row that was live then, at `now_ms`, stays so."""

    snapshot_id: str
    user_id: str
    table: Table
    seq: int
    now_ms: int
    reader: Reader
    bounds: Bounds

    def ranges(self, splits: int) -> list[Bounds]:
        """At most so many ranges, with about as many rows each. Together they are the whole."""
        if not 1 <= splits <= MAX_SPLITS:
            raise InvalidRequest(f"splits is {splits}: it is 1 to {MAX_SPLITS}", splits=splits, limit=MAX_SPLITS)
        start, end = self.bounds
        cuts = split_keys(self.reader, Family.ROWS, start, end, splits)
        return list(zip([start, *cuts], [*cuts, end], strict=True))

    def schema(self, *, with_seq: bool) -> pa.Schema:
        return columns_schema(self.table, with_seq=with_seq)

    def batches(self, start: bytes, end: bytes | None, *, with_seq: bool) -> Iterator[pa.RecordBatch]:
        """The rows of a range, in key order."""
        self._check(start, end)
        found = (value for _, value in self.reader.scan(Family.ROWS, start, end))
        if self.table.ttl_ms is not None:
            found = (value for value in found if is_live(self.table, value, self.now_ms))
        for values in _pieces(found):
            yield values_batch(self.table, values, with_seq=with_seq)

    def _check(self, start: bytes, end: bytes | None) -> None:
        """Nobody reads beyond the table, or beyond what is the user's own."""
        first, last = self.bounds
        is_within = start >= first and (last is None or (end is not None and end <= last))
        if not is_within or (end is not None and start > end):
            raise InvalidRequest(
                "start and end are beyond this snapshot: use those that opening it answered",
                snapshot=self.snapshot_id,
            )


def _pieces(values: Iterator[bytes]) -> Iterator[list[bytes]]:
    piece: list[bytes] = []
    size = 0
    for value in values:
        piece.append(value)
        size += len(value)
        if len(piece) >= PIECE_ROWS or size >= PIECE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


@dataclass(slots=True)
class _Lease:
    snapshot: TableSnapshot
    role: Role
    used_ms: int


class Snapshots:
    """Those that are open. Any thread may call."""

    def __init__(self, clock: Callable[[], int], *, per_user: int = SNAPSHOTS_PER_USER) -> None:
        self._clock = clock
        self._per_user = per_user
        self._leases: dict[str, _Lease] = {}
        self._lock = threading.Lock()
        self.is_watched = False  # whether somebody will call `expire` in time

    def __len__(self) -> int:
        return len(self._leases)

    def open(
        self, reader: Reader, table: Table, seq: int, now_ms: int, *, actor: Actor, owner: str | None
    ) -> TableSnapshot:
        """`reader` shows commit `seq`; `owner` is whose rows of a per-user table it is about."""
        bounds = key_bounds(table, owner, WHOLE)
        opened = TableSnapshot(secrets.token_hex(16), actor.user_id, table, seq, now_ms, reader, bounds)
        self.expire()
        with self._lock:
            self._check_room(actor)
            self._leases[opened.snapshot_id] = _Lease(opened, actor.role, self._clock())
        return opened

    def _check_room(self, actor: Actor) -> None:
        leases = self._leases.values()
        own = sum(lease.snapshot.user_id == actor.user_id for lease in leases)
        if own >= self._per_user:
            raise _full(f"{actor.user_id!r} has {own} snapshots open", "max_snapshots_per_user", self._per_user)
        if len(leases) >= MAX_SNAPSHOTS:
            raise _full(f"{len(leases)} snapshots are open", "MAX_SNAPSHOTS", MAX_SNAPSHOTS)
        of_users, most = sum(lease.role is Role.USER for lease in leases), MAX_SNAPSHOTS - RESERVED_SNAPSHOTS
        if actor.role is Role.USER and of_users >= most:
            raise _full(f"accounts of role user have {of_users} snapshots open", "RESERVED_SNAPSHOTS", most)

    def use(self, snapshot_id: str, user_id: str) -> TableSnapshot:
        """The snapshot, if it is open and this user's; its time begins anew. Raises SnapshotGone."""
        self.expire()
        with self._lock:
            lease = self._leases.get(snapshot_id)
            if lease is None or lease.snapshot.user_id != user_id:
                raise _gone(snapshot_id)
            lease.used_ms = self._clock()
            return lease.snapshot

    def close(self, snapshot_id: str, user_id: str) -> bool:
        """Whether it was open. Idempotent."""
        with self._lock:
            lease = self._leases.get(snapshot_id)
            if lease is None or lease.snapshot.user_id != user_id:
                return False
            del self._leases[snapshot_id]
            return True

    def expire(self) -> None:
        """Ends those that nobody read for too long."""
        oldest = self._clock() - IDLE_MS
        with self._lock:
            self._leases = {key: lease for key, lease in self._leases.items() if lease.used_ms > oldest}


def _full(what: str, bound: str, limit: int) -> Overloaded:
    return Overloaded(
        f"{what}, and {bound} allows {limit}: close some, or wait until unused ones end", bound=bound, limit=limit
    )


def _gone(snapshot_id: str) -> SnapshotGone:
    return SnapshotGone(
        f"snapshot {snapshot_id[:40]} is not open (any more): it was closed, not read for {IDLE_MS // 60_000} minutes, or "
        "the server was started anew; open another one, and read all of it",
        snapshot=snapshot_id[:40],
    )
