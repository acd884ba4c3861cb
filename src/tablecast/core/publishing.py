"""A publisher's window: which events are under way to the broker, and how far the outbox is done.

    waiting ──to_send──▶ sent ──accepted──▶ done ──settle──▶ the cursor is past it
       ▲                  │
       └─ lost, refused ──┘

- Events are sent in the order of their sequence numbers. `settle` moves over a prefix of done ones only, so the cursor
  never passes an event that the broker has not taken, in whatever order acknowledgements come.
- The window is bounded in events and bytes. What does not fit stays in the outbox, which is durable.
- A lost connection makes everything waiting again that was sent and not acknowledged. A receiver knows a repeated event
  by its number, so sending twice is harmless; not sending is not.
- A broker that refuses says why. If it is about this event, the event is set aside (`Answer.SET_ASIDE`) and the rest
  flows. If it is about us (rights, quota), the window pauses: sending more would be refused, too. If it does not say,
  the window pauses, and an event refused `MAX_UNEXPLAINED` times in a row is set aside: it must not block the head.
- Some brokers say nothing and close the connection on an event that they do not like. Connections that end right after
  sending, again and again and without progress, make the window careful: it sends one event at a time. One that ends
  `MAX_UNEXPLAINED` connections all by itself is set aside.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

DEFAULT_WINDOW_EVENTS = (
    100  # in flight: more does not make a broker faster, and all of it is sent again when a link breaks
)
MAX_WINDOW_BYTES = 4 * 2**20  # in flight: a window of the largest events must not fill the memory of a small node
MAX_UNEXPLAINED = 3  # refusals of one event for no stated reason: the third is not an accident
SUSPICION_SECONDS = 5.0  # a connection that ends so soon after sending may have ended because of it
LOSSES_BEFORE_CARE = 2  # connections in a row that ended right after sending: a restart of the broker is one

# Reason codes of MQTT 5 (2.4) that a PUBACK may carry
FIRST_FAILURE = 0x80
NOT_AUTHORISED = 0x87
TOPIC_INVALID = 0x90
PACKET_TOO_LARGE = 0x95
QUOTA_EXCEEDED = 0x97
PAYLOAD_INVALID = 0x99
_ABOUT_US = frozenset({NOT_AUTHORISED, TOPIC_INVALID, QUOTA_EXCEEDED})
_ABOUT_THE_EVENT = frozenset({PACKET_TOO_LARGE, PAYLOAD_INVALID})


class Answer(Enum):
    """What follows from an acknowledgement."""

    DONE = auto()
    SET_ASIDE = auto()  # the event is done with, and must be reported
    PAUSED = auto()  # nothing is sent until `resume`
    STALE = auto()  # of something that is not in the window any more


class Outgoing(NamedTuple):
    seq: int
    data: bytes


class _State(Enum):
    WAITING = auto()
    SENT = auto()
    DONE = auto()


@dataclass(slots=True)
class _Slot:
    data: bytes
    state: _State
    unexplained: int = 0


class PublishWindow:
    def __init__(self, limit: int = DEFAULT_WINDOW_EVENTS) -> None:
        self._limit = limit
        self._slots: dict[int, _Slot] = {}  # in the order of their numbers
        self._bytes = 0
        self.last_taken: int | None = None  # the outbox is read on from here
        self.paused = False
        self._losses = 0  # blamed on what was sent, since the broker last took an event
        self._careful = 0  # events that are still to be sent one at a time

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def room(self) -> int:
        """How many more events it takes. A window that is full in bytes takes none, an empty one at least one."""
        return 0 if self._bytes >= MAX_WINDOW_BYTES else self._limit - len(self._slots)

    def take(self, event: Outgoing, *, skip: bool = False) -> None:
        """The next event of the outbox; `skip` marks it as done without sending it."""
        assert self.last_taken is None or event.seq > self.last_taken, "events are taken in order"
        self._slots[event.seq] = _Slot(b"", _State.DONE) if skip else _Slot(event.data, _State.WAITING)
        self._bytes += 0 if skip else len(event.data)
        self.last_taken = event.seq

    def to_send(self) -> list[Outgoing]:
        """What is to be sent now, in order; it counts as sent."""
        if self.paused:
            return []
        waiting = [(seq, slot) for seq, slot in self._slots.items() if slot.state is _State.WAITING]
        if self._careful:
            waiting = [] if self._sent() else waiting[:1]
        for _, slot in waiting:
            slot.state = _State.SENT
        return [Outgoing(seq, slot.data) for seq, slot in waiting]

    def acknowledged(self, seq: int, reason: int) -> Answer:
        slot = self._slots.get(seq)
        if slot is None or slot.state is not _State.SENT:
            return Answer.STALE
        if reason < FIRST_FAILURE:
            self._losses = 0
            self._careful = max(0, self._careful - 1)
            return self._done(slot, Answer.DONE)
        if reason in _ABOUT_THE_EVENT:
            return self._done(slot, Answer.SET_ASIDE)
        slot.unexplained += reason not in _ABOUT_US
        if slot.unexplained >= MAX_UNEXPLAINED:
            return self._done(slot, Answer.SET_ASIDE)
        slot.state = _State.WAITING
        self.paused = True
        return Answer.PAUSED

    def set_aside(self, seq: int) -> None:
        """An event that cannot be sent over this link at all."""
        self._done(self._slots[seq], Answer.SET_ASIDE)

    def settle(self) -> int | None:
        """Takes the done ones off the front: the number of the last of them, or None if the first is not done."""
        settled = list(self._settled())
        for seq in settled:
            del self._slots[seq]
        return settled[-1] if settled else None

    def lost(self, *, blamed: bool = False) -> int | None:
        """The connection is gone, and with it every acknowledgement that was on its way.

        `blamed`: it ended right after something was sent. Returns the event that is set aside for that, if one is.
        """
        sent = self._sent()
        for _, slot in sent:
            slot.state = _State.WAITING
        if not sent or not blamed:
            return None
        if self._careful:
            [(seq, slot)] = sent
            slot.unexplained += 1
            if slot.unexplained >= MAX_UNEXPLAINED:
                self._done(slot, Answer.SET_ASIDE)
                return seq
        self._losses += 1
        if self._losses >= LOSSES_BEFORE_CARE:
            self._careful = self._limit
        return None

    def _sent(self) -> list[tuple[int, _Slot]]:
        return [(seq, slot) for seq, slot in self._slots.items() if slot.state is _State.SENT]

    def resume(self) -> None:
        self.paused = False

    def _settled(self) -> Iterable[int]:
        for seq, slot in self._slots.items():
            if slot.state is not _State.DONE:
                return
            yield seq

    def _done(self, slot: _Slot, answer: Answer) -> Answer:
        slot.state = _State.DONE
        self._bytes -= len(slot.data)
        slot.data = b""
        return answer
