"""Memory that was freed is used again, or given back: glibc's allocator, told what kind of process this is.

As it comes it is made for few threads and short lives. Three of its habits let a server grow that holds no more than before:

- *An arena for each thread*, up to eight for each core, and what is freed goes back to the arena it came from. The store's
  cache turns over all the time: blocks that one thread read make way for those of another, and every arena keeps holes that
  only its own threads could fill. Under the load of `make soak` on two cores the cache was full after 300,000 rows; the
  process grew on, by free memory alone (from 57 to 110 MiB of it), with no object and no block more than before.
- *Large and small lie together.* Write buffers come in pieces of 1 MiB. Blocks of 16 KiB settle where one was freed, the next
  piece has no room there, and the arena grows. Such pieces come from the system here, and go back to it.
- *A limit that rises.* Larger buffers do so anyway, at first; but once one of up to 32 MiB was freed, all of its size are cut out
  of arenas, and stay there. A sign-in takes 19 MiB for some milliseconds: 24 of them, by 8 threads, left 160 MB behind; with
  two arenas 80; with limits that stand, 1.

Together: after 550,000 rows of that load 36 MiB were free instead of 96; but after 950,000 it was 66, for holes between blocks remain.
So once a minute pages that are free all through are given back, wherever they lie, which takes some milliseconds.

Only in a process of our own. A program that embeds the database says itself what it wants (docs/operations.md, "Memory").
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

ARENAS = 2  # a second one for whoever would wait for the first; each further one may hold as many holes again
RETURNED_BYTES = 2**20 - 2**12  # a buffer so large goes back to the system: asking again costs little beside filling it
KEPT_FREE_BYTES = 8 * 2**20  # at an arena's end; to give back less, and ask for it again, would go on all the time
GIVE_BACK_SECONDS = 60.0  # from one time to the next; whoever allocates meanwhile waits, for some milliseconds

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # as malloc.h names them


def bound_free_memory(environment: Mapping[str, str] = os.environ) -> None:
    """Before there are threads. Does nothing where another C library is used, which lacks these habits, or where somebody
    chose otherwise, by glibc's own variables."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    if "glibc.malloc" in tunables or any(name.startswith("MALLOC_") for name in environment):
        return
    mallopt = _of_glibc("mallopt")
    mallopt(_M_ARENA_MAX, ARENAS)
    mallopt(_M_MMAP_THRESHOLD, RETURNED_BYTES)
    mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)


def give_back() -> None:
    """To the system, what is free. Other threads may run, but wait when they allocate."""
    _of_glibc("malloc_trim")(KEPT_FREE_BYTES)


@asynccontextmanager
async def giving_back(pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[None]:
    """Gives back now and then, to the end of the block."""
    task = asyncio.create_task(_give_back_forever(pause))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _give_back_forever(pause: Callable[[float], Awaitable[None]]) -> None:
    while True:
        await pause(GIVE_BACK_SECONDS)
        await asyncio.to_thread(give_back)


def _of_glibc(name: str) -> Callable[..., int]:
    """A function of the C library; one that does nothing if it has none of this name."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda *_: 0
    return found
