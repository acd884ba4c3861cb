"""Answers about a commit that the disk has not confirmed yet: made while it is asked, and let go when it has answered.

An fsync takes a tenth of a millisecond and longer, and the processor has nothing to do meanwhile. Whoever waits for the
messages of a commit can use that time to read them and to write down what it will say. It must not say it: a message that
was told and then lost is the worst that could happen here. So what it made is given to the commit's `Ahead`, which calls it
when the commit is durable and published, in the thread that found it so; or drops it, if the disk said no.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from tablecast.engine.commit import Commit

_log = logging.getLogger("tablecast.ahead")


class Held(Protocol):
    """An answer that is ready. Called by the thread that syncs, which must not wait: either `drop`, or the two others."""

    def let_go(self) -> None:
        """Gives the answer."""
        ...

    def finish(self) -> None:
        """What is left to do, once everybody was told: to wake others earlier would take processor time from who was."""
        ...

    def drop(self) -> None: ...


class Ahead:
    """One commit on its way to the disk."""

    __slots__ = ("_given", "_held", "_lock", "commit", "is_lost")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.is_lost = False  # the disk said no
        self._lock = threading.Lock()
        self._held: list[Held] | None = []  # None: what is to become of the commit is known
        self._given: list[Held] = []

    @property
    def held(self) -> int:
        """How many answers wait for it."""
        return len(self._held or ())

    def hold(self, answer: Held) -> bool:
        """Keeps an answer until it is known whether the commit is durable. False if it is: then it is the caller's to give,
        unless the commit `is_lost`."""
        with self._lock:
            if self._held is None:
                return False
            self._held.append(answer)
            return True

    def let_go(self) -> None:
        """The commit is durable, and readers see it."""
        self._given = self._taken()
        for answer in self._given:
            _guarded(answer.let_go)

    def finish(self) -> None:
        """And acknowledged."""
        given, self._given = self._given, []
        for answer in given:
            _guarded(answer.finish)

    def drop(self) -> None:
        """The commit failed: what tells of it is never given."""
        self.is_lost = True
        for answer in self._taken():
            _guarded(answer.drop)

    def _taken(self) -> list[Held]:
        with self._lock:
            held, self._held = self._held, None
        return held or []


def _guarded(call: Callable[[], None]) -> None:
    """A reader's mistake must not stop the writer."""
    try:
        call()
    except Exception:
        _log.exception("an answer that was ready could not be given")
