"""Writes at a given rate, whatever the answers take: 24 callers share one schedule.

A latency counts from the moment when a write was due, not from when a caller had time for it: a server that stalls is not
asked less because of it.
"""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal

from bench.server.ours import connect
from bench.soak.role import CUSTOMERS, NOTE, Board, Final, Sample, sampling
from bench.soak.tally import Tally, now_us
from tablecast import AsyncClient

CALLERS = 24
PAUSE_SECONDS = 0.05  # between looks at a rate of 0
INSERT = "INSERT INTO soak.orders VALUES (?, ?, ?, ?, ?)"


class Schedule:
    """When the next write is due. A new rate begins now: what an impossible one left undone is forgotten."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._rate = 0.0
        self._due = 0.0
        self._next = 0

    async def next(self) -> tuple[int, float] | None:
        """Number and due time; None while nothing is due."""
        rate = self._board.rate.value
        if rate != self._rate:
            self._rate, self._due = rate, time.monotonic()
        if not rate:
            return None
        self._due += 1 / rate
        number, self._next = self._next, self._next + 1
        due = self._due
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        return number, due


async def _call(client: AsyncClient, schedule: Schedule, board: Board, tally: Tally) -> None:
    while not board.over.is_set():
        if (planned := await schedule.next()) is None:
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        number, due = planned
        due_us = int(due * 1e6)
        await client.execute(INSERT, (number, number % CUSTOMERS, Decimal("12.50"), NOTE, due_us))
        tally.take(number, due_us, now_us())
        board.written.value = tally.received


def writer(port: int, board: Board) -> None:
    async def run() -> None:
        tally, schedule = Tally(), Schedule(board)
        async with await connect(port) as client, asyncio.TaskGroup() as tasks:
            for _ in range(CALLERS):
                tasks.create_task(_call(client, schedule, board, tally))
            await sampling(
                board,
                lambda: [Sample("commit", tally.received, tally.latencies())],
                lambda total: [Final("commit", tally.coverage(total))],
            )

    asyncio.run(run())
