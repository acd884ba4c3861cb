"""Parts of loads for tests: Arrow streams, and sealed parts made row by row with the codecs that the engine reads with.

The sealer here shares nothing with `core.seal` but formats: what both make, the engine must take.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tablecast.codec.log import encode_log_batch
from tablecast.codec.rows import loaded_row_header
from tablecast.codec.sealed import write_sealed
from tablecast.core.routing import route_run
from tablecast.engine.catalog import Table, compile_table
from tablecast.engine.loads import LoadInfo
from tablecast.model.change import ChangeRun, Op
from tablecast.storage.sst import write_sst


def arrow_part(*batches: pa.Table | pa.RecordBatch) -> io.BytesIO:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write(batch)
    sink.seek(0)
    return sink


def table_of(info: LoadInfo) -> Table:
    return compile_table(info.table, {topic.topic_id: topic for topic, _ in info.routes}.values())


def sealed_part(
    info: LoadInfo, rows: Iterable[Sequence[Any]], *, load_number: int | None = None, batch_messages: int = 1000
) -> io.BytesIO:
    """Rows are tuples of values in the table's order, in the order of their messages."""
    table = table_of(info)
    codec = table.codec
    made = [codec.struct(*values) for values in rows]
    keys = codec.keys_of_rows(codec.prefix(None), made)
    number = info.load_number if load_number is None else load_number
    header = loaded_row_header(number)
    stored = sorted(zip(keys, [header + codec.encode(row) for row in made], strict=True))
    with tempfile.TemporaryDirectory() as directory:
        sst = Path(directory, "rows.sst")
        if stored:
            write_sst(sst, [key for key, _ in stored], [value for _, value in stored])
        out = io.BytesIO()
        with sst.open("rb") if stored else io.BytesIO() as file:
            write_sealed(
                out,
                table_id=info.table.table_id,
                load_number=number,
                row_keys=pa.array([key for key, _ in stored], pa.binary()),
                sst=file,
                sst_size=sst.stat().st_size if stored else 0,
                batches=_log_batches(table, keys, made, batch_messages),
            )
    out.seek(0)
    return out


def _log_batches(table: Table, keys: list[bytes], rows: list[Any], size: int) -> list[tuple[int, int, int, bytes]]:
    found = []
    run = ChangeRun(table.table_id, table.schema.version, Op.INSERT, keys, [], rows, [], None)
    for append in route_run(run, table.routes[Op.INSERT], table.payload, table.schema.full_name) if rows else []:
        for at in range(0, len(append.keys), size):
            part = slice(at, at + size)
            batch = encode_log_batch(
                [append.message_class], [0] * len(append.keys[part]), append.keys[part], append.payloads[part],
                append.hashes[part],
            )  # fmt: skip
            found.append((append.topic_id, append.partition, len(append.keys[part]), batch))
    return found
