"""Tells whoever waits that something was committed. The one notification path.

Waiting costs no thread of ours and no polling: a callback is registered per topic and called, from the syncing thread,
after each commit that gave the topic messages. Callbacks only wake somebody (set an event, schedule on a loop).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from tablecast.engine.commit import Commit

Wake = Callable[[], None]
Listener = Callable[[Commit], None]
_log = logging.getLogger("tablecast.feed")


class Feed:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, set[Wake]] = {}
        self._listeners: tuple[Listener, ...] = ()

    def subscribe(self, topic_id: int, wake: Wake) -> Callable[[], None]:
        """Calls `wake` after every commit that touches the topic, until the returned function is called."""
        with self._lock:
            self._waiting.setdefault(topic_id, set()).add(wake)

        def unsubscribe() -> None:
            with self._lock:
                waiting = self._waiting.get(topic_id)
                if waiting is not None:
                    waiting.discard(wake)
                    if not waiting:
                        del self._waiting[topic_id]

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


def _guarded(call: Callable[[], None]) -> None:
    """A reader's mistake must not stop the writer."""
    try:
        call()
    except Exception:
        _log.exception("a reader's callback failed")
