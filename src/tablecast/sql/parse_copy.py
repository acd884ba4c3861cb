"""COPY and AUDIT: statements that run on Spark.

    COPY table [( column, … )] FROM 'path' [WITH] ( option, … )
    COPY TOPIC topic TO 'directory' [WITH] ( option, … )
    AUDIT TOPIC topic

    option of FROM = FORMAT parquet | csv | json        MODE insert | upsert
                   | HEADER [true | false]      DELIMITER 'c'      QUOTE 'c'      NULL 'text'      MULTILINE [true | false]
                   | REJECTS 'directory'        MAX_REJECTS n      DRY_RUN [true | false]
                   | COMMIT_ROWS n              JOB 'name'
    option of TO   = FORMAT parquet | json | delta      DECODE [true | false]      SOURCE_TABLE table
                   | STARTING 'earliest | latest | offsets | time'      ENDING 'the same'      COMMIT_ROWS n
                   | DRY_RUN [true | false]

An option may have an equals sign, as those of other statements have. A path is whatever Spark reads: a file, a directory,
a pattern with * in it, or an address such as hdfs://….
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlglot.tokenizer_core import TokenType

from tablecast.errors import InvalidRequest
from tablecast.model.spark_job import AuditTopic, CopyFrom, CopyMode, CopyTopic, FileFormat
from tablecast.sql.statements import RunOnSpark
from tablecast.sql.tokens import Cursor

MAX_COMMIT_ROWS = 100_000_000  # of one commit: what is not committed is done again after a kill
MAX_JOB_BYTES = 100  # of the name of a job: it is part of a key, kept for a week
_READS = (FileFormat.PARQUET, FileFormat.CSV, FileFormat.JSON)
_WRITES = (FileFormat.PARQUET, FileFormat.JSON, FileFormat.DELTA)
_OF_CSV = ("header", "delimiter", "quote", "null", "multiline")

ReadValue = Callable[[Cursor, str], Any]


def parse_copy(cursor: Cursor) -> RunOnSpark:
    if cursor.at("TOPIC") and len(cursor.words) > 2 and cursor.words[2].text.upper() not in (".", "(", "FROM"):
        cursor.advance()
        return _copy_topic(cursor)
    return _copy_from(cursor)


def parse_audit_topic(cursor: Cursor) -> RunOnSpark:
    topic = cursor.topic()
    cursor.end()
    return RunOnSpark(AuditTopic(str(topic)))


def _copy_from(cursor: Cursor) -> RunOnSpark:
    table = cursor.table()
    columns = _columns(cursor) if cursor.at("(") else None
    cursor.expect("FROM")
    source = _path(cursor, "files to read")
    given = _options(cursor, _FROM)
    file_format = given.pop("format")
    _check_csv(file_format, given)
    return RunOnSpark(CopyFrom(str(table), source, file_format, columns, **given))


def _copy_topic(cursor: Cursor) -> RunOnSpark:
    topic = cursor.topic()
    cursor.expect("TO")
    target = _path(cursor, "a directory")
    given = _options(cursor, _TO)
    return RunOnSpark(CopyTopic(str(topic), target, given.pop("format"), **given))


def _columns(cursor: Cursor) -> tuple[str, ...]:
    cursor.expect("(")
    names = [cursor.name("column")]
    while cursor.take(","):
        names.append(cursor.name("column"))
    cursor.expect(")")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"column {twice!r} is named twice", column=twice)
    return tuple(names)


def _path(cursor: Cursor, what: str) -> str:
    path = cursor.string(what)
    if not path.strip() or not path.isprintable():
        raise InvalidRequest(f"{what}: {path[:60]!r} is no path")
    return path


def _check_csv(file_format: FileFormat, given: Mapping[str, Any]) -> None:
    allowed = ("multiline",) if file_format is FileFormat.JSON else _OF_CSV if file_format is FileFormat.CSV else ()
    for name in _OF_CSV:
        if name in given and name not in allowed:
            raise InvalidRequest(f"option {name.upper()} does not go with FORMAT {file_format}", option=name)


# --- options ------------------------------------------------------------------------------------------------------


def _options(cursor: Cursor, known: Mapping[str, ReadValue]) -> dict[str, Any]:
    cursor.take("WITH")
    cursor.expect("(")
    options: dict[str, Any] = {}
    while True:
        name = _option_name(cursor, known)
        if name in options:
            raise InvalidRequest(f"option {name.upper()} is given twice", option=name)
        cursor.take("=")
        options[name] = known[name](cursor, name.upper())
        if not cursor.take(","):
            break
    cursor.expect(")")
    cursor.end()
    if "format" not in options:
        raise InvalidRequest("COPY needs to know the FORMAT of the files: ( FORMAT parquet )", option="format")
    return options


def _option_name(cursor: Cursor, known: Mapping[str, ReadValue]) -> str:
    name = cursor.option_name().text.lower()
    if name not in known:
        raise InvalidRequest(f"unknown option {name.upper()}: the options are {_listed(known)}", option=name)
    return name


def _listed(names: Mapping[str, ReadValue]) -> str:
    return ", ".join(name.upper() for name in names)


def _format_of(known: tuple[FileFormat, ...]) -> ReadValue:
    def read(cursor: Cursor, name: str) -> FileFormat:
        text = _word(cursor, name)
        found = next((each for each in known if each == text), None)
        if found is None:
            raise InvalidRequest(f"{name} is one of {', '.join(known)}, not {text[:40]!r}", option=name.lower())
        return found

    return read


def _mode(cursor: Cursor, name: str) -> CopyMode:
    text = _word(cursor, name)
    if text not in list(CopyMode):
        raise InvalidRequest(f"{name} is insert or upsert, not {text[:40]!r}", option=name.lower())
    return CopyMode(text)


def _word(cursor: Cursor, name: str) -> str:
    """As a word, or as a string."""
    token = cursor.next
    if token is not None and token.token_type is TokenType.STRING:
        return cursor.advance().text.lower()
    return cursor.option_name().text.lower()


def _flag(cursor: Cursor, name: str) -> bool:
    """HEADER alone means HEADER true."""
    if cursor.at(",") or cursor.at(")"):
        return True
    return cursor.boolean(name)


def _character(cursor: Cursor, name: str) -> str:
    text = cursor.string(name)
    if len(text) != 1 or text in "\r\n":
        raise InvalidRequest(f"{name} is one character, not {text[:40]!r}", option=name.lower())
    return text


def _text(cursor: Cursor, name: str) -> str:
    return cursor.string(name)


def _job(cursor: Cursor, name: str) -> str:
    text = cursor.string(name)
    if not text or not text.isprintable() or len(text.encode()) > MAX_JOB_BYTES:
        raise InvalidRequest(f"{name} is 1 to {MAX_JOB_BYTES} bytes of printable text", option=name.lower())
    return text


def _directory(cursor: Cursor, name: str) -> str:
    return _path(cursor, f"{name}: a directory")


def _commit_rows(cursor: Cursor, name: str) -> int:
    return cursor.integer(name, 1, MAX_COMMIT_ROWS)


def _count(cursor: Cursor, name: str) -> int:
    return cursor.integer(name)


def _table(cursor: Cursor, name: str) -> str:
    return str(cursor.table())


_FROM: dict[str, ReadValue] = {
    "format": _format_of(_READS),
    "mode": _mode,
    "header": _flag,
    "delimiter": _character,
    "quote": _character,
    "null": _text,
    "multiline": _flag,
    "rejects": _directory,
    "max_rejects": _count,
    "dry_run": _flag,
    "commit_rows": _commit_rows,
    "job": _job,
}
_TO: dict[str, ReadValue] = {
    "format": _format_of(_WRITES),
    "decode": _flag,
    "source_table": _table,
    "starting": _text,
    "ending": _text,
    "commit_rows": _commit_rows,
    "dry_run": _flag,
}
