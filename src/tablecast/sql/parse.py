"""SQL text to statements.

    text = [statement] ; …
    statement = query | insert | update | delete                          parse_query, parse_change
              | statements about namespaces and tables                    parse_table, parse_column
              | statements about topics and groups                        parse_topic
              | statements about pipelines                                parse_pipeline
              | COPY, AUDIT: alone in their text, as they run elsewhere   parse_copy
              | SHOW, DESCRIBE, transactions, users                       parse_session
              | EXECUTE AS USER 'name' ( statement ; … )                  here; it does not nest

Keywords are case-insensitive, names as `tokens` says, comments are `-- …` and `/* … */`. The text is parsed
as a whole or not at all: one wrong statement among several and nothing is returned, so nothing runs.

Parsing costs a fraction of a millisecond, which is a lot next to a write of one row. So statements are cached
by their text: programs send the same text with other parameters. A cached parse is a lookup in a dict.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

from sqlglot.tokenizer_core import Token, TokenType

from tablecast.errors import SqlSyntaxError, TablecastError, TooLarge, UnsupportedSql
from tablecast.model.schema import TableKind
from tablecast.sql import (
    parse_change,
    parse_copy,
    parse_pipeline,
    parse_query,
    parse_session,
    parse_table,
    parse_topic,
)
from tablecast.sql.statements import (
    AlterUser,
    Begin,
    Commit,
    CreateUser,
    ExecuteAs,
    Rollback,
    RunOnSpark,
    Statement,
)
from tablecast.sql.syntax import check_brackets
from tablecast.sql.tokens import Cursor, Source, tokenize

MAX_SQL_BYTES = 1_000_000
MAX_STATEMENTS = 10_000
MAX_TOKENS = 250_000  # a token costs about 10 µs; a megabyte of ordinary rows has 200,000

# A tree takes about a hundred times the memory of its text: this bounds the cache to some 100 MB at worst.
CACHE_CHARS = 1_000_000
CACHED_TEXT_CHARS = 20_000  # a longer text carries its data in itself and will hardly come again


def parse(sql: str, max_bytes: int = MAX_SQL_BYTES) -> list[Statement]:
    """The statements of `sql`, at least one. Their trees are shared: copy before changing.

    Raises TooLarge, SqlSyntaxError, UnsupportedSql, InvalidSchema, InvalidTopic or another InvalidRequest, or
    UnknownColumn for a qualifier that names no table of the statement.
    """
    _check_text(sql, max_bytes)
    statements = _cache.get(sql)
    if statements is None:
        source = Source(sql)
        statements = _parse_all(source, tokenize(source))
        if not any(map(_holds_password, statements)):
            _cache.put(sql, statements)
    return list(statements)


def _holds_password(statement: Statement) -> bool:
    if isinstance(statement, ExecuteAs):
        return any(map(_holds_password, statement.statements))
    return isinstance(statement, CreateUser | AlterUser)


def _check_text(sql: str, max_bytes: int) -> None:
    try:
        size = len(sql) if sql.isascii() else len(sql.encode())
    except UnicodeEncodeError as error:
        raise SqlSyntaxError(f"the text is not valid Unicode at character {error.start + 1}") from None
    if size > max_bytes:
        message = f"the SQL text is {size} bytes long: at most {max_bytes} are allowed"
        raise TooLarge(message, size=size, limit=max_bytes)
    if "\0" in sql:
        raise Source(sql).error("a NUL character: this is not SQL", sql.index("\0"))


# --- the cache ----------------------------------------------------------------------------------------------


class _Cache:
    """Keeps texts of `limit` characters together; the least recently used leave first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chars = 0
        self._entries: OrderedDict[str, tuple[Statement, ...]] = OrderedDict()
        self._lock = Lock()

    def get(self, sql: str) -> tuple[Statement, ...] | None:
        with self._lock:
            statements = self._entries.get(sql)
            if statements is not None:
                self._entries.move_to_end(sql)
            return statements

    def put(self, sql: str, statements: tuple[Statement, ...]) -> None:
        if len(sql) > CACHED_TEXT_CHARS:
            return
        with self._lock:
            if sql not in self._entries:
                self._chars += len(sql)
            self._entries[sql] = statements
            while self._chars > self._limit:
                self._chars -= len(self._entries.popitem(last=False)[0])


_cache = _Cache(CACHE_CHARS)


# --- statements of a text -----------------------------------------------------------------------------------


def _parse_all(source: Source, tokens: list[Token]) -> tuple[Statement, ...]:
    if len(tokens) > MAX_TOKENS:
        raise TooLarge(f"the text has {len(tokens)} words and signs: at most {MAX_TOKENS} are allowed")
    parts = _split(tokens)
    if not parts:
        raise SqlSyntaxError("the text contains no statement")
    if len(parts) > MAX_STATEMENTS:
        raise TooLarge(f"the text has {len(parts)} statements: at most {MAX_STATEMENTS} are allowed")
    statements = tuple(_parse_part(source, part, number, len(parts)) for number, part in enumerate(parts, 1))
    if len(statements) > 1 and any(isinstance(statement, RunOnSpark) for statement in statements):
        raise UnsupportedSql(
            "COPY, AUDIT and backfill = 'spark' run on Spark, apart from other statements: send each in a text of its own"
        )
    return statements


def _split(tokens: Sequence[Token]) -> list[list[Token]]:
    """At the semicolons, except those between the brackets of EXECUTE AS."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON and depth == 0:
            parts.append([])
            continue
        parts[-1].append(token)
        if parts[-1][0].token_type is TokenType.EXECUTE:
            step = (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            depth = max(0, depth + step)
    return [part for part in parts if part]


def _parse_part(source: Source, tokens: list[Token], number: int, count: int) -> Statement:
    try:
        return _parse_one(Cursor(source, tokens))
    except TablecastError as error:
        if count == 1:
            raise
        message = f"statement {number} of {count}: {error.message}"
        raise type(error)(message, **{**error.details, "statement": number}) from None


def _parse_one(cursor: Cursor) -> Statement:
    first = cursor.words[0].text.upper()
    for words, parser in _STATEMENTS.get(first, ()):
        if cursor.take(*words):
            return parser(cursor)
    if first in _TREES:
        return _TREES[first](cursor)
    raise _not_a_statement(cursor)


def _not_a_statement(cursor: Cursor) -> TablecastError:
    first = cursor.words[0].text.upper()
    for words, reason in _REFUSED.items():
        if cursor.at(*words.split()):
            return UnsupportedSql(f"{words} is not supported{reason}", statement_kind=words)
    known = dict.fromkeys(" ".join(words) for words, _ in _STATEMENTS.get(first, ()))
    if known:
        cursor.advance()
        return cursor.fail(" or ".join(word.partition(" ")[2] for word in known) + f" after {first}")
    return cursor.fail("a statement such as SELECT, INSERT, CREATE TABLE or CONSUME")


# --- EXECUTE AS ---------------------------------------------------------------------------------------------


def _parse_execute_as(cursor: Cursor) -> ExecuteAs:
    user = cursor.label("user")
    check_brackets(cursor.source, cursor.tokens)
    if not cursor.at("("):
        raise cursor.fail("( followed by statements")
    cursor.advance()
    inner = cursor.until()
    cursor.expect(")")
    cursor.end()
    if not _split(inner):
        raise cursor.source.error("EXECUTE AS has no statement in its brackets", cursor.tokens[0].start)
    statements = _parse_all(cursor.source, inner)
    for statement in statements:
        if isinstance(statement, ExecuteAs | Begin | Commit | Rollback | RunOnSpark):
            what = _REFUSED_INSIDE.get(type(statement)) or type(statement).__name__.upper()
            raise UnsupportedSql(f"{what} cannot stand inside EXECUTE AS: put it around it")
    return ExecuteAs(user, statements, parameters=sum(statement.parameters for statement in statements))


_REFUSED_INSIDE: dict[type[Statement], str] = {ExecuteAs: "EXECUTE AS", RunOnSpark: "what runs on Spark"}


# --- what there is ------------------------------------------------------------------------------------------

_Parse = Callable[[Cursor], Statement]

_TREES: dict[str, _Parse] = {
    **dict.fromkeys(("SELECT", "WITH", "VALUES", "("), parse_query.parse_select),
    "INSERT": parse_change.parse_insert,
    "UPDATE": parse_change.parse_update,
    "DELETE": parse_change.parse_delete,
}


def _create_table(kind: TableKind | None) -> _Parse:
    return partial(parse_table.parse_create_table, kind=kind)


_PARSERS: dict[str, _Parse] = {
    "CREATE NAMESPACE": parse_table.parse_create_namespace,
    "CREATE TABLE": _create_table(None),
    "CREATE SHARED TABLE": _create_table(TableKind.SHARED),
    "CREATE USER TABLE": _create_table(TableKind.USER),
    "CREATE STREAM TABLE": _create_table(TableKind.STREAM),
    "CREATE TOPIC": parse_topic.parse_create_topic,
    "CREATE USER": parse_session.parse_create_user,
    "DROP NAMESPACE": parse_table.parse_drop_namespace,
    "DROP TABLE": parse_table.parse_drop_table,
    "DROP TOPIC": parse_topic.parse_drop_topic,
    "DROP USER": parse_session.parse_drop_user,
    "ALTER TABLE": parse_table.parse_alter_table,
    "ALTER TOPIC": parse_topic.parse_alter_topic,
    "ALTER USER": parse_session.parse_alter_user,
    "CLEAR TOPIC": parse_topic.parse_clear_topic,
    "CONSUME FROM": parse_topic.parse_consume,
    "ACK": parse_topic.parse_ack,
    "NACK": parse_topic.parse_nack,
    "REDRIVE TOPIC": parse_topic.parse_redrive,
    "RESET GROUP": parse_topic.parse_reset_group,
    "SHOW NAMESPACES": parse_session.parse_show_namespaces,
    "SHOW TABLES": parse_session.parse_show_tables,
    "SHOW TOPICS": parse_session.parse_show_topics,
    "CREATE PIPELINE": parse_pipeline.parse_create_pipeline,
    "START PIPELINE": parse_pipeline.parse_start_pipeline,
    "STOP PIPELINE": parse_pipeline.parse_stop_pipeline,
    "DROP PIPELINE": parse_pipeline.parse_drop_pipeline,
    "SHOW PIPELINES": parse_pipeline.parse_show_pipelines,
    "COPY": parse_copy.parse_copy,
    "AUDIT TOPIC": parse_copy.parse_audit_topic,
    "DESCRIBE": parse_session.parse_describe,
    "DESC": parse_session.parse_describe,
    "BEGIN": parse_session.parse_begin,
    "START TRANSACTION": parse_session.parse_begin,
    "COMMIT": parse_session.parse_commit,
    "ROLLBACK": parse_session.parse_rollback,
    "EXECUTE AS USER": _parse_execute_as,
    "GRANT ROLE": parse_session.parse_grant_role,
    "CANCEL JOB": parse_session.parse_cancel_job,
}


def _by_first_word(parsers: dict[str, _Parse]) -> dict[str, list[tuple[list[str], _Parse]]]:
    grouped: dict[str, list[tuple[list[str], _Parse]]] = {}
    for words, parser in parsers.items():
        grouped.setdefault(words.split()[0], []).append((words.split(), parser))
    return grouped


_STATEMENTS = _by_first_word(_PARSERS)

_OUTSIDE = ": a statement reaches tables and topics, nothing outside the database"

_REFUSED = {
    "SHOW PIPELINE": ": use SHOW PIPELINES, or DESCRIBE PIPELINE name",
    "CREATE SCHEMA": ": use CREATE NAMESPACE",
    "DROP SCHEMA": ": use DROP NAMESPACE",
    **dict.fromkeys(("CREATE DATABASE", "CREATE VIEW", "CREATE INDEX", "CREATE UNIQUE INDEX"), ""),
    **dict.fromkeys(("CREATE SEQUENCE", "CREATE FUNCTION", "CREATE MACRO", "CREATE TYPE"), ""),
    **dict.fromkeys(("CREATE OR REPLACE", "CREATE TEMP", "CREATE TEMPORARY", "CREATE SECRET"), ""),
    "TRUNCATE": ": use DELETE FROM table",
    "MERGE": ": use INSERT … ON CONFLICT",
    "REPLACE": ": use INSERT … ON CONFLICT DO UPDATE",
    "SAVEPOINT": ": a transaction commits or rolls back as a whole",
    "FROM": ": begin a query with SELECT",
    "TABLE": ": begin a query with SELECT",
    **dict.fromkeys(("ATTACH", "DETACH", "INSTALL", "LOAD", "EXPORT", "IMPORT", "PRAGMA", "CALL"), _OUTSIDE),
    **dict.fromkeys(("SET", "RESET", "USE", "CHECKPOINT", "VACUUM", "FORCE"), _OUTSIDE),
    **dict.fromkeys(("EXPLAIN", "ANALYZE", "PIVOT", "UNPIVOT", "SUMMARIZE", "PREPARE", "EXECUTE"), ""),
    **dict.fromkeys(("DEALLOCATE", "DECLARE", "COMMENT", "GRANT", "REVOKE", "LOCK", "KILL"), ""),
}
