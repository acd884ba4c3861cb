"""What a Python worker process of Spark does once, before its first rows.

Between two tasks Spark's worker collects garbage over everything the process holds. With pyarrow, numpy and tablecast
imported that takes longer than a small micro-batch does: 94 % of the worker's time was found there. What is imported by
now stays anyway, so it is frozen: the collector looks at what comes later only.

Rows are decoded in arrays of 128 KiB and more, hundreds per batch. glibc gives such memory back to the system when it is freed and
then asks for it again, page by page: 736 page faults a batch, a third of the time. So freed memory is kept, up to a limit.
"""

from __future__ import annotations

import ctypes
import gc
import os

KEPT_BYTES = 64 * 2**20  # of freed memory
KEPT_ARRAY_BYTES = 32 * 2**20  # larger ones go back to the system at once
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h names them

_settled: set[int] = set()


def settle() -> None:
    """Once per process; a forked worker is another one."""
    if os.getpid() not in _settled:
        _settled.add(os.getpid())
        _keep_freed_memory()
        gc.collect()
        gc.freeze()


def _keep_freed_memory() -> None:
    """Other C libraries do not have this setting, nor this habit."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, KEPT_ARRAY_BYTES)
