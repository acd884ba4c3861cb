"""Rows as an Arrow stream, from somebody we don't know: nothing is decoded that could grow beyond the body.

A few bytes of Arrow can stand for any amount of memory: compressed buffers, a dictionary's one long value named a
million times, a column of nulls that has a length and nothing else. So a stream is read message by message; compressed
batches, columns that share values and more rows than `MAX_ARROW_ROWS` are refused before they are unfolded, and every
batch is validated, because its offsets are followed without a check later on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from tablecast.errors import InvalidRequest, TooLarge

MAX_ARROW_ROWS = 1_000_000  # rows of one request: as many as a transaction may change
_HEADER, _COMPRESSION = 2, 3  # fields of the flatbuffer tables Message and RecordBatch
_SHARING = (
    pa.types.is_dictionary,
    pa.types.is_run_end_encoded,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_nested,
)


def decode_arrow(body: bytes) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
        schema = _schema(messages)
        for batch in _batches(messages, schema):
            batches.append(batch)
            _check_rows(sum(b.num_rows for b in batches))
        return pa.Table.from_batches(batches, schema=schema)
    except (pa.ArrowException, OSError, StopIteration, struct.error, ValueError) as e:
        said = str(e) or "it has no schema"
        raise InvalidRequest(
            f"the body is not a whole Arrow stream: {said}, after {len(batches)} record batches", batches=len(batches)
        ) from None


def _schema(messages: pa.ipc.MessageReader) -> pa.Schema:
    schema = pa.ipc.read_schema(messages.read_next_message())
    for field in schema:
        if any(shares(field.type) for shares in _SHARING):
            raise InvalidRequest(
                f"column {field.name!r} is {field.type}: cast it to a plain type before sending", column=field.name
            )
    return schema


def _batches(messages: pa.ipc.MessageReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for message in messages:
        if message.type != "record batch":
            raise InvalidRequest(f"an Arrow message of type {message.type!r} among the record batches")
        if _is_compressed(message.metadata.to_pybytes()):
            raise InvalidRequest("the record batches are compressed: send them plain, or the body with gzip")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        yield batch


def _check_rows(rows: int) -> None:
    if rows > MAX_ARROW_ROWS:
        raise TooLarge(f"the stream has more than {MAX_ARROW_ROWS} rows: send several", limit=MAX_ARROW_ROWS)


def _is_compressed(metadata: bytes) -> bool:
    """Whether the flatbuffer of a record batch has its field `compression` set."""
    (root,) = struct.unpack_from("<I", metadata, 0)
    header = _field(metadata, root, _HEADER)
    if header is None:
        raise InvalidRequest("a record batch without its header")
    (step,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + step, _COMPRESSION) is not None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where a table's field is, None if it is not set."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    slot = 4 + 2 * number
    if slot >= size:
        return None
    (at,) = struct.unpack_from("<H", data, vtable + slot)
    return table + at if at else None
