"""What slows executors down for a benchmark: a program, and what it started, gets its share of the time."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bench.spark.slowed import slowed

SHARE = 0.2
WORK = """
import sys, time
print("ready", flush=True)
while sys.stdin.readline():
    began, used = time.monotonic(), time.process_time()
    for _ in range(20_000_000):
        pass
    print((time.process_time() - used) / (time.monotonic() - began), flush=True)
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
    """What share of the time each of them has the processor for its work, at the same time."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("work\n")
    return [float(process.stdout.readline()) for process in processes if process.stdout is not None]


@pytest.mark.speed
def test_each_gets_its_share_and_goes_on_as_before_afterwards() -> None:
    """Others may be at work here: they take from it, and make turns longer than they should be."""
    with started() as one, started() as other:
        with slowed([one.pid, other.pid], SHARE):
            slow = worked(one, other)
        free = worked(one) + worked(other)
        for process in (one, other):
            process.communicate()
    assert max(slow) < 2 * SHARE
    assert max(slow) < min(free)
