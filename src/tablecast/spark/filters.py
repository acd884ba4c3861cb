"""Filters that Spark hands down: kept exactly, on Arrow batches, before rows go to the JVM; and what they say of offsets.

A filter is taken only when its meaning is certain: a column of the read, and a literal of the very type of that column.
All others go back to Spark, which then applies them itself. SQL's logic of three values holds: a row is kept when every
filter is TRUE, so NULL drops it, also below NOT.

Spark hands down filters only with `spark.sql.python.filterPushdown.enabled`, and then keeps what was planned with them in
the loaded relation (seen in 4.3): a DataFrame that is used again with other filters, or joined with itself, would be read
with those of its last use. So filters are taken only where option `pushFilters` says that a load is used once.
`Pushable` looks like the inherited method to Spark, which raises if a reader has its own and the setting is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

Keep = Callable[[pa.Array], pa.Array]
_ORDER: dict[type[Filter], str] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
_TEXTUAL: dict[type[Filter], str] = {
    StringStartsWith: "starts_with",
    StringEndsWith: "ends_with",
    StringContains: "match_substring",
}


class Pushable:
    """`reader.pushFilters`, seen by Spark as the inherited one."""

    def __init__(self, take: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self._take = take
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._take(filters)


class RowFilter:
    """One filter on one column. `column` is the name in the read's schema."""

    def __init__(self, column: str, source: Filter) -> None:
        self.column, self.source = column, source

    def mask(self, values: pa.Array) -> pa.Array:
        return _mask(self.source, values)


def understood(filters: Sequence[Filter], schema: pa.Schema) -> tuple[list[RowFilter], list[Filter]]:
    """Those that can be kept here, and those that Spark has to apply."""
    taken: list[RowFilter] = []
    left: list[Filter] = []
    for source in filters:
        column = _column(source)
        if column is not None and column in schema.names and _fits(source, schema.field(column).type):
            taken.append(RowFilter(column, source))
        else:
            left.append(source)
    return taken, left


def kept_rows(batch: pa.RecordBatch, filters: Sequence[RowFilter]) -> pa.RecordBatch:
    for row_filter in filters:
        if not batch.num_rows:
            return batch
        batch = batch.filter(row_filter.mask(batch.column(row_filter.column)))
    return batch


def _column(source: Filter) -> str | None:
    if isinstance(source, Not):
        return _column(source.child)
    path: tuple[str, ...] = getattr(source, "attribute", ())
    return path[0] if len(path) == 1 else None


# --- what is certain --------------------------------------------------------------------------------------------------


def _fits(source: Filter, kind: pa.DataType) -> bool:
    if isinstance(source, Not):
        return _fits(source.child, kind)
    if isinstance(source, IsNull | IsNotNull):
        return True
    if type(source) in _TEXTUAL:
        return pa.types.is_string(kind) and isinstance(source.value, str)  # type: ignore[attr-defined]
    if isinstance(source, In):
        return all(_is_literal(value, kind) for value in source.value)
    if type(source) in _ORDER or isinstance(source, EqualNullSafe):
        return _is_literal(source.value, kind)  # type: ignore[attr-defined]
    return False


def _is_literal(value: Any, kind: pa.DataType) -> bool:
    """Floats, decimals and NULL stay with Spark: comparing them has rules of its own."""
    if pa.types.is_integer(kind):
        return type(value) is int and -(2**63) <= value < 2**63
    if pa.types.is_string(kind):
        return type(value) is str
    if pa.types.is_boolean(kind):
        return type(value) is bool
    if pa.types.is_timestamp(kind):
        return type(value) is datetime and value.tzinfo is not None
    return pa.types.is_date32(kind) and type(value) is date


# --- masks ----------------------------------------------------------------------------------------------------------


def _mask(source: Filter, values: pa.Array) -> pa.Array:
    if isinstance(source, Not):
        return pc.invert(_mask(source.child, values))
    if isinstance(source, IsNull):
        return values.is_null()
    if isinstance(source, IsNotNull):
        return values.is_valid()
    if isinstance(source, In):
        return _among(source.value, values)
    if isinstance(source, EqualNullSafe):
        return pc.fill_null(pc.equal(values, _scalar(source.value, values.type)), False)
    if type(source) in _TEXTUAL:
        return pc.call_function(_TEXTUAL[type(source)], [values], pc.MatchSubstringOptions(source.value))  # type: ignore[attr-defined]
    return pc.call_function(_ORDER[type(source)], [values, _scalar(source.value, values.type)])  # type: ignore[attr-defined]


def _among(wanted: Sequence[Any], values: pa.Array) -> pa.Array:
    """Arrow says FALSE of NULL IN (…), SQL says NULL."""
    wide = _wide(values.type)
    found = pc.is_in(values if values.type == wide else values.cast(wide), pa.array(wanted, wide))
    return pc.if_else(values.is_valid(), found, None)


def _wide(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_integer(kind) else kind


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Integers as 64 bits: a literal beyond an INT column's range compares, and does not wrap around."""
    return pa.scalar(value, _wide(kind))


# --- what filters say of offsets --------------------------------------------------------------------------------------


def bounds(filters: Sequence[RowFilter], column: str) -> tuple[int | None, int | None]:
    """The least and the least too large value of an integer or timestamp column that can pass, in its own unit."""
    least: int | None = None
    beyond: int | None = None
    for source in (f.source for f in filters if f.column == column):
        low, high = _interval(source)
        least = low if least is None else least if low is None else max(least, low)
        beyond = high if beyond is None else beyond if high is None else min(beyond, high)
    return least, beyond


def _interval(source: Filter) -> tuple[int | None, int | None]:
    match source:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return _unit(value), _unit(value) + 1
        case GreaterThan(value=value):
            return _unit(value) + 1, None
        case GreaterThanOrEqual(value=value):
            return _unit(value), None
        case LessThan(value=value):
            return None, _unit(value)
        case LessThanOrEqual(value=value):
            return None, _unit(value) + 1
        case In(value=values) if values:
            return min(map(_unit, values)), max(map(_unit, values)) + 1
        case _:
            return None, None


_MICROSECOND = 1_000_000
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def _unit(value: Any) -> int:
    """Of a timestamp, microseconds since 1970."""
    if isinstance(value, datetime):
        since = value - _EPOCH
        return (since.days * 86_400 + since.seconds) * _MICROSECOND + since.microseconds
    return int(value)
