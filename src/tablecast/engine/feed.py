"""Tells whoever waits that something was committed. The one notification path.

Waiting costs no thread of ours and no polling: a callback is registered per topic and called, from the syncing thread,
after each commit that gave the topic messages. Callbacks only wake somebody (set an event, schedule on a loop). Who can
be answered by the writer itself says what with, before the commit is written (`engine.ahead`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tablecast.engine.ahead import NOTHING, Ahead, Held
from tablecast.engine.commit import Commit

Wake = Callable[[], None]
Prepare = Callable[[Commit], Sequence[Held]]
Listener = Callable[[Commit], None]
T = TypeVar("T")
_log = logging.getLogger("tablecast.feed")


class Feed:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, set[Wake]] = {}
        self._preparing: dict[int, set[Prepare]] = {}
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, topic_id: int, wake: Wake, prepare: Prepare | None = None) -> Callable[[], None]:
        """Calls `wake` after every commit that touches the topic, until the returned function is called.

        And `prepare` before a small one is written, if the writer has the time to give the answers that it returns.
        """
        with self._lock:
            self._waiting.setdefault(topic_id, set()).add(wake)
            if prepare is not None:
                self._preparing.setdefault(topic_id, set()).add(prepare)

        def unsubscribe() -> None:
            with self._lock:
                _discard(self._waiting, topic_id, wake)
                if prepare is not None:
                    _discard(self._preparing, topic_id, prepare)

        return unsubscribe

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with every commit, in order, until the returned function is called."""
        with self._lock:
            self._listeners += (listener,)

        def stop() -> None:
            with self._lock:
                self._listeners = tuple(kept for kept in self._listeners if kept is not listener)

        return stop

    @property
    def waiting(self) -> int:
        return sum(len(wakes) for wakes in self._waiting.values())

    def is_awaited(self, topic_id: int) -> bool:
        return topic_id in self._waiting

    def prepared(self, commit: Commit) -> Ahead:
        """The answers to whom the writer itself tells of the commit."""
        if not self._preparing:
            return NOTHING
        topic_ids = {topic_id for topic_id, _, _ in commit.small_batches}
        with self._lock:
            asked = [prepare for topic_id in topic_ids for prepare in self._preparing.get(topic_id, ())]
        held: list[Held] = []
        for prepare in asked:
            _guarded(lambda prepare=prepare: held.extend(prepare(commit)))  # type: ignore[misc]
        return Ahead(held) if held else NOTHING

    def publish(self, commit: Commit) -> None:
        for listener in self._listeners:
            _guarded(lambda listener=listener: listener(commit))  # type: ignore[misc]
        if commit.ends and self._waiting:
            self.wake({topic_id for topic_id, _ in commit.ends})

    def wake(self, topic_ids: Iterable[int]) -> None:
        with self._lock:
            wakes = [wake for topic_id in topic_ids for wake in self._waiting.get(topic_id, ())]
        for wake in wakes:
            _guarded(wake)

    def wake_all(self) -> None:
        self.wake(list(self._waiting))


def _discard(registered: dict[int, set[T]], topic_id: int, one: T) -> None:
    of_topic = registered.get(topic_id)
    if of_topic is not None:
        of_topic.discard(one)
        if not of_topic:
            del registered[topic_id]


def _guarded(call: Callable[[], None]) -> None:
    """A reader's mistake must not stop the writer."""
    try:
        call()
    except Exception:
        _log.exception("a reader's callback failed")
