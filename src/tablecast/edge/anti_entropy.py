"""Comparing with peers: when, with whom, and how fast. What is said is decided by `core.anti_entropy`.

A round compares this node with one peer that is online. One follows soon after each connection, and then one per
interval; a round that found something is followed by another soon, until one is silent. One that came to no end is not a
comparison, and is followed by another after 1 to 32 s, if the interval is not shorter. Peers take turns.

    {prefix}/replication/sync/{node}            questions to a node
    {prefix}/replication/sync/{node}/replies    replies to it; the question names it as its response topic

While this node publishes a backlog, or takes one in, what differs is mostly on its way. Comparing then would bring it twice
and out of order, so a node neither asks nor answers (`Busy`) for a while, but not for ever: it may never be idle.

One question is under way at a time, and its reply is known by its correlation data: numbers that begin at random, since a
broker may still have replies for the life of this node before. No reply within some seconds, one that makes no sense, or a
lost connection ends the round: nothing of it is worth keeping, the next one finds what is left. Questions and replies expire at
the broker, so that a node that comes back is not asked what nobody waits for any more. A node asks and answers only so often
per second: comparing must not get in the way of events.

A broker may let in only so much, and messages keep to that (`core.passable`). A row that is too large for it is left out, and
the status says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from tablecast.codec.sync import AskRoots, Busy, Push, Question, Reply, Taken, decode_question, decode_reply, encode
from tablecast.core.anti_entropy import Dialogue, Missing, reply
from tablecast.core.backoff import Backoff, Chance
from tablecast.core.passable import FORGET_ROUNDS, Passable
from tablecast.core.publishing import FIRST_FAILURE, PACKET_TOO_LARGE
from tablecast.edge.base import Delivery, Limits, Link, Loop, Publication, Replica, Source, Timer
from tablecast.edge.status import StatusBoard
from tablecast.errors import InvalidRequest, PermissionDenied

DEFAULT_INTERVAL_SECONDS = 60.0
SPREAD = 0.2  # of the interval, so that nodes do not all ask at once
SOON_SECONDS = 1.0  # after a connection, and after a round that found something
REPLY_SECONDS = 10.0  # a peer that takes longer is away
EXPIRES_SECONDS = 30  # of a question or reply at the broker
QUESTION_SECONDS = 0.01  # between two questions: at most 100 messages of 64 KiB per second
MAX_REPLIES_PER_SECOND = 200  # to all askers; a question beyond is not answered, and asked again in a later round
MAX_PUT_OFF_INTERVALS = 5  # how long a node that is busy puts comparing off
FIRST_QUESTIONS = 2**53  # numbers that the first question may have: as many as there are chances
MAX_IN_VAIN = 10_000  # versions remembered per peer as exchanged in vain, until FORGET_ROUNDS rounds later
PACKET_OVERHEAD_BYTES = 256  # of a PUBLISH besides its payload and the two topics' common beginning

_log = logging.getLogger("tablecast.edge")


class AntiEntropy:
    def __init__(
        self,
        replica: Replica,
        link: Link,
        loop: Loop,
        board: StatusBoard,
        base_topic: str,
        chance: Chance,
        is_moving: Callable[[], bool],
        *,
        interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
    ) -> None:
        self._replica = replica
        self._link = link
        self._loop = loop
        self._board = board
        self._base = base_topic
        self._chance = chance
        self._interval_seconds = interval_seconds
        self._peers: set[str] = set()
        self._memories: dict[str, _Memory] = {}
        self._asking: _Asking | None = None
        self._next_round: Timer | None = None
        self._asked = int(chance() * FIRST_QUESTIONS)  # the number of the last question, which is its correlation data
        self._backoff = Backoff(chance)  # after rounds that came to no end
        self._last_peer = ""
        self._budget = _Budget(loop)
        self._is_moving = is_moving
        self._moving_since: float | None = None
        self._passable = Passable(loop.time, self._left_out)

    # --- what happens ---

    def connected(self, limits: Limits) -> None:
        most = limits.max_packet_bytes
        self._passable.announced(None if most is None else most - 2 * len(self._base.encode()) - PACKET_OVERHEAD_BYTES)
        self._schedule(SOON_SECONDS)

    def acknowledged(self, size: int, reason: int) -> None:
        """The broker's answer to a message of a size."""
        self._passable.acknowledged(size, reason)
        if reason == PACKET_TOO_LARGE:
            self._forget_round()
            self._schedule(SOON_SECONDS)
        elif reason >= FIRST_FAILURE:
            self._board.failed(
                PermissionDenied(f"the broker refuses comparing, with reason code 0x{reason:02x}", reason=reason)
            )

    def _left_out(self, size: int) -> None:
        self._board.failed(
            PermissionDenied(
                f"a row was left out of comparing: with {size} bytes it is too large for the broker", size=size
            )
        )

    def disconnected(self) -> None:
        self._passable.lost()
        self._forget_round()
        self._peers.clear()
        self._memories.clear()
        self._board.peers(())
        if self._next_round is not None:
            self._next_round.cancel()

    def presence(self, node_id: str, online: bool) -> None:
        if node_id == self._replica.node_id:
            return
        (self._peers.add if online else self._peers.discard)(node_id)
        self._memories.pop(node_id, None)  # it may have lost its data, or have got a table that it lacked
        self._board.peers(tuple(sorted(self._peers)))

    # --- asking ---

    def _schedule(self, seconds: float) -> None:
        if self._next_round is not None:
            self._next_round.cancel()
        self._next_round = self._loop.call_later(seconds * (1 + SPREAD * (2 * self._chance() - 1)), self._round)

    def _round(self) -> None:
        if self._puts_off():
            self._schedule(SOON_SECONDS)
            return
        self._schedule(self._interval_seconds)
        if self._asking is None and self._peers:
            peer = self._last_peer = _after(sorted(self._peers), self._last_peer)
            memory = self._memories.setdefault(peer, _Memory())
            self._asking = _Asking(
                peer, Dialogue(self._replica.tree, memory.in_vain, self._passable.room), self._loop.time()
            )
            self._ask()

    def _puts_off(self) -> bool:
        """Whether events are moving, and have not been for too long."""
        if not self._is_moving():
            self._moving_since = None
            return False
        if self._moving_since is None:
            self._moving_since = self._loop.time()
        return self._loop.time() - self._moving_since < MAX_PUT_OFF_INTERVALS * self._interval_seconds

    def _ask(self) -> None:
        asking = self._asking
        if asking is None:
            return
        question = asking.dialogue.question()
        if question is None:
            self._finished(asking)
            return
        self._asked += 1
        asking.correlation = self._asked.to_bytes(8, "big")
        asking.timeout = self._loop.call_later(REPLY_SECONDS, self._break_off)
        topic = f"{self._base}/{asking.peer}"
        self._send(topic, question, f"{self._base}/{self._replica.node_id}/replies", asking.correlation)

    def replied(self, delivery: Delivery) -> None:
        asking = self._asking
        if asking is None or delivery.correlation != asking.correlation:
            return  # too late, or somebody else's
        self._quiet()
        try:
            events = asking.dialogue.replied(decode_reply(delivery.payload))
        except InvalidRequest as error:
            _log.warning("%s replied what cannot be read: %s", asking.peer, error)
            self._break_off()
            return
        if asking.dialogue.broken_off:
            self._break_off()
            return
        go_on = partial(self._go_on, asking)
        if events:
            self._replica.apply(events, Source.SYNC, self._then(go_on, partial(self._break_off_if, asking)))
        else:
            go_on()

    def _go_on(self, asking: _Asking) -> None:
        if asking is self._asking:
            self._loop.call_later(QUESTION_SECONDS, self._ask_if, asking)

    def _ask_if(self, asking: _Asking) -> None:
        if asking is self._asking:
            self._ask()

    def _finished(self, asking: _Asking) -> None:
        dialogue = asking.dialogue
        self._asking = None
        self._backoff.reset()
        self._memories.setdefault(asking.peer, _Memory()).learn(dialogue.exchanged)
        self._passable.compared()
        moved = bool(dialogue.pulled or dialogue.pushed)
        self._board.compared(differing=bool(dialogue.differing_buckets), pulled=dialogue.pulled, pushed=dialogue.pushed)
        if moved:
            seconds = self._loop.time() - asking.began
            _log.info("%s: %d pulled, %d pushed, %.1f s", asking.peer, dialogue.pulled, dialogue.pushed, seconds)
            self._schedule(SOON_SECONDS)

    def _break_off(self) -> None:
        """The round comes to no end: it is not counted, nothing is learnt from it, and another follows."""
        if self._asking is not None:
            self._forget_round()
            self._schedule(min(self._backoff.next(), self._interval_seconds))

    def _break_off_if(self, asking: _Asking) -> None:
        if asking is self._asking:
            self._break_off()

    def _forget_round(self) -> None:
        self._quiet()
        self._asking = None

    def _quiet(self) -> None:
        if self._asking is not None:
            self._asking.correlation = None
            if self._asking.timeout is not None:
                self._asking.timeout.cancel()

    # --- answering ---

    def asked(self, delivery: Delivery) -> None:
        topic = delivery.response_topic
        if topic is None or not topic.startswith(f"{self._base}/") or not self._budget.allows():
            return  # it would make us send anywhere, or too much
        try:
            question = decode_question(delivery.payload)
        except InvalidRequest as error:
            _log.warning("a question that cannot be read: %s", error)
            return
        answer = partial(self._send, topic, correlation=delivery.correlation)
        if isinstance(question, Push):
            self._replica.apply(question.events, Source.SYNC, self._then(partial(answer, Taken())))
            return
        if isinstance(question, AskRoots) and self._puts_off():
            answer(Busy())
            return
        try:
            answer(reply(question, self._replica.tree(), self._passable.room))
        except InvalidRequest as error:
            _log.warning("a question that makes no sense: %s", error)

    def _send(
        self, topic: str, message: Question | Reply, response_topic: str | None = None, correlation: bytes | None = None
    ) -> None:
        data = encode(message)
        self._passable.sent(len(data))
        self._link.publish(Publication(topic, data, response_topic, correlation, EXPIRES_SECONDS), -len(data))

    def _then(
        self, go_on: Callable[[], None], failed: Callable[[], None] = lambda: None
    ) -> Callable[[Any, BaseException | None], None]:
        """Goes on once events are durable. If they could not be, a peer that asks waits in vain."""

        def done(outcomes: Any, error: BaseException | None) -> None:
            if error is None:
                self._board.took(outcomes)
                go_on()
            else:
                self._board.failed(error)
                failed()

        return done


class _Asking:
    """A round under way."""

    def __init__(self, peer: str, dialogue: Dialogue, began: float) -> None:
        self.peer = peer
        self.dialogue = dialogue
        self.began = began
        self.correlation: bytes | None = None  # of the question under way
        self.timeout: Timer | None = None


class _Memory:
    """What was exchanged with a peer in vain: what is still missing after the next round."""

    def __init__(self) -> None:
        self.in_vain: frozenset[Missing] = frozenset()
        self._rounds = 0

    def learn(self, exchanged: set[Missing]) -> None:
        self._rounds += 1
        known = self.in_vain | exchanged
        is_over = len(known) > MAX_IN_VAIN or self._rounds % FORGET_ROUNDS == 0
        self.in_vain = frozenset() if is_over else known


class _Budget:
    """So many replies per second."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._second = 0
        self._used = 0

    def allows(self) -> bool:
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._used = second, 0
        self._used += 1
        return self._used <= MAX_REPLIES_PER_SECOND


def _after(peers: list[str], last: str) -> str:
    return next((peer for peer in peers if peer > last), peers[0])
