"""Text to syntax tree, within limits.

sqlglot is a recursive parser and so are the steps after it: nesting is counted on the tokens, before
anything recurses, and a tree that is deep for another reason (a long chain of `+`) is refused before it is
walked. AND and OR chains are flat however long they are.
"""

from __future__ import annotations

from typing import ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import SqlglotError
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.tokenizer_core import Token, TokenType

from tablecast.errors import SqlSyntaxError, TooLarge, UnsupportedSql

MAX_CHARACTERS = 65_536
MAX_NESTING = 24  # parentheses, function calls and CASEs inside each other; sqlglot recurses about 30 calls for each
MAX_DEPTH = 64  # of the syntax tree, AND and OR chains counting once


class ExpressionSql(DuckDB):
    """DuckDB's SQL with its X'…' literals, which sqlglot's dialect leaves out."""

    class Tokenizer(DuckDB.Tokenizer):
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012 - the name and kind sqlglot's metaclass reads
        # `?::` is an operator to sqlglot, as in other dialects; here it is a parameter and a cast.
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            word: kind for word, kind in DuckDB.Tokenizer.KEYWORDS.items() if word != "?::"
        }

    class Generator(DuckDBGenerator):
        def hexstring_sql(self, expression: exp.HexString, binary_function_repr: str | None = None) -> str:
            return f"X'{expression.name.upper()}'"


def parse_expression(sql: str) -> exp.Expr:
    """One scalar expression. SqlSyntaxError if it is not one, TooLarge if it is beyond the limits above."""
    if len(sql) > MAX_CHARACTERS:
        raise TooLarge(f"the expression has {len(sql)} characters, the most is {MAX_CHARACTERS}")
    try:
        dialect = ExpressionSql()
        tokens = dialect.tokenize(sql)
        _check_nesting(tokens)
        parsed = dialect.parser().parse(tokens, sql)
    except SqlglotError as error:
        raise SqlSyntaxError(f"not an expression: {sql!r}: {_reason(error)}") from None
    except RecursionError:
        raise TooLarge("the expression is nested too deeply") from None
    if len(parsed) != 1 or parsed[0] is None or isinstance(parsed[0], exp.Block):
        raise SqlSyntaxError(f"expected one expression, got {sql!r}")
    check_depth(parsed[0])
    return parsed[0]


def check_depth(tree: exp.Expr) -> None:
    """Walks without recursion. A node of an AND or OR chain is as deep as the chain."""
    todo: list[tuple[exp.Expr, int]] = [(tree, 1)]
    while todo:
        node, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise TooLarge(f"the expression is nested more than {MAX_DEPTH} levels deep")
        chained = isinstance(node, exp.Connector)
        for child in node.iter_expressions():
            todo.append((child, depth if chained and type(child) is type(node) else depth + 1))


def canonical(tree: exp.Expr) -> str:
    """The tree as text that parses to the same tree, without comments."""
    try:
        return tree.sql(dialect=ExpressionSql, comments=False)
    except SqlglotError as error:
        raise UnsupportedSql(f"cannot write down the expression: {_reason(error)}") from None


def _check_nesting(tokens: list[Token]) -> None:
    depth = signs = 0
    for token in tokens:
        signs = signs + 1 if token.token_type in (TokenType.NOT, TokenType.DASH, TokenType.PLUS) else 0
        if token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE):
            depth += 1
        elif token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END):
            depth -= 1
        if max(depth, signs) > MAX_NESTING:
            raise TooLarge(f"the expression is nested more than {MAX_NESTING} levels deep")


def _reason(error: SqlglotError) -> str:
    """sqlglot's message without the terminal colours and the repeated SQL."""
    details = getattr(error, "errors", None)
    if details:
        first = details[0]
        return f"{first['description']} at line {first['line']}, column {first['col']}"
    return str(error).splitlines()[0]
