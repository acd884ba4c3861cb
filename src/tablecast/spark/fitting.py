"""Whether a DataFrame's columns fit a table, judged on the driver before a single row is touched.

Names are matched as Spark matches them, without regard to case (an exact match goes first). What could never be a value
of a column is refused here; what may or may not be (a text that should read as a number, a long for a SMALLINT) is
judged value by value where the rows are made.

    BOOLEAN                     boolean
    SMALLINT, INT, BIGINT       any number that is whole and in range
    FLOAT, DOUBLE, DECIMAL      any number in range
    TEXT, JSON                  string
    BYTES                       binary
    TIMESTAMP                   timestamp, timestamp_ntz (taken as UTC), date
    DATE, TIME                  date, time
    UUID                        string, binary of 16 bytes
    each of them but BYTES      string in the type's text form
    all                         a column of NULLs without a type
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from tablecast.errors import InvalidRequest, NotNullViolation, TypeMismatch, UnknownColumn
from tablecast.model.schema import Column, TableSchema, TypeName

_NUMBER: tuple[type[DataType], ...] = (NumericType, StringType)
_FITS: dict[TypeName, tuple[type[DataType], ...]] = {
    TypeName.BOOLEAN: (BooleanType, StringType),
    TypeName.SMALLINT: _NUMBER,
    TypeName.INT: _NUMBER,
    TypeName.BIGINT: _NUMBER,
    TypeName.FLOAT: _NUMBER,
    TypeName.DOUBLE: _NUMBER,
    TypeName.DECIMAL: _NUMBER,
    TypeName.TEXT: (StringType,),
    TypeName.BYTES: (BinaryType,),
    TypeName.JSON: (StringType,),
    TypeName.TIMESTAMP: (TimestampType, TimestampNTZType, DateType, StringType),
    TypeName.DATE: (DateType, StringType),
    TypeName.TIME: (TimeType, StringType),
    TypeName.UUID: (StringType, BinaryType),
}
_ADVICE: dict[TypeName, str] = {
    TypeName.JSON: "make it text with to_json(…)",
    TypeName.TEXT: "make it text with .cast('string')",
    TypeName.DATE: "make it a date with .cast('date')",
}


@dataclass(frozen=True, slots=True)
class Fit:
    """`taken` columns of the DataFrame, by index, and the names that they are sent under."""

    taken: tuple[int, ...]
    names: tuple[str, ...]


def fit(frame: StructType, table: TableSchema, mode: str, op_column: str | None = None) -> Fit:
    """The first thing that is wrong is raised; unknown and missing columns are named all together."""
    op_index = _op_index(frame, table, op_column)
    others = [i for i in range(len(frame.fields)) if i != op_index]
    found = _match(frame, others, table)
    _refuse_missing(table, {column.name for column in found.values()}, mode)
    for i, column in found.items():
        _check_type(frame.fields[i], column, table)
    if mode == "delete":
        found = {i: column for i, column in found.items() if column.name in table.primary_key}
    names = {i: column.name for i, column in found.items()}
    if op_index is not None and op_column is not None:
        names[op_index] = op_column
    taken = tuple(sorted(names))
    return Fit(taken, tuple(names[i] for i in taken))


def _op_index(frame: StructType, table: TableSchema, op_column: str | None) -> int | None:
    if op_column is None:
        return None
    if table.index_of(op_column) is not None:
        raise InvalidRequest(f"opColumn {op_column!r} is a column of {table.full_name}: the op needs one of its own")
    i = _place(op_column, frame.fieldNames())
    if i is None:
        raise UnknownColumn(
            f"opColumn {op_column!r} is not in the DataFrame, which has: {', '.join(frame.fieldNames())}",
            column=op_column,
        )
    if not isinstance(frame.fields[i].dataType, StringType):
        raise TypeMismatch(
            f"opColumn {op_column!r} is {frame.fields[i].dataType.simpleString()}: an op is text", column=op_column
        )
    return i


def _place(name: str, names: Sequence[str]) -> int | None:
    """Where the name stands: as it is, else without regard to case if that leaves no choice."""
    if name in names:
        return names.index(name)
    alike = [i for i, other in enumerate(names) if other.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _match(frame: StructType, indexes: Sequence[int], table: TableSchema) -> dict[int, Column]:
    found: dict[int, Column] = {}
    unknown, taken = [], dict[str, str]()
    for i in indexes:
        name = frame.fields[i].name
        place = _place(name, table.column_names)
        if place is None:
            unknown.append(name)
            continue
        column = table.columns[place]
        if column.name in taken:
            raise InvalidRequest(
                f"columns {taken[column.name]!r} and {name!r} of the DataFrame are both {column.name!r} of "
                f"{table.full_name}: rename or drop one",
                column=column.name,
            )
        taken[column.name] = name
        found[i] = column
    if unknown:
        raise UnknownColumn(
            f"table {table.full_name} has no {_named(unknown)}; it has: {', '.join(table.column_names)}",
            table=table.full_name,
            columns=unknown,
        )
    return found


def _refuse_missing(table: TableSchema, given: set[str], mode: str) -> None:
    required = set(table.primary_key) if mode in ("delete", "changes") else _required(table)
    missing = [name for name in table.column_names if name in required - given]
    if missing:
        what = "needs the primary key" if mode == "delete" else "must be given a value"
        raise NotNullViolation(
            f"{mode} into {table.full_name} {what}: the DataFrame has no {_named(missing)}",
            table=table.full_name,
            columns=missing,
        )


def _required(table: TableSchema) -> set[str]:
    demanding = (column for column in table.columns if table.is_required(column))
    return {column.name for column in demanding if column.default is None}


def _check_type(field: StructField, column: Column, table: TableSchema) -> None:
    if isinstance(field.dataType, (NullType, *_FITS[column.type.name])):
        return
    advice = _ADVICE.get(column.type.name)
    given = field.dataType.simpleString()
    raise TypeMismatch(
        f"column {column.name!r} of {table.full_name} is {column.type} and cannot be {given}"
        + (f": {advice}" if advice else ""),
        table=table.full_name,
        column=column.name,
        expected=str(column.type),
        got=given,
    )


def _named(names: Sequence[str]) -> str:
    return ("column " if len(names) == 1 else "columns ") + ", ".join(map(repr, names))
