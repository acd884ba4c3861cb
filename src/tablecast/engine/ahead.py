"""Answers that are ready before what they tell is durable.

Whoever waits for a message can be told of it a good deal sooner if the thread that commits says it itself: to wake a reader
first, which then reads, renders and sends, takes as long as the fsync. So readers that can be answered in this way
(`sql.waiting`) have their answers made before the commit is written. They are given when it is durable and published, not a
moment earlier: a message that was told and then lost is the worst that could happen here. If the disk says no they are
dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

_log = logging.getLogger("tablecast.ahead")


class Held(Protocol):
    """An answer that is ready. Called by the thread that commits, which must not wait: either `drop`, or the two others."""

    def let_go(self) -> None:
        """Gives the answer."""
        ...

    def finish(self) -> None:
        """What is left to do, once everybody was told: to wake others earlier would take processor time from who was."""
        ...

    def drop(self) -> None: ...


class Ahead:
    """What is ready for one commit."""

    __slots__ = ("_given", "_held")

    def __init__(self, held: Sequence[Held] = ()) -> None:
        self._held: Sequence[Held] = held
        self._given: Sequence[Held] = ()

    def let_go(self) -> None:
        """The commit is durable, and readers see it."""
        self._given, self._held = self._held, ()
        for answer in self._given:
            _guarded(answer.let_go)

    def finish(self) -> None:
        """And it is acknowledged."""
        for answer in self._given:
            _guarded(answer.finish)

    def drop(self) -> None:
        """The commit failed: what was not given never is."""
        dropped, self._held = self._held, ()
        for answer in dropped:
            _guarded(answer.drop)


NOTHING = Ahead()


def _guarded(call: Callable[[], None]) -> None:
    """A reader's mistake must not stop the writer."""
    try:
        call()
    except Exception:
        _log.exception("an answer that was ready could not be given")
