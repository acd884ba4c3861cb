"""What a statement answers.

A result is made from rows that are at hand (a lookup by key, RETURNING), or from an Arrow table (the query
engine), and turns into the other form only when asked. Python values are those of `model.schema.Value` with
two exceptions: JSON is decoded, and a HUGEINT (the SUM of BIGINTs) is an int. `stored_rows` keeps JSON as
its text, as do the Arrow, pandas and Polars forms.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tablecast.codec.arrow_types import TYPE_MARK, arrow_field, arrow_type
from tablecast.errors import InvalidRequest
from tablecast.model.schema import ColumnType, TypeName

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Row = tuple[Any, ...]


class Result:
    """Iterate for rows, as tuples. `row_count` is how many rows were written, or how many there are.

    `message` says what happened ("INSERT 3"); `seq` is the number of the commit, None for a read or in a
    transaction that has not ended. `seq_columns` are the places of columns that show it, for RETURNING _seq.
    """

    __slots__ = ("_arrow", "_columns", "_rows", "_stored", "_types", "message", "row_count", "seq", "seq_columns")

    _arrow: pa.Table | None
    _columns: tuple[str, ...]
    _rows: list[Row] | None
    _stored: Sequence[Row] | None
    _types: tuple[ColumnType, ...]
    message: str
    row_count: int
    seq: int | None
    seq_columns: tuple[int, ...]

    @classmethod
    def of_rows(
        cls,
        columns: tuple[str, ...],
        types: tuple[ColumnType, ...],
        rows: Sequence[Row],
        *,
        message: str = "",
        seq: int | None = None,
        row_count: int | None = None,
    ) -> Result:
        """`rows` hold stored values: JSON as text."""
        self = cls.__new__(cls)
        self._arrow = self._rows = None
        self._columns, self._types, self._stored = columns, types, rows
        self.message, self.seq, self.seq_columns = message, seq, ()
        self.row_count = len(rows) if row_count is None else row_count
        return self

    @classmethod
    def of_arrow(cls, table: pa.Table) -> Result:
        self = cls.of_rows((), (), (), row_count=table.num_rows)
        self._arrow, self._stored = table, None
        return self

    @classmethod
    def of_write(cls, row_count: int, message: str, seq: int | None) -> Result:
        return cls.of_rows((), (), (), message=message, seq=seq, row_count=row_count)

    def with_seq(self, seq: int | None) -> Result:
        """The same answer, of a statement whose transaction was committed as `seq`."""
        other = Result.of_rows(self._columns, self._types, (), message=self.message, seq=seq, row_count=self.row_count)
        other._arrow, other._stored, other._rows = self._arrow, self._stored, self._rows
        if self.seq_columns:
            other.seq_columns = self.seq_columns
            other._stored = [_filled(row, self.seq_columns, seq) for row in self.stored_rows()]
            other._arrow = other._rows = None
            other._columns, other._types = self.columns, self._types or _types_of(self.arrow())
        return other

    # --- what it is ------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """About how many bytes its values have, reckoned without making anything of them."""
        if self._arrow is not None:
            return int(self._arrow.nbytes)
        return sum(len(v) if isinstance(v, str | bytes) else 8 for row in self._stored or () for v in row)

    @property
    def is_query(self) -> bool:
        """Whether it has columns: a SELECT, or a write with RETURNING."""
        return bool(self.columns)

    @property
    def columns(self) -> tuple[str, ...]:
        return self._columns if self._arrow is None or self._columns else tuple(self._arrow.column_names)

    @property
    def schema(self) -> tuple[tuple[str, str | None], ...]:
        """Name and type of each column; the type is None where tablecast has no name for it, as for a list."""
        if self._arrow is None or self._types:
            return tuple((n, str(t)) for n, t in zip(self._columns, self._types, strict=True))
        return tuple((field.name, type_string(field)) for field in self._arrow.schema)

    # --- rows ------------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[Row]:
        if self._rows is None:
            decode, stored = self._json_positions(), self.stored_rows()
            self._rows = [_decoded(row, decode) for row in stored] if decode else list(stored)
        return self._rows

    def _json_positions(self) -> list[int]:
        if self._arrow is None or self._types:
            return [i for i, column_type in enumerate(self._types) if column_type.name is TypeName.JSON]
        return [i for i, field in enumerate(self._arrow.schema) if _mark(field) == TypeName.JSON]

    def stored_rows(self) -> Sequence[Row]:
        """The rows with JSON as its text."""
        if self._stored is None:
            assert self._arrow is not None, "a result has rows or an Arrow table"
            columns = [_python(c, f) for c, f in zip(self._arrow.columns, self._arrow.schema, strict=True)]
            self._stored = list(zip(*columns, strict=True)) if columns else [()] * self._arrow.num_rows
        return self._stored

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        """The number of rows to read, which for a write without RETURNING is 0."""
        if self._stored is None and self._arrow is not None:
            return int(self._arrow.num_rows)
        return len(self.stored_rows())

    def __bool__(self) -> bool:
        """A result is an answer, also when it has no rows."""
        return True

    def first(self) -> Row | None:
        return self.rows[0] if len(self) else None

    def scalar(self) -> Any:
        """The first column of the first row; None without rows."""
        row = self.first()
        if row is None:
            return None
        if not row:
            raise InvalidRequest("the result has no columns, so it has no scalar value")
        return row[0]

    def dicts(self) -> list[dict[str, Any]]:
        """Rows by column name; of columns with the same name the last one counts."""
        names = self.columns
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def __repr__(self) -> str:
        if not self.is_query:
            return f"<Result {self.message}>"
        return f"<Result {len(self)} rows: {', '.join(self.columns)}>"

    # --- other forms -----------------------------------------------------------------------------------

    def arrow(self) -> pa.Table:
        if self._arrow is None:
            fields = [arrow_field(n, t) for n, t in zip(self._columns, self._types, strict=True)]
            columns = list(zip(*self.stored_rows(), strict=True)) or [()] * len(fields)
            arrays = [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
            self._arrow = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        return self._arrow

    def pandas(self) -> pd.DataFrame:
        _require("pandas")
        frame: pd.DataFrame = self.arrow().to_pandas()
        return frame

    def polars(self) -> pl.DataFrame:
        """UUIDs are text in it, since Polars has no type for them."""
        polars = _require("polars")
        table = self.arrow()
        if repeated := [name for name in table.column_names if table.column_names.count(name) > 1]:
            raise InvalidRequest(f"two columns are called {repeated[0]!r}, which Polars refuses: rename with AS")
        frame: pl.DataFrame = polars.from_arrow(_with_text_uuids(table))
        return frame


def _filled(row: Row, places: Sequence[int], seq: int | None) -> Row:
    values = list(row)
    for place in places:
        values[place] = seq
    return tuple(values)


def _types_of(table: pa.Table) -> tuple[ColumnType, ...]:
    """Of what RETURNING shows, which is all of our types."""
    return tuple(ColumnType.of(type_string(field) or TypeName.TEXT) for field in table.schema)


def _require(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise InvalidRequest(f"{library} is not installed: pip install tablecast[frames]", library=library) from None


def _with_text_uuids(table: pa.Table) -> pa.Table:
    for i, field in enumerate(table.schema):
        if isinstance(field.type, pa.UuidType):
            text = [None if value is None else str(value) for value in table.column(i).to_pylist()]
            table = table.set_column(i, field.name, pa.array(text, pa.string()))
    return table


# --- values --------------------------------------------------------------------------------------------


def _decoded(row: Row, positions: list[int]) -> Row:
    values = list(row)
    for i in positions:
        if values[i] is not None:
            values[i] = msgspec.json.decode(values[i])
    return tuple(values)


def _python(column: Any, field: pa.Field) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if isinstance(field.type, pa.TimestampType):  # Arrow's own zone object is equal to UTC, but not the same
        return [None if value is None else value.replace(tzinfo=UTC) for value in values]
    if _mark(field) == "HUGEINT":
        return [None if value is None else int(value) for value in values]
    return values


def _mark(field: pa.Field) -> str | None:
    mark = (field.metadata or {}).get(TYPE_MARK)
    return None if mark is None else mark.decode()


_NAMES: dict[pa.DataType, str] = {
    arrow_type(ColumnType(name)): name.value
    for name in TypeName
    if name not in (TypeName.JSON, TypeName.DECIMAL)  # marked, or with parameters
}


def type_string(field: pa.Field) -> str | None:
    """The SQL type of an Arrow field: its mark, or what its Arrow type stands for."""
    if (mark := _mark(field)) is not None:
        return mark
    if isinstance(field.type, pa.Decimal128Type):
        return str(ColumnType(TypeName.DECIMAL, field.type.precision, field.type.scale))
    return _NAMES.get(field.type)
