"""What a caller gives: words and numbers for a start, frames and NumPy's scalars for rows, and plain errors for the rest."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from faces import FACES, face
from hypothesis import given
from hypothesis import strategies as st
from server_fixture import ServerThread

import tablecast
from tablecast import EARLIEST, LATEST, Start, StartKind, TablecastError
from tablecast.errors import InvalidRequest, SqlSyntaxError, TooLarge, TypeMismatch, UnknownTable, UnknownTopic

SETUP = """
CREATE TABLE t (id INT PRIMARY KEY, v TEXT, d DOUBLE, n DECIMAL(12,2), b BOOLEAN, ts TIMESTAMP, j JSON, big BIGINT, da DATE);
CREATE TOPIC p; ALTER TOPIC p ADD SOURCE t ON ANY;
CREATE TABLE raw (k BYTES PRIMARY KEY);
"""
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        found = {kind: stack.enter_context(face(kind)) for kind in FACES}
        for database in found.values():
            database.execute(SETUP)
        yield found


@pytest.fixture(params=FACES)
def database(request: pytest.FixtureRequest, places: dict[str, Any]) -> Any:
    found = places[request.param]
    found.execute("DELETE FROM t")
    return found


# --- where a read starts -----------------------------------------------------------------------------------------


def test_a_start_is_a_word_a_number_or_a_start(database: Any) -> None:
    [begin] = [len(database.consume("p", start=EARLIEST, limit=100_000).messages)]
    database.execute("INSERT INTO t (id) VALUES (1), (2)")
    every = database.consume("p", start=EARLIEST, limit=100_000).messages
    for word in ("earliest", "Earliest", "EARLIEST", 0):
        assert database.consume("p", start=word, limit=100_000).messages == every
        assert database.read_arrow("p", start=word).num_rows == len(every)
    for last in (begin + 1, Start(StartKind.OFFSET, begin + 1)):
        assert [m.value["id"] for m in database.consume("p", start=last).messages] == [2]
        assert database.read_arrow("p", start=last).num_rows == 1
    for word in ("latest", "LATEST", LATEST):
        assert database.consume("p", start=word).messages == []
    assert database.consume("p", group=f"g{begin}", start=begin + 1).messages[0].value["id"] == 2


@pytest.mark.parametrize("wrong", ["first", "", -1, True, 1.5, b"latest", ["earliest"], object()])
def test_another_start_is_refused_by_name(database: Any, wrong: Any) -> None:
    for call in (
        database.consume,
        database.read_arrow,
        lambda topic, start: list(database.stream_arrow(topic, start=start)),
    ):
        if call.__name__ == "<lambda>" and not isinstance(database, tablecast.Database | tablecast.Client):
            continue
        with pytest.raises(InvalidRequest, match="'earliest', 'latest', an offset"):
            call("p", start=wrong)


# --- rows --------------------------------------------------------------------------------------------------------

FRAME = {"id": [1, 2], "v": ["a", None], "d": [0.5, None], "b": [True, False]}
SHOWN = [(1, "a", 0.5, True), (2, None, None, False)]


FRAMES = {
    "pandas": lambda: pd.DataFrame(FRAME),
    "index": lambda: pd.DataFrame(FRAME, index=["x", "y"]),
    "category": lambda: pd.DataFrame(FRAME).astype({"v": "category", "id": "uint8"}),
    "dtypes": lambda: pd.DataFrame(FRAME).convert_dtypes(),
    "polars": lambda: pl.DataFrame(FRAME),
    "categorical": lambda: pl.DataFrame(FRAME).with_columns(
        pl.col("v").cast(pl.Categorical), pl.col("id").cast(pl.Int32)
    ),
    "arrow": lambda: pa.table(FRAME),
    "batch": lambda: pa.table(FRAME).to_batches()[0],
    "reader": lambda: pa.table(FRAME).to_reader(),
}


@pytest.mark.parametrize("form", FRAMES)
def test_a_frame_is_rows(database: Any, form: str) -> None:
    frame = FRAMES[form]
    assert database.insert("t", frame()).row_count == 2
    assert database.insert("t", frame(), mode="upsert").row_count == 2
    assert database.query("SELECT id, v, d, b FROM t ORDER BY id").rows == SHOWN
    keys = frame()[["id"]] if form in ("pandas", "index", "polars") else pa.table({"id": [1, 2]})
    assert database.insert("t", keys, mode="delete").row_count == 2


NUMPY = {
    "id": np.int64(7), "v": np.str_("x"), "d": np.float32(1.5), "n": np.float64(2.5), "b": np.bool_(True),
    "ts": np.datetime64("2024-02-29T12:00:00.000000000"), "j": {"a": [np.int8(1), np.float64(0.5)]}, "big": np.uint64(2**60),
    "da": np.datetime64("2024-02-29"),
}  # fmt: skip
STORED = (7, "x", 1.5, Decimal("2.50"), True, NOON, {"a": [1, 0.5]}, 2**60, dt.date(2024, 2, 29))


def test_numpys_scalars_are_numbers_texts_and_times(database: Any) -> None:
    assert database.insert("t", [NUMPY]).row_count == 1
    assert database.query("SELECT * FROM t").rows == [STORED]
    assert database.insert("t", [tuple(NUMPY.values())], mode="upsert").row_count == 1
    assert database.query(
        "SELECT * FROM t WHERE id = ? AND n = ? AND b = ?", [np.int8(7), np.float64(2.5), np.True_]
    ).rows == [STORED]
    assert database.execute("UPDATE t SET big = ? WHERE id = ?", [np.int64(5), np.int32(7)]).row_count == 1
    assert database.insert("t", [{"id": np.int16(7)}], mode="delete").row_count == 1
    places = ", ".join("?" * len(NUMPY))
    assert database.execute(f"INSERT INTO t VALUES ({places})", list(NUMPY.values())).row_count == 1
    assert database.query("SELECT * FROM t").rows == [STORED]


def test_arrays_generators_and_what_pandas_calls_nothing(database: Any) -> None:
    assert database.insert("t", np.array([[1, 5], [2, 6]]), columns=["id", "big"]).row_count == 2
    assert database.insert("t", ({"id": i} for i in range(3, 6))).row_count == 3
    rows = [
        {"id": 6, "ts": pd.NaT, "v": pd.NA, "big": np.int64(1)},
        {"id": 7, "ts": pd.Timestamp("2024-02-29T12:00Z"), "v": "x", "big": 1},
    ]
    assert database.insert("t", rows).row_count == 2
    assert database.query("SELECT ts, v FROM t WHERE id IN (6, 7) ORDER BY id").rows == [(None, None), (NOON, "x")]
    structured = np.array([(8, 1.5)], dtype=[("id", "i4"), ("d", "f8")])
    assert database.insert("t", structured, columns=["id", "d"]).row_count == 1


@pytest.mark.parametrize(
    "rows",
    [
        5,
        None,
        "rows",
        b"rows",
        {"id": 1},
        [5],
        ["text"],
        [None],
        [[1, 2]],
        object(),
        pl.Series([1]),
        np.int64(5),
        [object()],
    ],
)
@pytest.mark.parametrize("mode", ["insert", "upsert", "delete"])
def test_what_are_no_rows_is_refused(database: Any, rows: Any, mode: str) -> None:
    with pytest.raises(TablecastError) as caught:
        database.insert("raw" if isinstance(rows, list) and rows == ["text"] else "t", rows, mode=mode)
    assert type(caught.value) is not TablecastError, "foreseen"
    assert caught.value.status in (400, 404)


# --- errors ------------------------------------------------------------------------------------------------------


def test_a_misspelt_select_is_a_syntax_error_that_names_it(database: Any) -> None:
    for sql in ("selct 1", "selct * from t", "  -- why\n selct 1"):
        with pytest.raises(SqlSyntaxError, match="selct"):
            database.query(sql)
    for sql in ("INSERT INTO t (id) VALUES (1)", "DROP TABLE t", "BEGIN"):
        with pytest.raises(InvalidRequest, match="execute"):
            database.query(sql)
    assert database.query("SELECT count(*) FROM t").scalar() == 0


def test_suggestions_come_from_the_namespace_that_was_asked() -> None:
    with tablecast.open(":memory:") as db:
        db.execute(
            "CREATE NAMESPACE app; CREATE NAMESPACE apq; CREATE TABLE apq.orders (id INT PRIMARY KEY); CREATE TOPIC apq.events"
        )
        for call, error in (
            (lambda: db.query("SELECT * FROM app.orders"), UnknownTable),
            (lambda: db.insert("app.orders", [{"id": 1}]), UnknownTable),
            (lambda: db.consume("app.events"), UnknownTopic),
            (lambda: db.execute("DROP TOPIC app.event"), UnknownTopic),
        ):
            with pytest.raises(error) as caught:
                call()  # type: ignore[no-untyped-call]
            assert "did you mean" not in caught.value.message
        with pytest.raises(UnknownTable, match=r"did you mean apq\.orders"):
            db.query("SELECT * FROM apq.order")


def test_too_little_memory_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with ServerThread() as server:
        server.sql("CREATE TABLE t (id INT PRIMARY KEY)")
        monkeypatch.setattr("tablecast.server.api_sql.result_out", exhausted)
        answer = server.post("/sql", {"sql": "SELECT 1"})
        assert (answer.status, answer.error["code"]) == (413, "too_large")
        monkeypatch.undo()
    with tablecast.open(":memory:") as db:
        db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        monkeypatch.setattr("tablecast.sql.plan_change.ChangePlan.run", exhausted)
        for _ in range(2):  # planned, and prepared
            with pytest.raises(TooLarge):
                db.execute("DELETE FROM t")


WRONG = st.sampled_from(
    [None, 5, -1, 1.5, True, "", "x", b"x", [], {}, (), [None], {"a": 1}, [[1]], object(), float("nan"), "a" * 5000]
)
CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "execute": (("sql",), ("params", "idempotency_key")),
    "execute_all": (("sql",), ("params", "idempotency_key")),
    "query": (("sql",), ("params",)),
    "insert": (("table", "rows"), ("columns", "mode", "idempotency_key")),
    "consume": (
        ("topic",),
        ("group", "start", "partition", "limit", "consumer", "visibility_seconds", "auto_offset_reset"),
    ),
    "read_arrow": (("topic",), ("start", "partition")),
    "ack": (("topic", "group", "upto_offset"), ("partition", "offsets", "consumer")),
    "nack": (("topic", "group", "offsets"), ("partition", "reason", "consumer")),
    "extend": (("topic", "group", "consumer", "visibility_seconds"), ()),
    "release": (("topic", "group", "consumer"), ()),
}
RIGHT = {
    "sql": "SELECT 1", "table": "t", "rows": [], "topic": "p", "group": "g", "upto_offset": None, "offsets": [0], "consumer": "c",
    "visibility_seconds": 5.0,
}  # fmt: skip


@pytest.mark.parametrize("kind", FACES)
@pytest.mark.parametrize("method", CALLS)
@given(data=st.data())
def test_whatever_is_given_only_our_errors_come_out(
    kind: str, method: str, places: dict[str, Any], data: st.DataObject
) -> None:
    positional, named = CALLS[method]
    wrong = data.draw(st.sets(st.sampled_from((*positional, *named)), min_size=1, max_size=2))
    values = {name: data.draw(WRONG) if name in wrong else RIGHT[name] for name in positional}
    options = {name: data.draw(WRONG) for name in named if name in wrong}
    try:
        getattr(places[kind], method)(*values.values(), **options)
    except TablecastError as error:
        assert error.code != "internal"


def test_a_wrong_parameter_is_a_type_mismatch(database: Any) -> None:
    database.execute("INSERT INTO t (id) VALUES (1)")
    for value in (object(), 1 + 2j, np.complex64(1), np.timedelta64(5, "s")):
        for sql in ("INSERT INTO t (id) VALUES (?)", "UPDATE t SET big = ?", "SELECT id FROM t WHERE id = ?"):
            with pytest.raises(TypeMismatch):
                database.execute(sql, [value])
