"""Pipelines.

    CREATE PIPELINE [IF NOT EXISTS] name INTO table [MODE insert | upsert | delete] AS query [WITH ( option, … )]
    START PIPELINE [IF EXISTS] name        STOP PIPELINE [IF EXISTS] name        DROP PIPELINE [IF EXISTS] name
    SHOW PIPELINES [IN namespace]          DESCRIBE PIPELINE name

    query  = Spark SQL; FROM and JOIN take TOPIC name and TABLE name           see spark_query
    option = trigger_seconds = n        starting = 'earliest' | 'latest'      dead_letter = 'topic'
           | watermark = '[column] delay'      checkpoint = 'directory'       max_messages = n
           | fail_on_data_loss = TRUE | FALSE

The text is split into words before Spark sees it, so strings are in single quotes with quotes doubled; names with
strange letters are in backticks, as Spark has them.
"""

from __future__ import annotations

import re

from sqlglot.tokenizer_core import TokenType

from tablecast.errors import InvalidPipeline
from tablecast.model.pipeline import PipelineMode, PipelineOptions
from tablecast.sql.options import ReadOption, parse_options
from tablecast.sql.spark_query import parse_query
from tablecast.sql.statements import (
    CreatePipeline,
    DescribePipeline,
    DropPipeline,
    ShowPipelines,
    StartPipeline,
    StopPipeline,
    TableName,
)
from tablecast.sql.tokens import Cursor, check_dotted

MAX_TRIGGER_SECONDS = 86_400.0  # a pipeline that runs less often than daily is a job for cron and --once
MAX_MESSAGES = 1_000_000  # of a topic in one batch: what one commit takes

_WATERMARK = re.compile(r"(?:([A-Za-z_][A-Za-z0-9_]*)\s+)?(\d+)\s*(second|minute|hour|day)s?\Z", re.IGNORECASE)


# --- options ---


def _trigger(cursor: Cursor, option: str) -> float:
    token = cursor.next
    text = token.text if token is not None and token.token_type is TokenType.NUMBER else ""
    if not text:
        raise cursor.fail(f"{option} as a number of seconds")
    cursor.advance()
    seconds = float(text)
    if not 0 <= seconds <= MAX_TRIGGER_SECONDS:
        raise InvalidPipeline(f"{option} is from 0 to {MAX_TRIGGER_SECONDS:.0f}", option=option)
    return seconds


def _starting(cursor: Cursor, option: str) -> str:
    text = cursor.string(option).lower()
    if text not in ("earliest", "latest"):
        raise InvalidPipeline(f"{option} = {text!r}: it is earliest or latest", option=option)
    return text


def _dead_letter(cursor: Cursor, option: str) -> str:
    return str(cursor.topic_option(option, InvalidPipeline))


def _watermark(cursor: Cursor, option: str) -> str:
    """As `column delay`; the column is `_ts` unless it is named."""
    text = cursor.string(option).strip()
    found = _WATERMARK.match(text)
    if found is None:
        raise InvalidPipeline(
            f"{option} = {text[:60]!r}: it is a delay, as '10 minutes', or a column and a delay, as 'at 2 hours'",
            option=option,
        )
    column, count, unit = found.groups()
    return f"{(column or '_ts').lower()} {count} {unit.lower()}s"


def _text(cursor: Cursor, option: str) -> str:
    text = cursor.string(option)
    if not text or not text.isprintable():
        raise InvalidPipeline(f"{option} is a directory, not {text[:60]!r}", option=option)
    return text


def _messages(cursor: Cursor, option: str) -> int:
    return cursor.integer(option, 1, MAX_MESSAGES)


def _flag(cursor: Cursor, option: str) -> bool:
    return cursor.boolean(option)


_OPTIONS: dict[str, ReadOption] = {
    "trigger_seconds": _trigger,
    "starting": _starting,
    "dead_letter": _dead_letter,
    "watermark": _watermark,
    "checkpoint": _text,
    "max_messages": _messages,
    "fail_on_data_loss": _flag,
}


# --- statements ---


def _pipeline(cursor: Cursor) -> TableName:
    return check_dotted(cursor.dotted("pipeline"), "pipeline", InvalidPipeline)


def parse_create_pipeline(cursor: Cursor) -> CreatePipeline:
    exists = cursor.take("IF", "NOT", "EXISTS")
    name = _pipeline(cursor)
    cursor.expect("INTO")
    target = cursor.table()
    mode = _mode(cursor) if cursor.take("MODE") else PipelineMode.UPSERT
    cursor.expect("AS")
    tokens = cursor.until(("WITH", "("))
    if not tokens:
        raise cursor.fail("a query: SELECT … FROM TOPIC …")
    query = parse_query(cursor.source.show(tokens[0], tokens[-1]))
    given = parse_options(cursor, _OPTIONS, InvalidPipeline) if cursor.take("WITH") else {}
    cursor.end("WITH (…) or the end of the statement")
    return CreatePipeline(name, target, mode, query.text, query.inputs, query.tree, PipelineOptions(**given), exists)


def _mode(cursor: Cursor) -> PipelineMode:
    mode = next((mode for mode in PipelineMode if cursor.take(mode.upper())), None)
    if mode is None:
        raise cursor.fail(" or ".join(PipelineMode) + " after MODE")
    return mode


def parse_start_pipeline(cursor: Cursor) -> StartPipeline:
    return StartPipeline(*_named(cursor))


def parse_stop_pipeline(cursor: Cursor) -> StopPipeline:
    return StopPipeline(*_named(cursor))


def parse_drop_pipeline(cursor: Cursor) -> DropPipeline:
    return DropPipeline(*_named(cursor))


def _named(cursor: Cursor) -> tuple[TableName, bool]:
    exists = cursor.take("IF", "EXISTS")
    name = _pipeline(cursor)
    cursor.end()
    return name, exists


def parse_show_pipelines(cursor: Cursor) -> ShowPipelines:
    namespace = cursor.name("namespace") if cursor.take("IN") or cursor.take("FROM") else None
    cursor.end("IN namespace or the end of the statement")
    return ShowPipelines(namespace)


def parse_describe_pipeline(cursor: Cursor) -> DescribePipeline:
    name = _pipeline(cursor)
    cursor.end()
    return DescribePipeline(name)
