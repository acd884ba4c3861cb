"""The status of a node: one value that is replaced whenever something changes.

Writing is on the node's loop, reading from any thread. Whoever watches gets the newest status, not every one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tablecast.errors import InvalidEvent, TablecastError
from tablecast.model.replication import Quarantined
from tablecast.model.replication_status import ReplicationStatus


class EdgeObserver(Protocol):
    """Told what no status holds: how long things took. Called on the node's loop."""

    def events_published(self, seconds: Sequence[float]) -> None: ...
    def outbox_flushed(self, seconds: float) -> None: ...


class _Nobody:
    def events_published(self, seconds: Sequence[float]) -> None:
        pass

    def outbox_flushed(self, seconds: float) -> None:
        pass


class StatusBoard:
    def __init__(self, now_ms: Callable[[], int], status: ReplicationStatus | None = None) -> None:
        self._now_ms = now_ms
        self._changed = threading.Condition()
        self._version = 0
        self._closed = False
        self.status = status or ReplicationStatus()
        self.observer: EdgeObserver = _Nobody()

    # --- writing, on the node's loop ---

    def published(self, seconds: Sequence[float]) -> None:
        """As many events, and how long the broker took to take each."""
        if seconds:
            self._replace(published=self.status.published + len(seconds))
            self.observer.events_published(seconds)

    def outbox(self, pending: int, sequence: int) -> None:
        if (pending, sequence) != (self.status.pending, self.status.sequence):
            self._replace(pending=pending, sequence=sequence)

    def flushed(self, seconds: float) -> None:
        self._replace(last_flush_ms=self._now_ms())
        self.observer.outbox_flushed(seconds)

    def failed(self, error: BaseException) -> None:
        """Something went wrong, and the node goes on."""
        self._replace(**self._told(error))

    def refused(self, error: BaseException, *, set_aside: bool = False) -> None:
        """The broker did not take an event; `set_aside`: it is not offered again."""
        self._add({"publish_errors": 1, "set_aside": set_aside}, **self._told(error))

    def unsendable(self, events: Sequence[Quarantined]) -> None:
        """Local writes that no event can tell."""
        last = events[-1]
        error = InvalidEvent(f"event {last.seq} of {last.key} was set aside: {last.reason}", seq=last.seq)
        self._add({"publish_errors": len(events), "set_aside": len(events)}, **self._told(error))

    def connected(self) -> None:
        self._replace(online=True)

    def disconnected(self, error: BaseException | None) -> None:
        """Without an error, the last one stays."""
        self._replace(online=False, **({} if error is None else self._told(error)))

    def took(self, outcomes: Sequence[Any]) -> None:
        """What became of events of other nodes."""
        counts = Counter(str(outcome.status) for outcome in outcomes)
        counts["ahead"] = sum(outcome.ahead for outcome in outcomes)
        self._add(counts)

    def peers(self, online: tuple[str, ...]) -> None:
        self._replace(peers=online)

    def compared(self, *, differing: bool, pulled: int, pushed: int) -> None:
        counts = {"rounds": 1, "differing": differing, "pulled": pulled, "pushed": pushed}
        self._add(counts, last_compared_ms=self._now_ms())

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- reading, from any thread ---

    def watch(self) -> Iterator[ReplicationStatus]:
        """The status now, and again whenever it has changed, until the node stops."""
        seen = -1
        while True:
            with self._changed:
                while self._version == seen and not self._closed:
                    self._changed.wait()
                if self._version == seen:
                    return
                seen, status = self._version, self.status
            yield status

    def _told(self, error: BaseException) -> dict[str, Any]:
        code = error.code if isinstance(error, TablecastError) else type(error).__name__
        return {"last_error": f"{code}: {error}", "last_error_ms": self._now_ms()}

    def _add(self, counts: dict[str, int], **changes: Any) -> None:
        self._replace(**{name: getattr(self.status, name) + count for name, count in counts.items()}, **changes)

    def _replace(self, **changes: Any) -> None:
        with self._changed:
            self.status = replace(self.status, **changes)
            self._version += 1
            self._changed.notify_all()
