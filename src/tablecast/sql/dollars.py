"""`$1` beside `$tag$ … $tag$`: which dollar is which.

A tag does not begin with a digit, so `$1,$2` are two parameters. sqlglot takes `1,` for a tag; it is given a `?` in place of
each parameter's dollar, which leaves every position as it is, and the tokens get their dollars back.
"""

from __future__ import annotations

import re

from sqlglot.tokenizer_core import Token, TokenType

_PARAMETER = re.compile(r"\$\d")
_OPAQUE = re.compile(
    r"""  (?<!\w)[eE]'(?:[^'\\]|''|\\.)*(?:'|\Z)                  # a string with escapes
        | '[^']*(?:'|\Z)                                        # a string; '' inside of one looks like two of them
        | "[^"]*(?:"|\Z)                                        # a quoted name
        | (?<![\w$])\$([^\W\d]\w*)?\$.*?(?:\$(?(1)\1|)\$|\Z)    # a string between dollars
        | --[^\n]*
        | /\*                                                   # they nest: see `_end_of_comment`
        | (?<![\w$?])\$(?=\d)
        | \w+(?:\$\w*)*                                         # a word may have dollars inside
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")


def hide_parameters(text: str) -> str:
    """The text with `?1` for each `$1`; it has as many characters as before."""
    if _PARAMETER.search(text) is None:
        return text
    found = list(text)
    at = 0
    while (part := _OPAQUE.search(text, at)) is not None:
        at = part.end()
        if part[0] == "$":
            found[part.start()] = "?"
        elif part[0] == "/*":
            at = _end_of_comment(text, at)
    return "".join(found)


def _end_of_comment(text: str, at: int) -> int:
    depth = 1
    while depth and (mark := _COMMENT_MARK.search(text, at)) is not None:
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
    return len(text) if depth else at


def show_parameters(text: str, tokens: list[Token]) -> list[Token]:
    """The tokens of the hidden text, as those of the text itself."""
    return [_shown(token) if _is_hidden(text, token) else token for token in tokens]


def _is_hidden(text: str, token: Token) -> bool:
    return token.token_type is TokenType.PLACEHOLDER and text[token.start] == "$"


def _shown(token: Token) -> Token:
    return Token(TokenType.PARAMETER, "$", token.line, token.col, token.start, token.end)
