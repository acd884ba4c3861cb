"""Rows of a live query as a program gets them: like those of a SELECT, with the key beside them.

A server adds the columns of the primary key to those that were selected, hidden, so that every row carries its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from tablecast.codec.live import LiveColumn
from tablecast.errors import SchemaChanged
from tablecast.model.change import Op
from tablecast.model.live import LiveChange, Values
from tablecast.model.schema import TypeName


class Shape:
    """`columns` are the names of the selected columns."""

    def __init__(self, columns: Sequence[LiveColumn], key_indexes: Sequence[int]) -> None:
        self.identity = [*columns], [*key_indexes]
        self.columns = tuple(column.name for column in columns if not column.hidden)
        self._key = _picker(key_indexes)
        shown = [i for i, column in enumerate(columns) if not column.hidden]
        self._show = tuple if len(shown) == len(columns) else _picker(shown)
        self._json = [at for at, i in enumerate(shown) if columns[i].type == TypeName.JSON]

    def initial(self, rows: Iterable[Sequence[Any]], seq: int) -> list[LiveChange]:
        return [LiveChange(Op.INSERT, self._key(row), self._row(row), seq, initial=True) for row in rows]

    def change(self, op: Op, values: Sequence[Any], seq: int) -> LiveChange:
        """`values` are the row's, or those of its key for a delete."""
        if op is Op.DELETE:
            return LiveChange(op, tuple(values), None, seq)
        return LiveChange(op, self._key(values), self._row(values), seq)

    def _row(self, values: Sequence[Any]) -> Values:
        row = self._show(values)
        return _with_json(row, self._json) if self._json else row


def check_same(known: Shape, now: Shape) -> Shape:
    """`SELECT *` of a table that got other columns while nobody looked: rows would mean something else on the way."""
    if known is not UNKNOWN and known.identity != now.identity:
        raise SchemaChanged(
            f"the table has other columns than when it was subscribed to: {', '.join(now.columns)} instead of "
            f"{', '.join(known.columns)}; subscribe again",
        )
    return now


def _picker(indexes: Sequence[int]) -> Callable[[Sequence[Any]], Values]:
    if len(indexes) == 1:  # itemgetter would give the bare value
        only = indexes[0]
        return lambda values: (values[only],)
    return itemgetter(*indexes) if indexes else lambda values: ()


def _with_json(row: Values, positions: Sequence[int]) -> Values:
    values = list(row)
    for i in positions:
        if values[i] is not None:
            values[i] = msgspec.json.decode(values[i])
    return tuple(values)


UNKNOWN = Shape((), ())  # of a live query that has not begun
