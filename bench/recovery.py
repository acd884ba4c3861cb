"""Opening after a kill, and memory while writing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Comparison, in_turns
from bench.peers import Numbers, Tablecast

BATCH = 1000


def open_after_kill(path: Path, rounds: int, small: int, large: int) -> Iterator[Comparison]:
    """A child writes and is killed; each round opens a database that was killed just then."""
    for size in (small, large):
        _written_and_killed(path / str(size), size)

    def open_again(size: int) -> float:
        place = path / str(size)
        child = subprocess.run(
            [sys.executable, "-c", _OPEN, str(place)], check=False, capture_output=True, text=True, env=os.environ
        )
        return float(child.stdout)

    ours, theirs = in_turns(rounds, lambda: open_again(large), lambda: open_again(small))
    yield Comparison(
        f"open a database of {large:,} messages after a kill",
        f"of {small:,} messages",
        ours,
        theirs,
        "ms",
        3.0,
        at_most=True,
        kind="itself",
    )


# Opens, says how long it took, writes a megabyte that stays in the log, and is killed.
_OPEN = """
import os, signal, sys, time
from tablecast import open
began = time.perf_counter()
db = open(sys.argv[1])
print((time.perf_counter() - began) * 1000, flush=True)
first = db.execute("SELECT max(id) FROM bench.orders").scalar() + 1
db.insert("bench.orders", [(first + i, "c", 1, "new", "x" * 120) for i in range(1000)])
os.kill(os.getpid(), signal.SIGKILL)
"""


# Loads a database and is killed. A process of its own: a fork would inherit locks of RocksDB's threads.
_LOAD = """
import os, signal, sys
from pathlib import Path
from bench.peers import Numbers, Tablecast
side, numbers = Tablecast(Path(sys.argv[1]), durability="none"), Numbers()
for _ in range(int(sys.argv[2]) // 1000):
    side.insert(numbers.block(1000))
os.kill(os.getpid(), signal.SIGKILL)
"""


def _written_and_killed(path: Path, messages: int) -> None:
    subprocess.run([sys.executable, "-c", _LOAD, str(path), str(messages)], check=False)


def flat_memory(path: Path, rows: int, settled: int) -> Iterator[Comparison]:
    """Resident memory while writing: what it is at the end against what it was after the first half million."""
    side, numbers = Tablecast(path / "memory", durability="none"), Numbers()
    after_settling, highest, began = 0.0, 0.0, time.perf_counter()
    for written in range(0, rows, BATCH):
        side.insert(numbers.block(BATCH))
        if written % 50_000 == 0:
            resident = _resident_mb()
            if written <= settled:
                after_settling = max(after_settling, resident)
            highest = max(highest, resident)
    rate = rows / (time.perf_counter() - began)
    side.db.close()
    yield Comparison(
        f"memory while writing {rows:,} rows (highest)", f"highest of the first {settled:,}",
        highest, after_settling, "MB", 1.25, at_most=True, note=f"{rate:,.0f} rows/s, durability none", kind="itself",
    )  # fmt: skip


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
