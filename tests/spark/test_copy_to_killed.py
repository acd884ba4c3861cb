"""COPY TOPIC … TO, killed with SIGKILL while it writes, and run again: every message is in the files once."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from processes import PASSWORD, Run, Server, environment, until
from three_routes import DEFINITIONS, orders

import tablecast

pytestmark = pytest.mark.long

ROWS, BATCH_ROWS = 60_000, 2_000
QUICK_START = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
FINISH_SECONDS = 500.0  # a machine under load: Spark's start alone may take a minute there


def archiving(server: Server, target: Path, log: Path) -> Run:
    command = [sys.executable, "-m", "tablecast", "copy", "to", server.url, "app.full", str(target)]
    spark = ["--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf", QUICK_START]
    return Run([*command, "--commit-rows", str(BATCH_ROWS), "--output", "csv", *spark], log, environment())


def batches(target: Path) -> list[Path]:
    return sorted(target.glob("batch=*"))


def offsets(target: Path) -> list[tuple[int, int]]:
    files = [file for batch in batches(target) for file in batch.glob("*.parquet")]
    return sorted(
        place
        for file in files
        for place in zip(
            *(pq.read_table(file).column(name).to_pylist() for name in ("partition_id", "offset")), strict=True
        )
    )


def test_killed_in_the_middle_and_run_again(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with Server(tmp_path) as server, tablecast.connect(server.url, user="system", password=PASSWORD) as client:
        client.execute_all(DEFINITIONS)
        client.insert("app.orders", orders(0, ROWS))
        with archiving(server, target, tmp_path / "first.log") as first:
            until("batches are there", lambda: len(batches(target)) >= 2 or not first.running, FINISH_SECONDS)
            assert first.running, first.log.read_text()[-4000:]
            first.kill()
        kept = offsets(target)
        assert 0 < len(kept) < ROWS
        assert len(kept) == len(set(kept))
        with archiving(server, target, tmp_path / "second.log") as second:
            second.finish(seconds=FINISH_SECONDS)
        told = client.read_arrow("app.full")
        everything = sorted(
            zip(told.column("partition_id").to_pylist(), told.column("offset").to_pylist(), strict=True)
        )
        assert offsets(target) == everything
        assert len(everything) == ROWS
        assert list((target / "_tablecast").glob("next-*")) == []
        server.end()
