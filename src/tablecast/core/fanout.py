"""Which live queries a change may concern.

    table ─▶ owner ─▶ columns compared by `=` ─▶ their values ─▶ groups
                  ╰─▶ groups without such a condition

A group is found by the values its filter demands, in the row before or after the change: of a hundred thousand groups
`thread_id = ?` only those of the two values are looked at. Groups that demand nothing of the kind are candidates of every
change of their table (and owner: in tables that keep rows apart per user, a change concerns its user's groups only).

A candidate need not match; whoever matches is a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from tablecast.codec.rows import Row
from tablecast.core.live_query import LiveQuery


class Images(Protocol):
    """A change of one row: before and after; None is no row."""

    @property
    def before(self) -> Row | None: ...
    @property
    def after(self) -> Row | None: ...


class Group(Protocol):
    @property
    def query(self) -> LiveQuery: ...


G = TypeVar("G", bound=Group)
C = TypeVar("C", bound=Images)
Columns = tuple[int, ...]


class _ByValue(Generic[G]):
    """Groups that compare the same columns, by what they compare them with."""

    def __init__(self, columns: Columns) -> None:
        self._values: Callable[[Row], Any] = attrgetter(*(f"c{i}" for i in columns))
        self.groups: dict[Any, dict[G, None]] = {}

    def find(self, changes: Sequence[C], found: dict[G, list[C]]) -> None:
        get, values = self.groups.get, self._values
        for change in changes:
            before, after = change.before, change.after
            was = None if before is None else values(before)
            now = None if after is None else values(after)
            for group in get(was, ()):
                found.setdefault(group, []).append(change)
            if now != was:
                for group in get(now, ()):
                    found.setdefault(group, []).append(change)


class _Owned(Generic[G]):
    """The groups of one table and owner."""

    def __init__(self) -> None:
        self._others: dict[G, None] = {}
        self._compared: dict[Columns, _ByValue[G]] = {}

    def add(self, group: G) -> None:
        self._place(group).setdefault(group)

    def remove(self, group: G) -> None:
        self._place(group).pop(group)
        columns, value = _compared(group.query)
        if columns and not self._compared[columns].groups[value]:
            del self._compared[columns].groups[value]
            if not self._compared[columns].groups:
                del self._compared[columns]

    def _place(self, group: G) -> dict[G, None]:
        columns, value = _compared(group.query)
        if not columns:
            return self._others
        by_value = self._compared.get(columns)
        if by_value is None:
            by_value = self._compared[columns] = _ByValue(columns)
        return by_value.groups.setdefault(value, {})

    def candidates(self, changes: Sequence[C]) -> Iterator[tuple[G, Sequence[C]]]:
        for group in self._others:
            yield group, changes
        found: dict[G, list[C]] = {}
        for by_value in self._compared.values():
            by_value.find(changes, found)
        yield from found.items()

    def __bool__(self) -> bool:
        return bool(self._others or self._compared)


def _compared(query: LiveQuery) -> tuple[Columns, Any]:
    """The columns that the query compares by `=`, and with what: one value as it is, several as a tuple."""
    columns = tuple(column for column, _ in query.equals)
    values = tuple(value for _, value in query.equals)
    return columns, values[0] if len(values) == 1 else values


class Fanout(Generic[G]):
    """Every group there is. A group is in it once; its query does not change while it is."""

    def __init__(self) -> None:
        self._tables: dict[int, dict[str | None, _Owned[G]]] = {}

    def add(self, group: G) -> None:
        query = group.query
        owners = self._tables.setdefault(query.table.table_id, {})
        owned = owners.get(query.owner)
        if owned is None:
            owned = owners[query.owner] = _Owned()
        owned.add(group)

    def remove(self, group: G) -> None:
        query = group.query
        owners = self._tables[query.table.table_id]
        owners[query.owner].remove(group)
        if not owners[query.owner]:
            del owners[query.owner]
            if not owners:
                del self._tables[query.table.table_id]

    def candidates(
        self, table_id: int, changes: Sequence[C], owner_of: Callable[[C], str | None]
    ) -> list[tuple[G, Sequence[C]]]:
        """Groups with the changes that may concern them, in the changes' order. `owner_of` says whose row it is."""
        owners = self._tables.get(table_id)
        if owners is None:
            return []
        if None in owners:  # a table has one set of rows or one per user, never both
            return list(owners[None].candidates(changes))
        apart: dict[str | None, list[C]] = {}
        for change in changes:
            apart.setdefault(owner_of(change), []).append(change)
        return [pair for owner, own in apart.items() if owner in owners for pair in owners[owner].candidates(own)]

    def __bool__(self) -> bool:
        return bool(self._tables)
