"""Sealing: what is refused and how it is told, what fills omitted columns, how parts follow one another."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tablecast.codec.log import LogBatch
from tablecast.codec.rows import row_codec
from tablecast.core import seal, seal_judge
from tablecast.core.row_rules import MAX_ROW_BYTES
from tablecast.core.seal import Sealer, evened, require_sealable, sliced
from tablecast.core.seal_judge import Reject
from tablecast.core.seal_part import Sealed
from tablecast.core.seal_values import LoadValues
from tablecast.errors import CorruptData, InvalidRequest, NotSealable, UnknownColumn
from tablecast.model.change import Op
from tablecast.model.schema import Column, ColumnType, Default, DefaultKind, TableKind, TableSchema, TypeName
from tablecast.model.topic import PayloadMode, Route, Topic

T = TypeName
NOW_MS = 1_640_995_200_000
VALUES = LoadValues(NOW_MS, "ann")
EVENTS = Topic(3, "app", "events")


def table(*columns: Column, key: Sequence[str] = ("id",), **more: Any) -> TableSchema:
    found = (Column("id", ColumnType(T.BIGINT)), *columns)
    return TableSchema(7, "app", "orders", more.pop("kind", TableKind.SHARED), found, tuple(key), **more)


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = [value if isinstance(value, pa.Array) else pa.array(value) for value in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def ignore(*entry: Any) -> None:
    pass


def rows_of(schema: TableSchema, part: Sealed) -> list[tuple[Any, ...]]:
    codec = row_codec(schema)
    return [codec.values(codec.decode(value)) for block in part.values for value in block.to_pylist()]


def rejects_of(schema: TableSchema, given: pa.RecordBatch, *routes: tuple[Topic, Route]) -> list[Reject]:
    sealer = Sealer(schema, routes, 1, VALUES)
    sealer.add(given, ignore)
    sealer.part(ignore)
    return sealer.rejects


# --- what is not sealed at all ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "topic", "word"),
    [
        (table(kind=TableKind.USER), EVENTS, "apart"),
        (table(kind=TableKind.STREAM, ttl_seconds=5), EVENTS, "apart"),
        (table(ttl_seconds=5), EVENTS, "TTL"),
        (table(), Topic(3, "app", "events", dedup_window_seconds=60), "app.events"),
    ],
)
def test_what_only_the_server_can_finish_is_not_sealed(schema: TableSchema, topic: Topic, word: str) -> None:
    with pytest.raises(NotSealable, match=word):
        Sealer(schema, [(topic, Route(7, (Op.INSERT,)))], 1, VALUES)


def test_a_route_that_inserts_do_not_take_does_not_matter() -> None:
    deduplicating = Topic(3, "app", "events", dedup_window_seconds=60)
    sealer = Sealer(table(), [(deduplicating, Route(7, (Op.DELETE,)))], 1, VALUES)
    emitted: list[Any] = []
    sealer.add(batch(id=[1]), lambda *entry: emitted.append(entry))
    assert sealer.part(lambda *entry: emitted.append(entry)).rows == 1
    assert emitted == []


def test_an_id_that_only_one_generator_may_give() -> None:
    schema = table(Column("n", ColumnType(T.BIGINT), False, Default(DefaultKind.SNOWFLAKE_ID)))
    require_sealable(schema, [])
    require_sealable(schema, [], ["id", "n"])
    with pytest.raises(NotSealable, match="column 'n'"):
        require_sealable(schema, [], ["id"])
    sealer = Sealer(schema, [], 1, VALUES)
    with pytest.raises(NotSealable):
        sealer.add(batch(id=[1]), ignore)
    sealer.add(batch(id=[1], n=[5]), ignore)
    assert rows_of(schema, sealer.part(ignore)) == [(1, 5)]


def test_columns_that_are_not_the_tables() -> None:
    sealer = Sealer(table(), [], 1, VALUES)
    with pytest.raises(UnknownColumn, match="'nam'"):
        sealer.add(batch(id=[1], nam=["x"]), ignore)
    with pytest.raises(InvalidRequest, match="named twice"):
        sealer.add(pa.RecordBatch.from_arrays([pa.array([1])] * 2, ["id", "id"]), ignore)


# --- omitted columns ------------------------------------------------------------------------------------------------


def test_defaults_fill_what_is_not_given() -> None:
    schema = table(
        Column("at", ColumnType(T.TIMESTAMP), False, Default(DefaultKind.NOW)),
        Column("by", ColumnType(T.TEXT), True, Default(DefaultKind.CURRENT_USER)),
        Column("ref", ColumnType(T.UUID), False, Default(DefaultKind.UUID_V7)),
        Column("ref_text", ColumnType(T.TEXT), False, Default(DefaultKind.UUID_V7)),
        Column("status", ColumnType(T.TEXT), False, Default(DefaultKind.LITERAL, "new")),
        Column("note", ColumnType(T.TEXT)),
    )
    sealer = Sealer(schema, [], 1, VALUES)
    sealer.add(batch(id=[1, 2, 3]), ignore)
    rows = rows_of(schema, sealer.part(ignore))
    assert [(row[1], row[2], row[5], row[6]) for row in rows] == [
        (datetime(2022, 1, 1, tzinfo=UTC), "ann", "new", None)
    ] * 3
    refs = [row[3] for row in rows]
    assert len(set(refs)) == 3
    assert {ref.version for ref in refs} == {7}
    assert {ref.int >> 80 for ref in refs} == {NOW_MS}
    assert len({row[4] for row in rows}) == 3


def test_a_null_that_was_given_is_not_filled() -> None:
    schema = table(Column("status", ColumnType(T.TEXT), False, Default(DefaultKind.LITERAL, "new")))
    sealer = Sealer(schema, [], 1, VALUES)
    sealer.add(batch(id=[1, 2], status=["paid", None]), ignore)
    assert rows_of(schema, sealer.part(ignore)) == [(1, "paid"), (2, None)]


# --- rejects --------------------------------------------------------------------------------------------------------


def test_a_reject_names_row_column_code_and_reason() -> None:
    schema = table(Column("customer", ColumnType(T.TEXT), True), checks=("id > 0",))
    found = rejects_of(schema, batch(id=[5, -1, 7, 5], customer=["a", "b", None, "c"]))
    assert sorted(found) == [
        Reject(1, None, "check_violation", "the row violates CHECK (id > 0) of app.orders"),
        Reject(2, "customer", "not_null_violation", "column 'customer' of app.orders is NOT NULL: give it a value"),
        Reject(3, None, "duplicate_key", "app.orders already has a row with id = 5"),
    ]


def test_rows_are_counted_over_all_that_was_given() -> None:
    schema = table(Column("n", ColumnType(T.SMALLINT)))
    told: list[Reject] = []
    sealer = Sealer(schema, [], 1, VALUES, told.extend)
    sealer.add(batch(id=[1, 2], n=[1, 2]), ignore)
    sealer.add(batch(id=[3, 4], n=[1, 70_000]), ignore)
    sealer.part(ignore)
    sealer.add(batch(id=[5, 6], n=[70_000, 1]), ignore)
    assert [(reject.row, reject.column, reject.code) for reject in told] == [
        (3, "n", "type_mismatch"),
        (4, "n", "type_mismatch"),
    ]
    assert sealer.reject_count == 2
    assert sealer.rejects == []
    assert sealer.given_rows == 6


def test_rejects_that_nobody_listens_to_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "MAX_KEPT_REJECTS", 3)
    sealer = Sealer(table(), [], 1, VALUES)
    sealer.add(batch(id=pa.nulls(10, pa.int64())), ignore)
    assert [reject.row for reject in sealer.rejects] == [0, 1, 2]
    assert sealer.reject_count == 10
    assert sealer.empty


@pytest.mark.parametrize("size", [MAX_ROW_BYTES, 40 * 2**20])
def test_a_row_that_is_too_large(size: int) -> None:
    schema = table(Column("note", ColumnType(T.TEXT)))
    found = rejects_of(schema, batch(id=[1, 2, 3], note=["a", "x" * size, "b"]))
    assert [(reject.row, reject.code) for reject in found] == [(1, "too_large")]
    assert f"{MAX_ROW_BYTES}" in found[0].reason


def test_years_that_a_timestamp_and_a_date_do_not_have() -> None:
    schema = table(Column("at", ColumnType(T.TIMESTAMP)), Column("day", ColumnType(T.DATE)))
    at = pa.array([0, 253_402_300_800_000_000, -62_135_596_800_000_001, 0]).cast(pa.timestamp("us", "UTC"))
    day = pa.array([0, 0, 0, 2_932_897], pa.int32()).cast(pa.date32())
    found = rejects_of(schema, batch(id=[1, 2, 3, 4], at=at, day=day))
    assert [(reject.row, reject.column, reject.code) for reject in found] == [
        (1, "at", "type_mismatch"),
        (2, "at", "type_mismatch"),
        (3, "day", "type_mismatch"),
    ]
    assert "TIMESTAMP" in found[0].reason


def test_text_that_is_not_unicode() -> None:
    starts, data = np.array([0, 2, 4, 5], np.int32), b"ab\xff\xfec"
    text = pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(starts), pa.py_buffer(data)])
    schema = table(Column("note", ColumnType(T.TEXT)))
    sealer = Sealer(schema, [], 1, VALUES)
    sealer.add(batch(id=[1, 2, 3], note=text), ignore)
    assert [(reject.row, reject.column, reject.code) for reject in sealer.rejects] == [(1, "note", "type_mismatch")]
    assert rows_of(schema, sealer.part(ignore)) == [(1, "ab"), (3, "c")]


def test_what_lies_under_a_null_is_nobodys_business() -> None:
    """Arrow leaves anything there: quotes that would be escaped, years that do not exist, NaN."""
    valid = pa.py_buffer(b"\x05")  # the second of three is NULL
    starts, data = np.array([0, 1, 4, 5], np.int32), b'a"\\\nb'
    note = pa.Array.from_buffers(pa.string(), 3, [valid, pa.py_buffer(starts), pa.py_buffer(data)])
    at = pa.Array.from_buffers(pa.timestamp("us", "UTC"), 3, [valid, pa.py_buffer(np.array([0, 2**62, 1]))])
    ratio = pa.Array.from_buffers(pa.float64(), 3, [valid, pa.py_buffer(np.array([0.5, np.nan, 1.5]))])
    schema = table(
        Column("note", ColumnType(T.TEXT)), Column("at", ColumnType(T.TIMESTAMP)), Column("ratio", ColumnType(T.DOUBLE))
    )
    emitted: list[bytes] = []
    sealer = Sealer(schema, [(EVENTS, Route(7, (Op.INSERT,)))], 1, VALUES)
    sealer.add(batch(id=[1, 2, 3], note=note, at=at, ratio=ratio), ignore)
    part = sealer.part(lambda *entry: emitted.append(entry[3]))
    assert sealer.reject_count == 0
    assert rows_of(schema, part)[1] == (2, None, None, None)
    told = [message.payload for message in LogBatch(emitted[0]).messages(3, 0)]
    assert told[1] == b'{"_table":"app.orders","id":"2","note":null,"at":null,"ratio":null}'
    assert told[2] == b'{"_table":"app.orders","id":"3","note":"b","at":"1970-01-01T00:00:00.000001Z","ratio":1.5}'


def test_a_decimal_beyond_its_own_precision() -> None:
    """Arrow's buffers may hold more digits than their type says."""
    raw = np.zeros((2, 2), np.int64)
    raw[:, 0] = [150, 10**15]
    amounts = pa.Array.from_buffers(pa.decimal128(12, 2), 2, [None, pa.py_buffer(raw)])
    found = rejects_of(table(Column("amount", ColumnType(T.DECIMAL, 12, 2))), batch(id=[1, 2], amount=amounts))
    assert [(reject.row, reject.column) for reject in found] == [(1, "amount")]
    assert "needs more than 12 digits" in found[0].reason


def test_a_filter_that_fails_rejects_its_row_alone() -> None:
    rows = 1_000
    schema = table(Column("n", ColumnType(T.INT)))
    numbers = [1] * rows
    numbers[700] = 2**31 - 1
    route = EVENTS, Route(7, (Op.INSERT,), filter="n + CAST(1 AS INT) > 0")
    sealer = Sealer(schema, [route], 1, VALUES)
    emitted: list[int] = []
    sealer.add(batch(id=list(range(rows)), n=pa.array(numbers, pa.int32())), lambda *entry: emitted.append(entry[2]))
    part = sealer.part(lambda *entry: emitted.append(entry[2]))
    assert [(reject.row, reject.code) for reject in sealer.rejects] == [(700, "expression_error")]
    assert "the filter of topic app.events" in sealer.rejects[0].reason
    assert (part.rows, sum(emitted)) == (rows - 1, rows - 1)


def test_a_column_that_finds_fault_with_what_the_row_path_takes_is_never_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seal_judge.RowJudge, "refusal", lambda *_: None)
    sealer = Sealer(table(), [], 1, VALUES)
    with pytest.raises(CorruptData, match="row 1"):
        sealer.add(batch(id=[1, None]), ignore)


# --- batches --------------------------------------------------------------------------------------------------------


def test_small_batches_are_gathered_and_large_ones_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "GATHERED_ROWS", 4)
    monkeypatch.setattr(seal, "SLICE_ROWS", 6)
    given = [
        batch(id=[1]),
        batch(id=[2, 3]),
        batch(id=[4]),
        batch(id=list(range(5, 18))),
        batch(id=["x"]),
        batch(id=[1]),
    ]
    made = [piece.column(0).to_pylist() for piece in evened(given)]
    assert made == [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10], [11, 12, 13, 14, 15, 16], [17], ["x"], [1]]


def test_batches_of_large_values_are_cut_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "SLICE_BYTES", 100)
    pieces = list(sliced(batch(note=["x" * 60] * 4)))
    assert [piece.num_rows for piece in pieces] == [1, 1, 1, 1]


# --- parts ----------------------------------------------------------------------------------------------------------


def test_rows_come_out_in_the_order_of_their_keys_and_messages_in_the_order_given() -> None:
    schema = table()
    sealer = Sealer(schema, [(EVENTS, Route(7, (Op.INSERT,), payload=PayloadMode.KEY))], 1, VALUES)
    emitted: list[Any] = []
    for given in ([5, -1], [3, 9, 0]):
        sealer.add(batch(id=given), lambda *entry: emitted.append(entry))
    part = sealer.part(lambda *entry: emitted.append(entry))
    assert [row[0] for row in rows_of(schema, part)] == [-1, 0, 3, 5, 9]
    [(topic_id, partition, count, data)] = emitted
    assert (topic_id, partition, count) == (3, 0, 5)
    assert [message.value["id"] for message in LogBatch(data).messages(3, 0)] == ["5", "-1", "3", "9", "0"]


def fullness(sealer: Sealer, *given: list[int]) -> list[bool]:
    found = []
    for ids in given:
        sealer.add(batch(id=ids), ignore)
        found.append(sealer.full)
    sealer.part(ignore)
    return [*found, sealer.full]


def test_a_part_is_full_by_rows_or_by_bytes() -> None:
    assert fullness(Sealer(table(), [], 1, VALUES, part_rows=3), [1, 2], [3]) == [False, True, False]
    said = [(EVENTS, Route(7, (Op.INSERT,)))]
    assert fullness(Sealer(table(), said, 1, VALUES, part_bytes=150), [1], [2, 3]) == [False, True, False]


def test_an_empty_part() -> None:
    sealer = Sealer(table(), [(EVENTS, Route(7, (Op.INSERT,)))], 1, VALUES)
    sealer.add(batch(id=pa.array([], pa.int64())), ignore)
    part = sealer.part(ignore)
    assert (part.rows, list(part.values), sealer.empty) == (0, [], True)


def test_a_key_may_come_again_in_the_next_part() -> None:
    """It is the commit that sees all parts."""
    sealer = Sealer(table(), [], 1, VALUES)
    for _ in range(2):
        sealer.add(batch(id=[1, 1]), ignore)
        assert sealer.part(ignore).rows == 1
    assert [(reject.row, reject.code) for reject in sealer.rejects] == [(1, "duplicate_key"), (3, "duplicate_key")]
