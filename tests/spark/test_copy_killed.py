"""A large COPY: killed and run again it loads every row once, and its messages are those of the same rows through SQL."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from copying import Copying, rejects_of
from processes import PASSWORD, Run, Server, environment, until
from server_fixture import PASSWORD as THREAD_PASSWORD
from server_fixture import ServerThread
from three_routes import DEFINITIONS, TOPICS, orders

import tablecast

pytestmark = pytest.mark.long

ROWS, FILES, BAD = 100_000, 10, 1_000
QUICK_START = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
FINISH_SECONDS = 500.0  # a machine under load: Spark's start alone may take a minute there


def with_bad_rows(table: pa.Table, seed: int) -> pa.Table:
    """As text, one row in a hundred with an amount that is none."""
    amounts = table.column("amount").to_pylist()
    for at in random.Random(seed).sample(range(len(amounts)), len(amounts) * BAD // ROWS):
        amounts[at] = f"bad {at}"
    return table.set_column(2, "amount", [amounts])


def told(client: tablecast.Client, topic: str) -> list[tuple[Any, ...]]:
    """What every message says and where, without its place among those of other commits."""
    found = client.read_arrow(topic)
    names = ("partition_id", "source_table", "op", "payload_mode", "key", "payload", "content_hash")
    return sorted(zip(*(found.column(name).to_pylist() for name in names), strict=True))


def copying(server: Server, source: Path, log: Path, *options: str) -> Run:
    command = [
        sys.executable,
        "-m",
        "tablecast",
        "copy",
        "from",
        server.url,
        "app.orders",
        str(source),
        "--output",
        "csv",
    ]
    spark = ("--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf", QUICK_START)
    return Run([*command, *spark, *options], log, environment())


def test_a_bulk_load_says_the_very_same_as_sql(tmp_path: Path, spark: Any) -> None:
    """Three routes, 100,000 rows: byte for byte."""
    (tmp_path / "in").mkdir()
    for n in range(FILES):
        pq.write_table(orders(n * 10_000, 10_000), tmp_path / "in" / f"{n}.parquet")
    with (
        ServerThread(tmp_path / "bulk") as bulk,
        ServerThread(tmp_path / "rows") as rows,
        tablecast.connect(bulk.url, user="system", password=THREAD_PASSWORD) as by_copy,
        tablecast.connect(rows.url, user="system", password=THREAD_PASSWORD) as by_sql,
    ):
        for client in (by_copy, by_sql):
            client.execute_all(DEFINITIONS)
        assert by_copy.execute(f"COPY app.orders FROM '{tmp_path}/in' (FORMAT parquet)").row_count == ROWS
        for n in range(FILES):
            by_sql.insert("app.orders", orders(n * 10_000, 10_000))
        for topic in TOPICS:
            same = told(by_copy, topic)
            assert same == told(by_sql, topic)
            assert len(same) == {"app.full": ROWS, "app.keyed": ROWS}.get(topic, len(same))
        assert len(same) > ROWS // 2


def test_killed_in_the_middle_and_run_again(tmp_path: Path, spark: Any) -> None:
    """kill -9 of the whole program after its first commits; one row in a hundred does not fit."""
    (tmp_path / "in").mkdir()
    for n in range(FILES):
        pyarrow.csv.write_csv(with_bad_rows(orders(n * 10_000, 10_000), n), tmp_path / "in" / f"{n}.csv")
    options = ("--format", "csv", "--header", "--rejects", str(tmp_path / "bad"), "--commit-rows", "20000")
    with (
        Server(tmp_path) as server,
        tablecast.connect(server.url, user="system", password=PASSWORD) as client,
    ):
        client.execute_all(DEFINITIONS)
        with copying(server, tmp_path / "in", tmp_path / "first.log", *options) as first:
            until("a chunk is committed", lambda: _rows(client) > 0 or not first.running, FINISH_SECONDS)
            assert first.running, first.log.read_text()[-4000:]
            first.kill()
        before = _rows(client)
        assert before < ROWS - BAD
        with copying(server, tmp_path / "in", tmp_path / "second.log", *options) as second:
            said = second.finish(seconds=FINISH_SECONDS)
        done = said.strip().splitlines()[-1].split(",")
        assert done[:3] == ["app.orders", str(ROWS - BAD - before), str(before)]
        assert _rows(client) == ROWS - BAD
        rejects = rejects_of(tmp_path / "bad")
        assert len(rejects) == BAD
        assert {(r["column"], r["code"]) for r in rejects} == {("amount", "type_mismatch")}
        assert all(r["row"]["amount"] in r["reason"] for r in rejects)
        for topic in TOPICS:
            result = Copying(server.url, client).client.execute(f"AUDIT TOPIC {topic}")
            log, source = (dict(zip(result.columns, row, strict=True)) for row in result.rows)
            assert result.message == f"AUDIT {topic}: sound"
            assert (source["coverage"], source["duplication"], log["gaps"], log["repeated"]) == (100.0, 1.0, 0, 0)
        server.end()
        with tablecast.open(str(server.data)) as db:
            assert db.verify().problems == []


def _rows(client: tablecast.Client) -> int:
    (row,) = client.query("SELECT count(*) FROM app.orders").rows
    return int(row[0])
