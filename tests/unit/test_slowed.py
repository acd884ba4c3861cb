"""What slows executors down for a benchmark: a program, and what it started, gets its share of the time."""

from __future__ import annotations

import subprocess
import sys

from bench.spark.slowed import slowed

SHARE = 0.2
WORK = """
import sys, time
print("ready", flush=True)
while sys.stdin.readline():
    began = time.monotonic()
    for _ in range(20_000_000):
        pass
    print(time.monotonic() - began, flush=True)
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"


def started() -> subprocess.Popen[str]:
    """Its child does the work, as those of a worker of Spark do."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def worked(*processes: subprocess.Popen[str]) -> list[float]:
    """How long the same work takes each of them, at the same time."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("work\n")
    return [float(process.stdout.readline()) for process in processes if process.stdout is not None]


def test_each_is_slowed_down_and_goes_on_as_before_afterwards() -> None:
    """A fifth of the time takes five times as long; twice is asked, since others may be at work here."""
    with started() as one, started() as other:
        with slowed([one.pid, other.pid], SHARE):
            slow = worked(one, other)
        free = worked(one) + worked(other)
        for process in (one, other):
            process.communicate()
    assert all(before > 2 * after for before, after in zip(slow, free, strict=True))
