"""An answer that is ready before what it tells is durable (engine.ahead). The thread that syncs sends it.

Telling the event loop to send it would cost two wake-ups more than the answer itself: of the loop, and of the client. So
the bytes go straight to the socket, through a descriptor of our own: the connection's may be closed meanwhile, and its
number given to another client's. What the socket does not take at once is left to the loop, as is a connection with TLS, or
one that has something else to send first; and so are all but the first few, since nobody's commit goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from tablecast.engine.ahead import Ahead

SENT_BY_SYNCER = 8  # answers to one commit; each takes some twenty microseconds


class HeldAnswer:
    """`sent` is called on the loop when the last byte was given away; until then nothing else may be written."""

    __slots__ = ("_data", "_descriptor", "_loop", "_sent", "_transport")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, data: bytes, sent: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._data = data
        self._sent = sent
        self._descriptor: int | None = None

    def hold(self, ahead: Ahead) -> None:
        if ahead.held < SENT_BY_SYNCER:
            self._descriptor = own_descriptor(self._transport)
        if not ahead.hold(self):
            self._release()
            if ahead.is_lost:
                self._transport.abort()
            else:
                self._finish()

    # --- on the thread that syncs ---

    def let_go(self) -> None:
        if self._descriptor is not None:
            try:
                self._data = self._data[os.write(self._descriptor, self._data) :]
            except OSError:
                pass  # it is full, or gone: the loop finds out which

    def finish(self) -> None:
        self._release()
        self._on_loop(self._finish)

    def drop(self) -> None:
        self._release()
        self._on_loop(self._transport.abort)

    def _on_loop(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # --- on the loop ---

    def _finish(self) -> None:
        if self._data and not self._transport.is_closing():
            self._transport.write(self._data)
        self._sent()


def own_descriptor(transport: asyncio.Transport) -> int | None:
    """Of the same socket, if bytes may go straight to it."""
    if (
        transport.is_closing()
        or transport.get_write_buffer_size()
        or transport.get_extra_info("sslcontext") is not None
    ):
        return None
    found: socket.socket | None = transport.get_extra_info("socket")
    return None if found is None else os.dup(found.fileno())
