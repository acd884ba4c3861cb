"""A pipeline's query: Spark SQL in which `TOPIC name` and `TABLE name` stand for what it reads.

Spark gets the user's own text, with nothing changed but these two, each replaced by the name of a view; so a query means
what Spark says it means. sqlglot reads the text too, to refuse early what would be refused later, or must not run at all:

- it is one query, and reads nothing but its inputs and its own CTEs: no files, no table functions, no other catalog;
- no function that calls into Java or into the worker's surroundings;
- every column of the result has a name.

What sqlglot cannot read is refused, even if Spark could: a query that was not checked does not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parser import SENTINEL_NONE
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from tablecast.errors import InvalidPipeline, SqlSyntaxError, UnsupportedSql
from tablecast.model.pipeline import InputKind
from tablecast.sql.statements import NamedInput, TableName
from tablecast.sql.syntax import check_brackets
from tablecast.sql.tokens import Source, check_dotted

MAX_QUERY_BYTES = 20_000  # of a pipeline's query: it is stored in the catalog, and shown as a whole
MAX_INPUTS = 32  # of a pipeline: each is a reader of its own in every batch

_NODES_PER_TOKEN = 4  # a parser lost in backtracking makes a multiple of that
_NODES_AT_LEAST = 1_000
_MARK = "_tablecast_input_{}"  # the i-th input while the text is checked; names of users never begin so
_WINDOW = "time_window"  # what sqlglot can read where Spark has window(…)
_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)

_REFUSED_FUNCTIONS = frozenset(
    ("reflect", "java_method", "try_reflect", "input_file_name", "input_file_block_start", "input_file_block_length")
)
_NOT_QUERIES = (
    *(exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Drop, exp.Alter, exp.Copy, exp.Command),
    *(exp.Describe, exp.Show, exp.Set, exp.Use, exp.Into, exp.QueryTransform),
)


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """`text` is for Spark; in `tree` the inputs are called `mark(0)`, `mark(1)`, … in the order of the text."""

    text: str
    inputs: tuple[NamedInput, ...]
    tree: exp.Query


class _TooMuchWork(Exception):
    """Not a ParseError: sqlglot catches those to try the next alternative."""


class _Parser(SparkParser):
    def raise_error(self, message: str, token: Token = SENTINEL_NONE) -> None:
        if self._node_count > self.max_nodes:
            raise _TooMuchWork
        super().raise_error(message, token)

    def _warn_unsupported(self) -> None:
        """sqlglot would go on with an opaque command."""
        self.raise_error("unexpected text")


def mark(index: int) -> str:
    return _MARK.format(index)


def parse_query(text: str) -> SparkQuery:
    """Raises SqlSyntaxError, UnsupportedSql or InvalidPipeline."""
    text = text.strip()
    if len(text.encode()) > MAX_QUERY_BYTES:
        raise InvalidPipeline(f"the query has more than {MAX_QUERY_BYTES} bytes", limit=MAX_QUERY_BYTES)
    tokens = _tokens(text)
    found = list(_marked(text, tokens))
    if len(found) > MAX_INPUTS:
        raise InvalidPipeline(f"a pipeline reads at most {MAX_INPUTS} topics and tables, not {len(found)}")
    views = _views([(kind, name) for kind, name, _, _ in found])
    inputs = tuple(NamedInput(kind, name, view) for (kind, name, _, _), view in zip(found, views, strict=True))
    places = [(start, end) for _, _, start, end in found]
    tree = _parse(_spliced(text, places, [mark(i) for i in range(len(found))]))
    _check(tree, frozenset(mark(i) for i in range(len(found))), frozenset(views))
    return SparkQuery(_spliced(text, places, [f"`{view}`" for view in views]), inputs, tree)


# --- tokens ---------------------------------------------------------------------------------------------


def _tokens(text: str) -> list[Token]:
    try:
        return Spark.Tokenizer(dialect=Spark()).tokenize(text)
    except TokenError as error:
        raise SqlSyntaxError(f"the query is not Spark SQL: {error}") from None


def _marked(text: str, tokens: Sequence[Token]) -> Iterator[tuple[InputKind, TableName, int, int]]:
    """Each `TOPIC name` and `TABLE name` after FROM or JOIN: what it is, and where it stands."""
    i = 1
    while i < len(tokens):
        kind = tokens[i].text.lower()
        after_from = tokens[i - 1].token_type in (TokenType.FROM, TokenType.JOIN)
        quoted = tokens[i].token_type is TokenType.IDENTIFIER
        if after_from and not quoted and kind in list(InputKind) and i + 1 < len(tokens):
            parts, last = _dotted(text, tokens, i + 1)
            yield InputKind(kind), check_dotted(parts, kind, InvalidPipeline), tokens[i].start, tokens[last].end + 1
            i = last
        i += 1


def _dotted(text: str, tokens: Sequence[Token], i: int) -> tuple[list[str], int]:
    parts = [_name(text, tokens, i)]
    while i + 2 < len(tokens) and tokens[i + 1].token_type is TokenType.DOT:
        i += 2
        parts.append(_name(text, tokens, i))
    if len(parts) > 2:
        raise Source(text).error(f"{'.'.join(parts)}: a name is namespace.name or name", tokens[i].start)
    return parts, i


def _name(text: str, tokens: Sequence[Token], i: int) -> str:
    token = tokens[i]
    if token.token_type is TokenType.IDENTIFIER:
        return token.text
    if token.token_type in (TokenType.STRING, TokenType.NUMBER) or not (
        token.text[:1].isalpha() or token.text[:1] == "_"
    ):
        raise Source(text).error(f"expected a name after {tokens[i - 1].text}, found {token.text[:40]}", token.start)
    return token.text.lower()


def _views(found: Sequence[tuple[InputKind, TableName]]) -> list[str]:
    """The bare name, by which columns can be qualified; if two inputs share it, one that is longer."""
    named: dict[str, set[tuple[InputKind, TableName]]] = {}
    for kind, name in found:
        named.setdefault(name.name, set()).add((kind, name))
    return [
        name.name if len(named[name.name]) == 1 else f"{kind}_{name.namespace or ''}_{name.name}"
        for kind, name in found
    ]


def _spliced(text: str, places: Sequence[tuple[int, int]], names: Sequence[str]) -> str:
    pieces, at = [], 0
    for (start, end), name in zip(places, names, strict=True):
        pieces += [text[at:start], name]
        at = end
    return "".join([*pieces, text[at:]])


# --- trees ----------------------------------------------------------------------------------------------


def _parse(text: str) -> exp.Query:
    source, tokens = Source(text), _readable(_tokens(text))
    check_brackets(source, tokens)
    parser = _Parser(dialect=Spark(), max_nodes=_NODES_PER_TOKEN * len(tokens) + _NODES_AT_LEAST)
    try:
        trees = parser.parse(tokens, text)
    except ParseError as error:
        told = error.errors[0] if error.errors else {}
        raise SqlSyntaxError(
            f"line {told.get('line', 1)} of the query: {told.get('description', 'it cannot be read')}"
            f" at {str(told.get('highlight', ''))[:40]}"
        ) from None
    except (RecursionError, _TooMuchWork):
        raise SqlSyntaxError("the query is nested too deeply: simplify it") from None
    except Exception as error:  # malformed text can trip sqlglot itself
        raise SqlSyntaxError("the query cannot be read as Spark SQL") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query) or isinstance(trees[0], exp.Table):
        raise UnsupportedSql("a pipeline is one query: AS SELECT … FROM TOPIC …")
    return trees[0]


def _readable(tokens: list[Token]) -> list[Token]:
    """`window(_ts, '1 hour')` groups by time in Spark; sqlglot takes the word for the beginning of a WINDOW clause."""
    changed = []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        is_call = following is not None and following.token_type is TokenType.L_PAREN
        if token.token_type is TokenType.WINDOW and is_call:
            token = Token(TokenType.VAR, _WINDOW, token.line, token.col, token.start, token.end)
        changed.append(token)
    return changed


def _check(tree: exp.Query, marks: frozenset[str], views: frozenset[str]) -> None:
    ctes = {cte.alias for cte in tree.find_all(exp.CTE)}
    for name in ctes & views:
        raise InvalidPipeline(f"the query calls a CTE {name}, as one of its inputs is called: choose another name")
    for node in tree.walk():
        if isinstance(node, exp.Table):
            _check_table(node, marks, ctes)
        elif isinstance(node, _NOT_QUERIES):
            raise UnsupportedSql(f"{node.key.upper()} cannot stand in a pipeline's query")
        elif isinstance(node, exp.Placeholder | exp.Parameter):
            raise UnsupportedSql("a pipeline is stored, so it cannot take parameters: write the value itself")
        elif isinstance(node, exp.Anonymous) and node.name.lower() in _REFUSED_FUNCTIONS:
            raise UnsupportedSql(f"the function {node.name.lower()}() is not available in a pipeline", name=node.name)


def _check_table(table: exp.Table, marks: frozenset[str], ctes: set[str]) -> None:
    if not isinstance(table.this, exp.Identifier):
        raise UnsupportedSql(f"{table.sql('spark')[:60]}: a pipeline reads topics and tables, not table functions")
    if table.args.get("db") or table.args.get("catalog") or table.name not in marks | ctes:
        raise InvalidPipeline(
            f"{table.sql('spark')[:60]} is no input: write FROM TOPIC name for messages, JOIN TABLE name for rows"
        )


def output_names(tree: exp.Query) -> list[str] | None:
    """What the result's columns are called, in order; None if a `*` among them leaves that to Spark."""
    names = []
    for number, selected in enumerate(tree.selects, 1):
        if isinstance(selected, exp.Star) or (isinstance(selected, exp.Column) and isinstance(selected.this, exp.Star)):
            return None
        name = selected.output_name
        if not name:
            raise InvalidPipeline(
                f"column {number} of the result, {selected.sql('spark')[:60]}, has no name: give it one with AS"
            )
        names.append(name)
    return names
