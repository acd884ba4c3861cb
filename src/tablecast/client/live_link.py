"""The live queries of one client over one connection, which lives as long as one of them does.

A task keeps the connection: it signs in, carries messages, and when the connection is lost it waits as the client's
`Retry` says and makes another, on which everything is resumed. An access token that ended is renewed on the way. When
the attempts are used up, or the server refuses for good, every query ends with the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any

from tablecast.client.connection import Attempts, Connection
from tablecast.client.failures import own
from tablecast.client.live_socket import LiveSocket
from tablecast.client.live_state import LiveState, Query, QueryState
from tablecast.client.transport import NoAnswer
from tablecast.client.values import pack, portable_values
from tablecast.codec.live import MAX_MESSAGE_BYTES
from tablecast.errors import DatabaseClosed, DatabaseError, TablecastError, TooLarge, Unauthenticated, Unreachable
from tablecast.model.live import LiveStep

PROGRESS_SECONDS = 30.0  # between two questions how far the server is: far less than it remembers
OVERHEAD_BYTES = 300  # of a `subscribe` beside its text and parameters: names of fields, numbers, lengths
_log = logging.getLogger("tablecast.live")


class LiveLink:
    """Belongs to one event loop. It is over when its last query is, and not used again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._state = LiveState()
        self._arrived: dict[Query, asyncio.Event] = {}
        self._has_to_send = asyncio.Event()
        self._attempts: dict[Query, Attempts] = {}  # of queries that were refused for now
        self._asking: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self._run())

    @property
    def is_over(self) -> bool:
        return not self._state.queries

    # --- queries ---

    def open(self, sql: str, params: Sequence[Any], namespace: str) -> LinkedQuery:
        check_size(sql, params, namespace)  # else the server would end the connection, and all queries with it
        query = self._state.open(sql, portable_values(params), namespace)
        self._arrived[query] = asyncio.Event()
        self._stir()
        return LinkedQuery(self, query)

    async def next(self, query: Query) -> LiveStep | None:
        arrived = self._arrived.get(query)
        while not query.steps:
            if query.state is QueryState.ENDED or arrived is None:
                if query.error is None:
                    return None
                raise own(query.error)
            arrived.clear()
            await arrived.wait()
        step = self._state.take(query)
        self._stir()
        return step

    async def close_query(self, query: Query) -> None:
        self.drop(query)
        if self.is_over:
            await asyncio.wait([self.task])

    def drop(self, query: Query) -> None:
        """Again and again, if need be."""
        self._state.close(query)
        self._wake(query)
        self._arrived.pop(query, None)
        self._attempts.pop(query, None)
        self._stir()
        self._end_if_over()

    def drop_soon(self, query: Query) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and all of it gone
            self._loop.call_soon_threadsafe(self.drop, query)

    async def close(self) -> None:
        self._fail(DatabaseClosed("the client is closed"))
        await asyncio.wait([self.task])

    def _fail(self, error: TablecastError) -> None:
        self._state.fail(error)
        for query in self._arrived:
            self._wake(query)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.is_over and asyncio.current_task() is not self.task:
            self.task.cancel()

    def _wake(self, query: Query) -> None:
        arrived = self._arrived.get(query)
        if arrived is not None:
            arrived.set()

    def _stir(self) -> None:
        self._has_to_send.set()

    # --- the connection ---

    async def _run(self) -> None:
        try:
            await self._keep_connected()
        except TablecastError as e:
            self._fail(e)
        except Exception as e:  # a mistake of ours: no reader may wait for ever
            _log.exception("live queries of %s ended", self._connection.url)
            self._fail(DatabaseError(f"live queries ended: {e!r}"))
        finally:
            for asking in self._asking:
                asking.cancel()
            await asyncio.gather(*self._asking, return_exceptions=True)

    async def _keep_connected(self) -> None:
        attempts = self._connection.attempts()
        while not self.is_over:
            self._state.has_progress, authorization = False, None
            try:
                authorization = await self._connection.tokens.header()
                await self._live_through(authorization)
            except (NoAnswer, TablecastError) as e:
                if self._state.has_progress:
                    attempts = self._connection.attempts()
                await self._sit_out(e, attempts, authorization)

    async def _live_through(self, authorization: str | None) -> None:
        """One connection, from its beginning to the error that ends it, or to the end of the last query."""
        socket = await LiveSocket.open(self._connection.url, authorization)
        tasks = [self._loop.create_task(self._send(socket)), self._loop.create_task(self._ask_progress())]
        try:
            self._state.connected()
            self._stir()
            while not self.is_over:
                for query in self._state.received(await socket.receive()):
                    self._told(query)
                self._stir()
                await asyncio.sleep(0)  # readers keep up with a server that says much
        finally:
            self._state.disconnected()
            for task in tasks:
                task.cancel()
            try:
                await asyncio.wait(tasks)
            finally:
                await socket.close()

    def _told(self, query: Query) -> None:
        if query.state is QueryState.REFUSED and query.error is not None:
            asking = self._loop.create_task(self._ask_again(query, query.error))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        elif query.state is QueryState.LIVE:
            self._attempts.pop(query, None)
        self._wake(query)

    async def _ask_again(self, query: Query, error: TablecastError) -> None:
        attempts = self._attempts.setdefault(query, self._connection.attempts())
        if await attempts.again(error):
            self._state.ask_again(query)
        else:
            self._state.close(query, error)
            self._wake(query)
            self._end_if_over()
        self._stir()

    async def _send(self, socket: LiveSocket) -> None:
        with contextlib.suppress(NoAnswer):  # whoever receives learns of it, too
            while True:
                self._has_to_send.clear()
                for message in self._state.messages_to_send():
                    await socket.send(message)
                await self._has_to_send.wait()

    async def _ask_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._state.ask_progress()
            self._stir()

    async def _sit_out(self, cause: NoAnswer | TablecastError, attempts: Attempts, authorization: str | None) -> None:
        """Waits before the next attempt, if there is one."""
        error = cause if isinstance(cause, TablecastError) else self._unreachable(cause)
        _log.info("live queries of %s wait: %s", self._connection.url, error)
        passes = error.retryable or (isinstance(error, Unauthenticated) and await self._renewed(authorization))
        if not (passes and await attempts.again(error)):
            raise error from cause

    def _unreachable(self, cause: NoAnswer) -> Unreachable:
        url = self._connection.url
        return Unreachable(f"{url} cannot be reached for live queries: {cause.reason}", url=url)

    async def _renewed(self, authorization: str | None) -> bool:
        """Whether there is another token than the one that was refused, or has ended."""
        if authorization is None:
            return False
        try:
            return await self._connection.tokens.refused(authorization)
        except NoAnswer:
            return True  # the next attempt finds out


def check_size(sql: str, params: Sequence[Any], namespace: str) -> None:
    size = len(sql.encode()) + len(pack(list(params))) + len(namespace.encode()) + OVERHEAD_BYTES
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"the live query has {size} bytes with its parameters; a server takes {MAX_MESSAGE_BYTES}",
            size=size,
            limit=MAX_MESSAGE_BYTES,
        )


class LinkedQuery:
    """A live query of a server: the `LiveSource` of readers."""

    def __init__(self, link: LiveLink, query: Query) -> None:
        self._link = link
        self._query = query
        self._is_closed = False

    @property
    def columns(self) -> tuple[str, ...]:
        return self._query.shape.columns

    async def next(self) -> LiveStep | None:
        return await self._link.next(self._query)

    async def close(self) -> None:
        self._is_closed = True
        await self._link.close_query(self._query)

    def abandon(self) -> None:
        if not self._is_closed:
            self._link.drop_soon(self._query)


class LiveLinks:
    """One link at a time, and those that are coming to their end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._newest: LiveLink | None = None
        self._links: set[LiveLink] = set()

    def open(self, sql: str, params: Sequence[Any], namespace: str) -> LinkedQuery:
        if self._newest is None or self._newest.is_over:
            self._newest = self._linked()
        return self._newest.open(sql, params, namespace)

    def _linked(self) -> LiveLink:
        link = LiveLink(self._connection)
        self._links.add(link)
        link.task.add_done_callback(lambda _: self._links.discard(link))
        return link

    async def close(self) -> None:
        for link in list(self._links):
            await link.close()
