"""The border to sqlglot: tokens in, checked and folded syntax trees out, and nothing but our errors.

sqlglot is a recursive, backtracking parser, so hostile text can make it recurse or run for ever:
`ROW(ROW(ROW(…` takes time exponential in its depth. Three limits make every text either cheap or refused:

- brackets nest at most `MAX_BRACKETS` deep, seen on the tokens before anything is parsed;
- the parser may make a number of nodes proportional to the number of tokens, then it is stopped;
- the tree is at most `MAX_TREE_DEPTH` deep, so that whoever walks it later may recurse. Long chains of AND or
  OR, which programs like to write, are balanced first: the operators are associative, and the order of the
  operands is kept.

A RecursionError that happens all the same (a chain of NOTs) is reported as nesting too deep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError
from sqlglot.parser import SENTINEL_NONE
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from tablecast.errors import SqlSyntaxError, UnsupportedSql
from tablecast.sql.tokens import CLOSING, OPENING, Cursor, Source

MAX_BRACKETS = 32
MAX_TREE_DEPTH = 100
MAX_PARAMETERS = 65_535
MAX_SUBSCRIPTS = 1_000  # sqlglot simplifies each `x[1]` on its own, at 0.3 ms a piece

# Ordinary statements need half a node per token; a parser lost in backtracking needs a multiple of that.
_NODES_PER_TOKEN = 2
_NODES_AT_LEAST = 500
_CHAIN_LENGTH = 16  # a longer chain of ANDs or ORs is balanced

_SUBSCRIPTED = CLOSING | {TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING}
_PAIRS = {TokenType.R_PAREN: "(", TokenType.R_BRACKET: "[", TokenType.R_BRACE: "{"}


class _TooMuchWork(Exception):
    """Not a ParseError: sqlglot catches those to try the next alternative."""


class _Unparsable(ParseError):
    def __init__(self, message: str, token: Token) -> None:
        super().__init__(message, errors=[{"description": message}])
        self.token = token


class _Parser(DuckDBParser):
    # Its builder copies an argument, so that nested calls double the tree at every level.
    FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {
        name: build for name, build in DuckDBParser.FUNCTIONS.items() if name != "SORT_ARRAY"
    }

    def raise_error(self, message: str, token: Token = SENTINEL_NONE) -> None:
        if self._node_count > self.max_nodes:
            raise _TooMuchWork
        raise _Unparsable(message, token or self._curr or self._prev)

    def _warn_unsupported(self) -> None:
        """sqlglot would log the text and go on with an opaque command."""
        self.raise_error("unexpected text")


# --- tokens to trees ------------------------------------------------------------------------------------


def parse_statement(cursor: Cursor) -> tuple[exp.Expr, int]:
    """The tree of a SELECT, INSERT, UPDATE or DELETE and the number of its parameters."""
    tokens, parameters = _number_parameters(cursor.source, cursor.tokens)
    return _parse(cursor.source, tokens, None), parameters


def parse_expression(source: Source, tokens: list[Token], place: str) -> exp.Expr:
    """The tree of an expression over one row that is to be stored as text: no parameters, no subqueries."""
    if _number_parameters(source, tokens)[1]:
        raise UnsupportedSql(f"{place} is stored, so it cannot take parameters: write the value itself")
    tree = _parse(source, tokens, exp.Condition)
    check_row_expression(tree, place, subqueries=False)
    return tree


def _parse(source: Source, tokens: list[Token], into: type[exp.Expr] | None) -> exp.Expr:
    check_brackets(source, tokens)
    parser = _Parser(dialect=DuckDB(), max_nodes=_NODES_PER_TOKEN * len(tokens) + _NODES_AT_LEAST)
    try:
        trees = parser.parse_into(into, tokens, source.text) if into else parser.parse(tokens, source.text)
    except ParseError as error:
        raise _syntax_error(source, error, tokens) from None
    except (RecursionError, _TooMuchWork):
        raise _too_deep(source, tokens[0]) from None
    except Exception as error:
        # Malformed text such as `{: 1}` can trip sqlglot itself: KeyError, AttributeError and the like.
        raise source.error("this cannot be read as SQL", tokens[0].start) from error
    if len(trees) != 1 or trees[0] is None:
        raise source.error("this is not a statement or expression", tokens[0].start)
    tree: exp.Expr = trees[0]
    _settle(tree, source, tokens[0], balance=into is None)
    return tree


def _syntax_error(source: Source, error: ParseError, tokens: list[Token]) -> SqlSyntaxError:
    culprit = error if isinstance(error, _Unparsable) else error.__cause__
    if not isinstance(culprit, _Unparsable) or not culprit.token:
        return source.error(str(error), tokens[0].start)
    token = culprit.token
    message = _plain(str(culprit))
    if token is tokens[-1] and "missing" in message:
        return source.error(f"{message} after {source.show(token, token)[:40]}", token.start)
    return source.error(f"{message} at {source.show(token, token)[:40]}", token.start)


def _plain(message: str) -> str:
    """sqlglot's words without its class names."""
    if message.startswith("Required keyword"):
        return "an operand is missing"
    message = message[:1].lower() + message[1:]
    return message.replace("invalid expression / Unexpected token", "unexpected text")


def _too_deep(source: Source, token: Token) -> SqlSyntaxError:
    return source.error("nested too deeply: simplify the statement or split it", token.start)


def check_brackets(source: Source, tokens: list[Token]) -> None:
    """That brackets match, and that they are neither too deep nor, as subscripts, too many."""
    opened: list[Token] = []
    subscripts = 0
    for before, token in zip(tokens[:1] + tokens, tokens, strict=False):
        if token.token_type is TokenType.L_BRACKET and before.token_type in _SUBSCRIPTED:
            subscripts += 1
            if subscripts > MAX_SUBSCRIPTS:
                raise source.error(f"more than {MAX_SUBSCRIPTS} subscripts in a statement", token.start)
        if token.token_type in OPENING:
            opened.append(token)
            if len(opened) > MAX_BRACKETS:
                message = f"nested too deeply: more than {MAX_BRACKETS} brackets are open"
                raise source.error(message, token.start)
        elif token.token_type in CLOSING and (not opened or opened.pop().text != _PAIRS[token.token_type]):
            raise source.error(f"{token.text} closes nothing", token.start)
    if opened:
        raise source.error(f"{opened[-1].text} is not closed", opened[-1].start)


# --- parameters -----------------------------------------------------------------------------------------


def _number_parameters(source: Source, tokens: list[Token]) -> tuple[list[Token], int]:
    """Turns each `?` into `$n`, in the order of the text, which a tree's order need not be."""
    marks = sum(token.token_type is TokenType.PLACEHOLDER for token in tokens)
    dollars = [i for i, token in enumerate(tokens) if token.token_type is TokenType.PARAMETER]
    numbers = [_number_after(source, tokens, i) for i in dollars]
    if marks and numbers:
        message = "a statement takes its parameters as ? or as $1, not both"
        raise source.error(message, tokens[dollars[0]].start)
    if marks > MAX_PARAMETERS:
        raise source.error(f"a statement has at most {MAX_PARAMETERS} parameters", tokens[0].start)
    return (_with_numbers(tokens) if marks else tokens), max(marks, *numbers, 0)


def _number_after(source: Source, tokens: list[Token], index: int) -> int:
    dollar, number = tokens[index], tokens[index + 1] if index + 1 < len(tokens) else None
    if dollar.text != "$" or number is None or number.token_type is not TokenType.NUMBER:
        raise source.error("parameters are ? or $1, $2, …: named ones are not supported", dollar.start)
    if not number.text.isdecimal() or len(number.text) > 5 or not 1 <= int(number.text) <= MAX_PARAMETERS:
        raise source.error(f"parameters are numbered from $1 to ${MAX_PARAMETERS}", dollar.start)
    return int(number.text)


def _with_numbers(tokens: list[Token]) -> list[Token]:
    numbered: list[Token] = []
    count = 0
    for token in tokens:
        if token.token_type is not TokenType.PLACEHOLDER:
            numbered.append(token)
            continue
        count += 1
        place = (token.line, token.col, token.start, token.end)
        numbered.append(Token(TokenType.PARAMETER, "$", *place))
        numbered.append(Token(TokenType.NUMBER, str(count), *place))
    return numbered


# --- trees ----------------------------------------------------------------------------------------------


def _settle(root: exp.Expr, source: Source, first: Token, balance: bool) -> None:
    """Folds names, drops comments, checks depth and parameters, balances chains; in place."""
    stack = [(root, 1)]
    while stack:
        node, depth = stack.pop()
        if depth > MAX_TREE_DEPTH:
            raise _too_deep(source, first)
        node.pop_comments()  # they would turn up in printed trees
        if isinstance(node, exp.Identifier):
            if not node.args.get("quoted"):
                node.set("this", node.name.lower())
            continue
        if balance and isinstance(node, (exp.And, exp.Or)):
            _balance(node)
        elif isinstance(node, (exp.Placeholder, exp.Parameter, exp.SessionParameter)):
            _check_placeholder(node, source, first)
        stack.extend((child, depth + 1) for child in node.iter_expressions())


def _check_placeholder(node: exp.Expr, source: Source, first: Token) -> None:
    if not isinstance(node, exp.Placeholder) or not node.name.isdecimal():
        raise source.error("parameters are ? or $1, $2, …: named ones are not supported", first.start)


def _balance(node: exp.And | exp.Or) -> None:
    """`((a AND b) AND c) AND d` becomes `(a AND b) AND (c AND d)`, if there are many."""
    kind = type(node)
    operands: list[exp.Expr] = []
    rest: exp.Expr = node
    while type(rest) is kind:
        operands.append(rest.expression)
        rest = rest.this
    if len(operands) < _CHAIN_LENGTH:
        return
    operands.append(rest)
    operands.reverse()
    half = len(operands) // 2
    node.set("this", _joined(kind, operands[:half]))
    node.set("expression", _joined(kind, operands[half:]))


def _joined(kind: type[exp.And | exp.Or], operands: list[exp.Expr]) -> exp.Expr:
    if len(operands) == 1:
        return operands[0]
    half = len(operands) // 2
    return kind(this=_joined(kind, operands[:half]), expression=_joined(kind, operands[half:]))


def check_row_expression(root: exp.Expr, place: str, subqueries: bool = True) -> None:
    """Refuses what has no value for a single row: aggregates, windows, `*`. A subquery has its own rows."""
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Query | exp.Values):
            if not subqueries:
                raise UnsupportedSql(f"{place} cannot contain a subquery: it is decided by the row alone")
            continue
        if isinstance(node, (exp.AggFunc, exp.Window, exp.Star)):
            raise UnsupportedSql(f"{place} cannot contain {_title(node)}: it is decided by the row alone")
        stack.extend(node.iter_expressions())


def _title(node: exp.Expr) -> str:
    if isinstance(node, exp.Window):
        return "a window function"
    return "*" if isinstance(node, exp.Star) else f"the aggregate {node.key}"
