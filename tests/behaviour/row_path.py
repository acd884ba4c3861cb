"""The row path as a reference for sealing: rows one by one through the codecs that every write goes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tablecast.codec.log import NOWHERE
from tablecast.codec.rows import loaded_row_header, row_codec
from tablecast.core.expression import compile_filter
from tablecast.core.payload import payload_encoder
from tablecast.core.routing import compile_route, route_run
from tablecast.core.row_rules import check_row, duplicate_key, encode_rows
from tablecast.core.seal import Sealer
from tablecast.core.seal_log import without
from tablecast.core.seal_values import LoadValues
from tablecast.engine.logs import Appended
from tablecast.errors import TablecastError
from tablecast.model.change import ChangeRun, Op
from tablecast.model.schema import TableSchema
from tablecast.model.topic import Route, Topic


@dataclass
class Made:
    """What rows become: what a sealer must make of them, byte for byte."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    batches: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    rejects: list[tuple[int, str, str]] = field(default_factory=list)


def written(
    schema: TableSchema,
    routes: Sequence[tuple[Topic, Route]],
    load_number: int,
    values: LoadValues,
    names: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> Made:
    codec, encoder = row_codec(schema), payload_encoder(schema)
    checks = [compile_filter(check, schema) for check in schema.checks]
    compiled = [compile_route(topic, route, schema) for topic, route in routes if Op.INSERT in route.ops]
    build = codec.builder(tuple(names))
    made, taken = Made(), ChangeRun(schema.table_id, schema.version, Op.INSERT, [], [], [], [], None)
    for number, given in enumerate(rows):
        try:
            row = build(given, values)
            check_row(schema, checks, row)
            bodies = encode_rows(schema, codec.encode, [row])
            keys = codec.keys_of_rows(codec.prefix(None), [row])
            alone = ChangeRun(schema.table_id, schema.version, Op.INSERT, keys, [], [row], bodies, None)
            route_run(alone, compiled, encoder, schema.full_name)
            if keys[0] in taken.keys:
                raise duplicate_key(schema, codec.decode_key(keys[0], len(codec.prefix(None))))
        except TablecastError as error:
            made.rejects.append((number, error.code, error.message))
            continue
        taken.keys.append(keys[0])
        taken.after.append(row)
        taken.bodies.append(bodies[0])
    header = loaded_row_header(load_number)
    for key, body in sorted(zip(taken.keys, taken.bodies, strict=True)):
        made.keys.append(key)
        made.values.append(header + body)
    appended: dict[tuple[int, int], Appended] = {}
    for append in route_run(taken, compiled, encoder, schema.full_name):
        if append.keys:
            appended.setdefault((append.topic_id, append.partition), Appended()).add(append)
    for where, messages in appended.items():
        made.batches[where] = [messages.encode(start, stop, NOWHERE) for start, stop in messages.cuts()]
    return made


def sealed(sealer: Sealer, batches: Sequence[pa.RecordBatch]) -> Made:
    """What a sealer makes of them, as one part."""
    made = Made()

    def emit(topic_id: int, partition: int, count: int, batch: bytes) -> None:
        made.batches.setdefault((topic_id, partition), []).append(batch)

    for batch in batches:
        sealer.add(batch, emit)
    part = sealer.part(emit)
    made.keys = part.keys.to_pylist()
    made.values = [value for block in part.values for value in block.to_pylist()]
    for where, places in part.left_out.items():
        made.batches[where] = [batch for _, batch in without(made.batches[where], places)]
    made.batches = {where: found for where, found in made.batches.items() if found}
    made.rejects = sorted((reject.row, reject.code, reject.reason) for reject in sealer.rejects)
    return made
