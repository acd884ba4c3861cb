"""Results on standard output.

    table    aligned columns for a person; what a statement did, when it has no rows
    json     one document per statement: an array of rows, or what the statement did
    ndjson   one object per row
    csv      RFC 4180: a header, CRLF, quotes where they are needed. NULL is nothing, an empty text is ""

In ndjson and csv the output is rows and nothing else; what other statements did is told on standard error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator

import msgspec

from tablecast.cli.console import say
from tablecast.cli.grid import grid_lines
from tablecast.cli.options import Format
from tablecast.cli.progress import counted
from tablecast.cli.values import json_rows, text_rows
from tablecast.codec.result import Result

_NEEDS_QUOTES = re.compile(r'[",\r\n]')


def render(result: Result, form: Format, *, quiet: bool = False) -> None:
    """`quiet`: without a count of the rows written, since something else shows how far it is."""
    if result.is_query:
        lines = _ROWS[form](result)
        sys.stdout.writelines(lines if quiet else counted(lines, "writing", len(result)))
    elif form is Format.TABLE:
        sys.stdout.write(result.message + "\n")
    elif form is Format.JSON:
        done = {"message": result.message, "row_count": result.row_count, "seq": result.seq}
        sys.stdout.write(msgspec.json.encode(done).decode() + "\n")
    else:
        say(result.message)
    sys.stdout.flush()


def _objects(result: Result) -> Iterator[str]:
    names, encode = result.columns, msgspec.json.Encoder().encode
    return (encode(dict(zip(names, row, strict=True))).decode() for row in json_rows(result))


def _json(result: Result) -> Iterator[str]:
    """An array with one row to a line."""
    before = "[\n"
    for row in _objects(result):
        yield f"{before}{row}"
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _ndjson(result: Result) -> Iterator[str]:
    return (f"{row}\n" for row in _objects(result))


def _csv(result: Result) -> Iterator[str]:
    yield _csv_line(result.columns)
    for row in text_rows(result):
        yield _csv_line(row)


def _csv_line(fields: Iterable[str | None]) -> str:
    return ",".join(map(_csv_field, fields)) + "\r\n"


def _csv_field(text: str | None) -> str:
    if text is None:
        return ""
    if text == "" or _NEEDS_QUOTES.search(text):
        return '"' + text.replace('"', '""') + '"'
    return text


def _table(result: Result) -> Iterator[str]:
    yield from grid_lines(result)
    count = len(result)
    yield f"({count:,} row{'' if count == 1 else 's'})\n"


_ROWS = {Format.TABLE: _table, Format.JSON: _json, Format.NDJSON: _ndjson, Format.CSV: _csv}
