"""LIKE: `%` is any text, `_` any one code point, an escape character makes the next one literal.

A pattern is cut at its `%` into pieces. The first must match at the start, the last at the end, and those
between are looked for from left to right, each as early as it can: no backtracking, so no pattern is slow.
The Arrow form uses the same reading as a regular expression for RE2, which does not backtrack either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from tablecast.core.expression.casing import lower
from tablecast.core.expression.failure import Failure

PATTERNS_KEPT = 1024
KEPT_PATTERN_CHARS = 200  # a pattern may come from a row: longer ones are made anew, which bounds what is kept

ANY = None  # in a piece: any one code point
Piece = tuple[str | None, ...]


def pieces(pattern: str, escape: str) -> list[Piece]:
    cut: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if escape and character == escape:
            following = next(characters, None)
            if following is None:
                raise Failure(f"the LIKE pattern {pattern!r} ends with its escape character")
            cut[-1].append(following)
        elif character == "%":
            cut.append([])
        else:
            cut[-1].append(ANY if character == "_" else character)
    return [tuple(piece) for piece in cut]


def _regex(piece: Piece) -> str:
    return "".join("." if character is ANY else re.escape(character) for character in piece)


def matcher(pattern: str, escape: str = "") -> Callable[[str], bool]:
    return _kept(pattern, escape) if len(pattern) <= KEPT_PATTERN_CHARS else _made(pattern, escape)


def _made(pattern: str, escape: str) -> Callable[[str], bool]:
    cut = pieces(pattern, escape)
    if any(ANY in piece for piece in cut):
        return _with_wildcards(cut)
    return _plain(["".join(character or "" for character in piece) for piece in cut])


_kept = lru_cache(maxsize=PATTERNS_KEPT)(_made)


def _plain(cut: list[str]) -> Callable[[str], bool]:
    if len(cut) == 1:
        return cut[0].__eq__
    first, *middle, last = cut

    def matches(text: str) -> bool:
        position, end = len(first), len(text) - len(last)
        if position > end or not (text.startswith(first) and text.endswith(last)):
            return False
        for piece in middle:
            found = text.find(piece, position, end)
            if found < 0:
                return False
            position = found + len(piece)
        return True

    return matches


def _with_wildcards(cut: list[Piece]) -> Callable[[str], bool]:
    compiled = [re.compile(_regex(piece), re.DOTALL) for piece in cut]
    if len(cut) == 1:
        return lambda text: compiled[0].fullmatch(text) is not None
    first, *middle, last = compiled

    def matches(text: str) -> bool:
        position, end = len(cut[0]), len(text) - len(cut[-1])
        if position > end or not (first.match(text) and last.match(text, end)):
            return False
        for piece in middle:
            found = piece.search(text, position, end)
            if found is None:
                return False
            position = found.end()
        return True

    return matches


def like(text: str, pattern: str) -> bool:
    return matcher(pattern)(text)


def ilike(text: str, pattern: str) -> bool:
    return matcher(lower(pattern))(lower(text))


def re2(pattern: str, escape: str) -> str:
    """The pattern for RE2. Code points are written as numbers: nothing in a pattern can be read as syntax."""
    read = [
        "".join("." if character is ANY else rf"\x{{{ord(character):x}}}" for character in piece)
        for piece in pieces(pattern, escape)
    ]
    return rf"(?s)\A{'.*'.join(read)}\z"
