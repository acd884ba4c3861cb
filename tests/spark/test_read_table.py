"""Reading tables: every row once, at one commit number, in the types of the table."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from pyspark.errors import PySparkException
from pyspark.sql.functions import expr
from reading import COLUMNS, Shop
from server_fixture import ServerThread


@pytest.fixture(scope="module")
def numbers(shop: Shop) -> Shop:
    shop.sql("CREATE TABLE app.numbers (id BIGINT PRIMARY KEY, v TEXT)")
    for first in range(0, 3000, 1000):
        shop.insert("numbers", first, 1000)
    return shop


@pytest.mark.parametrize("asked", [1, 3])
def test_every_row_once_whatever_the_ranges(numbers: Shop, asked: int) -> None:
    frame = numbers.read(table="app.numbers", minPartitions=asked)
    assert frame.rdd.getNumPartitions() == asked
    rows = frame.collect()
    assert sorted((row.id, row.v) for row in rows) == [(i, f"v{i}") for i in range(3000)]


def test_types_and_nulls(shop: Shop) -> None:
    shop.sql(
        f"CREATE TABLE app.types ({COLUMNS})",
        "INSERT INTO app.types VALUES (1, 'é', 1.50, -7, '{\"x\":1}', '00000000-0000-0000-0000-0000000000ff', "
        "'2024-02-29', '01:02:03.000004', '2024-01-01T00:00:00.000001Z', NULL, -3, 0.5, 1e300, FALSE)",
        "INSERT INTO app.types (id) VALUES (2)",
    )
    first, second = shop.read(table="app.types").orderBy("id").collect()
    assert first.moment.astimezone(UTC) == datetime(2024, 1, 1, 0, 0, 0, 1, UTC)
    assert (first.id, first.customer, first.amount, first.n, first.note) == (1, "é", Decimal("1.50"), -7, '{"x":1}')
    assert (first.uid, first.day, first.at) == (
        "00000000-0000-0000-0000-0000000000ff", date(2024, 2, 29), time(1, 2, 3, 4)
    )  # fmt: skip
    assert (first.raw, first.small, first.f, first.d, first.ok) == (None, -3, 0.5, 1e300, False)
    assert set(second.asDict().values()) == {2, None}


def test_seq_tells_the_commit(numbers: Shop) -> None:
    rows = numbers.read(table="app.numbers", includeSeq="true").select("_seq").distinct().collect()
    said = numbers.sql("SELECT DISTINCT _seq AS s FROM app.numbers")[0]["rows"]
    assert sorted(row._seq for row in rows) == sorted(int(r[0] if isinstance(r, list) else r["s"]) for r in said)
    assert "_seq" not in numbers.read(table="app.numbers").columns


def test_a_read_sees_one_commit_whatever_is_written_meanwhile(shop: Shop) -> None:
    """Planned before, read after: an update and a delete in between are not seen, and one lease serves all tasks."""
    shop.sql("CREATE TABLE app.moving (id BIGINT PRIMARY KEY, v TEXT)")
    shop.insert("moving", 0, 100)
    frame = shop.read(table="app.moving", minPartitions=2)
    planned = frame.rdd  # plans the scan: the snapshot is taken here
    assert planned.getNumPartitions() == 2
    shop.sql("UPDATE app.moving SET v = 'late' WHERE id < 50", "DELETE FROM app.moving WHERE id >= 90")
    assert sorted((row.id, row.v) for row in planned.collect()) == [(i, f"v{i}") for i in range(100)]
    assert frame.filter("v = 'late'").count() == 50
    assert frame.count() == 90


@pytest.mark.parametrize("condition", ["id = 7", "id > 2990", "v IN ('v5', 'v6')", "NOT v LIKE 'v%'", "v <=> NULL"])
def test_filters(numbers: Shop, condition: str) -> None:
    frame = numbers.read(table="app.numbers", pushFilters="true")
    everything = numbers.spark.createDataFrame(frame.collect(), frame.schema)
    assert sorted(frame.filter(condition).collect()) == sorted(everything.filter(condition).collect())


def test_an_empty_table_has_no_rows(shop: Shop) -> None:
    shop.sql("CREATE TABLE app.bare (id BIGINT PRIMARY KEY, v TEXT)")
    assert shop.read(table="app.bare").collect() == []


def test_a_lease_that_is_gone_is_a_clear_error(numbers: Shop, tmp_path: Path) -> None:
    """While rows are sent, their server goes away, and one that knows nothing of the snapshot takes its place."""
    with (
        ServerThread(tmp_path) as other,
        CuttingProxy(numbers.server.port, cut_after=20_000, then=lambda: other.port) as proxy,
    ):
        reader = numbers.spark.read.format("tablecast")
        frame = reader.options(**{**numbers.options(table="app.numbers"), "url": proxy.url}).load()
        with pytest.raises(PySparkException, match="read the table again"):
            frame.collect()


def test_a_frame_used_again_with_other_filters(numbers: Shop) -> None:
    """Spark keeps what was planned last with the loaded relation: a filter of one use must not reach another."""
    frame = numbers.read(table="app.numbers")
    assert frame.filter("id < 10").count() == 10
    assert frame.filter("id < 20").count() == 20
    assert frame.count() == 3000
    low, high = frame.filter("id < 10").alias("a"), frame.filter("id >= 2995").alias("b")
    assert low.join(high, expr("a.id + 2990 = b.id")).count() == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "app.nowhere"}, "UnknownTable"),
        ({"table": "app.numbers", "startingOffsets": "earliest"}, "is for reading a topic"),
    ],
)
def test_errors_reach_the_user(numbers: Shop, given: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        numbers.read(**given).collect()
