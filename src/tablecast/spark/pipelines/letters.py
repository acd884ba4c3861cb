"""Rows of a task that do not fit their table, on their way to the dead-letter topic: lines of JSON, one letter each.

Without such a topic they are counted only, and the first one is told of: it fails the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from tempfile import SpooledTemporaryFile
from typing import Any, Self

import msgspec
import pyarrow as pa

from tablecast.core.seal_judge import Reject
from tablecast.core.shown import shown
from tablecast.model.names import spelled
from tablecast.model.pipeline import LoadLetter, Pipeline
from tablecast.spark.task import local_directory

MAX_LETTERS = 10_000  # of a batch: more bad rows than that are a wrong query, not bad rows
SPOOLED_BYTES = 4 * 2**20  # of letters in memory; beyond, they are in a file until they are sent
_PIECE_BYTES = 2**20
_encode = msgspec.json.Encoder().encode


class Letters:
    """`count` goes on beyond what is kept: the batch fails then, and says how many there are."""

    def __init__(self, pipeline: Pipeline, primary_key: Sequence[str], batch_id: int) -> None:
        self._pipeline, self._primary_key, self._batch_id = pipeline, primary_key, batch_id
        self._spool = SpooledTemporaryFile(SPOOLED_BYTES, dir=local_directory())  # noqa: SIM115 - closed by __exit__
        self.count = self.kept = 0
        self.reason = ""
        self.column: str | None = None

    def add(self, batch: pa.RecordBatch, rejects: Sequence[Reject]) -> None:
        """`batch` has the target's names; `rejects` are of its rows."""
        if rejects and not self.count:
            self.reason, self.column = rejects[0].reason, rejects[0].column
        self.count += len(rejects)
        topic = self._pipeline.options.dead_letter
        if topic is not None:
            to = spelled(topic)
            for reject in rejects[: MAX_LETTERS - self.kept]:
                self._spool.write(_encode(self._letter(to, reject, _row(batch, reject.row))) + b"\n")
                self.kept += 1

    def _letter(self, topic: str, reject: Reject, row: dict[str, Any]) -> LoadLetter:
        key = _encode([row.get(name) for name in self._primary_key]).decode()
        return LoadLetter(
            topic, self._pipeline.full_name, reject.reason, row, key, reject.code, reject.column, self._batch_id
        )

    def pieces(self) -> Iterator[bytes]:
        self._spool.seek(0)
        while piece := self._spool.read(_PIECE_BYTES):
            yield piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spool.close()


def _row(batch: pa.RecordBatch, at: int) -> dict[str, Any]:
    return shown({name: _value(column[at]) for name, column in zip(batch.schema.names, batch.columns, strict=True)})


def _value(scalar: pa.Scalar) -> Any:
    """Some values are rejected because Python has none like them: a year beyond 9999."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return f"{scalar.value} as {scalar.type}"
