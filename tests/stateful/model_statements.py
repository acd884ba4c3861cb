"""Statements as data: the SQL that is sent, and what it must do to a plain dict of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tablecast.errors import CheckViolation, DuplicateKey, NotNullViolation
from tablecast.model.change import Op

Row = dict[str, Any]
Place = tuple[str | None, tuple[Any, ...]]  # the user who owns the row, and its primary key

MAX_AMOUNT = 1_000  # CHECK (amount < 1000)


@dataclass(frozen=True)
class ColumnModel:
    name: str
    type: str
    default: Any = None
    not_null: bool = False


@dataclass(frozen=True)
class Stored:
    row: Row
    seq: int
    ts_ms: int


@dataclass
class TableModel:
    name: str
    kind: str
    key: tuple[str, ...]
    columns: list[ColumnModel]
    ttl_ms: int | None = None
    check: str | None = None
    rows: dict[Place, Stored] = field(default_factory=dict)

    @property
    def per_user(self) -> bool:
        return self.kind != "SHARED"

    def owner(self, user: str) -> str | None:
        return user if self.per_user else None

    def place(self, user: str, row: Row) -> Place:
        return self.owner(user), tuple(row[name] for name in self.key)

    def live(self, now_ms: int) -> dict[Place, Stored]:
        """What there is to see, in key order."""
        return {
            place: stored
            for place, stored in sorted(self.rows.items(), key=lambda item: (item[0][0] or "", item[0][1]))
            if self.ttl_ms is None or stored.ts_ms + self.ttl_ms > now_ms
        }

    def create_sql(self) -> str:
        columns = [
            f"{c.name} {c.type}{' NOT NULL' if c.not_null else ''}"
            f"{'' if c.default is None else f' DEFAULT {c.default!r}'}"
            for c in self.columns
        ]
        constraints = [f"PRIMARY KEY ({', '.join(self.key)})", *([f"CHECK ({self.check})"] if self.check else [])]
        options = "" if self.ttl_ms is None else f" WITH (TTL_SECONDS = {self.ttl_ms // 1000})"
        return f"CREATE {self.kind} TABLE {self.name} ({', '.join(columns + constraints)}){options}"

    def checked(self, row: Row) -> Row:
        """What the table demands of a row that is written."""
        for column in self.columns:
            value = row[column.name]
            if value is None and (column.not_null or column.name in self.key):
                raise NotNullViolation(column.name)
        return row

    def require_check(self, row: Row) -> None:
        if self.check is not None and row["amount"] is not None and row["amount"] >= MAX_AMOUNT:
            raise CheckViolation(self.check)


@dataclass(frozen=True)
class ChangeModel:
    table: str
    op: Op
    place: Place
    before: Row | None
    after: Row | None

    @property
    def row(self) -> Row:
        """The one that filters judge and payloads show."""
        found = self.before if self.op is Op.DELETE else self.after
        assert found is not None
        return found


@dataclass(frozen=True)
class Where:
    """A condition in SQL, and the same over a dict: only True matches."""

    sql: str
    matches: Callable[[Row], bool | None]
    params: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Set:
    column: str
    sql: str
    value: Callable[[Row], Any]


@dataclass(frozen=True)
class Insert:
    """`conflict`: what ON CONFLICT does, None without. `bulk` goes past SQL, as `db.insert` in the mode that says so."""

    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    conflict: str | None = None
    bulk: bool = False

    def sql(self, table: TableModel) -> tuple[str, tuple[Any, ...]]:
        rows = ", ".join(f"({', '.join('?' * len(self.columns))})" for _ in self.values)
        text = f"INSERT INTO {table.name} ({', '.join(self.columns)}) VALUES {rows}"
        if self.conflict == "nothing":
            text += " ON CONFLICT DO NOTHING"
        elif self.conflict == "update":
            sets = ", ".join(f"{name} = excluded.{name}" for name in self._updated(table))
            text += f" ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {sets}"
        return text, tuple(value for row in self.values for value in row)

    def _updated(self, table: TableModel) -> list[str]:
        return [name for name in self.columns if name not in table.key]

    def effect(self, table: TableModel, user: str, now_ms: int) -> list[ChangeModel]:
        rows = table.live(now_ms)
        current = {place: stored.row for place, stored in rows.items()}
        defaults = {column.name: column.default for column in table.columns}
        proposed = [table.checked(defaults | dict(zip(self.columns, row, strict=True))) for row in self.values]
        for row in proposed:
            table.require_check(row)
        changes: list[ChangeModel] = []
        for row in proposed:
            place = table.place(user, row)
            before = current.get(place)
            if before is None:
                changes.append(ChangeModel(table.name, Op.INSERT, place, None, row))
            elif self.conflict is None:
                raise DuplicateKey(str(place))
            elif self.conflict == "nothing":
                continue
            else:
                row = before | {name: row[name] for name in self._updated(table)}
                changes.append(ChangeModel(table.name, Op.UPDATE, place, before, row))
            current[place] = row
        return changes


@dataclass(frozen=True)
class Update:
    where: Where
    sets: tuple[Set, ...]

    def sql(self, table: TableModel) -> tuple[str, tuple[Any, ...]]:
        sets = ", ".join(f"{s.column} = {s.sql}" for s in self.sets)
        return f"UPDATE {table.name} SET {sets} WHERE {self.where.sql}", self.where.params

    def effect(self, table: TableModel, user: str, now_ms: int) -> list[ChangeModel]:
        """Rows that keep their key are updates; a changed key is a delete and an insert."""
        rows = {place: stored.row for place, stored in table.live(now_ms).items() if place[0] == table.owner(user)}
        stayed, left, arrived = [], [], {}
        for place, before in rows.items():
            if self.where.matches(before) is not True:
                continue
            after = table.checked(before | {s.column: s.value(before) for s in self.sets})
            table.require_check(after)
            new_place = table.place(user, after)
            if new_place == place:
                stayed.append(ChangeModel(table.name, Op.UPDATE, place, before, after))
                continue
            left.append(ChangeModel(table.name, Op.DELETE, place, before, None))
            if new_place in arrived:
                raise DuplicateKey(str(new_place))
            arrived[new_place] = ChangeModel(table.name, Op.INSERT, new_place, None, after)
        if any(place in rows and place not in {c.place for c in left} for place in arrived):
            raise DuplicateKey("the new key exists")
        return stayed + left + list(arrived.values())


@dataclass(frozen=True)
class Delete:
    where: Where

    def sql(self, table: TableModel) -> tuple[str, tuple[Any, ...]]:
        return f"DELETE FROM {table.name} WHERE {self.where.sql}", self.where.params

    def effect(self, table: TableModel, user: str, now_ms: int) -> list[ChangeModel]:
        return [
            ChangeModel(table.name, Op.DELETE, place, stored.row, None)
            for place, stored in table.live(now_ms).items()
            if place[0] == table.owner(user) and self.where.matches(stored.row) is True
        ]


Statement = Insert | Update | Delete


@dataclass(frozen=True)
class Write:
    """A statement on a table, by somebody."""

    table: str
    user: str
    statement: Statement

    def by(self, user: str) -> Write:
        return replace(self, user=user)
