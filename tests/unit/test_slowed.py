"""What slows executors down for a benchmark: a program, and what it started, gets its share of the time."""

from __future__ import annotations

import subprocess
import sys
import time

from bench.spark.slowed import slowed

SECONDS = 1.5
BUSY = f"""
import time
until = time.monotonic() + {SECONDS}
while time.monotonic() < until:
    pass
print(time.process_time())
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])"


def busy() -> subprocess.Popen[str]:
    """Its child does the work, as those of a worker of Spark do."""
    return subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)


def test_each_gets_its_share() -> None:
    with busy() as one, busy() as other:
        time.sleep(0.3)  # until the children are there
        with slowed([one.pid, other.pid], 0.2):
            used = [float(process.communicate()[0]) for process in (one, other)]
    for seconds in used:
        assert 0.05 < seconds / SECONDS < 0.5  # of which up to a fifth were before


def test_they_go_on_at_full_speed_afterwards() -> None:
    with busy() as process:
        with slowed([process.pid], 0.2):
            time.sleep(0.3)
        assert float(process.communicate(timeout=30)[0]) > 0.3 * SECONDS
