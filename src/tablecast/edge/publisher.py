"""From the outbox to the broker: a reader of a durable log whose position is moved by acknowledgements.

The window (`core.publishing`) decides what is sent and how far the outbox is done; this moves events and answers between
it, the outbox and the link. The position is saved now and then, not with every acknowledgement: after a crash some events
are sent again, and their receivers know them by their numbers.

A broker that is away for long makes the outbox grow. What happens beyond its limit is chosen:

    coalesce       events whose row has a newer version by now are skipped. Rows lose intermediate states, nothing that is
                   current is lost; so the outbox still grows with the number of different rows written
    block          local writes to replicated tables are refused (`overloaded`) until there is room
    drop_oldest    the oldest events are given up, and counted; anti-entropy brings the rows to the peers later
"""

from __future__ import annotations

import logging
from enum import StrEnum
from functools import partial
from typing import Any

from tablecast.core.backoff import Backoff, Chance
from tablecast.core.publishing import DEFAULT_WINDOW_EVENTS, SUSPICION_SECONDS, Answer, Outgoing, PublishWindow
from tablecast.edge.base import Limits, Link, Loop, OutboxEntry, Publication, Replica
from tablecast.edge.status import StatusBoard
from tablecast.errors import PermissionDenied

DEFAULT_OUTBOX_EVENTS = 10_000  # pending before the overflow policy acts
SAVE_SECONDS = 0.1  # between two moves of the durable position: each is a commit
REFRESH_SECONDS = 0.05  # between two looks at how much is pending: they cost more than an event
PACKET_OVERHEAD_BYTES = 32  # of a PUBLISH besides its topic and payload

_log = logging.getLogger("tablecast.edge")


class Overflow(StrEnum):
    COALESCE = "coalesce"
    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"


class Publisher:
    def __init__(
        self,
        replica: Replica,
        link: Link,
        loop: Loop,
        board: StatusBoard,
        topic: str,
        chance: Chance,
        *,
        window: int = DEFAULT_WINDOW_EVENTS,
        overflow: Overflow = Overflow.COALESCE,
        limit: int = DEFAULT_OUTBOX_EVENTS,
    ) -> None:
        self._replica = replica
        self._link = link
        self._loop = loop
        self._board = board
        self._topic = topic
        self._backoff = Backoff(chance)
        self._overflow = overflow
        self._limit = limit
        self._window = PublishWindow(window)
        self._online = False
        self._max_bytes: int | None = None
        self._due = False  # a pump is on its way
        self._dropping = False
        self._settled: int | None = None
        self._saving = False
        self._saving_again = Backoff(chance)
        self._sent_at: dict[int, float] = {}
        self._took: list[float] = []  # seconds from sending to acknowledgement, not reported yet
        self._busy_since: float | None = None
        self._refill = max(1, window // 2)  # reading the outbox for a single event costs as much as for many
        self._refreshing = False
        self._refreshed_at = float("-inf")
        replica.block_above(limit if overflow is Overflow.BLOCK else None)

    # --- what happens ---

    def connected(self, limits: Limits) -> None:
        self._online = True
        self._max_bytes = limits.max_packet_bytes
        self.woken()

    def disconnected(self) -> None:
        if not self._online:
            return
        self._online = False
        last_sent = max(self._sent_at.values(), default=float("-inf"))
        suspect = self._window.lost(blamed=self._loop.time() - last_sent < SUSPICION_SECONDS)
        self._sent_at.clear()
        if suspect is not None:
            self._set_aside(suspect, "the broker closed the connection whenever it was sent")

    @property
    def paused(self) -> bool:
        """Whether the broker refused this node's events, and is asked again in a while, on whatever connection."""
        return self._window.paused

    def woken(self) -> None:
        """The outbox grew, or there is room again. Many calls are one look."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._pump)

    def acknowledged(self, seq: int, reason: int) -> None:
        answer = self._window.acknowledged(seq, reason)
        match answer:
            case Answer.DONE:
                self._backoff.reset()
                self._took.append(self._loop.time() - self._sent_at.pop(seq))
            case Answer.SET_ASIDE:
                self._set_aside(seq, f"the broker refused it with reason code 0x{reason:02x}")
            case Answer.PAUSED:
                self._paused(reason)
        self.woken()

    # --- sending ---

    def _pump(self) -> None:
        self._due = False
        self._settle()
        self._refresh()
        if not self._online:
            return
        if self._window.room >= self._refill:
            self._fill()
        now = self._loop.time()
        for event in self._window.to_send():
            self._sent_at[event.seq] = now
            self._link.publish(Publication(self._topic, event.data), event.seq)

    def _fill(self) -> None:
        coalesce = self._overflow is Overflow.COALESCE and self._replica.pending() > self._limit
        while (room := self._window.room) > 0:
            found = self._replica.outbox(room, self._window.last_taken)
            for entry in found:
                self._take(entry, skip=coalesce and entry.superseded)
            if found and self._busy_since is None:
                self._busy_since = self._loop.time()
            self._settle()
            if len(found) < room:
                return

    def _take(self, entry: OutboxEntry, *, skip: bool) -> None:
        size = len(entry.data) + len(self._topic) + PACKET_OVERHEAD_BYTES
        oversize = self._max_bytes is not None and size > self._max_bytes
        if oversize:
            self._set_aside(entry.seq, f"it takes {size} bytes, and the broker lets in {self._max_bytes}")
        self._window.take(Outgoing(entry.seq, entry.data), skip=skip or oversize)

    def _set_aside(self, seq: int, reason: str) -> None:
        self._sent_at.pop(seq, None)
        self._board.refused(PermissionDenied(f"event {seq} was set aside: {reason}", seq=seq), set_aside=True)
        self._replica.set_aside(seq, reason, self._reported)

    def _paused(self, reason: int) -> None:
        seconds = self._backoff.next()
        self._board.refused(
            PermissionDenied(
                f"the broker refuses events of this node with reason code 0x{reason:02x} (not authorised, or over a quota); "
                f"publishing goes on in {seconds:.0f} s",
                reason=reason,
            )
        )
        self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._window.resume()
        self.woken()

    # --- the position ---

    def _settle(self) -> None:
        settled = self._window.settle()
        if settled is None:
            return
        self._settled = settled
        if not len(self._window) and self._busy_since is not None and not self._replica.outbox(1, settled):
            self._board.flushed(self._loop.time() - self._busy_since)
            self._busy_since = None
        if not self._saving:
            self._saving = True
            self._loop.call_later(SAVE_SECONDS, self._save)

    def _save(self) -> None:
        assert self._settled is not None
        self._replica.published(self._settled, partial(self._on_saved, self._settled))

    def _on_saved(self, seq: int, answer: Any, error: BaseException | None) -> None:
        """A position that could not be saved is tried again: nothing else would, if no event follows."""
        self._reported(answer, error)
        self._refresh()
        if error is not None:
            self._loop.call_later(self._saving_again.next(), self._save)
            return
        self._saving_again.reset()
        self._saving = self._settled != seq
        if self._saving:
            self._loop.call_later(SAVE_SECONDS, self._save)

    # --- how it goes ---

    def _refresh(self) -> None:
        """Looks at the outbox and tells, at once or when it was not done for a moment."""
        if not self._refreshing:
            self._refreshing = True
            wait = self._refreshed_at + REFRESH_SECONDS - self._loop.time()
            self._loop.call_later(max(0.0, wait), self._tell)

    def _tell(self) -> None:
        self._refreshing = False
        self._refreshed_at = self._loop.time()
        pending = self._replica.pending()
        self._board.outbox(pending, self._replica.sequence())
        self._board.published(self._took)
        self._took = []
        if self._overflow is Overflow.DROP_OLDEST and pending > self._limit and not self._dropping:
            self._dropping = True
            self._replica.drop_oldest(pending - self._limit, self._on_dropped)

    def _on_dropped(self, count: Any, error: BaseException | None) -> None:
        self._dropping = False
        self._reported(count, error)
        if count:
            _log.warning("the outbox is over its limit of %d events: %d were given up", self._limit, count)
            self._refresh()  # it may have grown meanwhile

    def _reported(self, answer: Any, error: BaseException | None) -> None:
        if error is not None:
            self._board.failed(error)
