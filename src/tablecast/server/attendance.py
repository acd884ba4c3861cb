"""A client that went away is noticed while it is being waited for, not when it is answered.

The server learns of a closed connection only by asking for the next message of the request. So a task asks, beside the
one that serves; when it hears that the client is gone it cancels the serving task, wherever that waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from tablecast.server.bodies import ClientGone

T = TypeVar("T")


async def attended(receive: Receive, work: Coroutine[Any, Any, T]) -> tuple[T, bool]:
    """What `work` returns, and whether the client is still there to have it.

    Raises ClientGone when the client went away before there was anything; `work` is cancelled then. The request's body
    must have been read.
    """
    serving = asyncio.current_task()
    assert serving is not None
    gone = asyncio.create_task(_disconnect(receive))

    def cancel_serving(_: object) -> None:
        serving.cancel()

    gone.add_done_callback(cancel_serving)
    try:
        result = await work
        return result, not gone.done()
    except asyncio.CancelledError:
        if not gone.done() or gone.cancelled():
            raise
        serving.uncancel()
        raise ClientGone from None
    finally:
        gone.remove_done_callback(cancel_serving)
        gone.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
