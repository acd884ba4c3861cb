"""Sealing: rows as Arrow columns → rows and messages that are finished but for their place.

    cast      given columns as the table's, defaults where none was given          columns_cast, seal_values
    encode    row keys and bodies                                                  columns_key, columns_body
    check     NOT NULL, CHECK, size; what fails is judged by the row path          seal_judge
    route     filters, partitions, payloads, hashes                                seal_routes
    part      log batches cut; keys sorted, and rejected if they came twice        seal_log, seal_part

Every byte is what a write of single rows would have made: `tests/behaviour/test_seal_agreement.py` compares them. No
step makes a Python object per value, except where a type has no faster way (JSON, BYTES in payloads).

A `Sealer` works on one part at a time: it emits log batches while rows come in, and keeps keys and bodies until they can
be sorted. When it is full (`PART_ROWS`, `PART_BYTES`) the part is finished and the next begins, so memory stays flat
however long the input is. A key that comes twice within a part is rejected here; twice within a load, or in the table
already, the commit finds it.

Where the time goes (`python -m bench.seal --profile`, app.orders with six columns and one full route): payloads 29 %, the
SST 25 %, bodies 15 %, log batches and their file 11 %, hashes 6 %; the rest is casting, keys and sorting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from tablecast.codec.arrow_types import arrow_schema
from tablecast.codec.rows import HEADER_SIZE, loaded_row_header, row_codec, unknown_column
from tablecast.core.columns import lengths
from tablecast.core.columns_body import body_array
from tablecast.core.columns_cast import cast_column, required
from tablecast.core.columns_key import row_keys
from tablecast.core.columns_text import shared_texts
from tablecast.core.expression import compile_filter
from tablecast.core.row_rules import MAX_ROW_BYTES
from tablecast.core.seal_judge import Reject, RowJudge, reject
from tablecast.core.seal_log import Emit, Places, RouteLog
from tablecast.core.seal_part import HeldRows, Sealed, sort_rows
from tablecast.core.seal_routes import are_true, batch_route, place, route_batch
from tablecast.core.seal_values import LoadValues, default_array
from tablecast.errors import CorruptData, ExpressionError, NotSealable
from tablecast.model.change import Op
from tablecast.model.schema import DefaultKind, TableSchema
from tablecast.model.topic import Route, Topic

PART_ROWS = 1_000_000  # a part that holds as many is full: its keys are sorted in memory
PART_BYTES = 256 * 2**20  # or as much: all of it is in memory until it is written
SLICE_ROWS = 65_536  # rows worked on at once: what they need stays near the processor
SLICE_BYTES = 32 * 2**20  # and at most about this much of them: Arrow's text columns end at 2 GiB
MAX_KEPT_REJECTS = 1_000  # of a sealer that nobody asked to tell of them; all are counted
GATHERED_ROWS = 8_192  # smaller batches wait for one another: each costs about a millisecond however small it is
_FEW = 256  # rows that are asked one by one for the one on which an expression fails

Rejected = Callable[[Sequence[Reject]], None]


def require_sealable(
    schema: TableSchema, routes: Iterable[tuple[Topic, Route]], columns: Iterable[str] | None = None
) -> None:
    """Raises NotSealable where only the server can finish the rows. `columns` are those that will be given."""
    if schema.per_user:
        raise NotSealable(f"{schema.full_name} keeps each user's rows apart: load rows, not sealed parts")
    if schema.ttl_seconds is not None:
        raise NotSealable(f"{schema.full_name} has a TTL, which counts from the commit: load rows, not sealed parts")
    for topic, _ in routes:
        if topic.dedup_window_seconds:
            raise NotSealable(
                f"topic {topic.full_name} drops what it heard before, which only its server knows: load rows, not "
                f"sealed parts"
            )
    given = None if columns is None else set(columns)
    for column in schema.columns:
        generated = column.default is not None and column.default.kind is DefaultKind.SNOWFLAKE_ID
        if given is not None and generated and column.name not in given:
            raise NotSealable(
                f"column {column.name!r} of {schema.full_name} is filled by SNOWFLAKE_ID(), which only one generator "
                f"may give: give the column, or load rows",
                column=column.name,
            )


class Sealer:
    """`rejected` is told of rejects as they are found; without it the first are kept in `rejects`. All are counted in
    `reject_count`. A sealer belongs to one thread."""

    def __init__(
        self,
        schema: TableSchema,
        routes: Sequence[tuple[Topic, Route]],
        load_number: int,
        values: LoadValues,
        rejected: Rejected | None = None,
        *,
        part_rows: int = PART_ROWS,
        part_bytes: int = PART_BYTES,
    ) -> None:
        inserting = [(topic, route) for topic, route in routes if Op.INSERT in route.ops]
        require_sealable(schema, inserting)
        self._schema = schema
        self._codec = row_codec(schema)
        self._load_number = load_number
        self._header = loaded_row_header(load_number)
        self._values = values
        self._rejected = rejected
        self._part_rows, self._part_bytes = part_rows, part_bytes
        self._checks = [compile_filter(check, schema) for check in schema.checks]
        self._routes = [batch_route(topic, route, schema) for topic, route in inserting]
        self._judge = RowJudge(schema, self._checks, inserting, values)
        self._arrow_schema = arrow_schema(schema)
        self._begin()
        self.given_rows = 0
        self.reject_count = 0
        self.rejects: list[Reject] = []

    # --- rows in, parts out ---

    @property
    def full(self) -> bool:
        """Whether it is time to finish the part."""
        waiting = sum(log.nbytes for log in self._logs)
        return self._held_rows >= self._part_rows or self._held_bytes + waiting >= self._part_bytes

    @property
    def empty(self) -> bool:
        return not self._held

    def add(self, batch: pa.RecordBatch, emit: Emit) -> None:
        """Takes rows in, all of them, and emits the log batches that are known then."""
        self._require_known(batch)
        for piece in sliced(batch):
            numbers = np.arange(self.given_rows, self.given_rows + piece.num_rows)
            self.given_rows += piece.num_rows
            self._take_in(piece, numbers, emit)

    def part(self, emit: Emit) -> Sealed:
        """Emits what is left, and gives the rows; the next part begins."""
        for log in self._logs:
            log.finish(emit)
        found = sort_rows(self._schema, self._held)
        left_out: Places = {}
        if found.left_out is not None:
            self._tell(found.rejects)
            for log in self._logs:
                left_out |= log.places_of(found.left_out)
        self._begin()
        return Sealed(self._schema.table_id, self._load_number, found.keys, found.values, left_out)

    def _begin(self) -> None:
        self._held: list[HeldRows] = []
        self._held_rows = self._held_bytes = 0
        self._logs = [RouteLog(route) for route in self._routes]

    # --- one slice ---

    def _require_known(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        for name in names:
            if self._schema.index_of(name) is None:
                raise unknown_column(self._schema, name)
        if len(set(names)) != len(names):
            self._codec.builder(tuple(names))  # says which one is named twice
        require_sealable(self._schema, (), names)

    def _take_in(self, given: pa.RecordBatch, numbers: np.ndarray, emit: Emit) -> None:
        if not given.num_rows:
            return
        if given.num_rows == 1 and given.nbytes > SLICE_BYTES:  # too large for a row, and maybe for Arrow's columns
            self._refuse(given, numbers, np.ones(1, np.bool_))
            return
        typed, refused = self._typed(given)
        if refused is None:
            self._seal(given, typed, numbers, emit)
            return
        self._seal_others(given, typed, numbers, refused, emit)

    def _typed(self, given: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray | None]:
        """The table's columns, and the rows that one of them refuses."""
        arrays, refused = [], []
        for i, column in enumerate(self._schema.columns):
            at = given.schema.get_field_index(column.name)
            if at < 0:
                array, unfit = default_array(self._codec, i, self._values, given.num_rows), None
            else:
                array, unfit = cast_column(column, given.column(at))
            arrays.append(array)
            refused.append(unfit)
            if self._schema.is_required(column):
                refused.append(required(array))
        found = [rows for rows in refused if rows is not None]
        typed = pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)
        return typed, np.logical_or.reduce(found) if found else None

    def _seal(self, given: pa.RecordBatch, typed: pa.RecordBatch, numbers: np.ndarray, emit: Emit) -> None:
        if not typed.num_rows:
            return
        texts = shared_texts(self._schema, typed)
        keys = row_keys(self._schema, typed)
        values = body_array(self._schema, typed, texts, self._header)
        try:
            refused = self._violations(typed) | (lengths(values) - HEADER_SIZE > MAX_ROW_BYTES)
            placed = [] if refused.any() else [place(route, typed, keys) for route in self._routes]
        except ExpressionError:
            self._seal_around_failure(given, typed, numbers, emit)
            return
        if refused.any():
            self._seal_others(given, typed, numbers, refused, emit)
            return
        runs = route_batch(self._schema, self._routes, placed, typed, texts)
        for log, run in zip(self._logs, runs, strict=True):
            log.add(run, self._held_rows, emit)
        held = HeldRows(numbers, keys, values)
        self._held.append(held)
        self._held_rows += len(numbers)
        self._held_bytes += held.nbytes

    def _seal_others(
        self, given: pa.RecordBatch, typed: pa.RecordBatch, numbers: np.ndarray, refused: np.ndarray, emit: Emit
    ) -> None:
        self._refuse(given, numbers, refused)
        kept = pa.array(~refused)
        self._seal(given.filter(kept), typed.filter(kept), numbers[~refused], emit)

    def _violations(self, typed: pa.RecordBatch) -> np.ndarray:
        """Rows for which a CHECK is FALSE: NULL passes."""
        refused = np.zeros(typed.num_rows, np.bool_)
        for check in self._checks:
            result = check.batch(typed)
            if pa.types.is_boolean(result.type):
                refused |= ~are_true(result.fill_null(True))
        return refused

    def _seal_around_failure(
        self, given: pa.RecordBatch, typed: pa.RecordBatch, numbers: np.ndarray, emit: Emit
    ) -> None:
        """Some row fails an expression. Halves are tried until few rows are left, and those are asked one by one."""
        rows = typed.num_rows
        if rows > _FEW:
            half = rows // 2
            self._seal(given.slice(0, half), typed.slice(0, half), numbers[:half], emit)
            self._seal(given.slice(half), typed.slice(half), numbers[half:], emit)
            return
        refused = np.array([self._judge.refusal(given, row) is not None for row in range(rows)])
        if not refused.any():
            raise CorruptData(f"a row of {self._schema.full_name} fails an expression by column but not by itself")
        self._seal_others(given, typed, numbers, refused, emit)

    # --- rejects ---

    def _refuse(self, given: pa.RecordBatch, numbers: np.ndarray, refused: np.ndarray) -> None:
        found = []
        for row in np.flatnonzero(refused).tolist():
            error = self._judge.refusal(given, row)
            if error is None:
                raise CorruptData(f"row {numbers[row]} fits {self._schema.full_name} by itself but not by column")
            found.append(reject(int(numbers[row]), error))
        self._tell(found)

    def _tell(self, found: list[Reject]) -> None:
        self.reject_count += len(found)
        if self._rejected is not None:
            self._rejected(found)
        elif len(self.rejects) < MAX_KEPT_REJECTS:
            self.rejects += found[: MAX_KEPT_REJECTS - len(self.rejects)]


def evened(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches worth their while: small ones are gathered, large ones cut."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if waiting and batch.schema != waiting[0].schema:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHERED_ROWS or size >= SLICE_BYTES // 4:
            yield from sliced(pa.concat_batches(waiting) if len(waiting) > 1 else batch)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Pieces of a size to work on, down to a single row."""
    rows = batch.num_rows
    if rows <= 1 or (rows <= SLICE_ROWS and batch.nbytes <= SLICE_BYTES):
        yield batch
        return
    size = SLICE_ROWS if rows > SLICE_ROWS else -(-rows // 2)
    for at in range(0, rows, size):
        yield from sliced(batch.slice(at, size))
