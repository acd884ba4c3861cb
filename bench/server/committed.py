"""From the moment of a commit to the moment a consumer that waits has its message.

Each side says itself when it committed, on the machine's clock, and at the same place of its work: when the commit record is made,
right before it is written and synced. What tablecast did before that for the waiting consumer, which is to render its answer, is
not in this time; it is in the one from the sending of the write (waking.py). PostgreSQL keeps the time of a commit
(`track_commit_timestamp`); tablecast is told to keep it here:

    python -m bench.server.committed DIRECTORY PORT FILE      a server that writes the time of every commit to FILE when it ends
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from bench.run import Found
from bench.server import ours, postgres
from bench.server.processes import free_port, running
from bench.server.turns import OURS, Against, compared, started
from bench.server.waking import Ring, our_ring, postgres_ring
from tablecast.engine.commit import Commit
from tablecast.engine.writer import Writer
from tablecast.storage.base import Batch, Snapshot

PEERS = {
    "postgres": Against(
        "PostgreSQL LISTEN/NOTIFY", 1.5, "a NOTIFY is lost to who does not listen; a message here is kept"
    )
}
Times = dict[int, float]  # row number -> seconds since 1970


def commit_to_consumer(path: Path, rounds: int, count: int) -> Iterator[Found]:
    """In turns; the median of all rings of a side."""
    stamps = path / "stamps.json"
    arrived: dict[str, Times] = {}
    committed: dict[str, Times] = {}
    servers = {"postgres": lambda path: postgres.server(path, track_commit_timestamp="on")}
    with started(path, servers) as them:
        with stamping_server(path, stamps) as port:
            asyncio.run(_measure({OURS: port, **them.ports}, rounds, count, arrived, committed))
        committed[OURS] = {int(row): at for row, at in json.loads(stamps.read_text()).items()}
    took = {
        side: statistics.median([at - committed[side][row] for row, at in rows.items()]) * 1000
        for side, rows in arrived.items()
    }
    yield from compared("commit → waiting consumer has its event, p50", PEERS, took, them.missing, "ms", at_most=True)


async def _measure(
    ports: dict[str, int], rounds: int, count: int, arrived: dict[str, Times], committed: dict[str, Times]
) -> None:
    async with AsyncExitStack() as stack:
        rings: dict[str, Ring] = {
            side: await stack.enter_async_context(_RINGS[side](port)) for side, port in ports.items()
        }
        for number in range(rounds):
            for side, ring in rings.items():
                rows = range(number * count, (number + 1) * count)
                arrived.setdefault(side, {}).update([(row, await _arrival(ring, row)) for row in rows])
    if "postgres" in ports:
        async with postgres.connections(ports["postgres"], 1) as (asking,):
            found = await asking.fetch("SELECT id, pg_xact_commit_timestamp(xmin) AS at FROM alarms")
        committed["postgres"] = {row["id"]: row["at"].timestamp() for row in found}


async def _arrival(ring: Ring, row: int) -> float:
    _, at = await ring(row)
    return at


_RINGS: dict[str, Callable[[int], Any]] = {OURS: our_ring, "postgres": postgres_ring}


# --- a server that keeps the times of its commits ---------------------------------------------------------------------


@contextmanager
def stamping_server(path: Path, stamps: Path) -> Iterator[int]:
    port = free_port()
    command = [sys.executable, "-m", "bench.server.committed", str(path / "committed"), str(port), str(stamps)]
    with running(command, port, path / "committed.log"):
        yield port


def _main(directory: str, port: int, stamps: str) -> None:
    from tablecast.server.serve import serve
    from tablecast.server.settings import Settings

    times: Times = {}
    write = Writer._write

    def stamping(self: Writer, batch: Batch, commit: Commit) -> Snapshot:
        now = time.time()
        for run in commit.runs:
            if commit.catalog.tables[run.table_id].schema.name == "alarms":
                times[run.after[0].c0] = now
        return write(self, batch, commit)

    with mock.patch.object(Writer, "_write", stamping):
        settings = Settings(
            data=directory, port=port, log_level="warning", requests_per_second_per_user=1_000_000,
            requests_per_second_per_address=1_000_000,
        )  # fmt: skip
        serve(settings, password=ours.PASSWORD, say=lambda text: None)
    Path(stamps).write_text(json.dumps(times))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
