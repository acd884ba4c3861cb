"""An Arrow stream as it arrives: record batches one by one, with only as much in memory as one of them needs.

Arrow's reader wants a file that it can block on. It gets one, in a thread, which asks the event loop for the next
bytes; what the loop has not been asked for stays in the socket, so a slow reader slows the sender down.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa

from tablecast.client.transport import Incoming
from tablecast.errors import CorruptData


class _Body(io.RawIOBase):
    def __init__(self, incoming: Incoming, loop: asyncio.AbstractEventLoop) -> None:
        self._incoming = incoming
        self._loop = loop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = asyncio.run_coroutine_threadsafe(self._incoming.read(len(buffer)), self._loop).result()
        buffer[: len(part)] = part
        return len(part)


async def batches(incoming: Incoming) -> AsyncIterator[pa.RecordBatch]:
    """Raises CorruptData if the stream ends before its end mark."""
    body = io.BufferedReader(_Body(incoming, asyncio.get_running_loop()))
    try:
        reader = await asyncio.to_thread(pa.ipc.open_stream, body)
        while (batch := await asyncio.to_thread(next, reader, None)) is not None:
            yield batch
    except pa.ArrowInvalid as e:
        raise CorruptData(f"the Arrow stream of the answer breaks off: {e}") from e
