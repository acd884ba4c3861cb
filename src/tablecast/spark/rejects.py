"""Rows that a COPY could not load, each with its reason, as lines of JSON:

    {"file": "…/orders.csv", "column": "amount", "code": "type_mismatch", "reason": "…", "row": {"id": "7", …}}
    {"file": "…/orders.csv", "column": null, "code": "malformed", "reason": "…", "line": "7,ann,12,13"}

`row` is what the file gave, complete, so that it can be mended and loaded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from tempfile import SpooledTemporaryFile
from typing import Any, Self

import msgspec
import pyarrow as pa

from tablecast.core.seal_judge import Reject
from tablecast.spark.task import local_directory

MALFORMED = "malformed"
SPOOLED_BYTES = 4 * 2**20  # of rejects in memory; beyond, they are in a file until the task is over
LINES_AT_ONCE = 10_000
_encode = msgspec.json.Encoder(enc_hook=str).encode


def reject_line(file: str | None, reject: Reject, row: Mapping[str, Any]) -> bytes:
    given = {name: _as_given(value) for name, value in row.items()}
    told = {"file": file, "column": reject.column, "code": reject.code, "reason": reject.reason, "row": given}
    return _encode(told)


def malformed_line(file: str | None, line: str) -> bytes:
    reason = "the line has not the columns or the form that it should have"
    return _encode({"file": file, "column": None, "code": MALFORMED, "reason": reason, "line": line})


def _as_given(value: Any) -> Any:
    """Bytes are base64 and dates text, as JSON has them; what it has no form for is text too."""
    return str(value) if isinstance(value, float) and value - value != 0.0 else value


class RejectLines:
    """The rejects of one task, kept until it gives them to Spark."""

    def __init__(self, first: int) -> None:
        self._spool = SpooledTemporaryFile(SPOOLED_BYTES, dir=local_directory())  # noqa: SIM115 - closed by __exit__
        self._most_first = first
        self.first: list[str] = []
        """The reasons of the first ones."""
        self.count = 0

    def add(self, line: bytes, reason: str) -> None:
        self._spool.write(line + b"\n")
        self.count += 1
        if len(self.first) < self._most_first:
            self.first.append(reason)

    def texts(self) -> Iterator[pa.Array]:
        self._spool.seek(0)
        lines: list[str] = []
        for line in self._spool:
            lines.append(line[:-1].decode())
            if len(lines) == LINES_AT_ONCE:
                yield pa.array(lines, pa.string())
                lines = []
        if lines:
            yield pa.array(lines, pa.string())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spool.close()
