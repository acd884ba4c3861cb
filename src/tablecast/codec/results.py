"""Results as bytes: what a request with an idempotency key was answered, kept to be given again.

MessagePack of one `_Answer` per statement. Rows are an Arrow stream, which keeps every type; None for a statement that
has no rows to show.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from tablecast.codec.result import Result
from tablecast.errors import CorruptData


class _Answer(msgspec.Struct, frozen=True):
    message: str
    row_count: int
    rows: bytes | None
    seq_columns: tuple[int, ...] = ()


def encode_results(results: Sequence[Result]) -> bytes:
    return msgspec.msgpack.encode(
        [
            _Answer(r.message, r.row_count, _encode_rows(r.arrow()) if r.is_query else None, r.seq_columns)
            for r in results
        ]
    )


def decode_results(data: bytes, seq: int | None) -> list[Result]:
    """The results as they were, of the commit `seq`."""
    try:
        answers = msgspec.msgpack.decode(data, type=list[_Answer])
    except msgspec.MsgspecError as e:
        raise CorruptData(f"the answer remembered for an idempotency key does not decode: {e}") from e
    return [_result(answer, seq) for answer in answers]


def _result(answer: _Answer, seq: int | None) -> Result:
    if answer.rows is None:
        return Result.of_write(answer.row_count, answer.message, seq)
    result = Result.of_arrow(pa.ipc.open_stream(answer.rows).read_all())
    result.message, result.row_count, result.seq_columns = answer.message, answer.row_count, answer.seq_columns
    return result.with_seq(seq)


def _encode_rows(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded
