"""One writer, group commit.

Commands from any thread or task are queued and decided one after the other into a pending commit. Whenever no fsync is
under way the pending commit is closed, written as one batch and handed to the syncing thread; while that waits for the
disk the next commit is being decided. One fsync acknowledges every command of its commit.

    callers ──queue (bounded)──▶ deciding thread ──one commit──▶ syncing thread ──▶ published, then acknowledged

- A small commit, on a disk that syncs quickly, is synced by the deciding thread itself: there is
  little to decide meanwhile, and a hand-over less (one thread, medians in turns: 0.41 ms a write against 0.47).
- A full queue makes the caller wait; `Overloaded` if it stays full.
- Answers, errors included, are given only when the commit they were decided in is durable: an error may speak of a row
  that is not durable yet.
- Acknowledged threads are woken as a chain (`engine.ticket`).
- A few small commands are left to gather while an fsync is under way or the chain still runs: the threads in it are
  about to come back with their next ones, and deciding would fight them for the interpreter lock (measured with 24
  threads: 12 commands per commit and 12 k/s if decided at once, 24 and 16 k/s if gathered).
- A failed write or fsync stops the writer for good. It is never retried: after a failed fsync the kernel may have
  dropped the pages, and a second fsync would report success.
"""

from __future__ import annotations

import threading
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from tablecast.core import failpoint
from tablecast.core.snowflake import SnowflakeIds, require_clock
from tablecast.engine.ahead import NOTHING, Ahead
from tablecast.engine.bounds import KeyBounds
from tablecast.engine.catalog import Catalog
from tablecast.engine.commit import Commit, PendingCommit
from tablecast.engine.decision import Command
from tablecast.engine.durability import Durability
from tablecast.engine.guards import Guards
from tablecast.engine.intents import take_in
from tablecast.engine.logs import LogState
from tablecast.engine.observer import NOBODY, CommitReport, Observer, tell
from tablecast.engine.ticket import ChainEnd, Ticket, answer
from tablecast.engine.undo import ChangeIndex
from tablecast.errors import DatabaseClosed, Overloaded, WritesStopped
from tablecast.storage.base import Batch, Family, Snapshot, Store

PUBLISHED = (Family.ROWS, Family.GROUPS)  # what readers see as of the last durable commit; logs are bounded by offsets
QUEUE_COMMANDS = 4096  # commands waiting to be decided; beyond, callers wait
QUEUE_WAIT_SECONDS = 30.0  # how long a caller waits for room before it is told to come back
COMMIT_COMMANDS = 4096  # commands in one commit: bounds how long the first of them waits
COMMIT_ROWS = 20_000  # likewise rows, which bounds the memory of a commit
TOGETHER = 256  # small inserts decided as one
BIG_COMMIT_ROWS = 256  # from here on freeing a commit's memory is worth doing while the disk is busy
FREE_AFTER_SECONDS = 0.0002  # by then the syncing thread has let go of the interpreter and waits for the disk
WORTH_WAKING_ROWS = 64  # queued work below this is left to gather while an fsync is under way or a chain runs
QUICK_SYNC_SECONDS = 0.001  # an fsync that takes longer is worth deciding the next commit meanwhile
CHAIN_SECONDS_PER_THREAD = 0.0005  # a chain that takes longer has a thread that does something else: it is broken up


Published = Callable[[Commit, Snapshot, Ahead], None]  # called when it is durable
Told = Callable[[Commit], None]  # called after that, and before it is acknowledged


class Prepare(Protocol):
    """Called before a commit is written."""

    def __call__(self, commit: Commit, *, answers: bool) -> Ahead: ...


class _Written(NamedTuple):
    """A commit that is written, unless there was nothing to write. What is left to do is to make it durable, to show it, and
    to acknowledge it."""

    tickets: list[Ticket]
    commit: Commit | None = None
    snapshot: Snapshot | None = None
    ahead: Ahead = NOTHING
    decide_seconds: float = 0.0
    write_seconds: float = 0.0
    is_shown: bool = False  # it is durable, and readers see it


class _Work:
    """What is decided and not yet written."""

    __slots__ = ("pending", "rows", "seconds", "tickets")

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.pending: PendingCommit | None = None
        self.rows = 0
        self.seconds = 0.0  # that deciding took so far


class Writer:
    """Owns the write side: catalog, counters, ids, and the two threads."""

    def __init__(
        self,
        store: Store,
        *,
        catalog: Catalog,
        logs: LogState,
        changes: ChangeIndex,
        ids: SnowflakeIds,
        seq: int,
        ts_ms: int,
        clock: Callable[[], int],
        durability: Durability,
        prepare: Prepare,
        published: Published,
        told: Told,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._logs = logs
        self.changes = changes
        self._bounds = KeyBounds(store)
        self.guards = Guards()
        self.taking_in = threading.Lock()  # held while a commit is in the store in part: see engine.intents
        self._follows_load = False
        self._ids = ids
        self._seq = seq
        self._ts_ms = ts_ms
        self._clock = clock
        self._durability = durability
        self._prepare = prepare
        self._published = published
        self._told = told
        self.observer: Observer = NOBODY
        self._queue: deque[Ticket] = deque()
        self._queued_rows = 0
        self._room = threading.Condition()
        self._waiting_for_room = 0
        self._bell = allocate_lock()  # released to wake the deciding thread
        self._bell.acquire()
        self._syncing = False
        self._sync_seconds = 0.0  # what the last fsync took
        self._gathering = False  # whether acknowledged threads are still being woken
        self._chain_end = ChainEnd(self._gathered)
        self._chain: list[Ticket] = []  # threads that the deciding thread has woken, and watches over
        self._holding = False  # whether decided commands wait for the fsync under way to end
        self._handed: deque[_Written] = deque()
        self._handover = allocate_lock()
        self._handover.acquire()
        self._closing = False
        self._failure: BaseException | None = None
        self._decider = threading.Thread(target=self._decide_forever, name="tablecast-decide", daemon=True)
        self._syncer = threading.Thread(target=self._sync_forever, name="tablecast-sync", daemon=True)
        self._decider.start()
        self._syncer.start()

    # --- callers ---

    def submit(
        self, command: Command, callback: Callable[[Ticket], None] | None = None, *, wait: bool = True
    ) -> Ticket:
        """Queues a command. If the queue is full it waits for room, or with `wait=False` raises Overloaded at once."""
        submitted = perf_counter()  # before waiting for room: that is part of a write's latency
        if self._is_refusing():
            raise self._refusal()
        if len(self._queue) >= QUEUE_COMMANDS:
            if not wait:
                tell(self.observer.refused)
                raise Overloaded(
                    f"the write queue ({QUEUE_COMMANDS} commands) is full; retry later", queue=QUEUE_COMMANDS
                )
            self._wait_for_room()
        ticket = Ticket(command, callback, submitted)
        self._queue.append(ticket)
        self._queued_rows += command.weight
        # At the end of an fsync and of a chain the deciding thread is woken anyway; waking it earlier pays only if there
        # is enough to decide.
        if not (self._syncing or self._gathering) or self._queued_rows >= WORTH_WAKING_ROWS:
            self._ring()
        if self._is_refusing():
            self._ring()  # the deciding thread refuses what it finds, also what came late
        return ticket

    def execute(self, command: Command) -> Any:
        return self.submit(command).wait()

    def _is_refusing(self) -> bool:
        return self._failure is not None or self._closing

    @property
    def queue_depth(self) -> int:
        return len(self._queue)

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    def _wait_for_room(self) -> None:
        with self._room:
            self._waiting_for_room += 1
            try:
                free = self._room.wait_for(
                    lambda: len(self._queue) < QUEUE_COMMANDS or self._failure is not None or self._closing,
                    QUEUE_WAIT_SECONDS,
                )
            finally:
                self._waiting_for_room -= 1
        if self._failure is not None or self._closing:
            raise self._refusal()
        if not free:
            tell(self.observer.refused)
            raise Overloaded(
                f"the write queue ({QUEUE_COMMANDS} commands) stayed full for {QUEUE_WAIT_SECONDS:.0f} s; retry later",
                queue=QUEUE_COMMANDS,
            )

    def _refusal(self) -> Exception:
        if self._failure is not None:
            return WritesStopped(
                f"writes stopped after a storage failure ({self._failure}); what was acknowledged is safe. "
                "Mend the cause and open the database again",
                cause=str(self._failure),
            )
        return DatabaseClosed("the database is closed")

    def _ring(self) -> None:
        if self._bell.locked():
            try:
                self._bell.release()
            except RuntimeError:
                pass  # another thread has just rung it

    # --- the deciding thread ---

    def _decide_forever(self) -> None:
        work = _Work()
        written: PendingCommit | None = None  # a big one is kept for a moment: see `_written_out`
        while True:
            if written is None or not self._bell.acquire(timeout=FREE_AFTER_SECONDS):
                written = None
                self._await(self._bell, self._chain)
            while self._failure is None:
                self._decide_queued(work)
                self._holding = bool(work.tickets)  # told before looking: else the end of the fsync could be missed
                if not work.tickets or self._syncing or work.pending is None:
                    break
                if self.failure is not None:  # asked again: a sync may have failed since, and no write may follow it
                    break
                written, is_quick = self._written_out(work)
                work = _Work()
                self._tell_of_room()
                if is_quick and self._gathering and self._queued_rows < WORTH_WAKING_ROWS:
                    self._holding = False
                    break  # the end of the chain wakes us
            if self._failure is not None:
                self._refuse_all(work.tickets)
                work = _Work()
            if self._closing and not self._queue and not work.tickets:
                return

    def _decide_queued(self, work: _Work) -> None:
        """What is queued, up to the limits of one commit."""
        began = perf_counter()
        while self._queue and len(work.tickets) < COMMIT_COMMANDS and work.rows < COMMIT_ROWS:
            alone = getattr(self._queue[0].command, "alone", False)
            if alone and work.tickets:
                break
            pending = work.pending = work.pending or self._open()
            if pending is None:
                break
            taken = self._take()
            work.rows += COMMIT_ROWS if alone else sum(ticket.command.weight for ticket in taken)
            if len(taken) == 1 or not self._decide_together(pending, taken):
                for ticket in taken:
                    self._decide(pending, ticket)
            work.tickets += taken
        work.seconds += perf_counter() - began
        self._queued_rows = 0

    def _written_out(self, work: _Work) -> tuple[PendingCommit | None, bool]:
        """Writes what was decided, and syncs it if that is quick, else has it synced. Returns what is not to be freed yet,
        which would keep the syncing thread from starting, and whether it was quick."""
        assert work.pending is not None
        self._write_out(work.tickets, work.pending, work.seconds)
        is_quick = work.rows < WORTH_WAKING_ROWS and self._sync_seconds < QUICK_SYNC_SECONDS
        if is_quick and self._handed:
            self._complete_quickly(self._handed.popleft())
        elif self._handed:
            self._hand_to_syncer(self._handed.popleft())
        return work.pending if work.rows >= BIG_COMMIT_ROWS else None, is_quick

    def _complete_quickly(self, written: _Written) -> None:
        """In the syncing thread's place. But what is left to do once readers were told is left to that one: whom we told
        runs on our processor as soon as we wait (measured: they have it 0.03 ms earlier, and writers are acknowledged no
        later)."""
        shown = self._shown(written)
        if shown.is_shown and shown.ahead is not NOTHING:
            self._hand_to_syncer(shown)
        else:
            self._chain = self._acknowledge(shown)

    def _hand_to_syncer(self, written: _Written) -> None:
        self._handed.append(written)
        self._chain = []  # the syncing thread watches over the one to come
        self._handover.release()

    def _tell_of_room(self) -> None:
        if self._waiting_for_room:
            with self._room:
                self._room.notify_all()

    def _open(self) -> PendingCommit | None:
        """None if the store or the clock gave up: then writes have stopped."""
        try:
            return self._opened()
        except Exception as e:
            self._fail(e)
            return None

    def _opened(self) -> PendingCommit:
        self._bounds.forget_if_many()
        self._seq += 1
        self._ts_ms = max(self._ts_ms, require_clock(self._clock()))  # time in the log never goes backwards
        return PendingCommit(
            self._store, self._catalog, self._logs, self._bounds, self._seq, self._ts_ms, self.guards,
            follows_load=self._follows_load, changes=self.changes,
        )  # fmt: skip

    def _take(self) -> list[Ticket]:
        """The next command, with those right behind it that can be decided together with it."""
        queue = self._queue
        taken = [queue.popleft()]
        kind = getattr(taken[0].command, "together", None)
        if kind is not None:
            while queue and len(taken) < TOGETHER and getattr(queue[0].command, "together", None) == kind:
                taken.append(queue.popleft())
        return taken

    def _decide_together(self, pending: PendingCommit, tickets: list[Ticket]) -> bool:
        """False if they must be decided one by one: then none of them left a trace."""
        try:
            decision = tickets[0].command.decide_together([t.command for t in tickets], pending)  # type: ignore[attr-defined]
            if decision is None:
                return False
            pending.apply(decision)
        except Exception:
            return False  # one of them fails: which one, and how, is found one by one
        for ticket, response in zip(tickets, decision.response, strict=True):
            ticket.result = response
        return True

    def _decide(self, pending: PendingCommit, ticket: Ticket) -> None:
        try:
            decision = ticket.command.decide(pending)
            pending.apply(decision)
            ticket.result = decision.response
        except Exception as e:
            ticket.error = e

    def _write_out(self, tickets: list[Ticket], pending: PendingCommit, decide_seconds: float) -> None:
        """Closes the commit and writes it; what is left to do with it is in `_handed`, if that went well."""
        if pending.empty:
            self._seq -= 1  # nothing to commit: the number is not used
            self._hand_over(_Written(tickets))
            return
        began = perf_counter()
        ahead = NOTHING
        try:
            batch, commit = pending.close(self._ids)
            ahead = self._prepare(commit, answers=not self._queue)  # others that wait to write come first
            failpoint.hit("before_write")
            snapshot = self._write(batch, commit)
        except BaseException as e:
            self._fail(e)
            ahead.drop()
            self._refuse_all(tickets)
            return
        self._catalog = commit.catalog
        self._hand_over(_Written(tickets, commit, snapshot, ahead, decide_seconds, perf_counter() - began))

    def _write(self, batch: Batch, commit: Commit) -> Snapshot:
        intent = None if commit.loaded is None else commit.loaded.intent
        if intent is None:
            self._store.write(batch)
            failpoint.hit("after_write")
        else:
            with self.taking_in:
                self._store.write(batch)
                failpoint.hit("after_write")
                take_in(self._store, intent)
        self._follows_load = intent is not None
        return self._store.snapshot(*PUBLISHED)

    def _hand_over(self, written: _Written) -> None:
        self._syncing = True
        self._handed.append(written)

    def _refuse_all(self, tickets: list[Ticket]) -> None:
        refused = list(tickets)
        while self._queue:
            refused.append(self._queue.popleft())
        for ticket in refused:
            ticket.error = self._refusal()
        answer(refused)
        with self._room:
            self._room.notify_all()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    # --- the syncing thread, or the deciding one in its place ---

    def _sync_forever(self) -> None:
        chain: list[Ticket] = []
        while True:
            self._await(self._handover, chain)
            if not self._handed:
                return
            chain = self._complete(self._handed.popleft())

    def _complete(self, written: _Written) -> list[Ticket]:
        """Makes a written commit durable, shows and acknowledges it. Returns the chain of threads that are woken."""
        return self._acknowledge(written if written.is_shown else self._shown(written))

    def _shown(self, written: _Written) -> _Written:
        """Makes it durable, and lets readers see it."""
        try:
            if written.commit is not None and written.snapshot is not None:
                self._make_durable()
                self._published(written.commit, written.snapshot, written.ahead)
            return written._replace(is_shown=True)
        except BaseException as e:
            self._lose(written, e)
            return written

    def _acknowledge(self, written: _Written) -> list[Ticket]:
        """Tells of it who waits for it: those who follow the log, and those who wrote."""
        tickets, commit = written.tickets, written.commit
        try:
            if written.is_shown and commit is not None:
                self._told(commit)
                self._report(commit, tickets, written.decide_seconds, written.write_seconds)
            failpoint.hit("before_ack")
        except BaseException as e:
            self._lose(written, e)
        self._gathering = True  # before the fsync is said to be over: else what comes now would be decided at once
        self._syncing = False
        chain = answer(tickets, self._chain_end)
        written.ahead.finish()
        if not chain:
            self._gathered()
        return chain

    def _lose(self, written: _Written, error: BaseException) -> None:
        self._fail(error)
        written.ahead.drop()
        for ticket in written.tickets:
            ticket.error = self._refusal()

    def _await(self, lock: LockType, chain: list[Ticket]) -> None:
        """Waits for the lock. A chain of ours that takes too long meanwhile is broken up: a thread in it runs a signal
        handler, say, which may itself wait for somebody behind it in the chain."""
        while not lock.acquire(
            timeout=CHAIN_SECONDS_PER_THREAD * (4 + len(chain)) if chain and self._gathering else -1
        ):
            for ticket in chain:
                ticket.wake()
            self._gathered()

    def _report(self, commit: Commit, tickets: list[Ticket], decide_seconds: float, write_seconds: float) -> None:
        if self.observer is not NOBODY:
            if self._durability.on_commit:
                tell(self.observer.synced, self._sync_seconds)
            waited = perf_counter() - min(ticket.submitted for ticket in tickets)
            report = CommitReport(commit, len(tickets), waited, decide_seconds, write_seconds)
            tell(self.observer.committed, report)

    def _gathered(self) -> None:
        self._gathering = False
        if self._holding or self._queue:
            self._ring()

    def _make_durable(self) -> None:
        if self._durability.on_commit:
            failpoint.hit("before_sync")
            self._sync()
            failpoint.hit("after_sync")

    def _sync(self) -> None:
        began = perf_counter()
        self._store.sync()
        self._sync_seconds = perf_counter() - began

    def sync(self) -> None:
        """For durability by interval: what is written becomes durable now, or writes stop."""
        try:
            self._sync()
            tell(self.observer.synced, self._sync_seconds)
        except Exception as e:
            self._fail(e)
            self._ring()

    # --- the end ---

    def close(self) -> None:
        """Finishes what is queued, then stops both threads."""
        self._closing = True
        self._ring()
        while self._decider.is_alive():
            self._decider.join(0.05)
            self._ring()
        self._handover_end()

    def _handover_end(self) -> None:
        while self._syncer.is_alive():
            try:
                self._handover.release()
            except RuntimeError:
                pass
            self._syncer.join(0.05)
