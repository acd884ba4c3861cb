"""Commands that change rows, and how they are decided.

The same `decide` runs in the writer (autocommit) and over a transaction's private view, so a statement means the same
in both. An UPDATE or DELETE names candidate keys; its WHERE is judged again on the row as it is when decided, so a
statement never acts on a row that stopped matching (what Postgres does under READ COMMITTED).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import lt
from typing import Any

from tablecast.codec.rows import Row
from tablecast.core import row_rules
from tablecast.engine.catalog import Table
from tablecast.engine.decision import Decision, RowView, StalePlan
from tablecast.errors import DuplicateKey, TransactionConflict, UnknownTable
from tablecast.model.change import ChangeRun, Op
from tablecast.storage.base import Family

Resolve = Callable[[Row, Row], Row | None]  # (existing, proposed) -> what to store, or None to leave it
Transform = Callable[[Row], Row | None]  # the row after an UPDATE, or None if its WHERE does not match
Matches = Callable[[Row], Any]


@dataclass(slots=True)
class Written:
    """The answer to a write: how many rows, and which if RETURNING asked. `seq` is None until the write is committed;
    `answer` is what a request with an idempotency key had remembered with it."""

    seq: int | None
    count: int
    rows: Sequence[Row] = field(default_factory=list)
    answer: bytes = b""


def current_table(view: RowView, table_id: int, version: int) -> Table:
    table = view.catalog.tables.get(table_id)
    if table is None:
        raise UnknownTable("the table was dropped while the statement waited")
    if table.schema.version != version:
        raise StalePlan(f"{table.schema.full_name} was altered while the statement waited")
    return table


def is_live(table: Table, value: bytes | None, now_ms: int) -> bool:
    """Whether a stored value is a row: expired ones are not, even before a job removes them."""
    if value is None:
        return False
    return table.ttl_ms is None or table.stamp(value)[1] + table.ttl_ms > now_ms


def are_absent(view: RowView, table: Table, user_id: str | None, keys: list[bytes]) -> bool:
    """Whether all keys differ and no row, not even an expired one, has any of them."""
    if not keys:
        return True
    ascending = all(map(lt, keys, islice(keys, 1, None)))
    if not ascending and len(set(keys)) != len(keys):
        return False
    lowest = keys[0] if ascending else min(keys)
    return view.are_new(table.codec.prefix(user_id), lowest, keys) or not any(view.get_many(Family.ROWS, keys))


def check_row(table: Table, row: Row) -> None:
    row_rules.check_row(table.schema, table.checks, row)


def encode_rows(table: Table, rows: Sequence[Row]) -> list[bytes]:
    """Bodies, checked against the size limit."""
    return row_rules.encode_rows(table.schema, table.codec.encode, rows)


def duplicate_key(table: Table, row: Row) -> DuplicateKey:
    values = table.codec.values(row)
    return row_rules.duplicate_key(table.schema, [values[i] for i in table.schema.key_indexes])


@dataclass(slots=True)
class InsertRows:
    """INSERT, with or without ON CONFLICT. Keys, rows and encoded bodies run parallel."""

    table_id: int
    version: int
    user_id: str | None
    keys: list[bytes]
    rows: Sequence[Row]
    bodies: list[bytes]
    resolve: Resolve | None = None  # ON CONFLICT; None: a duplicate key is an error
    returning: bool = False

    @property
    def weight(self) -> int:
        return len(self.keys)

    def decide(self, view: RowView) -> Decision:
        table = current_table(view, self.table_id, self.version)
        if not are_absent(view, table, self.user_id, self.keys):
            return self._decide_one_by_one(view, table, view.get_many(Family.ROWS, self.keys))
        run = ChangeRun(self.table_id, self.version, Op.INSERT, self.keys, [], self.rows, self.bodies, self.user_id)
        written = Written(view.seq, len(self.keys), self.rows if self.returning else [])
        return Decision(written, [run] if self.keys else [])

    @property
    def together(self) -> tuple[int, int, str | None] | None:
        """Inserts that share this can be decided as one: see `decide_together`."""
        return (self.table_id, self.version, self.user_id) if self.resolve is None else None

    @staticmethod
    def decide_together(commands: Sequence[InsertRows], view: RowView) -> Decision | None:
        """One decision for many inserts, whose response lists their responses; None if any of them meets a row.

        What a commit of many small inserts costs is mostly the same steps again and again; here they are taken once.
        """
        first = commands[0]
        table = current_table(view, first.table_id, first.version)
        keys = [key for command in commands for key in command.keys]
        if not are_absent(view, table, first.user_id, keys):
            return None
        rows = [row for command in commands for row in command.rows]
        bodies = [body for command in commands for body in command.bodies]
        run = ChangeRun(first.table_id, first.version, Op.INSERT, keys, [], rows, bodies, first.user_id)
        seq = view.seq
        written = [Written(seq, len(c.keys), c.rows if c.returning else []) for c in commands]
        return Decision(written, [run])

    def _decide_one_by_one(self, view: RowView, table: Table, stored: list[bytes | None]) -> Decision:
        """Some key exists, or comes twice: each row meets what the rows before it left."""
        runs = RunBuilder(table, self.user_id)
        now: dict[bytes, Row] = {}
        returned: list[Row] = []
        for key, row, value in zip(self.keys, self.rows, stored, strict=True):
            existing = now.get(key)
            if existing is None and is_live(table, value, view.ts_ms):
                existing = table.codec.decode(value)  # type: ignore[arg-type]
            if existing is None:
                runs.add(Op.INSERT, key, None, row)
                now[key] = row
                returned.append(row)
                continue
            if self.resolve is None:
                raise duplicate_key(table, row)
            after = self.resolve(existing, row)
            if after is not None:
                check_row(table, after)
                runs.add(Op.UPDATE, key, existing, after)
                now[key] = after
                returned.append(after)
        return Decision(Written(view.seq, len(returned), returned if self.returning else []), runs.done())


@dataclass(slots=True)
class UpdateRows:
    table_id: int
    version: int
    user_id: str | None
    keys: list[bytes]
    transform: Transform
    returning: bool = False

    @property
    def weight(self) -> int:
        return len(self.keys)

    def decide(self, view: RowView) -> Decision:
        table = current_table(view, self.table_id, self.version)
        stayed, left, arrived = (RunBuilder(table, self.user_id) for _ in range(3))
        prefix = table.codec.prefix(self.user_id)
        returned: list[Row] = []
        moved: dict[bytes, Row] = {}
        gone: set[bytes] = set()
        for key, value in zip(self.keys, view.get_many(Family.ROWS, self.keys), strict=True):
            if not is_live(table, value, view.ts_ms):
                continue
            before = table.codec.decode(value)  # type: ignore[arg-type]
            after = self.transform(before)
            if after is None:
                continue
            check_row(table, after)
            returned.append(after)
            new_key = table.codec.key_of_row(prefix, after)
            if new_key == key:
                stayed.add(Op.UPDATE, key, before, after)
                continue
            # A changed primary key is another row: the old one is deleted, the new one inserted.
            left.add(Op.DELETE, key, before, None)
            gone.add(key)
            if new_key in moved:
                raise duplicate_key(table, after)
            moved[new_key] = after
        for new_key, after in moved.items():
            if new_key not in gone and is_live(table, view.get(Family.ROWS, new_key), view.ts_ms):
                raise duplicate_key(table, after)
            arrived.add(Op.INSERT, new_key, None, after)
        encode_rows(table, returned)
        written = Written(view.seq, len(returned), returned if self.returning else [])
        return Decision(written, stayed.done() + left.done() + arrived.done())


@dataclass(slots=True)
class DeleteRows:
    table_id: int
    version: int
    user_id: str | None
    keys: list[bytes]
    matches: Matches | None = None
    returning: bool = False

    @property
    def weight(self) -> int:
        return len(self.keys)

    def decide(self, view: RowView) -> Decision:
        table = current_table(view, self.table_id, self.version)
        runs = RunBuilder(table, self.user_id)
        returned: list[Row] = []
        seen: set[bytes] = set()
        for key, value in zip(self.keys, view.get_many(Family.ROWS, self.keys), strict=True):
            if key in seen or not is_live(table, value, view.ts_ms):
                continue
            before = table.codec.decode(value)  # type: ignore[arg-type]
            if self.matches is None or self.matches(before) is True:
                runs.add(Op.DELETE, key, before, None)
                returned.append(before)
                seen.add(key)
        return Decision(Written(view.seq, len(returned), returned if self.returning else []), runs.done())


class RunBuilder:
    """Collects changes of one table into runs of one op, keeping their order."""

    def __init__(self, table: Table, user_id: str | None) -> None:
        self._table = table
        self._user_id = user_id
        self._runs: list[ChangeRun] = []
        self._before: list[Row] = []  # of the last run
        self._after: list[Row] = []

    def add(self, op: Op, key: bytes, before: Row | None, after: Row | None) -> None:
        if not self._runs or self._runs[-1].op is not op:
            schema, self._before, self._after = self._table.schema, [], []
            images = self._before, self._after
            self._runs.append(ChangeRun(schema.table_id, schema.version, op, [], *images, [], self._user_id))
        self._runs[-1].keys.append(key)
        if before is not None:
            self._before.append(before)
        if after is not None:
            self._after.append(after)

    def done(self) -> list[ChangeRun]:
        return self._runs


RowCommand = InsertRows | UpdateRows | DeleteRows


@dataclass(slots=True)
class CommitTransaction:
    """All statements of a transaction at once. `touched` maps each written key to the commit number that its row had
    when the transaction first looked (None: no row): first committer wins."""

    runs: list[ChangeRun]
    touched: dict[bytes, int | None]

    @property
    def weight(self) -> int:
        return len(self.touched)

    @property
    def count(self) -> int:
        return sum(len(run.keys) for run in self.runs)

    def decide(self, view: RowView) -> Decision:
        for run in self.runs:
            table = view.catalog.tables.get(run.table_id)
            if table is None or table.schema.version != run.version:
                raise TransactionConflict(
                    "a table that this transaction wrote was altered or dropped meanwhile; run the transaction again"
                )
        wanted = list(self.touched)
        for key, value in zip(wanted, view.get_many(Family.ROWS, wanted), strict=True):
            found = None if value is None else view.catalog.tables[int.from_bytes(key[:4], "big")].stamp(value)[0]
            if found != self.touched[key]:
                raise self._conflict(view, key)
        return Decision(Written(view.seq, self.count), list(self.runs))

    def _conflict(self, view: RowView, key: bytes) -> TransactionConflict:
        table = view.catalog.tables[int.from_bytes(key[:4], "big")]
        at = len(table.codec.prefix(table.codec.owner(key)))
        values = table.codec.decode_key(key, at)
        shown = ", ".join(f"{name} = {v!r}" for name, v in zip(table.schema.primary_key, values, strict=True))
        return TransactionConflict(
            f"another transaction changed {table.schema.full_name} ({shown}) first; run this one again",
            table=table.schema.full_name,
            key=shown,
        )
