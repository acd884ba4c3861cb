"""INSERT, prepared: everything about the text and the table is worked out once, each execution only binds values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlglot import exp

from tablecast.codec.column_rows import ColumnRows
from tablecast.codec.result import Result
from tablecast.codec.rows import DEFAULT, BuildRow, Row, unknown_column
from tablecast.core.expression import compile_expression
from tablecast.core.rights import require_write, row_owner
from tablecast.engine.catalog import Table
from tablecast.engine.generated import StatementValues
from tablecast.engine.rows import InsertRows, Resolve, Written, check_row, encode_rows
from tablecast.errors import InvalidRequest, SqlSyntaxError, UnknownColumn
from tablecast.model.schema import Column, TableSchema, TypeName
from tablecast.sql.context import Context, Write, find_table, refuse_system
from tablecast.sql.generated import generator_name
from tablecast.sql.lifted import Lifted
from tablecast.sql.plan_select import SelectPlan
from tablecast.sql.readings import Placed, Readings, lift_readings
from tablecast.sql.returning import Projection, plan_projection
from tablecast.sql.statements import Assignment, Insert, OnConflict, is_default

Cells = Callable[[Sequence[Any], StatementValues, Context], Sequence[Sequence[Any]]]


@dataclass(slots=True)
class InsertPlan:
    """`direct`: the one row's values are the parameters, in order. `reads`: it runs a query to get its rows."""

    table: Table
    build: BuildRow
    width: int
    direct: bool
    cells: Cells
    conflict: Callable[[Sequence[Any], StatementValues], Resolve] | None
    projection: Projection | None
    reads: bool
    readings: Readings

    def run(self, context: Context, params: Sequence[Any]) -> Result:
        return self.write(context, params).run(context)

    def write(self, context: Context, params: Sequence[Any]) -> Write:
        require_write(context.actor, self.table.schema)
        values = context.values()
        given = (self.readings.apply(params),) if self.direct else self.cells(params, values, context)
        rows = self._rows(given, values)
        resolve = None if self.conflict is None else self.conflict(self.readings.apply(params), values)
        return Write(insert_rows(context, self.table, rows, resolve, self.projection is not None), self._result)

    @property
    def is_plain(self) -> bool:
        """It inserts the one row that its parameters are, or fails, and shows nothing of it."""
        return self.direct and self.conflict is None and self.projection is None

    def write_each(self, context: Context, params_of_each: Sequence[Sequence[Any]]) -> InsertRows:
        """Many executions of a plain one at a time: their rows, in order."""
        require_write(context.actor, self.table.schema)
        rows = self._rows([self.readings.apply(params) for params in params_of_each], context.values())
        return insert_rows(context, self.table, rows, None, False)

    def _rows(self, given: Sequence[Sequence[Any]], values: StatementValues) -> list[Row]:
        build = self.build
        try:
            return [build(cells, values) for cells in given]
        except ValueError:
            self._explain_width(given)
            raise

    def _result(self, written: Written) -> Result:
        return write_result("INSERT", written, self.projection)

    def _explain_width(self, given: Sequence[Sequence[Any]]) -> None:
        for cells in given:
            if len(cells) != self.width:
                raise InvalidRequest(
                    f"INSERT into {self.table.schema.full_name} takes {self.width} values a row, {len(cells)} given"
                )


def insert_rows(
    context: Context, table: Table, rows: Sequence[Row], resolve: Resolve | None, returning: bool
) -> InsertRows:
    """The command: checked and encoded in the caller's thread, so that the writer only decides."""
    if table.checks:
        for row in rows:
            check_row(table, row)
    owner = row_owner(context.actor, table.schema)
    bodies = encode_rows(table, rows)
    prefix = table.codec.prefix(owner)
    keys = rows.keys(prefix) if isinstance(rows, ColumnRows) else table.codec.keys_of_rows(prefix, rows)
    schema = table.schema
    return InsertRows(schema.table_id, schema.version, owner, keys, rows, bodies, resolve, returning)


def write_result(verb: str, written: Written, projection: Projection | None, *, seq: bool = True) -> Result:
    message = f"{verb} {written.count}"
    if projection is None:
        return Result.of_write(written.count, message, written.seq if seq else None)
    rows = [projection.values(row) for row in written.rows]
    result = Result.of_rows(projection.names, projection.types, rows, message=message, row_count=written.count)
    result.seq_columns = projection.seq_at
    return result.with_seq(written.seq)


def plan_insert(statement: Insert, context: Context) -> InsertPlan:
    refuse_system(statement.table, "INSERT INTO")
    table = find_table(context.catalog, statement.table, context.namespace)
    columns = table.schema.column_names if statement.columns is None else statement.columns
    build = table.codec.builder(columns)
    for row in statement.rows or ():
        if len(row) != len(columns):
            raise SqlSyntaxError(
                f"INSERT into {table.schema.full_name} names {len(columns)} columns but a row has {len(row)} values"
            )
    rows, conflict, readings = _read_texts(statement, table.schema, columns)
    if statement.query is not None:
        direct, cells = False, _query_cells(statement, context)
    else:
        direct = len(rows) == 1 and _are_the_parameters(rows[0], readings.parameters)
        cells = _value_cells(rows, readings)
    projection = None if statement.returning is None else plan_projection(table.schema, statement.returning)
    resolve = None if conflict is None else plan_conflict(table, conflict, readings.parameters)
    reads = statement.query is not None or bool(statement.reads)
    return InsertPlan(table, build, len(columns), direct, cells, resolve, projection, reads, readings)


def _read_texts(
    statement: Insert, schema: TableSchema, columns: Sequence[str]
) -> tuple[tuple[tuple[exp.Expr, ...], ...], OnConflict | None, Readings]:
    """VALUES and ON CONFLICT with the parameters whose text is to be read. The row's builder reads that of VALUES, but for
    BYTES: what it is given may be a literal."""
    found = {column.name: column for column in schema.columns}
    values = {name: column for name, column in found.items() if column.type.name is TypeName.BYTES}
    placed = [
        Placed(cell, values.get(name)) for row in statement.rows or () for name, cell in zip(columns, row, strict=True)
    ]
    conflict = statement.on_conflict
    if conflict is not None:
        placed += [Placed(each.value, found.get(each.column)) for each in conflict.assignments]
        placed += [] if conflict.where is None else [Placed(conflict.where)]
    trees, readings = lift_readings(placed, lambda node: found.get(node.name), statement.parameters)
    taken = iter(trees)
    rows = tuple(tuple(next(taken) for _ in row) for row in statement.rows or ())
    if conflict is not None:
        assignments = tuple(Assignment(each.column, next(taken)) for each in conflict.assignments)
        conflict = OnConflict(conflict.columns, assignments, next(taken, None))
    return rows, conflict, readings


def _are_the_parameters(row: Sequence[exp.Expr], parameters: int) -> bool:
    """All of them, in order: ON CONFLICT has none of its own."""
    in_order = all(isinstance(cell, exp.Placeholder) and cell.name == str(i + 1) for i, cell in enumerate(row))
    return in_order and len(row) == parameters


def _query_cells(statement: Insert, context: Context) -> Cells:
    assert statement.query is not None
    select = SelectPlan(statement.query, context)

    def cells(params: Sequence[Any], values: StatementValues, running: Context) -> Sequence[Sequence[Any]]:
        return select.run(running, params).stored_rows()

    return cells


# --- VALUES ----------------------------------------------------------------------------------------------------

Cell = Callable[[Sequence[Any], StatementValues], Any]


def _value_cells(rows: tuple[tuple[exp.Expr, ...], ...], readings: Readings) -> Cells:
    compiled = [[_cell(cell, readings.parameters) for cell in row] for row in rows]

    def cells(params: Sequence[Any], values: StatementValues, running: Context) -> Sequence[Sequence[Any]]:
        read = readings.apply(params)
        return [[cell(read, values) for cell in row] for row in compiled]

    return cells


def _cell(tree: exp.Expr, parameters: int) -> Cell:
    if isinstance(tree, exp.Placeholder):
        at = int(tree.name) - 1
        return lambda params, values: params[at]
    if is_default(tree):
        return lambda params, values: DEFAULT
    name = generator_name(tree)
    if name is not None:
        return lambda params, values: getattr(values, name)()
    return _computed(tree, parameters)


_NO_COLUMNS = TableSchema(0, "", "VALUES", kind="SHARED", columns=(), primary_key=())  # type: ignore[arg-type]


def _computed(tree: exp.Expr, parameters: int) -> Cell:
    """An expression without columns. Constant ones are evaluated once."""
    lifted = Lifted.of(tree, parameters)
    try:
        if not lifted.names and next(lifted.tree.find_all(exp.Placeholder), None) is None:
            value = compile_expression(lifted.tree, _NO_COLUMNS).row(None)
            return lambda params, values: value
    except UnknownColumn as e:
        raise UnknownColumn(f"VALUES holds {e.details.get('column', 'a column')!r}: a column has no value here") from e

    def cell(params: Sequence[Any], values: StatementValues) -> Any:
        bound = lifted.parameters(params, values)
        return lifted.compiled(_NO_COLUMNS, bound).row(None, bound)

    return cell


# --- ON CONFLICT -----------------------------------------------------------------------------------------------

EXCLUDED = "_excluded_"


def plan_conflict(
    table: Table, conflict: OnConflict, parameters: int
) -> Callable[[Sequence[Any], StatementValues], Resolve]:
    """DO NOTHING or DO UPDATE as a function of the row that is there and the row that was to be inserted."""
    schema = table.schema
    if conflict.columns is not None and set(conflict.columns) != set(schema.primary_key):
        raise InvalidRequest(
            f"ON CONFLICT ({', '.join(conflict.columns)}): {schema.full_name} is unique only by its primary key "
            f"({', '.join(schema.primary_key)})"
        )
    if not conflict.assignments:
        return lambda params, values: lambda existing, proposed: None
    pair_schema, pair = _pair(schema)
    targets = []
    for assignment in conflict.assignments:
        index = schema.index_of(assignment.column)
        if index is None:
            raise unknown_column(schema, assignment.column)
        if assignment.column in schema.primary_key:
            raise InvalidRequest(f"ON CONFLICT DO UPDATE cannot set {assignment.column!r}: it is the key in conflict")
        targets.append(index)
    trees = [_pair_tree(assignment.value) for assignment in conflict.assignments]
    condition = None if conflict.where is None else _pair_tree(conflict.where)
    lifted = [Lifted.of(tree, parameters) for tree in (*trees, *([condition] if condition is not None else []))]

    def bind(params: Sequence[Any], values: StatementValues) -> Resolve:
        evaluators = []
        for expression in lifted:
            bound = expression.parameters(params, values)
            evaluators.append((expression.compiled(pair_schema, bound).row, bound))

        def resolve(existing: Row, proposed: Row) -> Row | None:
            both = pair(existing, proposed)
            if condition is not None and evaluators[-1][0](both, evaluators[-1][1]) is not True:
                return None
            found = {
                index: evaluate(both, bound) for index, (evaluate, bound) in zip(targets, evaluators, strict=False)
            }
            after = table.codec.replace(existing, found)
            encode_rows(table, [after])
            return after

        return resolve

    return bind


def _pair(schema: TableSchema) -> tuple[TableSchema, Callable[[Row, Row], Any]]:
    """The existing row and the proposed one side by side, the latter's columns under a reserved prefix."""
    excluded = tuple(msgspec.structs.replace(column, name=EXCLUDED + column.name) for column in schema.columns)
    columns: tuple[Column, ...] = (*schema.columns, *excluded)
    struct_type = msgspec.defstruct("Pair", [(f"c{i}", Any) for i in range(len(columns))])
    astuple = msgspec.structs.astuple
    return (
        msgspec.structs.replace(schema, columns=columns),
        lambda existing, proposed: struct_type(*astuple(existing), *astuple(proposed)),
    )


def _pair_tree(tree: exp.Expr) -> exp.Expr:
    def rename(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.table.lower() == "excluded":
            return exp.column(EXCLUDED + node.name, quoted=True)
        return node

    return tree.copy().transform(rename)
