"""DuckDB's errors as ours.

The text keeps DuckDB's first sentence and its suggestions, and loses what the user did not write: the
prefix, the excerpt of the rewritten statement, lists of overloads, and advice to change settings.
"""

from __future__ import annotations

import re

from tablecast.errors import (
    DatabaseError,
    ExpressionError,
    InvalidRequest,
    SqlSyntaxError,
    TablecastError,
    TypeMismatch,
    UnknownColumn,
    UnknownTable,
    UnsupportedSql,
)

_PREFIX = re.compile(r"^[A-Za-z][A-Za-z ]* Error: ")
_CUT = re.compile(r"\n\n|\nLINE \d+:|\n\t|\n\s*Candidate functions|\nUse \"SET ")

# The first pattern that matches decides; a group is the name of the culprit.
_BY_TEXT: tuple[tuple[re.Pattern[str], type[TablecastError], str], ...] = (
    (re.compile(r'Referenced column "(.+?)" not found'), UnknownColumn, "column"),
    (re.compile(r'does not have a column named "(.+?)"'), UnknownColumn, "column"),
    (re.compile(r'Column "(.+?)" in EXCLUDE list'), UnknownColumn, "column"),
    (re.compile(r'Referenced table "(.+?)" not found'), UnknownTable, "table"),
    (re.compile(r"Function with name (\S+) does not exist"), UnsupportedSql, "function"),
    (re.compile(r"No function matches the given name and argument types '(.+?)\("), TypeMismatch, "function"),
    (re.compile(r"(Cannot compare|Cannot mix|explicit cast)"), TypeMismatch, ""),
    (re.compile(r"Unimplemented type for cast \((.+?)\)"), TypeMismatch, "cast"),
    (
        re.compile(r"(Python integer too large|[Uu]nable to transform|Python Conversion Failure)"),
        TypeMismatch,
        "",
    ),
    (re.compile(r"(Values were not provided|Parameter argument/count mismatch)"), InvalidRequest, ""),
)

_BY_CLASS: dict[str, type[TablecastError]] = {
    "ParserException": SqlSyntaxError,
    "SyntaxException": SqlSyntaxError,
    "BinderException": InvalidRequest,
    "CatalogException": UnsupportedSql,
    "ConversionException": ExpressionError,
    "OutOfRangeException": ExpressionError,
    "InvalidInputException": ExpressionError,
    "TypeMismatchException": TypeMismatch,
    "InvalidTypeException": TypeMismatch,
    "NotImplementedException": UnsupportedSql,
    "PermissionException": UnsupportedSql,
    "OverflowError": TypeMismatch,
    "UnicodeEncodeError": TypeMismatch,
}


def translated(error: Exception) -> TablecastError:
    text = clean(str(error))
    for pattern, kind, role in _BY_TEXT:
        if found := pattern.search(text):
            details = {role: found[1]} if role else {}
            return kind(text, **details)
    return _BY_CLASS.get(type(error).__name__, DatabaseError)(text)


def clean(text: str) -> str:
    text = _PREFIX.sub("", text)
    lines = _CUT.split(text, maxsplit=1)[0].replace('Values list "', 'Table "').split("\n")
    return ". ".join(line.strip().rstrip("!.") for line in lines if line.strip())
