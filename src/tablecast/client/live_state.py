"""The client's side of live queries, without I/O: messages of the server in, steps for readers and messages to send out.

One `LiveState` outlives connections. Each query of it is in one of these states:

    state     meaning                                            left by
    AWAY      nobody serves it                                   a connection: `subscribe` is sent          → ASKED
                                                                 the same, if its reader is too slow        → BEHIND
    ASKED     `subscribe` was sent                               `subscribed`: snapshot, refetch            → ROWS
                                                                 `subscribed`: resumed                      → JOINING
    ROWS      its rows come, batch by batch                      the last batch                             → JOINING
    JOINING   the rows are there, changes since are to come      `live`                                     → LIVE
    LIVE      every commit that matters is told                  `lagging`                                  → AWAY
                                                                 its reader is too slow                     → BEHIND
    BEHIND    out of it until its reader has read all            the reader took the last step              → AWAY
    REFUSED   for now: the server has too much to do             `ask_again`                                → AWAY
    ENDED     refused by the server, or closed by its reader

A lost connection brings every state from ASKED to LIVE back to AWAY. A query whose rows were whole once is resumed from
the last commit that it was told; one whose rows were still coming starts again, and its reader is told to forget them.

A reader is never waited for: the queries of a client share a connection, and one that is not read must not hold up the
others. When its queue is full it stops asking for batches of rows, or leaves the fan-out and resumes when its reader has
caught up: memory is bounded, and nothing is lost, since resuming tells the net difference.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import count
from typing import Any

from tablecast.client.failures import Failure, rebuilt
from tablecast.client.live_queue import StepQueue
from tablecast.client.live_shape import UNKNOWN, Shape, check_same
from tablecast.codec.live import (
    Change,
    ClientMessage,
    Error,
    Lagging,
    Live,
    NextBatch,
    Ping,
    Pong,
    RowChange,
    Rows,
    ServerMessage,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from tablecast.errors import CorruptData, SchemaChanged, TablecastError, TooManyRequests
from tablecast.model.change import Op
from tablecast.model.live import LiveStep

_OPS = {op.label: op for op in Op}


class QueryState(enum.Enum):
    AWAY = enum.auto()
    ASKED = enum.auto()
    ROWS = enum.auto()
    JOINING = enum.auto()
    LIVE = enum.auto()
    BEHIND = enum.auto()
    REFUSED = enum.auto()
    ENDED = enum.auto()


_UNSERVED = (QueryState.AWAY, QueryState.BEHIND, QueryState.REFUSED)


class Query:
    """One live query, and what its reader has not read yet."""

    def __init__(self, number: int, sql: str, params: Sequence[Any], namespace: str | None) -> None:
        self.id = number
        self.sql, self.params, self.namespace = sql, list(params), namespace
        self.state = QueryState.AWAY
        self.channel: int | None = None  # whose changes are for it
        self.shape = UNKNOWN
        self.history: str | None = None  # that its commit numbers are of
        self.steps = StepQueue()
        self.wants_batch = False  # of rows, when there is room
        self.error: TablecastError | None = None  # what it ended with, or why it was refused for now

    def request(self) -> Subscribe:
        resume = self.steps.resume
        history = None if resume is None else self.history
        return Subscribe(self.id, self.sql, self.params, self.namespace, resume, history)

    def end(self, error: TablecastError | None) -> None:
        """With an error its reader still gets what is queued; without, it has gone."""
        self.state, self.error = QueryState.ENDED, error
        if error is None:
            self.steps.clear()


class LiveState:
    """The live queries of one client. After every call there may be something in `messages_to_send`."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._queries: dict[int, Query] = {}
        self._channels: dict[int, set[Query]] = {}
        self._to_send: list[ClientMessage] = []
        self._is_connected = False
        self.has_progress = False  # a query became live since whoever reads this last cleared it

    @property
    def queries(self) -> list[Query]:
        return list(self._queries.values())

    def messages_to_send(self) -> list[ClientMessage]:
        """Each message is given out once."""
        messages, self._to_send = self._to_send, []
        return messages

    # --- what readers do ---

    def open(self, sql: str, params: Sequence[Any], namespace: str | None) -> Query:
        query = Query(next(self._numbers), sql, params, namespace)
        self._queries[query.id] = query
        self._ask(query)
        return query

    def take(self, query: Query) -> LiveStep:
        """The oldest step that is queued. There must be one."""
        step = query.steps.take()
        if query.state is QueryState.ROWS:
            self._pull(query)
        elif query.state is QueryState.BEHIND and not query.steps:
            query.state = QueryState.AWAY
            self._ask(query)
        return step

    def close(self, query: Query, error: TablecastError | None = None) -> None:
        """Its reader is gone, or is not to wait any longer. Idempotent."""
        if query.state is not QueryState.ENDED:
            self._unsubscribe(query)
            self._end(query, error)

    def ask_again(self, query: Query) -> None:
        """After a refusal, when a while has passed."""
        if query.state is QueryState.REFUSED:
            query.state, query.error = QueryState.AWAY, None
            self._ask(query)

    def ask_progress(self) -> None:
        """Now and then: what is told nothing would else resume from long ago, where nobody remembers."""
        if self._is_connected and self._channels:
            self._to_send.append(Ping())

    # --- what the connection does ---

    def connected(self) -> None:
        """Signed in: everything asks for its place again."""
        self._is_connected = True
        for query in self._queries.values():
            self._ask(query)

    def disconnected(self) -> None:
        self._is_connected = False
        self._to_send.clear()
        for query in self._queries.values():
            self._leave_channel(query)
            if query.state not in _UNSERVED:
                query.state = QueryState.AWAY

    def fail(self, error: TablecastError) -> None:
        """There will be no further connection."""
        self._is_connected = False
        for query in self.queries:
            self._end(query, error)

    def received(self, message: ServerMessage) -> list[Query]:
        """The queries that now have something for their readers. Raises what the server said of the whole connection."""
        match message:
            case Change():
                return self._change(message)
            case Error():
                return self._error(message)
            case Pong():
                self._reach(message.seq)
                return []
            case Subscribed() | Rows() | Live() | Lagging():
                query = self._queries.get(message.id) if isinstance(message.id, int) else None
                if query is None:  # closed while this was on its way
                    return []
                self._told(query, message)
                return [query]
            case _:
                return []

    # --- messages ---

    def _told(self, query: Query, message: Subscribed | Rows | Live | Lagging) -> None:
        match message:
            case Subscribed():
                _expect(query, message, QueryState.ASKED)
                try:
                    query.shape = check_same(query.shape, Shape(message.schema, message.key))
                except SchemaChanged as e:
                    self.close(query, e)
                else:
                    self._subscribed(query, message)
            case Rows():
                _expect(query, message, QueryState.ROWS)
                self._rows(query, message)
            case Live():
                _expect(query, message, QueryState.JOINING)
                self._live(query, message)
            case Lagging():
                _expect(query, message, QueryState.LIVE, QueryState.JOINING)
                self._leave_channel(query)
                query.steps.reach(message.seq)
                query.state = QueryState.AWAY
                self._ask(query)

    def _subscribed(self, query: Query, message: Subscribed) -> None:
        if message.mode == "resumed":
            if query.steps.resume is None:
                raise CorruptData("the server resumes a live query that was not asked to be")
            query.state = QueryState.JOINING
        else:
            query.steps.start_over(message.seq)
            query.history = message.history
            query.state, query.wants_batch = QueryState.ROWS, False  # the first batch comes unasked

    def _rows(self, query: Query, message: Rows) -> None:
        query.steps.put(LiveStep(query.shape.initial(message.rows, message.seq), message.seq, message.last))
        if message.last:
            query.state = QueryState.JOINING
        else:
            query.wants_batch = True
            self._pull(query)

    def _live(self, query: Query, message: Live) -> None:
        query.steps.put(_step(query, message))
        query.state, query.channel = QueryState.LIVE, message.channel
        self._channels.setdefault(message.channel, set()).add(query)
        self.has_progress = True

    def _change(self, message: Change) -> list[Query]:
        told = []
        for query in list(self._channels.get(message.channel, ())):
            if message.seq <= query.steps.seq:
                continue
            if query.steps.has_room(len(message.changes)):
                query.steps.put(_step(query, message))
                told.append(query)
            else:
                self._fall_behind(query)
        return told

    def _reach(self, seq: int) -> None:
        for query in self._queries.values():
            if query.state is QueryState.LIVE:
                query.steps.reach(seq)

    def _error(self, message: Error) -> list[Query]:
        error = rebuilt(Failure(message.code, message.message, message.details))
        if message.id is None:
            raise error
        query = self._queries.get(message.id) if isinstance(message.id, int) else None
        if query is None:
            return []
        if passes(error):
            self._leave_channel(query)
            query.state, query.error = QueryState.REFUSED, error
        else:
            self._end(query, error)
        return [query]

    # --- moves ---

    def _ask(self, query: Query) -> None:
        if not self._is_connected or query.state is not QueryState.AWAY:
            return
        if not query.steps.has_room():  # what it resumes to may be large
            query.state = QueryState.BEHIND
        else:
            query.state = QueryState.ASKED
            self._to_send.append(query.request())

    def _pull(self, query: Query) -> None:
        if query.wants_batch and query.steps.has_room():
            query.wants_batch = False
            self._to_send.append(NextBatch(query.id))

    def _fall_behind(self, query: Query) -> None:
        """Under another number from now on: messages of the old one may still be on their way."""
        self._unsubscribe(query)
        del self._queries[query.id]
        query.id, query.state = next(self._numbers), QueryState.BEHIND
        self._queries[query.id] = query

    def _unsubscribe(self, query: Query) -> None:
        self._leave_channel(query)
        if self._is_connected and query.state not in _UNSERVED:
            self._to_send.append(Unsubscribe(query.id))

    def _leave_channel(self, query: Query) -> None:
        if query.channel is not None:
            self._channels[query.channel].discard(query)
            if not self._channels[query.channel]:
                del self._channels[query.channel]
            query.channel = None

    def _end(self, query: Query, error: TablecastError | None) -> None:
        self._leave_channel(query)
        del self._queries[query.id]
        query.end(error)


def passes(error: TablecastError) -> bool:
    """Whether it may be gone when the same is asked again. A connection that has all the live queries it may is not."""
    return error.retryable and type(error) is not TooManyRequests


def _step(query: Query, message: Live | Change) -> LiveStep:
    changes = [query.shape.change(_OPS[change.op], _values(change), message.seq) for change in message.changes]
    return LiveStep(changes, message.seq, True)


def _values(change: RowChange) -> Sequence[Any]:
    values = change.key if change.op == "delete" else change.row
    if values is None:
        raise CorruptData(
            f"the server told of a row's {change.op} without its {'key' if change.key is None else 'row'}"
        )
    return values


def _expect(query: Query, message: ServerMessage, *states: QueryState) -> None:
    if query.state not in states:
        said = type(message).__name__.lower()
        raise CorruptData(f"the server said {said!r} of a live query that is {query.state.name.lower()}")
