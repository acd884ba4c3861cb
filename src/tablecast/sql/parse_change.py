"""INSERT, UPDATE and DELETE: sqlglot's tree taken apart into columns, values, assignments and conditions.

    insert = INSERT INTO table [( column, … )] rows [conflict] [RETURNING outputs]
    rows = VALUES ( value, … ), … | DEFAULT VALUES | query
    conflict = ON CONFLICT [( column, … )] DO NOTHING | DO UPDATE SET assignment, … [WHERE condition]
    update = UPDATE table [[AS] alias] SET assignment, … [WHERE condition] [RETURNING outputs]
    delete = DELETE FROM table [[AS] alias] [WHERE condition] [RETURNING outputs]
    assignment = column = expression | DEFAULT          value = expression | DEFAULT
    outputs = * | expression [[AS] name], …

A column of the target may be written `amount`, `orders.amount` or `app.orders.amount` (or with the alias
instead of the table's name); the qualifier is dropped. Inside a subquery names are left alone, as they may
mean its own tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tablecast.core.expression.parse import ExpressionSql
from tablecast.errors import SqlSyntaxError, UnknownColumn, UnsupportedSql
from tablecast.sql.parse_query import as_select, check_reads
from tablecast.sql.statements import (
    Assignment,
    Delete,
    Insert,
    OnConflict,
    Output,
    Select,
    TableName,
    Update,
    is_default,
)
from tablecast.sql.syntax import check_row_expression, parse_statement
from tablecast.sql.tokens import Cursor, Source, check_dotted

_HINTS = {
    "using": "DELETE … USING is not supported: use WHERE … IN (SELECT …)",
    "from_": "UPDATE … FROM is not supported: use a subquery, or WHERE … IN (SELECT …)",
    "with_": "WITH before a change is not supported: put it in front of the SELECT inside",
    "alternative": "INSERT OR … is not supported: use ON CONFLICT DO NOTHING or DO UPDATE",
    "by_name": "INSERT … BY NAME is not supported: name the columns after the table",
    "tables": "DELETE without FROM is not supported: write DELETE FROM",
    "constraint": "ON CONFLICT ON CONSTRAINT is not supported: name the columns",
    "index_predicate": "ON CONFLICT (…) WHERE is not supported: name the columns only",
    "duplicate": "ON DUPLICATE KEY is not supported: use ON CONFLICT",
    "into": "RETURNING … INTO is not supported",
}


@dataclass(frozen=True, slots=True)
class _Target:
    table: TableName
    node: exp.Table
    alias: str | None


# --- the three statements -----------------------------------------------------------------------------------


def parse_insert(cursor: Cursor) -> Insert:
    tree, parameters = parse_statement(cursor)
    if not isinstance(tree, exp.Insert):
        raise UnsupportedSql("INSERT must be INSERT INTO table …")
    _only(tree, ("this", "expression", "conflict", "returning", "default"))
    schema = tree.this if isinstance(tree.this, exp.Schema) else None
    target = _target(schema.this if schema else tree.this)
    if target.alias:
        raise UnsupportedSql(f"INSERT INTO {target.table} AS {target.alias}: an alias is not supported here")
    columns = None if schema is None else _column_names(schema.expressions, f"INSERT INTO {target.table}")
    reads = check_reads(tree, cursor.source, target.node)
    query = _source_query(tree.expression, cursor.source, parameters)
    default_row = bool(tree.args.get("default"))
    return Insert(
        table=target.table,
        columns=() if default_row else columns,
        rows=None if query else ((),) if default_row else _rows(tree.expression, columns, target),
        query=query,
        on_conflict=_on_conflict(tree.args.get("conflict"), target),
        returning=_outputs(tree.args.get("returning"), target),
        reads=reads,
        parameters=parameters,
    )


def parse_update(cursor: Cursor) -> Update:
    tree, parameters = parse_statement(cursor)
    if not isinstance(tree, exp.Update):
        raise UnsupportedSql("UPDATE must be UPDATE table SET …")
    _only(tree, ("this", "expressions", "where", "returning"))
    target = _target(tree.this)
    _check_alias(tree, target)
    return Update(
        table=target.table,
        assignments=_assignments(tree.expressions, target),
        reads=check_reads(tree, cursor.source, target.node),
        where=_condition(tree.args.get("where"), target),
        returning=_outputs(tree.args.get("returning"), target),
        parameters=parameters,
    )


def parse_delete(cursor: Cursor) -> Delete:
    tree, parameters = parse_statement(cursor)
    if not isinstance(tree, exp.Delete):
        raise UnsupportedSql("DELETE must be DELETE FROM table …")
    _only(tree, ("this", "where", "returning"))
    target = _target(tree.this)
    _check_alias(tree, target)
    return Delete(
        table=target.table,
        reads=check_reads(tree, cursor.source, target.node),
        where=_condition(tree.args.get("where"), target),
        returning=_outputs(tree.args.get("returning"), target),
        parameters=parameters,
    )


# --- the target ---------------------------------------------------------------------------------------------


def _only(node: exp.Expr, known: Sequence[str]) -> None:
    """Refuses any part that we would otherwise ignore."""
    for key, value in node.args.items():
        if value and key not in known:
            part = key.rstrip("_").replace("_", " ").upper()
            raise UnsupportedSql(_HINTS.get(key, f"{node.key.upper()} with {part} is not supported"))


def _target(node: exp.Expr) -> _Target:
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier) or node.args.get("catalog"):
        raise UnsupportedSql(f"{node.sql('duckdb')}: a change names its table as table or namespace.table")
    _only(node, ("this", "db", "alias"))
    parts = [node.db, node.name] if node.db else [node.name]
    return _Target(check_dotted(parts, "table"), node, node.alias or None)


def _check_alias(tree: exp.Expr, target: _Target) -> None:
    if target.alias and tree.find(exp.Query):
        raise UnsupportedSql(
            f"the alias {target.alias} cannot be combined with a subquery: write {target.table.name} instead"
        )


def _unqualified(root: exp.Expr, target: _Target, place: str, also: str | None = None) -> exp.Expr:
    """The expression with columns of the target bare; `also` names a second row that may be referred to."""
    check_row_expression(root, place)
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Query | exp.Values):
            continue
        if isinstance(node, exp.Column) and node.table and node.table != also:
            _drop_qualifier(node, target)
        stack.extend(node.iter_expressions())
    return root


def _drop_qualifier(column: exp.Column, target: _Target) -> None:
    qualifier = [part.name for part in column.parts[:-1]]
    name = target.table
    if qualifier not in ([target.alias or name.name], [name.namespace, name.name]):
        shown = ".".join([*qualifier, column.name])
        raise UnknownColumn(f"{shown} is not a column of {name}", column=shown)
    for key in ("table", "db", "catalog"):
        column.set(key, None)


# --- parts --------------------------------------------------------------------------------------------------


def _column_names(nodes: Iterable[exp.Expr], place: str) -> tuple[str, ...]:
    names: list[str] = []
    for node in nodes:
        plain = node.this if isinstance(node, exp.Ordered) else node
        bare = isinstance(plain, exp.Identifier) or (isinstance(plain, exp.Column) and not plain.table)
        if not bare:
            raise SqlSyntaxError(f"{place}: {plain.sql('duckdb')} is not the name of a column")
        if plain.name in names:
            raise SqlSyntaxError(f"{place}: column {plain.name} is named twice", column=plain.name)
        names.append(plain.name)
    return tuple(names)


def _source_query(node: exp.Expr | None, source: Source, parameters: int) -> Select | None:
    if isinstance(node, exp.Values) or not isinstance(node, exp.Query):
        return None
    return as_select(node, source, parameters)


def _rows(
    values: exp.Expr | None, columns: tuple[str, ...] | None, target: _Target
) -> tuple[tuple[exp.Expr, ...], ...]:
    if not isinstance(values, exp.Values):
        raise SqlSyntaxError(f"INSERT INTO {target.table}: expected VALUES, DEFAULT VALUES or SELECT")
    _only(values, ("expressions",))
    rows = tuple(tuple(_cell(cell, target) for cell in row.expressions) for row in values.expressions)
    width = len(rows[0]) if columns is None else len(columns)
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            wanted = f"{width} columns are named" if columns is not None else f"row 1 has {width}"
            raise SqlSyntaxError(f"INSERT INTO {target.table}: row {number} has {len(row)} values, {wanted}")
    return rows


def _cell(node: exp.Expr, target: _Target) -> exp.Expr:
    if isinstance(node, exp.Literal):  # by far the most frequent
        return node
    value = _value(node, target, "VALUES")
    for part in value.walk(prune=lambda part: isinstance(part, exp.Query)):
        if isinstance(part, exp.Column):
            hint = "a string is written in single quotes"
            raise SqlSyntaxError(f"VALUES cannot refer to a column: {part.sql('duckdb')} ({hint})")
    return value


def _value(node: exp.Expr, target: _Target, place: str, also: str | None = None) -> exp.Expr:
    if isinstance(node, exp.Column) and not node.this.args.get("quoted") and node.sql().lower() == "default":
        return exp.Var(this="DEFAULT")
    return node if is_default(node) else _unqualified(node, target, place, also)


def _assignments(nodes: Iterable[exp.Expr], target: _Target, also: str | None = None) -> tuple[Assignment, ...]:
    assignments: dict[str, Assignment] = {}
    for node in nodes:
        if not isinstance(node, exp.EQ) or not isinstance(node.this, exp.Column):
            raise UnsupportedSql(f"SET {node.sql('duckdb')}: write column = value for each column")
        column = _unqualified(node.this, target, "SET").name
        if column in assignments:
            raise SqlSyntaxError(f"SET names column {column} twice", column=column)
        assignments[column] = Assignment(column, _value(node.expression, target, "SET", also))
    return tuple(assignments.values())


def _condition(where: exp.Expr | None, target: _Target, also: str | None = None) -> exp.Expr | None:
    return None if where is None else _unqualified(where.this, target, "WHERE", also)


def _on_conflict(node: exp.Expr | None, target: _Target) -> OnConflict | None:
    if node is None:
        return None
    _only(node, ("conflict_keys", "action", "expressions", "where"))
    keys = node.args.get("conflict_keys")
    columns = _column_names(keys, "ON CONFLICT") if keys else None
    if str(node.args["action"]).upper() == "DO NOTHING":
        return OnConflict(columns)
    assignments = _assignments(node.expressions, target, also="excluded")
    if not assignments:
        raise SqlSyntaxError("ON CONFLICT … DO UPDATE needs SET column = value")
    return OnConflict(columns, assignments, _condition(node.args.get("where"), target, also="excluded"))


def _outputs(node: exp.Expr | None, target: _Target) -> tuple[Output, ...] | None:
    if node is None:
        return None
    _only(node, ("expressions",))
    return tuple(_output(item, target) for item in node.expressions)


def _output(item: exp.Expr, target: _Target) -> Output:
    if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
        _drop_qualifier(item, target)
        item = item.this
    if isinstance(item, exp.Star):
        _only(item, ())
        return Output(item, "*")
    plain = item.this if isinstance(item, exp.Alias) else item
    expression = _unqualified(plain, target, "RETURNING")
    return Output(expression, item.alias or expression.name or expression.sql(dialect=ExpressionSql))
