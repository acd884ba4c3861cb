"""From changes to messages: which topics hear of a change, where, and in what words.

For every source of the change's table and op: the filter on the row (the after image, the before image of a delete;
only TRUE matches), the payload, and the partition:

    partition = xxh3_64(bytes) mod partitions

over the PARTITION BY value as a key element (codec.keys; NULL is no bytes), else over the row's own key (user and
primary key). One run of changes is routed at once, so payloads are encoded once per mode however many sources ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from tablecast.codec import keys
from tablecast.codec.log import MessageClass
from tablecast.core.expression import compile_expression, compile_filter
from tablecast.core.payload import PayloadEncoder
from tablecast.errors import ExpressionError, InvalidTopic
from tablecast.model.change import ChangeRun, Op
from tablecast.model.schema import TableSchema, TypeName
from tablecast.model.topic import Route, Topic

_TABLE_ID_BYTES = 4


class Append(NamedTuple):
    """Messages for one partition, in order, all of one class."""

    topic_id: int
    partition: int
    message_class: MessageClass
    keys: list[bytes]
    payloads: list[bytes]
    hashes: list[int]


class CompiledRoute(NamedTuple):
    topic_id: int
    topic_name: str
    partitions: int
    route: Route
    matches: Callable[[Any], Any] | None
    partition_bytes: Callable[[Any], bytes] | None


def partition_of(data: bytes, partitions: int) -> int:
    partition: int = xxh3_64_intdigest(data) % partitions
    return partition


def content_hash(op: Op, payload: bytes) -> int:
    """Identifies what a message says. The payload names its table and key, the op seeds the hash."""
    digest: int = xxh3_64_intdigest(payload, op)
    return digest


def compile_route(topic: Topic, route: Route, schema: TableSchema) -> CompiledRoute:
    matches = None if route.filter is None else compile_filter(route.filter, schema).row
    by_value = None if route.partition_by is None else _partition_bytes(route.partition_by, schema)
    return CompiledRoute(topic.topic_id, topic.full_name, topic.partitions, route, matches, by_value)


def _partition_bytes(expression: str, schema: TableSchema) -> Callable[[Any], bytes]:
    compiled = compile_expression(expression, schema)
    if compiled.type is None:
        raise InvalidTopic(f"PARTITION BY {expression} is always NULL: every message would go to one partition")
    if compiled.type.name is TypeName.JSON:
        raise InvalidTopic(f"PARTITION BY {expression} is JSON, which may write one value in several ways")
    evaluate, encode = compiled.row, keys.element(compiled.type)[0]

    def partition_bytes(row: Any) -> bytes:
        value = evaluate(row)
        return b"" if value is None else encode(value)

    return partition_bytes


def route_run(run: ChangeRun, routes: Sequence[CompiledRoute], encoder: PayloadEncoder, source: str) -> list[Append]:
    """Every message that one run of changes causes."""
    rows = run.before if run.op is Op.DELETE else run.after
    row_keys: list[bytes] | None = None
    said: dict[Any, tuple[list[bytes], list[int]]] = {}
    appends: list[Append] = []
    for compiled in routes:
        mode = compiled.route.payload
        if mode not in said:
            payloads = encoder.payloads(mode, run.op, run.before, run.after)
            seed = int(run.op)
            said[mode] = payloads, [xxh3_64_intdigest(payload, seed) for payload in payloads]
        if row_keys is None:
            row_keys = encoder.message_keys(rows)
        message_class = MessageClass(source, run.op, mode, run.user_id)
        everything = Append(compiled.topic_id, 0, message_class, row_keys, *said[mode])
        chosen = None if compiled.matches is None else _matching(compiled, rows)
        appends += _spread(compiled, run, rows, everything, chosen)
    return appends


def _matching(compiled: CompiledRoute, rows: Sequence[Any]) -> list[int]:
    matches = compiled.matches
    assert matches is not None
    try:
        return [i for i, row in enumerate(rows) if matches(row) is True]
    except ExpressionError as e:
        raise ExpressionError(
            f"the filter of topic {compiled.topic_name} cannot be evaluated for this row: {e.message}",
            topic=compiled.topic_name,
            filter=compiled.route.filter,
        ) from e


def _by_partition(
    compiled: CompiledRoute, run: ChangeRun, rows: Sequence[Any], chosen: Sequence[int]
) -> dict[int, list[int]]:
    """Which of the chosen rows go where; in each partition they keep their order."""
    by_value, partitions = compiled.partition_bytes, compiled.partitions
    found: dict[int, list[int]] = {}
    try:
        for i in chosen:
            data = run.keys[i][_TABLE_ID_BYTES:] if by_value is None else by_value(rows[i])
            found.setdefault(xxh3_64_intdigest(data) % partitions, []).append(i)
    except ExpressionError as e:
        raise ExpressionError(
            f"the PARTITION BY of topic {compiled.topic_name} cannot be evaluated for this row: {e.message}",
            topic=compiled.topic_name,
            partition_by=compiled.route.partition_by,
        ) from e
    return found


def _spread(
    compiled: CompiledRoute, run: ChangeRun, rows: Sequence[Any], everything: Append, chosen: list[int] | None
) -> list[Append]:
    """The chosen messages (None: all), each in the partition it belongs to."""
    if compiled.partitions == 1:
        if chosen is None:
            return [everything]
        return [picked(everything, chosen)] if chosen else []
    by_partition = _by_partition(compiled, run, rows, range(len(rows)) if chosen is None else chosen)
    return [picked(everything, mine)._replace(partition=partition) for partition, mine in by_partition.items()]


def picked(append: Append, chosen: list[int]) -> Append:
    """Only these of its messages."""
    return append._replace(
        keys=[append.keys[i] for i in chosen],
        payloads=[append.payloads[i] for i in chosen],
        hashes=[append.hashes[i] for i in chosen],
    )
