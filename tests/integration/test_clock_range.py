"""A clock that says what ids cannot hold is refused when a database is opened: not while it is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tablecast
from tablecast.core.snowflake import CLOCK_END_MS
from tablecast.errors import ClockOutOfRange, WritesStopped
from tablecast.sql.aio import open_async
from tablecast.testing.clock import FakeClock

DAY_MS = 24 * 3600 * 1000
SCHEMA = """
CREATE TABLE t (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), at TIMESTAMP DEFAULT NOW(), v TEXT);
CREATE TOPIC e;
ALTER TOPIC e ADD SOURCE t ON ANY;
INSERT INTO t (v) VALUES ('x');
"""
YEAR_2150 = 5_680_281_600_000
OUTSIDE = [-1, -DAY_MS, CLOCK_END_MS, 4_102_444_800_000, YEAR_2150, 2**62, 2**64]


@pytest.mark.parametrize("now_ms", [0, 1, CLOCK_END_MS - DAY_MS, CLOCK_END_MS - 1])
def test_what_opens_can_also_be_written(now_ms: int) -> None:
    with tablecast.open(":memory:", clock=FakeClock(now_ms)) as db:
        for statement in SCHEMA.split(";")[:-1]:
            db.execute(statement)
        assert db.query("SELECT id >= 0 FROM t").scalar()
        assert len(db.consume("e", group="g", start=tablecast.EARLIEST).messages) == 1
        assert db.verify().problems == []


@pytest.mark.parametrize("now_ms", OUTSIDE)
def test_a_clock_outside_is_refused_with_a_word_and_nothing_is_made(tmp_path: Path, now_ms: int) -> None:
    with pytest.raises(
        ClockOutOfRange, match=r"the clock says .*; times from 1970 to the end of 2088 .* set"
    ) as caught:
        tablecast.open(tmp_path / "db", clock=FakeClock(now_ms, may_go_back=True))
    assert caught.value.code == "clock_out_of_range"
    assert caught.value.details == {"clock_ms": now_ms, "before_ms": CLOCK_END_MS}
    assert list(tmp_path.iterdir()) == []


def test_also_with_asyncio(tmp_path: Path) -> None:
    async def opened() -> None:
        await open_async(tmp_path / "db", clock=FakeClock(YEAR_2150))

    with pytest.raises(ClockOutOfRange, match="2150-01-01 00:00:00 UTC"):
        asyncio.run(opened())


def test_a_database_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "db") as db:
        db.execute("CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1)")
    with pytest.raises(ClockOutOfRange):
        tablecast.open(tmp_path / "db", clock=FakeClock(YEAR_2150))
    with tablecast.open(tmp_path / "db") as db:
        db.execute("INSERT INTO t VALUES (2)")
        assert db.query("SELECT COUNT(*) FROM t").scalar() == 2


def test_a_clock_that_jumps_there_leaves_no_trace(tmp_path: Path) -> None:
    """A time from there would stay: no commit may have an earlier one."""
    clock = FakeClock()
    with tablecast.open(tmp_path / "db", clock=clock) as db:
        db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        clock.set(YEAR_2150)
        with pytest.raises(WritesStopped, match="the clock says 2150-01-01"):
            db.execute("INSERT INTO t VALUES (1)")
    with tablecast.open(tmp_path / "db", clock=FakeClock()) as db:
        db.execute("INSERT INTO t VALUES (2)")
        assert db.query("SELECT id FROM t").rows == [(2,)]
