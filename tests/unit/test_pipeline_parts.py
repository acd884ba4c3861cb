"""The parts of a pipeline's runner that need no Spark: its checkpoint, its files, its verdict on rows, its reasons."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tablecast.core.shown import MAX_SHOWN_CHARS, shown
from tablecast.errors import CorruptData, InvalidPipeline, OffsetOutOfRange, TypeMismatch
from tablecast.model.schema import Column, ColumnType, Default, DefaultKind, TableKind, TableSchema, TypeName
from tablecast.spark import pipeline, table, topic
from tablecast.spark.pipelines.checkpoint import Checkpoint, PipelineChanged, PipelineTaken
from tablecast.spark.pipelines.declare import load_file
from tablecast.spark.pipelines.definition import of_declared
from tablecast.spark.pipelines.judging import Judge
from tablecast.spark.pipelines.life import told
from tablecast.spark.pipelines.reason import cause, reason

# --- checkpoints ---


def definition(query: str) -> str:
    return json.dumps({"query": query, "target": "app.t"})


def test_the_same_definition_goes_on(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "app.p", "app.p")
    with checkpoint.held():
        place = checkpoint.prepared(definition("a"))
        assert checkpoint.prepared(definition("a")) == place


def test_another_definition_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "app.p", "app.p")
    with checkpoint.held():
        first = checkpoint.prepared(definition("a"))
        (first / "offsets").mkdir(parents=True)
        with pytest.raises(PipelineChanged, match=r"changed: query.*--restart-from-start"):
            checkpoint.prepared(definition("b"))
        assert first.exists()
        second = checkpoint.prepared(definition("b"), restart=True)
        assert second != first
        assert not first.exists()
        assert checkpoint.prepared(definition("b")) == second


def test_one_holder(tmp_path: Path) -> None:
    with (
        Checkpoint(tmp_path / "app.p", "app.p").held(),
        pytest.raises(PipelineTaken, match=r"app\.p"),
        Checkpoint(tmp_path / "app.p", "app.p").held(),
    ):
        pass
    with Checkpoint(tmp_path / "app.p", "app.p").held():
        pass


def test_a_damaged_marker(tmp_path: Path) -> None:
    (tmp_path / "pipeline.json").write_text("{")
    with pytest.raises(CorruptData, match="--restart-from-start"):
        Checkpoint(tmp_path, "app.p").prepared(definition("a"))


# --- files ---


def test_a_decorated_function() -> None:
    @pipeline(into="app.t", inputs={"a": topic("app.x"), "b": table("app.y")}, mode="insert", dead_letter="app.dlq")
    def made(a: object, b: object) -> object:
        return a, b

    assert made.pipeline.full_name == "app.made"
    assert (made.pipeline.tables, made.pipeline.topics) == ({"app.t", "app.y"}, {"app.x", "app.dlq"})
    assert made(1, b=2) == (1, 2)  # it is still a function


def test_another_text_is_another_definition() -> None:
    def text(body: str) -> str:
        namespace: dict[str, object] = {}
        exec(f"def f(a):\n    {body}\n", namespace)
        function = namespace["f"]
        made = pipeline(into="app.t", inputs={"a": topic("app.x")})(function)  # type: ignore[arg-type]
        return of_declared(made).text({"topic app.x": 1})

    assert text("return a") == text("return a")

    @pipeline(into="app.t", inputs={"a": topic("app.x")})
    def one(a: object) -> object:
        return a

    @pipeline(into="app.t", inputs={"a": topic("app.x")}, name="app.one")
    def two(a: object) -> object:
        return [a]

    assert of_declared(one).text({"x": 1}) != of_declared(one).text({"x": 2})
    assert of_declared(one).text({}) != of_declared(two).text({})


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ({"into": "t"}, "namespace.table"),
        ({"mode": "merge"}, "insert, upsert, delete"),
        ({"starting": "now"}, "earliest or latest"),
        ({"inputs": {"a": table("app.y")}}, "reads no topic"),
        ({"inputs": {"b": topic("app.x")}}, "does not take its inputs b"),
        ({"name": "p"}, "namespace.pipeline"),
    ],
)
def test_declarations_that_are_refused(arguments: dict[str, object], culprit: str) -> None:
    given = {"into": "app.t", "inputs": {"a": topic("app.x")}, **arguments}
    with pytest.raises(InvalidPipeline, match=culprit):
        pipeline(**given)(lambda a: a)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "culprit"),
    [("x = 1", "has no function"), ("1 / 0", "ZeroDivisionError"), ("def", "SyntaxError")],
)
def test_files_that_are_refused(tmp_path: Path, text: str, culprit: str) -> None:
    file = tmp_path / "flows.py"
    file.write_text(text)
    with pytest.raises(InvalidPipeline, match=culprit):
        load_file(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="cannot be read"):
        load_file(tmp_path / "nothing.py")


# --- verdicts ---


def schema(*checks: str) -> TableSchema:
    columns = (
        Column("id", ColumnType(TypeName.BIGINT), True),
        Column("n", ColumnType(TypeName.SMALLINT), True),
        Column("price", ColumnType(TypeName.DECIMAL, 6, 2)),
        Column("day", ColumnType(TypeName.DATE)),
        Column("made", ColumnType(TypeName.BIGINT), True, Default(DefaultKind.SNOWFLAKE_ID)),
    )
    return TableSchema(1, "app", "t", TableKind.SHARED, columns, ("id",), checks)


COLUMNS = ("id", "n", "price", "day")


def batch(rows: list[tuple[object, ...]], types: list[pa.DataType]) -> pa.RecordBatch:
    columns = [pa.array(list(values), kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(types))])


def test_rows_that_fit_are_cast() -> None:
    rows = batch(
        [(1, 5, Decimal("1.50"), date(2026, 1, 31)), (2, 6, None, None)],
        [pa.int32(), pa.int64(), pa.decimal128(22, 2), pa.date32()],
    )
    verdict = Judge(schema(), COLUMNS, "upsert").verdict(rows)
    assert verdict.rejects == ()
    assert verdict.good.to_pylist() == [
        {"id": 1, "n": 5, "price": Decimal("1.50"), "day": date(2026, 1, 31)},
        {"id": 2, "n": 6, "price": None, "day": None},
    ]
    assert verdict.good.schema.field("price").type == pa.decimal128(6, 2)


def test_rows_that_do_not_fit_are_told_apart() -> None:
    rows = batch(
        [
            (1, "5", Decimal("1.50"), "2026-01-31"),
            (2, "many", None, None),
            (3, "70000", None, None),
            (None, "1", None, None),
            (5, None, None, None),
            (6, "6", Decimal("12345.00"), None),
            (7, "7", None, "yesterday"),
            (8, "8", None, None),
        ],
        [pa.int64(), pa.string(), pa.decimal128(12, 2), pa.string()],
    )
    verdict = Judge(schema(), COLUMNS, "insert").verdict(rows)
    assert verdict.good.column("id").to_pylist() == [1, 8]
    assert [(found.row, found.code, found.column) for found in verdict.rejects] == [
        (1, "type_mismatch", "n"),
        (2, "type_mismatch", "n"),
        (3, "not_null_violation", "id"),
        (4, "not_null_violation", "n"),
        (5, "type_mismatch", "price"),
        (6, "type_mismatch", "day"),
    ]
    assert "many" in verdict.rejects[0].reason


def test_checks() -> None:
    rows = batch([(1, 5, None, None), (2, 50, None, None)], [pa.int64(), pa.int64(), pa.null(), pa.null()])
    verdict = Judge(schema("n < 10"), COLUMNS, "upsert").verdict(rows)
    assert verdict.good.column("id").to_pylist() == [1]
    assert [(found.row, found.code) for found in verdict.rejects] == [(1, "check_violation")]


def test_a_delete_needs_the_key_only() -> None:
    rows = batch([("1",), ("x",), (None,)], [pa.string()])
    verdict = Judge(schema("n < 10"), ("id",), "delete").verdict(rows)
    assert verdict.good.column("id").to_pylist() == [1]
    assert [(found.row, found.code) for found in verdict.rejects] == [(1, "type_mismatch"), (2, "not_null_violation")]


def test_an_empty_batch() -> None:
    verdict = Judge(schema(), ("id",), "delete").verdict(pa.record_batch({"id": pa.array([], pa.int64())}))
    assert verdict.good.num_rows == 0


def test_what_a_letter_shows() -> None:
    row = {"a": None, "b": True, "c": 2**60, "d": float("nan"), "e": b"\x01", "f": "x" * 5_000, "g": Decimal("1.50")}
    told = shown(row)
    assert told | {"f": ""} == {"a": None, "b": True, "c": str(2**60), "d": "nan", "e": "01", "f": "", "g": "1.50"}
    assert len(told["f"]) == MAX_SHOWN_CHARS


# --- reasons ---


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[TABLE_OR_VIEW_NOT_FOUND] x\n\nJVM stack", "RuntimeError: [TABLE_OR_VIEW_NOT_FOUND] x"),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised by the Python Proxy.\n"
            "Traceback (most recent call last):\n  File x\n"
            "tablecast.errors.TypeMismatch: 1 rows do not fit\n\n=== Streaming Query ===\nIdentifier: app.p [id = 1]",
            "TypeMismatch: 1 rows do not fit",
        ),
        (
            "[STREAM_FAILED] Query terminated with exception: x\nTraceback\nValueError: too deep\n\tat org.apache\n"
            "Identifier: app.p",
            "ValueError: too deep",
        ),
        ("", "RuntimeError: without a message"),
    ],
)
def test_reasons(text: str, told: str) -> None:
    assert reason(RuntimeError(text)) == told


def test_what_an_error_comes_down_to() -> None:
    wrapped = RuntimeError(
        "[STREAM_FAILED] x\ntablecast.errors.OffsetOutOfRange: partition 0 of app.x: gone\n\tat java"
    )
    assert cause(wrapped) == cause(OffsetOutOfRange("gone")) == "OffsetOutOfRange"
    assert "fail_on_data_loss = FALSE" in told(wrapped)
    assert cause(RuntimeError("tablecast is well")) is None
    assert told(RuntimeError("x")) == "RuntimeError: x"


def test_our_own_errors_tell_themselves() -> None:
    assert reason(TypeMismatch("it\n does not fit")) == "type_mismatch: it does not fit"
