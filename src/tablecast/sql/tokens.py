"""SQL text as tokens, and the cursor our own statements are read with.

The tokens are sqlglot's (DuckDB's dialect), so that a statement of ours can hand part of itself, a WHERE say,
to sqlglot's parser, and so that every error can tell line, column and culprit.

Names: an identifier is folded to lower case unless it is in double quotes. It consists of ASCII letters,
digits and underscores, begins with a letter (a leading underscore is reserved: `_seq`) and has at most 63
bytes. ASCII, because the same name must mean the same to the query engine, to MQTT topics, to metrics and to
Spark, whose rules for folding other letters differ. A reserved word is a name only in double quotes, but for the
namespace `default`. Names in strings are read by the same rule: see `model.names`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from tablecast.core.expression.parse import ExpressionSql
from tablecast.errors import InvalidRequest, InvalidSchema, InvalidTopic, SqlSyntaxError
from tablecast.model.names import DEFAULT_NAMESPACE, TableName, fold, read_name
from tablecast.sql.dollars import hide_parameters, show_parameters

MAX_NAME_BYTES = 63
MAX_LABEL_BYTES = 255  # user and group names: any printable text
MAX_INTEGER = 2**63 - 1
SYSTEM_NAMESPACE = "system"

# The query engine's reserved words: usable as names only when quoted, there as here.
_RESERVED_WORDS = """
    all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create
    default deferrable desc describe distinct do else end except false fetch for foreign from group having in
    initially intersect into lambda lateral leading limit not null offset on only or order pivot pivot_longer
    pivot_wider placing primary qualify references returning select show some summarize symmetric table then
    to trailing true union unique unpivot using variadic when where window with
"""
RESERVED = frozenset(_RESERVED_WORDS.split())

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_MISSING = re.compile(r"Missing (.+) from \d+:(\d+)", re.DOTALL)
_NOT_HEX = re.compile(r"Numeric string contains invalid characters from \d+:(\d+)")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})*")
_HEX_DIGITS = "X'…' takes an even number of hexadecimal digits"
_SHOWN_CHARS = 40


@dataclass(frozen=True)
class Source:
    """The text as it was sent: what positions refer to."""

    text: str

    def error(self, message: str, start: int) -> SqlSyntaxError:
        line = self.text.count("\n", 0, start) + 1
        column = start - self.text.rfind("\n", 0, start)
        return SqlSyntaxError(f"line {line}, column {column}: {message}", line=line, column=column)

    def show(self, first: Token, last: Token) -> str:
        return self.text[first.start : last.end + 1]


_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER, TokenType.HEX_STRING)


class _Tokenizer(ExpressionSql.Tokenizer):
    # sqlglot reads EXECUTE, CALL and others as one opaque string up to the semicolon; we want their tokens.
    COMMANDS: ClassVar[set[TokenType]] = set()


def tokenize(source: Source) -> list[Token]:
    try:
        # The space: sqlglot misreads a text that uses $1 and ends in an empty string.
        tokens = _Tokenizer(dialect=DuckDB()).tokenize(hide_parameters(source.text) + " ")
    except TokenError as error:
        wrong = _NOT_HEX.match(str(error.__cause__))
        if wrong is not None:
            raise source.error(_HEX_DIGITS, int(wrong[1])) from None
        missing = _MISSING.match(str(error.__cause__))
        if missing is None:
            raise source.error("a comment is not closed: */ is missing", len(source.text)) from None
        what = "quoted name" if missing[1] == '"' else "string"
        raise source.error(f"a {what} is not closed: {missing[1]} is missing", int(missing[2])) from None
    tokens = show_parameters(source.text, tokens)
    for token in tokens:
        if token.token_type is TokenType.HEX_STRING and not _HEX.fullmatch(token.text):
            raise source.error(_HEX_DIGITS, token.start)
    return tokens


def check_name(name: str, what: str, error: type[InvalidRequest] = InvalidSchema) -> str:
    """The name itself, if it may be one; `what` says what it names."""
    if name.startswith("_"):
        raise error(f"{what} {name!r}: names that begin with an underscore are reserved", name=name)
    if not _NAME.match(name):
        rule = "letters, digits and underscores, beginning with a letter"
        raise error(f"{what} {name!r} is not a valid name: use {rule}", name=name)
    if len(name) > MAX_NAME_BYTES:
        raise error(f"{what} {name!r} is too long: a name has at most {MAX_NAME_BYTES} bytes", name=name)
    return name


def check_dotted(parts: list[str], what: str, error: type[InvalidRequest] = InvalidSchema) -> TableName:
    """`[name]` or `[namespace, name]` of something that can be created or written."""
    return check_full(TableName(None if len(parts) == 1 else parts[0], parts[-1]), what, error)


def check_full(named: TableName, what: str, error: type[InvalidRequest] = InvalidSchema) -> TableName:
    name = check_name(named.name, what, error)
    if named.namespace is None:
        return named
    namespace = check_name(named.namespace, "namespace", error)
    if namespace == SYSTEM_NAMESPACE:
        raise error(f"{what} {namespace}.{name}: the namespace {SYSTEM_NAMESPACE!r} is reserved", name=name)
    return named


def _is_word(token: Token) -> bool:
    literal = token.token_type in (*_QUOTED, TokenType.NUMBER)
    return not literal and (token.text[:1].isalpha() or token.text[:1] == "_")


def _single_words(token: Token) -> list[Token]:
    """`PRIMARY   KEY` is one token to sqlglot, two words to us."""
    if " " not in token.text or not _is_word(token) or token.token_type.name.endswith("STRING"):
        return [token]
    first, last = token.text.split(" ")
    start, end = token.start, token.end
    return [
        Token(TokenType.VAR, first, start=start, end=start + len(first) - 1),
        Token(TokenType.VAR, last, start=end - len(last) + 1, end=end),
    ]


class Cursor:
    """Reads one statement from left to right. `tokens` are sqlglot's, never empty."""

    def __init__(self, source: Source, tokens: list[Token]) -> None:
        self.source = source
        self.tokens = tokens
        self._next = 0

    @cached_property
    def words(self) -> list[Token]:
        return [word for token in self.tokens for word in _single_words(token)]

    # --- looking ---

    @property
    def next(self) -> Token | None:
        return self.words[self._next] if self._next < len(self.words) else None

    def at(self, *keywords: str) -> bool:
        ahead = self.words[self._next : self._next + len(keywords)]
        return len(ahead) == len(keywords) and all(map(_matches, ahead, keywords))

    @property
    def _may_show_password(self) -> bool:
        """In a misspelt CREATE USER or ALTER USER whatever is not a word may be the password, and words too."""
        first = [word.text.upper() for word in self.words[:3]]
        return first[:2] in (["CREATE", "USER"], ["ALTER", "USER"]) and first[2:] != ["TABLE"]

    def fail(self, expected: str) -> SqlSyntaxError:
        """The error to raise at the next token."""
        token = self.next
        if token is None:
            last = self.tokens[-1]
            return self.source.error(f"expected {expected}, found the end of the statement", last.end + 1)
        shown = "something else" if self._may_show_password else self.source.show(token, token)
        if len(shown) > _SHOWN_CHARS:
            shown = shown[:_SHOWN_CHARS] + "…"
        hint = " (parameters are for values in SELECT, INSERT, UPDATE and DELETE)" if shown in "?$" else ""
        return self.source.error(f"expected {expected}, found {shown}{hint}", token.start)

    # --- taking ---

    def take(self, *keywords: str) -> bool:
        if not self.at(*keywords):
            return False
        self._next += len(keywords)
        return True

    def expect(self, *keywords: str) -> None:
        if not self.take(*keywords):
            raise self.fail(" ".join(keywords))

    def advance(self) -> Token:
        token = self.next
        if token is None:
            raise self.fail("more")
        self._next += 1
        return token

    def end(self, expected: str = "the end of the statement") -> None:
        if self.next is not None:
            raise self.fail(expected)

    def identifier(self, what: str) -> str:
        """A name, folded; not yet checked with `check_name`."""
        token = self.next
        if token is not None and token.token_type is TokenType.IDENTIFIER:
            return self.advance().text
        if token is None or not _is_word(token) or token.token_type.name.endswith("STRING"):
            raise self.fail(f"the name of a {what}")
        name = fold(token.text)
        if name in RESERVED and not self._at_default_namespace(what):
            raise self.fail(f"the name of a {what} (a reserved word needs double quotes)")
        self.advance()
        return name

    def _at_default_namespace(self, what: str) -> bool:
        return self.at(DEFAULT_NAMESPACE.upper(), ".") or (what == "namespace" and self.at(DEFAULT_NAMESPACE.upper()))

    def name(self, what: str) -> str:
        return check_name(self.identifier(what), what)

    def dotted(self, what: str) -> list[str]:
        parts = [self.identifier(what)]
        while self.take("."):
            parts.append(self.identifier(what))
        if len(parts) > 2:
            raise self.source.error(
                f"{what} {'.'.join(parts)}: a name is namespace.{what} or {what}",
                self.words[self._next - 2 * len(parts) + 1].start,
            )
        return parts

    def table(self) -> TableName:
        return check_dotted(self.dotted("table"), "table")

    def topic(self) -> TableName:
        return check_dotted(self.dotted("topic"), "topic", InvalidTopic)

    def topic_option(self, option: str, error: type[InvalidRequest]) -> TableName:
        """The name of a topic in a string."""
        named = read_name(self.string(option))
        if "." in named.name:
            raise error(f"{option} = {named.name!r}: a topic is named namespace.topic or topic", option=option)
        return check_full(named, "topic", error)

    def string(self, what: str) -> str:
        if self.next is None or self.next.token_type is not TokenType.STRING:
            raise self.fail(f"{what} as a string in single quotes")
        return self.advance().text

    def label(self, what: str) -> str:
        """The name of a user or group: a string of printable characters."""
        token, text = self.next, self.string(f"the name of a {what}")
        if token is not None and (not text or not text.isprintable() or len(text.encode()) > MAX_LABEL_BYTES):
            rule = f"1 to {MAX_LABEL_BYTES} bytes of printable text"
            raise self.source.error(f"the name of a {what} is {rule}", token.start)
        return text

    def integer(self, what: str, low: int = 0, high: int = MAX_INTEGER) -> int:
        token = self.next
        negative = self.take("-")
        digits = self.next.text if self.next is not None else ""
        if self.next is None or self.next.token_type is not TokenType.NUMBER or not digits.isdecimal():
            raise self.fail(f"{what} as a whole number")
        self.advance()
        value = int(digits) if len(digits) < 20 else MAX_INTEGER + 1
        value = -value if negative else value
        if token is not None and not low <= value <= high:
            raise self.source.error(f"{what} is from {low} to {high}", token.start)
        return value

    def option_name(self) -> Token:
        if self.next is None or not _is_word(self.next):
            raise self.fail("the name of an option")
        return self.advance()

    def boolean(self, what: str) -> bool:
        if not (self.at("TRUE") or self.at("FALSE")):
            raise self.fail(f"TRUE or FALSE for {what}")
        return self.advance().text.upper() == "TRUE"

    # --- expressions ---

    def until(self, *stops: tuple[str, ...]) -> list[Token]:
        """sqlglot's tokens up to the first of `stops` outside brackets, or to the end; may be empty."""
        start, depth = self._next, 0
        while self.next is not None:
            if depth == 0 and any(self.at(*stop) for stop in stops):
                break
            depth += _bracket_step(self.next)
            if depth < 0:
                break
            self._next += 1
        if self._next == start:
            return []
        first, last = self.words[start], self.words[self._next - 1]
        return [token for token in self.tokens if first.start <= token.start <= last.start]


def _matches(token: Token, keyword: str) -> bool:
    return token.token_type not in _QUOTED and token.text.upper() == keyword


OPENING = frozenset((TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE))
CLOSING = frozenset((TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE))


def _bracket_step(token: Token) -> int:
    return (token.token_type in OPENING) - (token.token_type in CLOSING)
