"""What sealing makes of a few rows, to the byte: tests/unit/golden/seal/*.txt, which other implementations may check too.

The bytes are those of the formats' pages. To take over a wanted change, run this file as a program and read the diff.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tablecast.codec.arrow_types import arrow_type
from tablecast.codec.log import LogBatch
from tablecast.core.seal import Sealer
from tablecast.core.seal_values import LoadValues
from tablecast.model.change import Op
from tablecast.model.schema import Column, ColumnType, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode, Route, Topic

GOLDEN = Path(__file__).parent / "golden" / "seal"
T = TypeName
ORDERS = TableSchema(
    7, "app", "orders", TableKind.SHARED,
    (
        Column("id", ColumnType(T.BIGINT)),
        Column("customer", ColumnType(T.TEXT), True),
        Column("amount", ColumnType(T.DECIMAL, 12, 2)),
        Column("status", ColumnType(T.TEXT)),
        Column("quantity", ColumnType(T.INT)),
        Column("created_at", ColumnType(T.TIMESTAMP)),
    ),
    ("id",),
)  # fmt: skip
ORDER_ROWS: list[tuple[Any, ...]] = [
    (42, "ann", Decimal("12.50"), "new", 1, datetime(2022, 1, 1, tzinfo=UTC)),
    (-1, 'say "hi"\n', Decimal("0.00"), None, -200, datetime(1969, 12, 31, 23, 59, 59, 5, UTC)),
    (2**63 - 1, "é" * 20, Decimal("-9999999999.99"), "", 70_000, datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)),
    (7, "bob", None, "paid", None, None),
]
TYPES = TableSchema(
    258, "app", "types", TableKind.SHARED,
    tuple(
        Column(name, kind)
        for name, kind in {
            "b": ColumnType(T.BOOLEAN), "s": ColumnType(T.SMALLINT), "f": ColumnType(T.FLOAT), "d": ColumnType(T.DOUBLE),
            "tiny": ColumnType(T.DECIMAL, 38, 10), "y": ColumnType(T.BYTES), "j": ColumnType(T.JSON),
            "day": ColumnType(T.DATE), "at": ColumnType(T.TIME), 'odd "name"': ColumnType(T.TEXT),
        }.items()
    ),
    ("day", "y"),
)  # fmt: skip
TYPE_ROWS: list[tuple[Any, ...]] = [
    (True, -129, 0.1, 0.1, Decimal("1E-10"), b"\x00\xff", '{"a": [1, 2.50]}', date(2022, 1, 2), time(3, 4, 5, 6), "x"),
    (False, 255, -0.0, 1e300, Decimal("-1.5000000000"), b"", "null", date(1, 1, 1), time(3, 4, 5), None),
]
SCENES: dict[str, tuple[TableSchema, list[tuple[Any, ...]], list[Route]]] = {
    "orders": (
        ORDERS, ORDER_ROWS,
        [
            Route(7, (Op.INSERT,), partition_by="customer"),
            Route(7, (Op.INSERT,), filter="status IS NOT NULL", payload=PayloadMode.KEY),
        ],
    ),
    "types": (TYPES, TYPE_ROWS, [Route(258, (Op.INSERT,), payload=PayloadMode.DIFF)]),
}  # fmt: skip


def play(schema: TableSchema, rows: list[tuple[Any, ...]], routes: list[Route]) -> str:
    columns = [
        pa.array(values, arrow_type(c.type)) for c, values in zip(schema.columns, zip(*rows, strict=True), strict=True)
    ]
    topics = [(Topic(i, "app", f"t{i}", 16), route) for i, route in enumerate(routes)]
    sealer = Sealer(schema, topics, 5, LoadValues(0, "ann"))
    found: list[tuple[int, int, bytes]] = []

    def emit(topic_id: int, partition: int, count: int, batch: bytes) -> None:
        found.append((topic_id, partition, batch))

    sealer.add(pa.RecordBatch.from_arrays(columns, list(schema.column_names)), emit)
    part = sealer.part(emit)
    lines = [f"{schema.full_name}, load 5", ""]
    for key, value in zip(part.keys.to_pylist(), [v for block in part.values for v in block.to_pylist()], strict=True):
        lines += [f"key     {key.hex(' ')}", f"value   {value.hex(' ')}", ""]
    for topic_id, partition, batch in sorted(found):
        lines.append(f"topic {topic_id}, partition {partition}")
        for message in LogBatch(batch).messages(topic_id, partition):
            lines.append(f"    {message.key.decode()} {message.payload.decode()}")
            lines.append(f"    {message.payload_mode.value}, hash {message.content_hash:016x}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("scene", SCENES)
def test_the_bytes_are_those_on_file(scene: str) -> None:
    assert play(*SCENES[scene]) == (GOLDEN / f"{scene}.txt").read_text(encoding="utf-8")


def test_every_file_is_played() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SCENES)


if __name__ == "__main__":
    for name, scene in SCENES.items():
        (GOLDEN / f"{name}.txt").write_text(play(*scene), encoding="utf-8")
