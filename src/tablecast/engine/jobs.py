"""Work that waits for nobody: retention, expiry, overdue claims, dead letters, loads that nobody goes on with, changes kept
long enough.

One thread, small steps, never in the way of writes.

Each job proposes bounded commands to the writer, one at a time, and looks between two of them whether it was cancelled.
What a job did last is a record (system.jobs).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import JobRecord
from tablecast.core import group as groups
from tablecast.engine.decision import Decision, View
from tablecast.engine.groups import ExpireClaims
from tablecast.engine.observer import tell
from tablecast.engine.positions import group_places
from tablecast.engine.retention import Removed, RemoveExpired, TrimLog, retained_from
from tablecast.errors import DatabaseError, InvalidRequest
from tablecast.storage.base import Family, Reader

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine

INTERVAL_SECONDS = 10.0  # between two rounds of all jobs
EXPIRED_PER_STEP = 500  # entries in one commit: a few milliseconds of the writer's time
_log = logging.getLogger("tablecast.jobs")

Steps = Iterator[Removed]


class SaveJob:
    weight = 1

    def __init__(self, record: JobRecord) -> None:
        self._record = record

    def decide(self, view: View) -> Decision:
        key = records.job_key(self._record.name)
        return Decision(records=[(Family.META, key, records.encode_record(self._record))])


class Jobs:
    def __init__(self, engine: Engine, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._engine = engine
        self._interval_seconds = interval_seconds
        self._jobs: dict[str, Callable[[], Steps]] = {
            "retention": self._retention,
            "expiry": self._expiry,
            "claims": self._claims,
            "loads": self._loads,
            "changes": self._changes,
        }
        self._stopped = threading.Event()
        self._cancelled: set[str] = set()
        self._running: str | None = None
        self._turn = threading.Lock()  # one job at a time, scheduled or asked for
        self._thread = threading.Thread(target=self._run_forever, name="tablecast-jobs", daemon=True)

    @property
    def names(self) -> list[str]:
        return list(self._jobs)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def cancel(self, name: str) -> bool:
        """Ends a running job after its current step; whether it was running. It runs again at its next turn."""
        self._known(name)
        if self._running != name:
            return False
        self._cancelled.add(name)
        return True

    def run(self, name: str) -> Removed:
        """Runs one job now, to its end, in the calling thread."""
        work = self._known(name)
        with self._turn:
            return self._run(name, work)

    def _known(self, name: str) -> Callable[[], Steps]:
        if name not in self._jobs:
            raise InvalidRequest(f"there is no job {name!r}; the jobs are {', '.join(self._jobs)}", job=name)
        return self._jobs[name]

    def _run_forever(self) -> None:
        while not self._stopped.wait(self._interval_seconds):
            with suppress(DatabaseError):
                self._engine.store.reclaim()
            for name in self._jobs:
                if self._stopped.is_set() or self._engine.writes_stopped:
                    return
                try:
                    self.run(name)
                except Exception:  # a job that fails is seen in system.jobs and tried again; the others go on
                    _log.exception("job %s failed", name)

    def _run(self, name: str, work: Callable[[], Steps]) -> Removed:
        self._cancelled.discard(name)
        self._running = name
        stored = self._engine.store.get(Family.META, records.job_key(name))
        last = records.decode_record(JobRecord, stored) if stored else JobRecord(name, "new", 0)
        started, total, status, error = self._engine.now_ms(), Removed(), "done", None
        began = perf_counter()
        try:
            for removed in work():
                total += removed
                if name in self._cancelled or self._stopped.is_set():
                    status = "cancelled"
                    break
        except Exception as e:
            status, error = "failed", f"{getattr(e, 'code', 'internal')}: {e}"
            raise
        finally:
            self._running = None
            tell(self._engine.observer.job_ended, name, status, perf_counter() - began)
            if (total.count or status != "done" or last.status != "done") and not self._engine.writes_stopped:
                record = JobRecord(
                    name, status, started, self._engine.now_ms(), last.runs + 1,
                    last.removed + total.count, last.bytes_freed + total.bytes, error,
                )  # fmt: skip
                self._engine.execute(SaveJob(record))
        return total

    # --- the jobs ---

    def _retention(self) -> Steps:
        for topic in list(self._engine.catalog.topics.values()):
            if topic.retention_seconds is None and topic.retention_max_bytes is None:
                continue
            for partition in range(topic.partitions):
                start, end = self._engine.log_range(topic.topic_id, partition)
                kept_from = retained_from(
                    self._engine.store,
                    topic,
                    partition,
                    now_ms=self._engine.now_ms(),
                    start=start,
                    end=end,
                    bytes_end=self._engine.log_bytes(topic.topic_id, partition)[1],
                )
                if kept_from > start:
                    yield self._engine.execute(TrimLog(topic.topic_id, partition, kept_from))

    def _expiry(self) -> Steps:
        while True:
            upto = keys.expiry_key(self._engine.now_ms() + 1, "", b"")
            due = []
            for key, _ in self._engine.store.scan(Family.EXPIRY, b"", upto):
                due.append(key)
                if len(due) == EXPIRED_PER_STEP:
                    break
            if not due:
                return
            yield self._engine.execute(RemoveExpired(due))

    def _claims(self) -> Steps:
        now_ms = self._engine.now_ms()
        for topic in list(self._engine.catalog.topics.values()):
            for group, partition, state, _ in group_places(self._engine.snapshot, topic.topic_id):
                log_start, _ = self._engine.log_range(topic.topic_id, partition)
                if groups.is_overdue(state, now_ms, log_start=log_start, max_deliveries=topic.max_deliveries):
                    yield from self._expire(ExpireClaims(topic.topic_id, group, partition))

    def _expire(self, command: ExpireClaims) -> Steps:
        while count := self._engine.execute(command):
            self._engine.feed.wake([command.topic_id])
            yield Removed(count)

    def _loads(self) -> Steps:
        return self._engine.loads.sweep()

    def _changes(self) -> Steps:
        return self._engine.kept_changes.sweep()


def job_records(reader: Reader, names: list[str]) -> list[JobRecord]:
    """What each job did last, for system.jobs."""
    found = []
    for name in names:
        stored = reader.get(Family.META, records.job_key(name))
        found.append(records.decode_record(JobRecord, stored) if stored else JobRecord(name, "new", 0))
    return found
