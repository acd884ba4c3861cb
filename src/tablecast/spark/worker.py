"""What a Python worker process of Spark does once, before its first rows.

Between two tasks Spark's worker collects garbage over everything the process holds. With pyarrow, numpy and tablecast
imported that takes longer than a small micro-batch does: 94 % of the worker's time was found there. What is imported by
now stays anyway, so it is frozen: the collector looks at what comes later only.
"""

from __future__ import annotations

import gc
import os

_settled: set[int] = set()


def settle() -> None:
    """Once per process; a forked worker is another one."""
    if os.getpid() not in _settled:
        _settled.add(os.getpid())
        gc.collect()
        gc.freeze()
