"""`( name = value, … )`: the options of WITH and SET.

Each statement gives a table of the options it knows and how to read their values. Names are case-insensitive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tablecast.errors import InvalidRequest
from tablecast.sql.tokens import Cursor

ReadOption = Callable[[Cursor, str], Any]


def parse_options(cursor: Cursor, known: Mapping[str, ReadOption], error: type[InvalidRequest]) -> dict[str, Any]:
    """The options that are given, by their name as in `known`."""
    options: dict[str, Any] = {}
    cursor.expect("(")
    while True:
        name = _known_name(cursor, known, error)
        if name in options:
            raise error(f"option {name} is given twice", option=name)
        cursor.expect("=")
        options[name] = known[name](cursor, name)
        if not cursor.take(","):
            break
    if not cursor.take(")"):
        raise cursor.fail("a comma or )")
    return options


def _known_name(cursor: Cursor, known: Mapping[str, ReadOption], error: type[InvalidRequest]) -> str:
    text = cursor.option_name().text
    for name in known:
        if name.lower() == text.lower():
            return name
    raise error(f"unknown option {text}: the options are {', '.join(known)}", option=text)
