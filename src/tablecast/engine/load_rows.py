"""Loads of kind `rows`: Arrow parts, decided like any other write, as one command.

Each row is one of four operations: insert (its key must be new), upsert, update (its row must be there) and delete (of
nothing is fine). In the modes insert, upsert and delete all rows are the same; in the mode changes a column says which,
and rows are applied in their order, each on what those before it left. A row that cannot be fails the whole load, with
an error that says where it stands; unless it is an insert of a key that is there, and the load has a place for those.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import pyarrow as pa

from tablecast.codec.rows import Defaults, Row
from tablecast.engine.arrow_rows import arrow_rows, named_indexes, overwritten
from tablecast.engine.catalog import Table
from tablecast.engine.decision import Decision, RowView
from tablecast.engine.load_letters import check_number, duplicate_letter, letter_appends
from tablecast.engine.rows import (
    RunBuilder,
    Written,
    are_absent,
    check_row,
    current_table,
    duplicate_key,
    encode_rows,
    is_live,
)
from tablecast.errors import DuplicateKey, InvalidPart, InvalidRequest, MissingRow, TablecastError, TooLarge
from tablecast.model.change import ChangeRun, Op
from tablecast.model.pipeline import DuplicateLetters, LoadLetter
from tablecast.storage.base import Family

MAX_LOAD_ROWS = 1_000_000  # rows in one load of kind rows: all are in memory until their commit
MAX_LOAD_BYTES = 512 * 2**20  # likewise bytes of its parts

T = TypeVar("T")
P = ParamSpec("P")


class LoadOp(enum.StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    UPSERT = "upsert"
    DELETE = "delete"


class RowsPart(NamedTuple):
    part: int
    path: str
    bytes: int


def count_rows(path: str) -> int:
    """How many rows an Arrow stream holds, all of it read; InvalidPart if it is none."""
    return sum(batch.num_rows for batch in _batches(path))


def _batches(path: str) -> Iterator[pa.RecordBatch]:
    try:
        with pa.memory_map(path) as source, pa.ipc.open_stream(source) as stream:
            yield from stream
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError) as e:
        raise InvalidPart(f"the part is not a whole Arrow IPC stream: {e}") from e


# --- building ----------------------------------------------------------------------------------------------------


class RowsBuilder:
    """Parts → one `LoadRows`. All that can be done without knowing other rows is done here, in the caller's thread."""

    def __init__(
        self,
        table: Table,
        owner: str | None,
        mode: str,
        op_column: str | None,
        values: Defaults,
        duplicates: DuplicateLetters | None = None,
    ) -> None:
        self._table = table
        self._mode = mode
        self._op_column = op_column
        self._values = values
        self._prefix = table.codec.prefix(owner)
        schema = table.schema
        self._load = LoadRows(schema.table_id, schema.version, owner, duplicates)

    def build(self, parts: Sequence[RowsPart]) -> LoadRows:
        size = sum(part.bytes for part in parts)
        if size > MAX_LOAD_BYTES:
            raise TooLarge(
                f"the load has {size} bytes; the limit is {MAX_LOAD_BYTES}", bytes=size, limit=MAX_LOAD_BYTES
            )
        for part in parts:
            row = 0
            for batch in _batches(part.path):
                with_place = _Placed(part.part, row)
                with_place.call(self._check_size, batch)
                self._load.places.append((len(self._load.keys), part.part, row))
                self._add(batch, with_place)
                row += batch.num_rows
        return self._load

    def _check_size(self, batch: pa.RecordBatch) -> None:
        rows = len(self._load.keys) + batch.num_rows
        if rows > MAX_LOAD_ROWS:
            raise TooLarge(
                f"a load of rows has at most {MAX_LOAD_ROWS}; load in several batches, or sealed", limit=MAX_LOAD_ROWS
            )

    def _add(self, batch: pa.RecordBatch, placed: _Placed) -> None:
        ops = self._ops(batch, placed)
        if self._op_column is not None:
            batch = batch.drop_columns([self._op_column])
        cells = placed.each_slice(batch, lambda piece: arrow_rows(self._table, piece))
        columns = tuple(batch.column_names)
        if isinstance(ops, LoadOp):
            self._add_same(ops, columns, cells, placed)
        else:
            for i, (op, row) in enumerate(zip(ops, cells, strict=True)):
                placed.at(i, self._add_same, op, columns, [row], None)
        self._load.ops += [ops] * len(cells) if isinstance(ops, LoadOp) else ops

    def _ops(self, batch: pa.RecordBatch, placed: _Placed) -> LoadOp | list[LoadOp]:
        if self._op_column is None:
            return LoadOp(self._mode)
        if self._op_column not in batch.column_names:
            placed.fail(InvalidRequest(f"there is no column {self._op_column!r}, which says what each row is"))
        found = batch.column(self._op_column).to_pylist()
        return [placed.at(i, self._op, word) for i, word in enumerate(found)]

    def _op(self, word: Any) -> LoadOp:
        known = _OPS.get(word.lower()) if isinstance(word, str) else None
        if known is None:
            raise InvalidRequest(
                f"column {self._op_column!r} holds {word!r}; it says {', '.join(_OPS)}", column=self._op_column
            )
        return known

    def _add_same(
        self, op: LoadOp, columns: tuple[str, ...], cells: list[tuple[Any, ...]], placed: _Placed | None
    ) -> None:
        """Rows of one operation. Without `placed` the caller says where an error stands."""
        each = placed.each if placed is not None else _each
        load = self._load
        if op in (LoadOp.INSERT, LoadOp.UPSERT):
            made = self._built(columns, cells, each)
            load.keys += self._table.codec.keys_of_rows(self._prefix, made)
            load.given += made
            load.named += [columns] * len(made)
        else:
            load.keys += each(lambda row: self._key(columns, row), cells)
            load.given += cells if op is LoadOp.UPDATE else [None] * len(cells)
            load.named += [columns] * len(cells)

    def _built(self, columns: tuple[str, ...], cells: list[tuple[Any, ...]], each: _Each) -> list[Row]:
        table, values = self._table, self._values
        build = table.codec.builder(columns)
        made: list[Row] = each(lambda row: build(row, values), cells)
        if table.checks:
            each(lambda row: check_row(table, row), made)
        try:
            self._load.bodies += encode_rows(table, made)
        except TablecastError:
            each(lambda row: encode_rows(table, (row,)), made)
            raise
        return made

    def _key(self, columns: tuple[str, ...], row: tuple[Any, ...]) -> bytes:
        codec = self._table.codec
        named = dict(zip(columns, row, strict=True))
        missing = [name for name in self._table.schema.primary_key if name not in named]
        if missing:
            raise InvalidRequest(f"the primary key is needed: {missing[0]!r} is missing", column=missing[0])
        wanted = [named[name] for name in self._table.schema.primary_key]
        return codec.encode_key(self._prefix, codec.coerce_key(wanted))


_OPS = {op.value: op for op in LoadOp}
_Each = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


def _each(make: Callable[[Any], T], cells: Sequence[Any]) -> list[T]:
    return [make(row) for row in cells]


class _Placed:
    """Where a batch stands, for errors."""

    def __init__(self, part: int, first_row: int) -> None:
        self._part = part
        self._first_row = first_row

    def each(self, make: Callable[[Any], T], cells: Sequence[Any]) -> list[T]:
        """All at once; only if one fails, one by one, to find which."""
        try:
            return [make(row) for row in cells]
        except TablecastError:
            for i, row in enumerate(cells):
                self.at(i, make, row)
            raise

    def each_slice(
        self, batch: pa.RecordBatch, make: Callable[[pa.RecordBatch], list[tuple[Any, ...]]]
    ) -> list[tuple[Any, ...]]:
        """Likewise for what takes a whole batch."""
        try:
            return make(batch)
        except TablecastError as whole:
            for i in range(batch.num_rows):
                self.at(i, make, batch.slice(i, 1))
            raise placed_error(whole, self._part, None) from whole

    def at(self, i: int, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return make(*args, **kwargs)
        except TablecastError as e:
            raise placed_error(e, self._part, self._first_row + i) from e

    def call(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return make(*args, **kwargs)
        except TablecastError as e:
            self.fail(e)

    def fail(self, error: TablecastError) -> NoReturn:
        raise placed_error(error, self._part, None) from error


def placed_error(error: TablecastError, part: int, row: int | None) -> TablecastError:
    where = f"part {part}" if row is None else f"part {part}, row {row}"
    details = {**error.details, "part": part} if row is None else {**error.details, "part": part, "row": row}
    return type(error)(f"{where}: {error.message}", **details)


# --- deciding ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LoadRows:
    """The rows of a load. `given` has rows for insert and upsert, values of the `named` columns for update, None for
    delete; `bodies` those of the rows; `places` where each batch began: index, part, row. `duplicates`: where rows to be
    inserted go whose key is there; without it, one of them fails the load."""

    table_id: int
    version: int
    user_id: str | None
    duplicates: DuplicateLetters | None = None
    ops: list[LoadOp] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    given: list[Any] = field(default_factory=list)
    named: list[tuple[str, ...]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def weight(self) -> int:
        return len(self.keys)

    def decide(self, view: RowView) -> Decision:
        table = current_table(view, self.table_id, self.version)
        makes_rows = len(self.bodies) == len(self.keys)
        if makes_rows and are_absent(view, table, self.user_id, self.keys):
            run = ChangeRun(
                self.table_id, self.version, Op.INSERT, self.keys, [], self.given, self.bodies, self.user_id
            )
            return Decision(Written(view.seq, len(self.keys)), [run] if self.keys else [])
        return self._decide_in_order(view, table)

    def _decide_in_order(self, view: RowView, table: Table) -> Decision:
        runs = RunBuilder(table, self.user_id)
        now: dict[bytes, Row | None] = {}
        indexes: dict[tuple[str, ...], list[int]] = {}
        letters: list[LoadLetter] = []
        changed = 0
        stored = view.get_many(Family.ROWS, self.keys)
        for i, (op, key, given, value) in enumerate(zip(self.ops, self.keys, self.given, stored, strict=True)):
            if key in now:
                existing = now[key]
            else:
                existing = (
                    table.codec.decode(value) if value is not None and is_live(table, value, view.ts_ms) else None
                )
            columns = self.named[i]
            if columns not in indexes:
                indexes[columns] = named_indexes(table, columns)
            try:
                after = self._after(table, op, existing, given, columns, indexes[columns])
            except TablecastError as e:
                if self.duplicates is None or not isinstance(e, DuplicateKey):
                    raise placed_error(e, *self._place(i)) from e
                letters.append(duplicate_letter(self.duplicates, table, self._given(table, i), e))
                check_number(len(letters))  # here, so that a load of nothing else does not pile them up
                continue
            if existing is None and after is None:
                continue
            runs.add(Op.INSERT if existing is None else Op.DELETE if after is None else Op.UPDATE, key, existing, after)
            now[key] = after
            changed += 1
        told = letter_appends(view.catalog, table.schema.full_name, letters)
        return Decision(Written(view.seq, changed), runs.done(), letters=told)

    def _given(self, table: Table, index: int) -> dict[str, Any]:
        """What the load said of a row to be inserted, without the defaults."""
        held = dict(zip(table.schema.column_names, table.codec.values(self.given[index]), strict=True))
        return {name: held[name] for name in self.named[index]}

    def _after(
        self, table: Table, op: LoadOp, existing: Row | None, given: Any, columns: tuple[str, ...], indexes: list[int]
    ) -> Row | None:
        """The row that one operation leaves."""
        if op is LoadOp.DELETE:
            return None
        if op is LoadOp.UPDATE:
            return self._updated(table, existing, given, columns, indexes)
        if existing is None:
            return given
        if op is LoadOp.INSERT:
            raise duplicate_key(table, given)
        after = overwritten(table, existing, given, indexes)
        check_row(table, after)
        return after

    def _updated(
        self, table: Table, existing: Row | None, given: tuple[Any, ...], columns: tuple[str, ...], indexes: list[int]
    ) -> Row:
        values = dict(zip(columns, given, strict=True))
        if existing is None:
            shown = ", ".join(f"{name} = {values[name]!r}" for name in table.schema.primary_key)
            raise MissingRow(
                f"{table.schema.full_name} has no row with {shown} to update; upsert writes it either way", key=shown
            )
        names = table.schema.column_names
        after = table.codec.replace(existing, {i: values[names[i]] for i in indexes})
        check_row(table, after)
        encode_rows(table, [after])
        return after

    def _place(self, index: int) -> tuple[int, int]:
        at = bisect.bisect_right(self.places, index, key=lambda place: place[0]) - 1
        first, part, row = self.places[at]
        return part, row + index - first
