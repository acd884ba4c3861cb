"""One column of a table: its type, its default, its constraints.

    column = name type constraint …
    constraint = PRIMARY KEY | NOT NULL | NULL | DEFAULT default | CHECK ( condition )
    default = SNOWFLAKE_ID() | UUID_V7() | NOW() | CURRENT_TIMESTAMP | CURRENT_USER() | literal
    literal = 'text' | [-] number | TRUE | FALSE | NULL | DATE 'text' | TIME 'text' | TIMESTAMP 'text' | X'hex'

    BOOLEAN BOOL                    SMALLINT INT2           INT INTEGER INT4         BIGINT INT8
    FLOAT REAL FLOAT4               DOUBLE [PRECISION] FLOAT8
    DECIMAL NUMERIC [(p [, s])], 1 <= p <= 38, 0 <= s <= p; without them it is (18, 3), with (p) it is (p, 0)
    TEXT VARCHAR STRING             BYTES BYTEA BLOB BINARY VARBINARY                JSON JSONB
    TIMESTAMP TIMESTAMPTZ DATETIME [WITH | WITHOUT TIME ZONE]: UTC, always           DATE   TIME   UUID

A text column has no length limit: write a CHECK if it needs one. DEFAULT NULL is the same as no default.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType

from tablecast.errors import InvalidSchema, UnsupportedSql
from tablecast.model.schema import Column, ColumnType, Default, DefaultKind, TypeName
from tablecast.sql.syntax import parse_expression
from tablecast.sql.tokens import Cursor

MAX_PRECISION = 38

_TYPES = {
    **dict.fromkeys(("BOOLEAN", "BOOL"), TypeName.BOOLEAN),
    **dict.fromkeys(("SMALLINT", "INT2"), TypeName.SMALLINT),
    **dict.fromkeys(("INT", "INTEGER", "INT4"), TypeName.INT),
    **dict.fromkeys(("BIGINT", "INT8"), TypeName.BIGINT),
    **dict.fromkeys(("FLOAT", "REAL", "FLOAT4"), TypeName.FLOAT),
    **dict.fromkeys(("DOUBLE", "FLOAT8"), TypeName.DOUBLE),
    **dict.fromkeys(("DECIMAL", "NUMERIC"), TypeName.DECIMAL),
    **dict.fromkeys(("TEXT", "VARCHAR", "STRING"), TypeName.TEXT),
    **dict.fromkeys(("BYTES", "BYTEA", "BLOB", "BINARY", "VARBINARY"), TypeName.BYTES),
    **dict.fromkeys(("JSON", "JSONB"), TypeName.JSON),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPTZ", "DATETIME"), TypeName.TIMESTAMP),
    "DATE": TypeName.DATE,
    "TIME": TypeName.TIME,
    "UUID": TypeName.UUID,
}

_FUNCTIONS = {
    "SNOWFLAKE_ID": DefaultKind.SNOWFLAKE_ID,
    "UUID_V7": DefaultKind.UUID_V7,
    "NOW": DefaultKind.NOW,
    "CURRENT_TIMESTAMP": DefaultKind.NOW,
    "CURRENT_USER": DefaultKind.CURRENT_USER,
}
_BARE_FUNCTIONS = ("CURRENT_TIMESTAMP", "CURRENT_USER")  # standard SQL writes them without brackets

_FUNCTION_TYPES = {
    DefaultKind.SNOWFLAKE_ID: (TypeName.BIGINT, TypeName.TEXT),
    DefaultKind.UUID_V7: (TypeName.UUID, TypeName.TEXT),
    DefaultKind.NOW: (TypeName.TIMESTAMP, TypeName.DATE, TypeName.TIME),
    DefaultKind.CURRENT_USER: (TypeName.TEXT,),
}

_REFUSED = ("UNIQUE", "REFERENCES", "GENERATED", "COLLATE", "AUTO_INCREMENT", "AUTOINCREMENT", "IDENTITY")


@dataclass(slots=True)
class ParsedColumn:
    """A column and what it says about its table. `nullable`: NULL was written."""

    column: Column
    primary_key: bool = False
    nullable: bool = False
    checks: tuple[str, ...] = ()


def parse_column(cursor: Cursor) -> ParsedColumn:
    name = cursor.name("column")
    column_type = parse_type(cursor, name)
    seen: set[str] = set()
    default: Default | None = None
    checks: list[str] = []
    while (word := _constraint(cursor)) is not None:
        if word in seen:
            raise InvalidSchema(f"column {name}: {word} is written twice")
        if word == "CHECK":
            checks.append(parse_check(cursor))
            continue
        seen.add(word)
        if word == "DEFAULT":
            default = _default(cursor, name, column_type)
    if {"NULL", "NOT NULL"} <= seen:
        raise InvalidSchema(f"column {name}: NULL and NOT NULL contradict each other")
    column = Column(name, column_type, "NOT NULL" in seen, default)
    return ParsedColumn(column, "PRIMARY KEY" in seen, "NULL" in seen, tuple(checks))


def _constraint(cursor: Cursor) -> str | None:
    if cursor.take("CONSTRAINT"):
        cursor.name("constraint")
    for words in (("PRIMARY", "KEY"), ("NOT", "NULL"), ("NULL",), ("DEFAULT",), ("CHECK",)):
        if cursor.take(*words):
            return " ".join(words)
    for word in _REFUSED:
        if cursor.at(word):
            raise UnsupportedSql(f"{word} columns are not supported", constraint=word)
    return None


def parse_check(cursor: Cursor) -> str:
    """`( condition )`, as the user's text."""
    cursor.expect("(")
    tokens = cursor.until()
    if not tokens:
        raise cursor.fail("a condition")
    cursor.expect(")")
    parse_expression(cursor.source, tokens, "CHECK")
    return cursor.source.show(tokens[0], tokens[-1])


# --- types ---


def parse_type(cursor: Cursor, column: str) -> ColumnType:
    if cursor.next is None or cursor.next.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
        raise cursor.fail(f"the type of column {column}")
    if not (cursor.next.text[:1].isalpha()):
        raise cursor.fail(f"the type of column {column}")
    word = cursor.advance().text.upper()
    name = _TYPES.get(word)
    if name is None:
        known = ", ".join(TypeName)
        raise InvalidSchema(f"column {column} has the unknown type {word}: the types are {known}", column=column)
    if name is TypeName.DECIMAL:
        return _decimal(cursor, column)
    if word == "DOUBLE":
        cursor.take("PRECISION")
    if name in (TypeName.TIMESTAMP, TypeName.TIME):
        cursor.take("WITH", "TIME", "ZONE") or cursor.take("WITHOUT", "TIME", "ZONE")
    if cursor.at("("):
        hint = ": use a CHECK on its length" if name in (TypeName.TEXT, TypeName.BYTES) else ""
        raise UnsupportedSql(f"column {column}: {word} takes no length or precision{hint}", column=column)
    if cursor.at("["):
        raise UnsupportedSql(f"column {column}: array types are not supported: use JSON", column=column)
    return ColumnType(name)


def _decimal(cursor: Cursor, column: str) -> ColumnType:
    if not cursor.take("("):
        return ColumnType(TypeName.DECIMAL, 18, 3)
    precision = cursor.integer("the precision of DECIMAL", 0)
    scale = cursor.integer("the scale of DECIMAL", 0) if cursor.take(",") else 0
    cursor.expect(")")
    if not 1 <= precision <= MAX_PRECISION or not 0 <= scale <= precision:
        rule = f"1 <= p <= {MAX_PRECISION} and 0 <= s <= p"
        raise InvalidSchema(f"column {column}: DECIMAL({precision},{scale}) is impossible: DECIMAL(p,s) needs {rule}")
    return ColumnType(TypeName.DECIMAL, precision, scale)


# --- defaults ---


def _default(cursor: Cursor, column: str, column_type: ColumnType) -> Default | None:
    for word, kind in _FUNCTIONS.items():
        if cursor.take(word):
            if cursor.take("("):
                cursor.expect(")")
            elif word not in _BARE_FUNCTIONS:
                raise cursor.fail("()")
            return _checked_function(kind, column, column_type)
    if cursor.take("NULL"):
        return None
    if cursor.next is not None and cursor.next.token_type is TokenType.HEX_STRING:
        return Default(DefaultKind.LITERAL, data=bytes.fromhex(cursor.advance().text))
    return Default(DefaultKind.LITERAL, _literal(cursor, column))


def _checked_function(kind: DefaultKind, column: str, column_type: ColumnType) -> Default:
    allowed = _FUNCTION_TYPES[kind]
    if column_type.name not in allowed:
        where = " or ".join(allowed)
        raise InvalidSchema(f"column {column} is {column_type}: {kind.name}() is a default for {where}")
    return Default(kind)


def _literal(cursor: Cursor, column: str) -> str:
    token = cursor.next
    if cursor.at("TRUE") or cursor.at("FALSE"):
        return cursor.advance().text.lower()
    for word in ("DATE", "TIMESTAMP", "TIME"):
        if cursor.take(word):
            return cursor.string(f"a {word}")
    if token is not None and token.token_type is TokenType.STRING:
        return cursor.advance().text
    return _number(cursor, column)


def _number(cursor: Cursor, column: str) -> str:
    sign = "-" if cursor.take("-") else ""
    if not sign:
        cursor.take("+")
    whole = "0" if cursor.take(".") else ""  # `.5` is a dot and a number to the tokenizer
    if cursor.next is None or cursor.next.token_type is not TokenType.NUMBER:
        functions = ", ".join(f"{name}()" for name in ("SNOWFLAKE_ID", "UUID_V7", "NOW", "CURRENT_USER"))
        raise cursor.fail(f"a default for column {column}, which is a literal or one of {functions}")
    digits = cursor.advance().text
    return f"{sign}{whole}.{digits}" if whole else sign + digits
