"""Where statements end: what a shell and a script both need to know.

A semicolon ends a statement unless it stands in a string, a comment, or the brackets of EXECUTE AS USER. Strings and
comments are those of the SQL parser's own tokens, so that a script is cut where the parser would cut it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sqlglot.tokenizer_core import Token, TokenType

from tablecast.errors import SqlSyntaxError
from tablecast.sql.parse import MAX_SQL_BYTES
from tablecast.sql.tokens import Source, tokenize


class Statement(NamedTuple):
    line: int  # of the script, from 1
    text: str


def split(text: str) -> tuple[list[str], str]:
    """The statements that a semicolon ends, each as it was written, and what follows the last of them."""
    try:
        ends = list(_ends(tokenize(Source(text))))
    except SqlSyntaxError:
        return [], text  # a string or comment is open: its end may follow
    starts = [0, *(end + 1 for end in ends)]
    return [text[a:b] for a, b in zip(starts, ends, strict=False)], text[starts[-1] :]


def _ends(tokens: Iterable[Token]) -> Iterator[int]:
    first, depth = None, 0
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON and depth == 0:
            first = None
            yield token.start
            continue
        first = first or token.token_type
        if first is TokenType.EXECUTE:
            step = (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            depth = max(0, depth + step)


def is_blank(text: str) -> bool:
    """Nothing but space and comments."""
    try:
        return all(token.token_type is TokenType.SEMICOLON for token in tokenize(Source(text)))
    except SqlSyntaxError:
        return False


def is_complete(text: str) -> bool:
    """Whether a shell should run it now: a command of its own, nothing at all, or SQL that a semicolon ends."""
    if not text.strip() or text.lstrip().startswith("\\"):
        return True
    statements, rest = split(text)
    return bool(statements) and is_blank(rest)


def read_statements(lines: Iterable[str]) -> Iterator[Statement]:
    """The statements of a script, each as soon as its last line was read. The last one needs no semicolon."""
    kept: list[str] = []
    size, first_line = 0, 1
    for line in lines:
        kept.append(line)
        size += len(line)
        if ";" not in line and size <= MAX_SQL_BYTES:
            continue
        statements, rest = split("".join(kept))
        if size > MAX_SQL_BYTES and not statements:
            statements, rest = [rest], ""  # too large for any statement: let the session say so
        for text in statements:
            if not is_blank(text):
                yield _placed(text, first_line)
            first_line += text.count("\n")
        kept, size = [rest], len(rest)
    rest = "".join(kept)
    if not is_blank(rest):
        yield _placed(rest, first_line)


def _placed(text: str, first_line: int) -> Statement:
    space = text[: len(text) - len(text.lstrip())]
    return Statement(first_line + space.count("\n"), text.strip())
