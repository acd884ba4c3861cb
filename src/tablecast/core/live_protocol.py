"""The server's side of one live connection, without the connection: messages and events in, actions out.

Whoever owns the socket does what the actions say, in their order, and reports what came of it as the next event. Nothing
here waits, knows the time, or touches bytes.

    the connection is    when                            then
    UNKNOWN              authenticate                    CHECKING    check the credentials
                         signed in by a header           OPEN
                         any other message, or late      CLOSED      error, close 4401
    CHECKING             signed in                       OPEN        auth_ok, then what came meanwhile
                         refused                         CLOSED      error, close 4401 (1013: try again later)
                         any other message               CHECKING    kept until it is known who sends it
    OPEN                 a message                       OPEN        see below
                         the account or token ended      CLOSED      error, close 4401
    any                  what is no message              CLOSED      error, close 1002, 1003, 1007 or 1009
                         the server drains               CLOSED      close 1012
                         the socket is gone              CLOSED

    a subscription is    when                            then
    (none)               subscribe                       OPENING     open it
    OPENING              opened, with rows               READING     subscribed; read rows
                         opened, resumed                 JOINING     subscribed; join
    READING              read, and there are more        WAITING     rows
                         read, the last                  JOINING     rows; join
    WAITING              next_batch                      READING     read rows
    JOINING              joined                          LIVE        live
    JOINING, LIVE        it is too slow, or too far back (none)      leave; lagging
    any                  unsubscribe                     (none)      leave; unsubscribed
                         it failed or was ended          (none)      leave; error with its id
                         the connection is CLOSED        (none)      leave

The changes of a LIVE subscription do not come through here: the same bytes go to thousands of sockets, and there is
nothing to decide. An event about a subscription that is no longer there is answered with nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tablecast.codec.live import (
    Authenticate,
    AuthOk,
    ClientMessage,
    Error,
    Id,
    Lagging,
    Live,
    LiveColumn,
    Mode,
    NextBatch,
    Ping,
    RowChange,
    Rows,
    ServerMessage,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
    Values,
)
from tablecast.errors import AlreadyExists, InvalidRequest, TablecastError, TooManyRequests, Unauthenticated

MAX_EARLY_MESSAGES = 1_000  # kept while credentials are checked: a client may send all that it wants at once

PROTOCOL_ERROR = 1002  # RFC 6455: a frame or message that has no place here
UNSUPPORTED_DATA = 1003  # the other form than the one the connection began with
INVALID_DATA = 1007  # a frame that holds no message
MESSAGE_TOO_BIG = 1009
RESTARTING = 1012
TRY_AGAIN_LATER = 1013
UNAUTHENTICATED = 4401  # ours, after HTTP's 401


class Phase(enum.Enum):
    UNKNOWN = enum.auto()
    CHECKING = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


class Stage(enum.Enum):
    OPENING = enum.auto()
    READING = enum.auto()
    WAITING = enum.auto()
    JOINING = enum.auto()
    LIVE = enum.auto()


@dataclass(eq=False, slots=True)
class Subscription:
    """One subscribe and what became of it. An id may be used again; this is never."""

    request: Subscribe
    stage: Stage = Stage.OPENING

    @property
    def id(self) -> Id:
        return self.request.id


# --- actions ----------------------------------------------------------------------------------------------------


class Send(NamedTuple):
    message: ServerMessage


class CheckCredentials(NamedTuple):
    """Reported by `signed_in` or `refused`."""

    credentials: Authenticate


class Answer(NamedTuple):
    """A pong, with how far everything was told when it is sent."""

    nonce: Id | None


class Open(NamedTuple):
    """Reported by `opened` or `failed`."""

    subscription: Subscription


class ReadRows(NamedTuple):
    """Up to `request.batch_rows`; reported by `rows_read` or `failed`."""

    subscription: Subscription


class Join(NamedTuple):
    """Reported by `joined` or `failed`."""

    subscription: Subscription


class Leave(NamedTuple):
    """Whatever is under way for it ends, and nothing is reported any more."""

    subscription: Subscription


class Close(NamedTuple):
    code: int
    reason: str


Action = Send | Answer | CheckCredentials | Open | ReadRows | Join | Leave | Close
Actions = list[Action]


# --- the machine ------------------------------------------------------------------------------------------------


class LiveProtocol:
    def __init__(self, max_subscriptions: int) -> None:
        self._max_subscriptions = max_subscriptions
        self._subscriptions: dict[Id, Subscription] = {}
        self._early: list[ClientMessage] = []
        self.phase = Phase.UNKNOWN

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        return list(self._subscriptions.values())

    # --- who it is ---

    def signed_in(self, user: str, role: str) -> Actions:
        if self.phase is Phase.UNKNOWN:  # by a header: nobody asked in a message
            self.phase = Phase.OPEN
            return []
        if self.phase is not Phase.CHECKING:
            return []
        self.phase = Phase.OPEN
        actions: Actions = [Send(AuthOk(user, role))]
        early, self._early = self._early, []
        for message in early:
            actions += self.received(message)
        return actions

    def refused(self, error: TablecastError) -> Actions:
        code = UNAUTHENTICATED if isinstance(error, Unauthenticated) else TRY_AGAIN_LATER
        return self.failed_for_all(code, error)

    def is_late(self, seconds: float) -> Actions:
        """The time to send credentials is over; it does not count while they are checked."""
        if self.phase is not Phase.UNKNOWN:
            return []
        return self.refused(Unauthenticated(f"no authenticate message came within {seconds:g} seconds"))

    # --- messages ---

    def received(self, message: ClientMessage) -> Actions:
        if self.phase is Phase.OPEN:
            return self._served(message)
        if self.phase is Phase.UNKNOWN:
            return self._introduced(message)
        if self.phase is Phase.CHECKING:
            return self._kept(message)
        return []

    def _introduced(self, message: ClientMessage) -> Actions:
        if not isinstance(message, Authenticate):
            return self.refused(
                Unauthenticated("the first message is authenticate, unless the upgrade had credentials")
            )
        self.phase = Phase.CHECKING
        return [CheckCredentials(message)]

    def _kept(self, message: ClientMessage) -> Actions:
        if len(self._early) >= MAX_EARLY_MESSAGES:
            error = TooManyRequests(f"more than {MAX_EARLY_MESSAGES} messages came before auth_ok; wait for it")
            return self.failed_for_all(PROTOCOL_ERROR, error)
        self._early.append(message)
        return []

    def _served(self, message: ClientMessage) -> Actions:
        match message:
            case Subscribe():
                return self._subscribe(message)
            case NextBatch(name):
                return self._next_batch(name)
            case Unsubscribe(name):
                return [*self._leave(name), Send(Unsubscribed(name))]
            case Ping(nonce):
                return [Answer(nonce)]
            case Authenticate():
                error = InvalidRequest("this connection is signed in already; another user takes another connection")
                return self.failed_for_all(PROTOCOL_ERROR, error)

    def _subscribe(self, request: Subscribe) -> Actions:
        if request.id in self._subscriptions:
            return self.failed_for_all(PROTOCOL_ERROR, _id_in_use(request.id))
        if len(self._subscriptions) >= self._max_subscriptions:
            return [_told(_too_many(self._max_subscriptions), request.id)]
        subscription = self._subscriptions[request.id] = Subscription(request)
        return [Open(subscription)]

    def _next_batch(self, name: Id) -> Actions:
        subscription = self._subscriptions.get(name)
        if subscription is None or subscription.stage is not Stage.WAITING:
            return []
        return self._read(subscription)

    # --- what became of an action ---

    def opened(
        self,
        subscription: Subscription,
        seq: int,
        history: str,
        mode: Mode,
        schema: list[LiveColumn],
        key: list[int],
        sampled: float | None = None,
    ) -> Actions:
        if not self._is_there(subscription):
            return []
        subscribed = Send(Subscribed(subscription.id, seq, history, mode, schema, key, sampled))
        return [subscribed, *(self._join(subscription) if mode == "resumed" else self._read(subscription))]

    def rows_read(self, subscription: Subscription, seq: int, rows: list[Values], last: bool) -> Actions:
        if not self._is_there(subscription):
            return []
        batch = Send(Rows(subscription.id, seq, rows, last))
        if last:
            return [batch, *self._join(subscription)]
        subscription.stage = Stage.WAITING
        return [batch]

    def joined(self, subscription: Subscription, channel: int, seq: int, changes: list[RowChange]) -> Actions:
        if not self._is_there(subscription):
            return []
        subscription.stage = Stage.LIVE
        return [Send(Live(subscription.id, channel, seq, changes))]

    def lagging(self, subscription: Subscription, seq: int) -> Actions:
        if not self._is_there(subscription):
            return []
        return [*self._leave(subscription.id), Send(Lagging(subscription.id, seq))]

    def failed(self, subscription: Subscription, error: TablecastError) -> Actions:
        """It could not be served, or it was ended: a dropped table, a right that was taken."""
        if not self._is_there(subscription):
            return []
        return [*self._leave(subscription.id), _told(error, subscription.id)]

    # --- the end ---

    def failed_for_all(self, code: int, error: TablecastError) -> Actions:
        """The client sent what it must not, or may no longer be served."""
        return [] if self.phase is Phase.CLOSED else [_told(error), *self.closed(), Close(code, error.code)]

    def drained(self) -> Actions:
        return [] if self.phase is Phase.CLOSED else [*self.closed(), Close(RESTARTING, "the server stops")]

    def closed(self) -> Actions:
        """The socket is gone, or goes."""
        self.phase = Phase.CLOSED
        self._early.clear()
        return [action for name in list(self._subscriptions) for action in self._leave(name)]

    # --- steps ---

    def _is_there(self, subscription: Subscription) -> bool:
        return self._subscriptions.get(subscription.id) is subscription

    def _read(self, subscription: Subscription) -> Actions:
        subscription.stage = Stage.READING
        return [ReadRows(subscription)]

    def _join(self, subscription: Subscription) -> Actions:
        subscription.stage = Stage.JOINING
        return [Join(subscription)]

    def _leave(self, name: Id) -> Actions:
        subscription = self._subscriptions.pop(name, None)
        return [] if subscription is None else [Leave(subscription)]


def _told(error: TablecastError, of: Id | None = None) -> Send:
    return Send(Error(id=of, code=error.code, message=error.message, details=error.details))


def _id_in_use(name: Id) -> TablecastError:
    """For all: with its id, it would speak of the one that is there."""
    return AlreadyExists(
        f"subscription {name!r} of this connection is there already: unsubscribe it, or use another id", id=name
    )


def _too_many(limit: int) -> TablecastError:
    return TooManyRequests(
        f"this connection has {limit} subscriptions, which is live_max_subscriptions: unsubscribe one, or open another "
        "connection",
        limit=limit,
    )
