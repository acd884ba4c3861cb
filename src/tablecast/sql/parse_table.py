"""Namespaces and tables.

    CREATE NAMESPACE [IF NOT EXISTS] name
    DROP NAMESPACE [IF EXISTS] name [CASCADE | RESTRICT]
    CREATE [SHARED | USER | STREAM] TABLE [IF NOT EXISTS] table ( item, … ) [WITH ( option, … )]
    DROP TABLE [IF EXISTS] table [CASCADE | RESTRICT]
    ALTER TABLE table ADD [COLUMN] [IF NOT EXISTS] column

    item = column | [CONSTRAINT name] PRIMARY KEY ( name, … ) | [CONSTRAINT name] CHECK ( condition )
    column = name type constraint …                              types and defaults: parse_column
    option = TYPE = 'SHARED' | 'USER' | 'STREAM'        TTL_SECONDS = n
           | ACCESS_LEVEL = 'PUBLIC' | 'PRIVATE' | 'RESTRICTED'        REPLICATE = TRUE | FALSE

A table without a kind is SHARED. Whatever a definition gets wrong by itself is refused here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from tablecast.errors import InvalidSchema, UnsupportedSql
from tablecast.model.schema import AccessLevel, Column, TableKind, TypeName
from tablecast.sql.options import ReadOption, parse_options
from tablecast.sql.parse_column import ParsedColumn, parse_check, parse_column
from tablecast.sql.statements import (
    AlterTableAddColumn,
    CreateNamespace,
    CreateTable,
    DropNamespace,
    DropTable,
    TableName,
)
from tablecast.sql.tokens import SYSTEM_NAMESPACE, Cursor

MAX_COLUMNS = 1_000
MAX_TTL_SECONDS = 100 * 366 * 86_400  # a century: times stay within what TIMESTAMP can hold

_Choice = TypeVar("_Choice", bound=enum.StrEnum)


def if_exists(cursor: Cursor) -> bool:
    return cursor.take("IF", "EXISTS")


def if_not_exists(cursor: Cursor) -> bool:
    return cursor.take("IF", "NOT", "EXISTS")


def _cascade(cursor: Cursor) -> bool:
    cascade = cursor.take("CASCADE")
    if not cascade:
        cursor.take("RESTRICT")
    cursor.end("CASCADE, RESTRICT or the end of the statement")
    return cascade


# --- namespaces ---


def _namespace(cursor: Cursor) -> str:
    name = cursor.name("namespace")
    if name == SYSTEM_NAMESPACE:
        raise InvalidSchema(f"the namespace {SYSTEM_NAMESPACE!r} is reserved", name=name)
    return name


def parse_create_namespace(cursor: Cursor) -> CreateNamespace:
    exists = if_not_exists(cursor)
    name = _namespace(cursor)
    cursor.end()
    return CreateNamespace(name, exists)


def parse_drop_namespace(cursor: Cursor) -> DropNamespace:
    exists = if_exists(cursor)
    name = _namespace(cursor)
    return DropNamespace(name, exists, _cascade(cursor))


# --- DROP and ALTER TABLE ---


def parse_drop_table(cursor: Cursor) -> DropTable:
    exists = if_exists(cursor)
    table = cursor.table()
    return DropTable(table, exists, _cascade(cursor))


def parse_alter_table(cursor: Cursor) -> AlterTableAddColumn:
    table = cursor.table()
    if cursor.at("DROP") or cursor.at("RENAME") or cursor.at("ALTER") or cursor.at("SET"):
        raise UnsupportedSql(f"ALTER TABLE {table} {cursor.advance().text.upper()}: only ADD COLUMN is supported")
    cursor.expect("ADD")
    if cursor.at("CONSTRAINT") or cursor.at("PRIMARY") or cursor.at("CHECK") or cursor.at("UNIQUE"):
        raise UnsupportedSql(f"ALTER TABLE {table} ADD {cursor.advance().text.upper()}: only columns can be added")
    cursor.take("COLUMN")
    exists = if_not_exists(cursor)
    parsed = parse_column(cursor)
    cursor.end("a column constraint or the end of the statement")
    if parsed.primary_key:
        raise InvalidSchema(f"column {parsed.column.name}: the primary key of {table} cannot be changed")
    return AlterTableAddColumn(table, parsed.column, parsed.checks, exists)


# --- CREATE TABLE ---


def parse_create_table(cursor: Cursor, kind: TableKind | None) -> CreateTable:
    exists = if_not_exists(cursor)
    table = cursor.table()
    columns, key, checks = _items(cursor, table)
    options = _table_options(cursor)
    cursor.end("WITH (…) or the end of the statement")
    kind = _kind(kind, options.get("TYPE"), table)
    if kind is TableKind.STREAM and "TTL_SECONDS" not in options:
        raise InvalidSchema(f"table {table} is a STREAM table, so it needs WITH (TTL_SECONDS = …)")
    return CreateTable(
        table=table,
        columns=columns,
        primary_key=key,
        checks=checks,
        kind=kind,
        ttl_seconds=options.get("TTL_SECONDS"),
        access_level=options.get("ACCESS_LEVEL", AccessLevel.PRIVATE),
        replicate=options.get("REPLICATE", False),
        if_not_exists=exists,
    )


_Items = tuple[tuple[Column, ...], tuple[str, ...], tuple[str, ...]]


def _items(cursor: Cursor, table: TableName) -> _Items:
    columns: list[ParsedColumn] = []
    keys: list[tuple[str, ...]] = []
    checks: list[str] = []
    cursor.expect("(")
    while True:
        if not _table_constraint(cursor, keys, checks):
            columns.append(parse_column(cursor))
            checks.extend(columns[-1].checks)
        if not cursor.take(","):
            break
    if not cursor.take(")"):
        raise cursor.fail("a comma or )")
    keys.extend((parsed.column.name,) for parsed in columns if parsed.primary_key)
    key = _checked_key(columns, keys, table)
    return tuple(_as_key(parsed.column, key) for parsed in columns), key, tuple(checks)


def _table_constraint(cursor: Cursor, keys: list[tuple[str, ...]], checks: list[str]) -> bool:
    named = cursor.take("CONSTRAINT")
    if named:
        cursor.name("constraint")
    if cursor.take("PRIMARY", "KEY"):
        keys.append(_names(cursor))
    elif cursor.take("CHECK"):
        checks.append(parse_check(cursor))
    elif cursor.at("UNIQUE") or cursor.at("FOREIGN", "KEY") or cursor.at("EXCLUDE"):
        raise UnsupportedSql(f"{cursor.advance().text.upper()} constraints are not supported")
    elif named:
        raise cursor.fail("PRIMARY KEY or CHECK")
    else:
        return False
    return True


def _names(cursor: Cursor) -> tuple[str, ...]:
    cursor.expect("(")
    names = [cursor.name("column")]
    while cursor.take(","):
        names.append(cursor.name("column"))
    cursor.expect(")")
    return tuple(names)


def _checked_key(columns: list[ParsedColumn], keys: list[tuple[str, ...]], table: TableName) -> tuple[str, ...]:
    if len(columns) > MAX_COLUMNS:
        raise InvalidSchema(f"table {table} has {len(columns)} columns: at most {MAX_COLUMNS} are possible")
    by_name: dict[str, ParsedColumn] = {}
    for parsed in columns:
        if by_name.setdefault(parsed.column.name, parsed) is not parsed:
            raise InvalidSchema(f"table {table} has two columns named {parsed.column.name}")
    if not keys:
        raise InvalidSchema(f"table {table} has no primary key: mark a column PRIMARY KEY")
    if len(keys) > 1:
        raise InvalidSchema(f"table {table} has two primary keys: write PRIMARY KEY (a, b) for several columns")
    for i, name in enumerate(keys[0]):
        _check_key_column(name, by_name.get(name), table)
        if name in keys[0][:i]:
            raise InvalidSchema(f"the primary key of {table} names column {name} twice")
    return keys[0]


def _check_key_column(name: str, parsed: ParsedColumn | None, table: TableName) -> None:
    if parsed is None:
        raise InvalidSchema(f"the primary key of {table} names column {name}, which the table does not have")
    if parsed.column.type.name is TypeName.JSON:
        raise InvalidSchema(f"column {name} of {table} is JSON: it has no order, so it cannot be in a primary key")
    if parsed.nullable:
        raise InvalidSchema(f"column {name} of {table} is in the primary key, so it cannot be NULL")


def _as_key(column: Column, key: tuple[str, ...]) -> Column:
    return msgspec.structs.replace(column, not_null=True) if column.name in key else column


# --- WITH ---


def _choice(kind: type[_Choice]) -> Callable[[Cursor, str], _Choice]:
    def read(cursor: Cursor, option: str) -> _Choice:
        text = cursor.string(option)
        if text.upper() not in kind.__members__:
            raise InvalidSchema(f"{option} = {text!r}: it is one of {', '.join(kind.__members__)}")
        return kind(text.upper())

    return read


def _ttl(cursor: Cursor, option: str) -> int:
    return cursor.integer(option, 1, MAX_TTL_SECONDS)


_OPTIONS: dict[str, ReadOption] = {
    "TYPE": _choice(TableKind),
    "TTL_SECONDS": _ttl,
    "ACCESS_LEVEL": _choice(AccessLevel),
    "REPLICATE": Cursor.boolean,
}


def _table_options(cursor: Cursor) -> dict[str, Any]:
    return parse_options(cursor, _OPTIONS, InvalidSchema) if cursor.take("WITH") else {}


def _kind(written: TableKind | None, option: TableKind | None, table: TableName) -> TableKind:
    if written is not None and option is not None and written is not option:
        raise InvalidSchema(f"table {table} is both {written} (CREATE {written} TABLE) and {option} (TYPE)")
    return written or option or TableKind.SHARED
