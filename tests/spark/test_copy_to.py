"""COPY TOPIC … TO: what is written, what a second run adds, and what a kill leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from copying import ORDERS, Copying
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast.errors import Conflict, InvalidRequest, OffsetOutOfRange


@pytest.fixture(scope="module")
def c(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copying]:
    with (
        ServerThread(tmp_path_factory.mktemp("server") / "data") as server,
        tablecast.connect(server.url, user="system", password=PASSWORD) as client,
    ):
        client.execute("CREATE NAMESPACE app")
        yield Copying(server.url, client)


def insert(c: Copying, table: str, first: int, count: int) -> None:
    c.client.insert(table, [(i, f"customer {i % 3}", i % 10) for i in range(first, first + count)])


def test_parquet_grows_by_what_is_new(c: Copying, spark: SparkSession, tmp_path: Path) -> None:
    table = c.table("parquet", ORDERS)
    insert(c, table, 0, 100)
    statement = f"COPY TOPIC {table}_told TO '{tmp_path}/out' (FORMAT parquet, COMMIT_ROWS 60)"
    assert c.copied(statement)["messages"] == 100
    assert sorted(p.name for p in (tmp_path / "out").glob("batch=*")) == ["batch=000000", "batch=000001"]
    assert c.copied(statement)["messages"] == 0
    c.client.execute(f"DELETE FROM {table} WHERE id = 5")
    insert(c, table, 100, 20)
    assert c.copied(statement)["messages"] == 21
    read = spark.read.parquet(str(tmp_path / "out"))
    kept = {(row.partition_id, row.offset): (row.op, row.payload) for row in read.collect()}
    assert kept == {(m.partition_id, m.offset): (m.op.label, m.payload.decode()) for m in c.messages(table)}
    assert read.count() == 121


def test_what_a_killed_copy_left_is_not_seen_and_not_kept(c: Copying, spark: SparkSession, tmp_path: Path) -> None:
    table = c.table("killed", ORDERS)
    insert(c, table, 0, 30)
    statement = f"COPY TOPIC {table}_told TO '{tmp_path}/out' (FORMAT json, DECODE true)"
    c.copy(statement)
    left = tmp_path / "out" / "_tablecast" / "next-000001"  # as if it was killed before the rename
    left.mkdir()
    (left / "part-0.json").write_text('{"id": 999}\n')
    insert(c, table, 30, 5)
    assert spark.read.json(str(tmp_path / "out")).count() == 30
    assert c.copied(statement)["messages"] == 5
    rows = spark.read.json(str(tmp_path / "out")).select("id", "customer", "_op").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(i, f"customer {i % 3}", "insert") for i in range(35)]
    assert not left.exists()


def test_a_delta_table_has_each_batch_once(c: Copying, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = c.table("delta", ORDERS + ", at TIME DEFAULT '12:30:00'")
    insert_sql = f"INSERT INTO {table} (id, customer, amount) SELECT * FROM (VALUES (?, 'ann', 1.5), (?, 'bob', NULL))"
    c.client.execute(insert_sql, [1, 2])
    statement = f"COPY TOPIC {table}_told TO '{tmp_path}/out' (FORMAT delta, DECODE true)"
    assert c.copied(statement)["messages"] == 2

    from tablecast.spark import copy_delta

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    c.client.execute(insert_sql, [3, 4])
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(copy_delta.DeltaTableKeeper, "_add", killed)
        c.copy(statement)
    c.client.execute(f"ALTER TABLE {table} ADD COLUMN note TEXT")
    c.client.execute(insert_sql, [5, 6])
    assert c.copied(statement)["messages"] == 4
    assert c.copied(statement)["messages"] == 0
    delta = DeltaTable(tmp_path / "out")
    rows = delta.to_pyarrow_table(columns=["id", "customer", "note"]).to_pylist()
    assert sorted((row["id"], row["customer"], row["note"]) for row in rows) == [
        (i, "ann" if i % 2 else "bob", None) for i in range(1, 7)
    ]
    assert delta.transaction_version(copy_delta.APPLICATION) == 1
    assert len(list((tmp_path / "out").glob("*.parquet"))) == len(delta.file_uris())


def test_a_directory_is_for_one_topic_in_one_form(c: Copying, tmp_path: Path) -> None:
    table, other = c.table("mine", ORDERS), c.table("other", ORDERS)
    insert(c, table, 0, 3)
    c.copy(f"COPY TOPIC {table}_told TO '{tmp_path}/out' (FORMAT json)")
    with pytest.raises(Conflict, match=r"holds topic app\.mine_told \(id \d+\) as json, as messages"):
        c.copy(f"COPY TOPIC {other}_told TO '{tmp_path}/out' (FORMAT json)")
    with pytest.raises(Conflict, match="as json"):
        c.copy(f"COPY TOPIC {table}_told TO '{tmp_path}/out' (FORMAT parquet)")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()
    with pytest.raises(Conflict, match="is not empty"):
        c.copy(f"COPY TOPIC {table}_told TO '{tmp_path}/full' (FORMAT json)")
    with pytest.raises(InvalidRequest, match="not an address"):
        c.copy(f"COPY TOPIC {table}_told TO 's3://bucket/x' (FORMAT json)")


def test_a_dry_run_counts_and_writes_nothing(c: Copying, tmp_path: Path) -> None:
    table = c.table("dry", ORDERS)
    insert(c, table, 0, 100)
    statement = f"COPY TOPIC {table}_told TO '{tmp_path}/out' (FORMAT parquet, COMMIT_ROWS 60{{}})"
    dry, wet = statement.format(", DRY_RUN"), statement.format("")
    assert c.copy(dry).message == "COPY TOPIC, dry run: 100"
    assert c.copied(dry) == {"topic": f"{table}_told", "messages": 100, "batches": 2, "path": f"{tmp_path}/out"}
    assert not (tmp_path / "out").exists()
    assert c.copied(wet)["messages"] == 100
    insert(c, table, 100, 5)
    before = sorted(tmp_path.rglob("*"))
    assert (c.copied(dry)["messages"], c.copied(dry)["batches"]) == (5, 3)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(Conflict, match="as parquet"):
        c.copy(dry.replace("parquet", "json"))
    c.client.execute(f"CLEAR TOPIC {table}_told")
    with pytest.raises(OffsetOutOfRange, match="no longer kept"):
        c.copy(dry)


def test_it_begins_and_ends_where_it_is_told(c: Copying, tmp_path: Path) -> None:
    table = c.table("ranged", ORDERS, partitions=1)
    insert(c, table, 0, 50)
    statement = f"COPY TOPIC {table}_told TO '{tmp_path}/out' (FORMAT json, STARTING '{{\"0\": 10}}'"
    assert c.copied(f"{statement}, ENDING '{{\"0\": 20}}')")["messages"] == 10
    assert c.copied(f"{statement})")["messages"] == 30
    files = (tmp_path / "out").glob("batch=*/*.json")
    offsets = [
        json.loads(line)["offset"] for file in files if file.name[0] != "_" for line in file.read_text().splitlines()
    ]
    assert sorted(offsets) == list(range(10, 50))
