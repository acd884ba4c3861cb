"""Topics, their sources and their consumer groups.

    CREATE TOPIC [IF NOT EXISTS] topic [ALIAS 'name'] [PARTITIONS n] [WITH ( option, … )]
    ALTER TOPIC topic ADD SOURCE table ON ops [WHERE condition] [PARTITION BY expression] [WITH ( source, … )]
    ALTER TOPIC topic DROP SOURCE table [ON ops]
    ALTER TOPIC topic SET ( option, … )
    ALTER TOPIC topic RENAME TO topic
    ALTER TOPIC topic SET ALIAS 'name' | NULL
    DROP TOPIC [IF EXISTS] topic
    CLEAR TOPIC topic
    CONSUME FROM topic [GROUP 'group'] [FROM start] [PARTITION p] [LIMIT n]
    ACK topic GROUP 'group' [PARTITION p] UPTO OFFSET n | OFFSET n, …
    NACK topic GROUP 'group' [PARTITION p] OFFSET n, …
    REDRIVE TOPIC topic [PARTITION p] [OFFSET n | ALL]
    RESET GROUP 'group' ON topic [PARTITION p] TO start

    ops = ANY | INSERT | UPDATE | DELETE, …
    start = EARLIEST | LATEST | OFFSET n | TIMESTAMP 'ISO 8601'                 without a zone, UTC is meant
    option = retention_seconds = n | NULL      retention_max_bytes = n | NULL      dedup_window_seconds = n
           | max_deliveries = n                dead_letter = 'topic' | NULL
    source = payload = 'key' | 'full' | 'diff'      backfill = TRUE | FALSE | 'spark'      dry_run = TRUE | FALSE

The text of WHERE and PARTITION BY is kept as it was written, after it was parsed: a filter that cannot be
read is an error now, not a filter that matches nothing later.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tablecast.engine.engine import MAX_CONSUME
from tablecast.errors import InvalidTopic
from tablecast.model.change import Op
from tablecast.model.names import read_part, spelled_part
from tablecast.model.position import EARLIEST, LATEST, Start, StartKind
from tablecast.model.spark_job import Backfill
from tablecast.model.topic import PayloadMode
from tablecast.sql.options import ReadOption, parse_options
from tablecast.sql.statements import (
    Ack,
    AddSource,
    ClearTopic,
    Consume,
    CreateTopic,
    DropSource,
    DropTopic,
    Nack,
    Redrive,
    RenameTopic,
    ResetGroup,
    RunOnSpark,
    SetAlias,
    SetTopic,
    TableName,
    TopicOptions,
)
from tablecast.sql.syntax import parse_expression
from tablecast.sql.tokens import Cursor, check_name

MAX_PARTITIONS = 1024
MAX_SECONDS = 100 * 366 * 86_400  # a century

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ON_SPARK = "spark"
_ALL_OPS = (Op.INSERT, Op.UPDATE, Op.DELETE)


# --- options ---


def _whole(high: int | None = None, nullable: bool = False) -> ReadOption:
    """A number from 0, or, where NULL can say "none", from 1."""

    def read(cursor: Cursor, option: str) -> int | None:
        if nullable and cursor.take("NULL"):
            return None
        if cursor.at("NULL"):
            raise InvalidTopic(f"{option} = NULL: it is a number, and 0 turns it off", option=option)
        low = 1 if nullable else 0
        if cursor.at("-") or (nullable and cursor.at("0")):
            off = "NULL" if nullable else "0"
            raise InvalidTopic(f"{option} is a number from {low}: {off} means no limit", option=option)
        return cursor.integer(option, low, high) if high else cursor.integer(option, low)

    return read


def _dead_letter(cursor: Cursor, option: str) -> TableName | None:
    if cursor.take("NULL"):
        return None
    return cursor.topic_option(option, InvalidTopic)


def _payload(cursor: Cursor, option: str) -> PayloadMode:
    text = cursor.string(option)
    if text.lower() not in list(PayloadMode):
        raise InvalidTopic(f"{option} = {text!r}: it is one of {', '.join(PayloadMode)}", option=option)
    return PayloadMode(text.lower())


def _backfill(cursor: Cursor, option: str) -> bool | str:
    if cursor.at("TRUE") or cursor.at("FALSE"):
        return cursor.boolean(option)
    if cursor.next is None or cursor.next.text.lower() != _ON_SPARK:
        raise cursor.fail(f"TRUE or FALSE, or '{_ON_SPARK}', for {option}")
    return cursor.string(option).lower()


def _dry_run(cursor: Cursor, option: str) -> bool:
    return cursor.boolean(option)


_TOPIC_OPTIONS: dict[str, ReadOption] = {
    "retention_seconds": _whole(MAX_SECONDS, nullable=True),
    "retention_max_bytes": _whole(nullable=True),
    "dedup_window_seconds": _whole(MAX_SECONDS),
    "max_deliveries": _whole(),
    "dead_letter": _dead_letter,
}
_SOURCE_OPTIONS: dict[str, ReadOption] = {"payload": _payload, "backfill": _backfill, "dry_run": _dry_run}


def _topic_options(cursor: Cursor, topic: TableName) -> TopicOptions:
    options = TopicOptions(**parse_options(cursor, _TOPIC_OPTIONS, InvalidTopic))
    if options.dead_letter == topic:
        raise InvalidTopic(f"topic {topic} cannot be its own dead-letter topic")
    return options


# --- CREATE, DROP, CLEAR ---


def parse_create_topic(cursor: Cursor) -> CreateTopic:
    exists = cursor.take("IF", "NOT", "EXISTS")
    topic = cursor.topic()
    alias = _alias(cursor) if cursor.take("ALIAS") else None
    partitions = _partitions(cursor, topic) if cursor.take("PARTITIONS") else 1
    options = _topic_options(cursor, topic) if cursor.take("WITH") else TopicOptions()
    cursor.end("ALIAS, PARTITIONS, WITH (…), in this order, or the end of the statement")
    return CreateTopic(topic, alias, partitions, options, exists)


def _alias(cursor: Cursor) -> str:
    return spelled_part(check_name(read_part(cursor.string("the alias")), "alias", InvalidTopic))


def _partitions(cursor: Cursor, topic: TableName) -> int:
    partitions = cursor.integer("the number of partitions", low=-1)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidTopic(f"topic {topic}: PARTITIONS is from 1 to {MAX_PARTITIONS}, not {partitions}")
    return partitions


def parse_drop_topic(cursor: Cursor) -> DropTopic:
    exists = cursor.take("IF", "EXISTS")
    topic = cursor.topic()
    cursor.end()
    return DropTopic(topic, exists)


def parse_clear_topic(cursor: Cursor) -> ClearTopic:
    topic = cursor.topic()
    cursor.end()
    return ClearTopic(topic)


# --- ALTER ---


def parse_alter_topic(cursor: Cursor) -> AddSource | DropSource | SetTopic | RenameTopic | SetAlias | RunOnSpark:
    topic = cursor.topic()
    if cursor.take("ADD", "SOURCE"):
        return _add_source(cursor, topic)
    if cursor.take("DROP", "SOURCE"):
        return _drop_source(cursor, topic)
    if cursor.take("RENAME", "TO"):
        to = cursor.topic()
        cursor.end()
        return RenameTopic(topic, to)
    if cursor.take("SET", "ALIAS"):
        alias = None if cursor.take("NULL") else _alias(cursor)
        cursor.end()
        return SetAlias(topic, alias)
    if cursor.take("SET"):
        options = _topic_options(cursor, topic)
        cursor.end()
        return SetTopic(topic, options)
    raise cursor.fail("ADD SOURCE, DROP SOURCE, RENAME TO, SET ALIAS or SET (…)")


def _add_source(cursor: Cursor, topic: TableName) -> AddSource | RunOnSpark:
    table = cursor.table()
    cursor.expect("ON")
    ops = _ops(cursor)
    where = _stored(cursor, "WHERE", ("PARTITION", "BY"), ("WITH",)) if cursor.take("WHERE") else None
    by = _stored(cursor, "PARTITION BY", ("WITH",)) if cursor.take("PARTITION", "BY") else None
    options = parse_options(cursor, _SOURCE_OPTIONS, InvalidTopic) if cursor.take("WITH") else {}
    cursor.end("WHERE, PARTITION BY, WITH (…), in this order, or the end of the statement")
    dry_run = options.pop("dry_run", False)
    if options.get("backfill") == _ON_SPARK:
        said = options.get("payload", PayloadMode.FULL)
        return RunOnSpark(Backfill(str(topic), str(table), tuple(op.label for op in ops), where, by, said, dry_run))
    if dry_run:
        raise InvalidTopic(f"dry_run goes with backfill = '{_ON_SPARK}': nothing else takes long", option="dry_run")
    return AddSource(topic, table, ops, where, by, **options)


def _stored(cursor: Cursor, place: str, *stops: tuple[str, ...]) -> str:
    """The text of an expression, once it is sure to be one."""
    tokens = cursor.until(*stops)
    if not tokens:
        raise cursor.fail(f"an expression after {place}")
    parse_expression(cursor.source, tokens, place)
    return cursor.source.show(tokens[0], tokens[-1])


def _drop_source(cursor: Cursor, topic: TableName) -> DropSource:
    table = cursor.table()
    ops = _ops(cursor) if cursor.take("ON") else _ALL_OPS
    cursor.end("ON … or the end of the statement")
    return DropSource(topic, table, ops)


def _ops(cursor: Cursor) -> tuple[Op, ...]:
    if cursor.take("ANY"):
        return _ALL_OPS
    ops: set[Op] = set()
    while True:
        op = next((op for op in Op if cursor.take(op.name)), None)
        if op is None:
            raise cursor.fail("INSERT, UPDATE, DELETE or ANY")
        if op in ops:
            raise InvalidTopic(f"ON names {op.name} twice", op=op.label)
        ops.add(op)
        if not cursor.take(","):
            return tuple(sorted(ops))


# --- reading ---


def parse_consume(cursor: Cursor) -> Consume:
    topic = cursor.topic()
    group = cursor.label("group") if cursor.take("GROUP") else None
    start = _start(cursor) if cursor.take("FROM") else None
    partition = _partition(cursor)
    limit = cursor.integer("LIMIT", 1, MAX_CONSUME) if cursor.take("LIMIT") else None
    cursor.end("GROUP, FROM, PARTITION, LIMIT, in this order, or the end of the statement")
    return Consume(topic, group, start, partition, limit)


def parse_ack(cursor: Cursor) -> Ack:
    topic, group, partition = _member(cursor)
    if cursor.take("UPTO", "OFFSET"):
        ack = Ack(topic, group, partition, upto=cursor.integer("OFFSET"))
    else:
        ack = Ack(topic, group, partition, offsets=_offsets(cursor, "UPTO OFFSET or OFFSET"))
    cursor.end()
    return ack


def parse_nack(cursor: Cursor) -> Nack:
    topic, group, partition = _member(cursor)
    offsets = _offsets(cursor, "OFFSET")
    cursor.end()
    return Nack(topic, group, offsets, partition)


def _member(cursor: Cursor) -> tuple[TableName, str, int | None]:
    topic = cursor.topic()
    cursor.expect("GROUP")
    return topic, cursor.label("group"), _partition(cursor)


def _offsets(cursor: Cursor, expected: str) -> tuple[int, ...]:
    if not cursor.take("OFFSET"):
        raise cursor.fail(expected)
    offsets = [cursor.integer("OFFSET")]
    while cursor.take(","):
        offsets.append(cursor.integer("OFFSET"))
    return tuple(offsets)


def parse_redrive(cursor: Cursor) -> Redrive:
    topic = cursor.topic()
    partition = _partition(cursor)
    offset = None if cursor.take("ALL") or not cursor.take("OFFSET") else cursor.integer("OFFSET")
    cursor.end("OFFSET, ALL or the end of the statement")
    return Redrive(topic, partition, offset)


def parse_reset_group(cursor: Cursor) -> ResetGroup:
    group = cursor.label("group")
    cursor.expect("ON")
    topic = cursor.topic()
    partition = _partition(cursor)
    cursor.expect("TO")
    start = _start(cursor)
    cursor.end()
    return ResetGroup(topic, group, start, partition)


def _partition(cursor: Cursor) -> int | None:
    return cursor.integer("PARTITION", 0, MAX_PARTITIONS - 1) if cursor.take("PARTITION") else None


def _start(cursor: Cursor) -> Start:
    if cursor.take("EARLIEST"):
        return EARLIEST
    if cursor.take("LATEST"):
        return LATEST
    if cursor.take("OFFSET"):
        return Start(StartKind.OFFSET, cursor.integer("OFFSET"))
    if cursor.take("TIMESTAMP"):
        return Start(StartKind.TIMESTAMP, _milliseconds(cursor))
    raise cursor.fail("EARLIEST, LATEST, OFFSET n or TIMESTAMP '…'")


def _milliseconds(cursor: Cursor) -> int:
    """Times before 1970 are the earliest there can be: 0."""
    token, text = cursor.next, cursor.string("a time")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None and token is not None:
        raise cursor.source.error(f"{text!r} is not a time: write 2031-05-17T09:30:00Z", token.start)
    return 0 if moment is None else max(0, (_in_utc(moment) - _EPOCH) // timedelta(milliseconds=1))


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
