"""Group commit on disks that take longer to sync than this machine's: every fsync of both sides is made to take more time.

    LD_PRELOAD=… python -m bench.slow_disk PATH ROUNDS SECONDS      both rates, as JSON

SQLite syncs once for every write, tablecast once for all that wait; so what one gains on the other depends on the disk before
anything else. Where an fsync takes a tenth of a millisecond, what is left is the work of the threads; disks that keep no power for
a cache take one to five.

The two calls are taken the place of by a library that sleeps after them. (strace can delay calls, too, but whatever it watches
switches threads several times as slowly, also where nothing is delayed: that would measure strace.) SQLite is written to by one
thread at a time here, which serves it better than its own waiting does where a write takes long (693 against 428 a second).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Comparison, in_turns, threads_rate
from bench.peers import Numbers, Sqlite, Tablecast, make_row
from bench.server.processes import program
from bench.writes import THREADS

DELAYS_MICROSECONDS = (300, 1_000)  # about where many threads begin to pay, and a usual disk
LIBRARY = """
#include <sys/syscall.h>
#include <unistd.h>
static int slowly(long call, int file) { int done = syscall(call, file); usleep(DELAY); return done; }
int fsync(int file) { return slowly(SYS_fsync, file); }
int fdatasync(int file) { return slowly(SYS_fdatasync, file); }
"""


def slow_disk(path: Path, rounds: int, seconds: float) -> Iterator[Comparison]:
    for delay in DELAYS_MICROSECONDS:
        (own_path := path / str(delay)).mkdir()
        ours, theirs = _measured(own_path, delay, rounds, seconds)
        yield Comparison(
            f"{THREADS} threads, single-row INSERT, as above, where an fsync takes {delay / 1000:g} ms more",
            "SQLite (WAL, FULL), row + outbox row", ours, theirs, "rows/s", 8.0, note="the same delay for both",
        )  # fmt: skip


def _measured(path: Path, delay: int, rounds: int, seconds: float) -> tuple[float, float]:
    library, compiler = path / "slowly.so", program("cc", "apt-get install gcc libc6-dev")
    built = [compiler, "-shared", "-fPIC", "-D_GNU_SOURCE", f"-DDELAY={delay}", "-x", "c", "-", "-o", str(library)]
    subprocess.run(built, input=LIBRARY, text=True, check=True)
    command = [sys.executable, "-m", "bench.slow_disk", str(path), str(rounds), str(seconds)]
    env = {**os.environ, "LD_PRELOAD": str(library)}
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
    ours, theirs = json.loads(told)
    return ours, theirs


def _main(path: Path, rounds: int, seconds: float) -> None:
    ours, theirs, numbers = Tablecast(path / "tablecast"), Sqlite(path / "sqlite"), Numbers()
    one_at_a_time = threading.Lock()

    def insert_theirs() -> None:
        row = make_row(numbers.next())
        with one_at_a_time:
            theirs.insert([row])

    rates = in_turns(
        rounds,
        lambda: threads_rate(THREADS, seconds, lambda n, i: ours.insert_one(make_row(numbers.next()))),
        lambda: threads_rate(THREADS, seconds, lambda n, i: insert_theirs()),
    )
    ours.db.close()
    print(json.dumps(rates))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
