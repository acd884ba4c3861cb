"""UPDATE and DELETE, prepared.

Which rows: the primary key if WHERE names it, else a scan of the snapshot, which only proposes; the writer judges WHERE
again on each row as it then is. What to do: expressions the evaluator knows are compiled. Others (subqueries, functions
of the query engine) are computed by the query engine on a snapshot and committed only if those rows did not change
meanwhile; the statement runs again if they did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tablecast.codec.result import Result
from tablecast.codec.rows import Row, unknown_column
from tablecast.core.rights import require_read, require_write, row_owner
from tablecast.engine.catalog import Table
from tablecast.engine.generated import StatementValues
from tablecast.engine.reading import KeyRange, scan_values, values_arrow
from tablecast.engine.rows import DeleteRows, RowCommand, Transform, UpdateRows, Written
from tablecast.engine.transaction import Transaction
from tablecast.errors import InvalidRequest, TransactionConflict, TypeMismatch, UnsupportedSql
from tablecast.model.schema import Column, ColumnType, TableSchema, TypeName
from tablecast.sql.access import AccessKind, AccessPath, AccessPlan, plan_access
from tablecast.sql.context import Context, find_table, refuse_system
from tablecast.sql.generated import generate
from tablecast.sql.lifted import Lifted
from tablecast.sql.plan_insert import write_result
from tablecast.sql.plan_select import known_schemas, read_tables
from tablecast.sql.readings import ColumnOf, Placed, Readings, columns_of_query, lift_readings
from tablecast.sql.returning import Projection, plan_projection
from tablecast.sql.statements import Delete, TableName, Update, is_default

MAX_ATTEMPTS = 10  # of a statement whose rows keep changing under it

Evaluate = Callable[[Row], Any]


def _bind(
    lifted: Lifted, table: Table, params: Sequence[Any], values: StatementValues
) -> tuple[Evaluate, ColumnType | None]:
    bound = lifted.parameters(params, values)
    found = lifted.compiled(table.schema, bound)
    evaluate = found.row
    return (lambda row: evaluate(row, bound)) if bound else evaluate, found.type


@dataclass(slots=True)
class ChangePlan:
    """`targets` are column indexes for UPDATE, parallel to `values` (None: DEFAULT); both empty for DELETE."""

    verb: str
    table: Table
    where_tree: exp.Expr | None
    where: Lifted | None
    targets: list[int]
    values: list[Lifted | None]
    projection: Projection | None
    reads: frozenset[TableName]
    access: AccessPlan
    readings: Readings

    def run(self, context: Context, params: Sequence[Any]) -> Result:
        require_write(context.actor, self.table.schema)
        params = self.readings.apply(params)
        if not self.reads:
            try:
                written = context.write(self._command(context, params))
                return write_result(self.verb, written, self.projection)
            except UnsupportedSql:
                pass  # not for the evaluator: the query engine may know it
        return self._run_by_query(context, params)

    # --- compiled ---

    def _command(self, context: Context, params: Sequence[Any]) -> RowCommand:
        statement_values = context.values()
        matches = self._matches(params, statement_values)
        owner = row_owner(context.actor, self.table.schema)
        transform = self._transform(params, statement_values, matches) if self.verb == "UPDATE" else None
        keys = list(self._candidates(context, params, owner, matches))
        return self._make(owner, keys, transform, matches)

    def _make(
        self, owner: str | None, keys: list[bytes], transform: Transform | None, matches: Evaluate | None
    ) -> RowCommand:
        schema, returning = self.table.schema, self.projection is not None
        if transform is not None:
            return UpdateRows(schema.table_id, schema.version, owner, keys, transform, returning)
        return DeleteRows(schema.table_id, schema.version, owner, keys, matches, returning)

    def _matches(self, params: Sequence[Any], values: StatementValues) -> Evaluate | None:
        if self.where is None:
            return None
        matches, kind = _bind(self.where, self.table, params, values)
        if kind is not None and kind.name is not TypeName.BOOLEAN:
            raise TypeMismatch(f"WHERE {self.where.tree.sql('duckdb')} is {kind}, not BOOLEAN")
        return matches

    def _transform(self, params: Sequence[Any], values: StatementValues, matches: Evaluate | None) -> Transform:
        codec = self.table.codec
        bound = [None if lifted is None else _bind(lifted, self.table, params, values)[0] for lifted in self.values]
        assignments = list(zip(self.targets, bound, strict=True))

        def transform(before: Row) -> Row | None:
            if matches is not None and matches(before) is not True:
                return None
            found = {
                index: codec.default_value(index, values) if evaluate is None else evaluate(before)
                for index, evaluate in assignments
            }
            return codec.replace(before, found)

        return transform

    def _candidates(
        self, context: Context, params: Sequence[Any], owner: str | None, matches: Evaluate | None
    ) -> Iterator[bytes]:
        path: AccessPath = self.access.bind(params)
        codec = self.table.codec
        if path.kind in (AccessKind.POINT, AccessKind.POINTS):
            prefix = codec.prefix(owner)
            yield from dict.fromkeys(codec.encode_key(prefix, values) for values in path.equals)
            return
        part = KeyRange(path.prefix, path.lower, path.upper)
        for key, value in scan_values(context.reader, self.table, owner, part, context.engine.now_ms()):
            if matches is None or matches(codec.decode(value)) is True:
                yield key

    # --- by the query engine ---

    def _run_by_query(self, context: Context, params: Sequence[Any]) -> Result:
        if context.transaction is not None:
            written = self._attempt(context, context.transaction, params)
            return write_result(self.verb, written, self.projection)
        for _ in range(MAX_ATTEMPTS):
            engine = context.engine
            transaction = Transaction(engine.snapshot, engine.catalog, engine.seq, engine.now_ms())
            inner = Context(engine, context.queries, context.actor, context.namespace, transaction)
            written = self._attempt(inner, transaction, params)
            command = transaction.commit_command()
            if command is None:
                return write_result(self.verb, written, self.projection)
            try:
                committed: Written = engine.execute(command)
            except TransactionConflict:
                continue
            written.seq = committed.seq
            return write_result(self.verb, written, self.projection)
        raise TransactionConflict(
            f"{self.verb} {self.table.schema.full_name}: its rows changed during each of {MAX_ATTEMPTS} attempts; retry"
        )

    def _attempt(self, context: Context, transaction: Transaction, params: Sequence[Any]) -> Written:
        owner = row_owner(context.actor, self.table.schema)
        computed = self._compute(context, params, owner)
        transform: Transform | None = None
        if self.verb == "UPDATE":
            codec, prefix = self.table.codec, self.table.codec.prefix(owner)

            def transform(before: Row) -> Row | None:
                return codec.replace(before, computed[codec.key_of_row(prefix, before)])

        written: Written = transaction.execute(self._make(owner, list(computed), transform, None))
        return written

    def _compute(self, context: Context, params: Sequence[Any], owner: str | None) -> dict[bytes, dict[int, Any]]:
        """Key -> new values, for the rows that match, as the query engine answers."""
        schema, values = self.table.schema, context.values()
        require_read(context.actor, schema)
        outputs: list[exp.Expr] = [exp.column(name, quoted=True) for name in schema.primary_key]
        generated: list[Any] = []
        computed_targets = []
        for index, lifted in zip(self.targets, self.values, strict=True):
            if lifted is not None:
                computed_targets.append(index)
                outputs.append(_renumbered(lifted, self.readings.parameters + len(generated)))
                generated += generate(values, lifted.names)
        select = exp.select(*[exp.alias_(o, f"v{i}", quoted=True) for i, o in enumerate(outputs)])
        select = select.from_(exp.table_(schema.name, db=schema.namespace, quoted=True))
        if self.where is not None:
            select = select.where(_renumbered(self.where, self.readings.parameters + len(generated)))
            generated += generate(values, self.where.names)
        now_ms = context.engine.now_ms()
        mine = values_arrow(self.table, scan_values(context.reader, self.table, owner, KeyRange(), now_ms))
        tables = read_tables(context, self.reads)
        tables[schema.namespace, schema.name] = mine
        answer = Result.of_arrow(context.queries.run(select, tables, [*params, *generated]))
        defaults = {i: None for i, lifted in zip(self.targets, self.values, strict=True) if lifted is None}
        codec, width = self.table.codec, len(schema.primary_key)
        prefix = codec.prefix(owner)
        return {
            codec.encode_key(prefix, codec.coerce_key(row[:width])): {
                **{i: codec.default_value(i, values) for i in defaults},
                **dict(zip(computed_targets, row[width:], strict=True)),
            }
            for row in answer.stored_rows()
        }


def _renumbered(lifted: Lifted, offset: int) -> exp.Expr:
    """The tree with its generated parameters moved behind those of the trees before it."""
    count = len(lifted.names)
    if not count:
        return lifted.tree.copy()
    numbers = sorted({int(node.name) for node in lifted.tree.find_all(exp.Placeholder)})[-count:]

    def move(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Placeholder) and int(node.name) in numbers:
            return exp.Placeholder(this=str(offset + 1 + numbers.index(int(node.name))))
        return node

    return lifted.tree.copy().transform(move)


def plan_update(statement: Update, context: Context) -> ChangePlan:
    table = _target(statement.table, context, "UPDATE")
    targets: list[int] = []
    for assignment in statement.assignments:
        index = table.schema.index_of(assignment.column)
        if index is None:
            raise unknown_column(table.schema, assignment.column)
        if index in targets:
            raise InvalidRequest(f"column {assignment.column!r} is set twice", column=assignment.column)
        targets.append(index)
    return _plan("UPDATE", statement, table, targets, context)


def plan_delete(statement: Delete, context: Context) -> ChangePlan:
    return _plan("DELETE", statement, _target(statement.table, context, "DELETE FROM"), [], context)


def _target(name: TableName, context: Context, what: str) -> Table:
    refuse_system(name, what)
    return find_table(context.catalog, name, context.namespace)


def _plan(verb: str, statement: Update | Delete, table: Table, targets: list[int], context: Context) -> ChangePlan:
    schema = table.schema
    given = statement.assignments if isinstance(statement, Update) else ()
    placed = [Placed(each.value, schema.columns[index]) for each, index in zip(given, targets, strict=True)]
    if statement.where is not None:
        placed.append(Placed(statement.where))
    trees, readings = lift_readings(placed, _columns_of(schema, statement, context), statement.parameters)
    where = trees.pop() if statement.where is not None else None
    select = exp.select("*").from_(exp.table_(schema.name, db=schema.namespace, quoted=True))
    if where is not None:
        select = select.where(where.copy())
    return ChangePlan(
        verb,
        table,
        where,
        None if where is None else Lifted.of(where, readings.parameters),
        targets,
        [None if is_default(tree) else Lifted.of(tree, readings.parameters) for tree in trees],
        None if statement.returning is None else plan_projection(schema, statement.returning),
        statement.reads,
        plan_access(select, schema),
        readings,
    )


def _columns_of(schema: TableSchema, statement: Update | Delete, context: Context) -> ColumnOf:
    """Outside of subqueries a column is one of the table's."""
    within = columns_of_query(known_schemas(context, statement.reads))

    def column_of(node: exp.Column) -> Column | None:
        if node.find_ancestor(exp.Select) is not None:
            return within(node)
        index = schema.index_of(node.name)
        return None if index is None else schema.columns[index]

    return column_of
