"""Several servers beside each other: started if they are installed, measured in turns, compared with ours one by one."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import Comparison, Kind, NotInstalled, NotMeasured
from bench.run import Found

CALLERS = 24
OURS = "ours"
Round = Callable[[], Awaitable[float]]
Server = Callable[[Path], AbstractContextManager[int]]


@dataclass(frozen=True, slots=True)
class Against:
    """Who it is, as the report names it, and what we aim at beside it."""

    name: str
    target: float
    note: str = ""
    kind: Kind = "peer"


@dataclass(slots=True)
class Started:
    ports: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # why, and how to get it


@contextmanager
def started(path: Path, servers: Mapping[str, Server]) -> Iterator[Started]:
    """Those of the servers that are installed."""
    found = Started()
    with ExitStack() as stack:
        for name, server in servers.items():
            try:
                found.ports[name] = stack.enter_context(server(path))
            except NotInstalled as e:
                found.missing[name] = str(e)
        yield found


async def in_turns(rounds: int, sides: Mapping[str, Round]) -> dict[str, float]:
    """The median of each side, measured alternately."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(await side())
    return {name: statistics.median(results) for name, results in found.items()}


async def callers_rate(seconds: float, work: Callable[[int], Awaitable[int]]) -> float:
    """`work(caller)` from 24 tasks for a while: what it counts, per second."""
    until, done = time.perf_counter() + seconds, 0

    async def call(number: int) -> None:
        nonlocal done
        while time.perf_counter() < until:
            count = await work(number)  # not `done += await …`, which would add to what it was before the wait
            done += count

    began = time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    return done / (time.perf_counter() - began)


def compared(
    workload: str,
    peers: Mapping[str, Against],
    took: Mapping[str, float],
    missing: Mapping[str, str],
    unit: str,
    *,
    at_most: bool = False,
) -> Iterator[Found]:
    for key, peer in peers.items():
        if key in took:
            yield Comparison(
                workload,
                peer.name,
                took[OURS],
                took[key],
                unit,
                peer.target,
                at_most=at_most,
                note=peer.note,
                kind=peer.kind,
            )
        else:
            yield NotMeasured(workload, peer.name, missing[key])
