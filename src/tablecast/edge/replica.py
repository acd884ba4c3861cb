"""The engine behind a node: `edge.base.Replica` over `engine.replication`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tablecast.core.anti_entropy import Tree
from tablecast.edge.base import Done, Loop, Source
from tablecast.engine.apply_events import ApplyEvents
from tablecast.engine.commit import Commit
from tablecast.engine.decision import Command
from tablecast.engine.engine import Engine
from tablecast.engine.outbox import DropOldest, OutboxEntry, Published, Quarantine
from tablecast.engine.ticket import Ticket
from tablecast.model.replication import Quarantined


class EngineReplica:
    def __init__(self, engine: Engine, loop: Loop) -> None:
        self._engine = engine
        self._loop = loop
        self._replication = engine.replication
        self.node_id = engine.replication.claim_identity().node_id

    # --- reading ---

    def sequence(self) -> int:
        return self._replication.sequence()

    def outbox(self, limit: int, after: int | None) -> Sequence[OutboxEntry]:
        return self._replication.outbox(limit, after)

    def pending(self) -> int:
        return self._replication.pending()

    def tree(self) -> Tree:
        return self._replication.replicas()

    def on_growth(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Calls `wake` on the loop whenever the outbox grew, until the returned function is called."""
        return self._engine.feed.subscribe(self._replication.outbox_topic_id, lambda: self._on_loop(wake))

    def on_set_aside(self, tell: Callable[[Sequence[Quarantined]], None]) -> Callable[[], None]:
        """Calls `tell` on the loop with events that a local write could not make, until the returned function is called."""

        def committed(commit: Commit) -> None:
            if commit.set_aside:
                self._on_loop(tell, commit.set_aside)

        return self._engine.feed.listen(committed)

    def block_above(self, limit: int | None) -> None:
        self._replication.block_above = limit

    # --- writing ---

    def published(self, seq: int, done: Done) -> None:
        self.submit(Published(seq), done)

    def apply(self, events: Sequence[bytes], source: Source, done: Done) -> None:
        self.submit(ApplyEvents(events, source), done)

    def set_aside(self, seq: int, reason: str, done: Done) -> None:
        self.submit(Quarantine(seq, reason), done)

    def drop_oldest(self, count: int, done: Done) -> None:
        self.submit(DropOldest(count), done)

    def submit(self, command: Command, done: Done) -> None:
        def answered(ticket: Ticket) -> None:
            self._on_loop(done, ticket.result, ticket.error)

        try:
            self._engine.submit(command, answered)
        except Exception as error:  # closed, or the queue stayed full: an answer like any other
            self._loop.call_soon(done, None, error)

    def _on_loop(self, callback: Callable[..., object], *args: Any) -> None:
        """From whatever thread. A node that has stopped meanwhile does not hear it."""
        with suppress(RuntimeError):  # what a loop that is closed raises
            self._loop.call_soon_threadsafe(callback, *args)
