"""What a worker process does once: it keeps the memory that a batch freed for the next one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from tablecast.spark.worker import settle

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        made = [np.ones(131_072) for _ in range(20)]
        del made
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
settle()
faults()
print(first, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc has the habit, and the setting")
def test_memory_of_a_batch_is_used_again() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    before, after = map(int, found.stdout.split())
    assert before > 1_000
    assert after < before / 20
