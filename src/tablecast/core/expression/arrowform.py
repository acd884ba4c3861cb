"""The Arrow form: a typed tree computed over a whole record batch with Arrow's kernels.

Vectorised: comparisons, AND/OR/NOT, IS NULL, IS DISTINCT, IN, BETWEEN, LIKE, CASE, COALESCE, arithmetic on
integers and floats, integer and date conversions, and the text functions whose kernel means the same. A
part with no exact kernel (DECIMAL arithmetic, LOWER, casts to text, …) is computed by the row form's code,
cell by cell; what is above it is vectorised again.

Kernels compute every part for every row, while the row form stops at what decides the answer. Where no part
fails, both give the same values. Where a kernel fails, the row form computes the batch: it alone decides
whether a row that matters is at fault.

UUIDs are their 16 bytes inside, so that kernels can compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablecast.codec.arrow_types import arrow_type
from tablecast.core.expression.kernels import kernel
from tablecast.core.expression.lattice import is_float
from tablecast.core.expression.rowform import cells_function
from tablecast.core.expression.tree import (
    UUID,
    And,
    Call,
    Case,
    Cast,
    Coalesce,
    ColumnRef,
    Const,
    IsNull,
    Member,
    Node,
    Or,
    Param,
    Same,
    may_be_nan,
    walk,
)
from tablecast.errors import ExpressionError, TypeMismatch
from tablecast.model.schema import ColumnType

Datum = Any  # an Array, or a Scalar where every row has the same value
BatchFunction = Callable[..., pa.Array]

_NAIVE_TIMESTAMP = pa.timestamp("us")


def batch_function(node: Node, sql: str) -> BatchFunction:
    form = _ArrowForm(node, sql)

    def compute(batch: pa.RecordBatch, params: Sequence[Any] = ()) -> pa.Array:
        try:
            result = _Run(form, batch, params).datum(node)
        except (pa.ArrowInvalid, ExpressionError):
            result = form.by_cell(node, batch, params)
        return _finished(result, node.type, batch.num_rows)

    return compute


def _finished(result: Datum, column_type: ColumnType | None, rows: int) -> pa.Array:
    if isinstance(result, pa.Scalar):
        result = pa.repeat(result, rows)
    if column_type == UUID:
        return pa.ExtensionArray.from_storage(pa.uuid(), result)
    return result


def _storage(column_type: ColumnType | None) -> pa.DataType:
    if column_type is None:
        return pa.null()
    return pa.binary(16) if column_type == UUID else arrow_type(column_type)


def _stored(value: Any, column_type: ColumnType | None) -> Any:
    return value.bytes if column_type == UUID and value is not None else value


class _ArrowForm:
    """What is the same for every batch: the cell functions of parts without a kernel."""

    def __init__(self, root: Node, sql: str) -> None:
        self._sql = sql
        self._cells: dict[int, tuple[list[ColumnRef], Callable[..., Any]]] = {}
        self._nodes = list(walk(root))  # kept, so that the ids above stay theirs

    def by_cell(self, node: Node, batch: pa.RecordBatch, params: Sequence[Any]) -> pa.Array:
        if id(node) not in self._cells:
            columns = list({part.index: part for part in walk(node) if isinstance(part, ColumnRef)}.values())
            self._cells[id(node)] = columns, cells_function(node, columns, self._sql)
        columns, compute = self._cells[id(node)]
        if columns:
            cells = [column_of(batch, column).to_pylist() for column in columns]
            values = [compute(params, *row) for row in zip(*cells, strict=True)]
        else:
            values = [compute(params) for _ in range(batch.num_rows)]
        return pa.array([_stored(value, node.type) for value in values], _storage(node.type))


def column_of(batch: pa.RecordBatch, column: ColumnRef) -> pa.Array:
    assert column.type is not None
    index = batch.schema.get_field_index(column.name)
    if index < 0:
        raise TypeMismatch(f"the batch has no column {column.name!r}; it has {', '.join(batch.schema.names)}")
    array, wanted = batch.column(index), arrow_type(column.type)
    if array.type == _NAIVE_TIMESTAMP and pa.types.is_timestamp(wanted):
        return array.cast(wanted)  # a naive timestamp is UTC, as in DuckDB
    if array.type != wanted:
        raise TypeMismatch(f"column {column.name!r} of the batch is {array.type}, expected {wanted}")
    return array


class _Run:
    """One batch. Every node is computed once."""

    def __init__(self, form: _ArrowForm, batch: pa.RecordBatch, params: Sequence[Any]) -> None:
        self._form = form
        self._batch = batch
        self._params = params
        self._known: dict[int, Datum] = {}

    def datum(self, node: Node) -> Datum:
        known = self._known.get(id(node))
        if known is None:
            known = self._compute(node)
            self._known[id(node)] = known
        return known

    def _compute(self, node: Node) -> Datum:
        if any(part.type is None for part in node.parts):  # kernels do not take a NULL without a type
            return self._form.by_cell(node, self._batch, self._params)
        match node:
            case Const(value=value):
                return pa.scalar(_stored(value, node.type), _storage(node.type))
            case Param(index=index):
                return pa.scalar(_stored(self._params[index], node.type), _storage(node.type))
            case ColumnRef():
                array = column_of(self._batch, node)
                return array.storage if node.type == UUID else array
            case Call() | Cast():
                compute = kernel(node)
                if compute is not None:
                    return compute(*(self.datum(part) for part in node.parts))
            case And(args=args):
                return self._chain(pc.and_kleene, args)
            case Or(args=args):
                return self._chain(pc.or_kleene, args)
            case IsNull(arg=arg):
                return pc.is_null(self.datum(arg))
            case Same() if not may_be_nan(node.left) and not may_be_nan(node.right):
                return self._same(self.datum(node.left), self.datum(node.right))
            case Member() if not may_be_nan(node.arg):
                return self._member(node)
            case Case():
                return self._case(node)
            case Coalesce(args=args):
                return pc.coalesce(*(self.datum(arg) for arg in args))
        return self._form.by_cell(node, self._batch, self._params)

    def _chain(self, connect: Callable[[Datum, Datum], Datum], args: tuple[Node, ...]) -> Datum:
        result = self.datum(args[0])
        for arg in args[1:]:
            result = connect(result, self.datum(arg))
        return result

    def _same(self, left: Datum, right: Datum) -> Datum:
        both_null = pc.and_(pc.is_null(left), pc.is_null(right))
        return pc.or_(both_null, pc.fill_null(pc.equal(left, right), False))

    def _member(self, node: Member) -> Datum:
        value = self.datum(node.arg)
        listed = pa.array([_stored(item, node.arg.type) for item in node.values], _storage(node.arg.type))
        array = pa.repeat(value, self._batch.num_rows) if isinstance(value, pa.Scalar) else value
        if is_float(node.arg.type):  # the kernel looks at the bits: -0.0 + 0 is 0.0, everything else stays
            listed, array = (pc.add(each, pa.scalar(0, each.type)) for each in (listed, array))
        found = pc.is_in(array, value_set=listed)
        unknown = pc.is_null(array)
        if node.has_null:
            unknown = pc.or_(unknown, pc.invert(found))
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)

    def _case(self, node: Case) -> Datum:
        result = self.datum(node.default)
        for test, value in reversed(node.branches):
            matched = pc.fill_null(self.datum(test), False)
            result = pc.if_else(matched, self.datum(value), result)
        return result
