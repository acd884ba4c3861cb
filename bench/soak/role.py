"""A part of the soak in a process of its own, and what it shares with whoever steers.

Each role sends a sample a second: how many rows it has, and how long those of the last second took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from bench.soak.tally import Buckets, Coverage

SAMPLE_SECONDS = 1.0
SPAWN = get_context("spawn")  # a fork would inherit threads' locks
SCHEMA = """
CREATE NAMESPACE soak;
CREATE TABLE soak.orders (id BIGINT PRIMARY KEY, customer BIGINT, amount DECIMAL(12,2), note TEXT, sent_us BIGINT)
  WITH (REPLICATE = TRUE);
"""
TOPICS = """
CREATE TOPIC soak.events PARTITIONS 4;
ALTER TOPIC soak.events ADD SOURCE soak.orders ON ANY;
CREATE TABLE soak.copied (id BIGINT PRIMARY KEY, sent_us BIGINT);
CREATE TOPIC soak.copies;
ALTER TOPIC soak.copies ADD SOURCE soak.copied ON ANY
"""
CUSTOMERS = 198
NOTE = "x" * 120


@dataclass(frozen=True, slots=True)
class Sample:
    role: str
    rows: int  # distinct so far, of the reader of this role that has fewest
    latencies: Buckets


@dataclass(frozen=True, slots=True)
class Final:
    role: str
    coverage: Coverage


class Board:
    """What roles and the one who steers share."""

    def __init__(self) -> None:
        self.rate: Any = SPAWN.Value("d", 0.0)  # writes per second; 0: none
        self.written: Any = SPAWN.Value("q", 0)  # acknowledged
        self.total: Any = SPAWN.Value("q", 0)  # set before `over`: what every reader should have
        self.over: Any = SPAWN.Event()
        self.said: Any = SPAWN.Queue()  # of Sample and Final


def start(role: Callable[..., None], *args: Any) -> Any:
    process = SPAWN.Process(target=role, args=args, daemon=True)
    process.start()
    return process


async def sampling(board: Board, tell: Callable[[], list[Sample]], tell_last: Callable[[int], list[Final]]) -> None:
    """Until it is over; for roles that are asynchronous."""
    while not board.over.is_set():
        await asyncio.sleep(SAMPLE_SECONDS)
        _say(board, tell())
    _say(board, tell_last(board.total.value))


def sampled(board: Board, tell: Callable[[], list[Sample]], tell_last: Callable[[int], list[Final]]) -> None:
    """Likewise, for roles that are threads."""
    while not board.over.is_set():
        time.sleep(SAMPLE_SECONDS)
        _say(board, tell())
    _say(board, tell_last(board.total.value))


def _say(board: Board, what: list[Any]) -> None:
    for each in what:
        board.said.put(each)
