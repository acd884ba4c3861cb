"""What is left after a kill: open the database again and hold it against everything its users were told.

1. every write of unknown outcome that has an idempotency key is sent again, and some that were acknowledged:
   each must turn out to be committed once;
2. the group is drained: what was not acknowledged comes back, and nothing else;
3. tables and topics are read whole, and the history checker compares them with all that was recorded;
4. `verify` passes, and nothing is left of what was dropped.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from workload import (
    ACCOUNTS,
    ENTER_NEW,
    EVENTS,
    GROUP,
    KEEPER,
    LEDGER,
    NOTES,
    ONCE,
    PRIMARY_KEYS,
    RULES,
    SCRATCH_ROWS,
    WRITERS,
    clock_of,
    user,
)

import tablecast
from tablecast.engine.verify import verify_engine
from tablecast.errors import TablecastError
from tablecast.model.message import Message
from tablecast.model.position import EARLIEST, Start, StartKind
from tablecast.storage.base import Family
from tablecast.testing.history import History, Recorder, Report, check
from tablecast.testing.history.events import Acked, AnyEvent, Delivered, Invoke, Ok

REPEATED = 5  # acknowledged requests that are sent again after each kill

Place = tuple[int, int]  # partition, offset


@dataclass(slots=True)
class Examined:
    """`problems` are violations; the figures say how much there was to violate."""

    problems: list[str] = field(default_factory=list)
    report: Report | None = None
    resent: int = 0
    came_back: int = 0

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """A database that refuses what it should do is one more finding, and not the end of the examination."""
        try:
            yield
        except TablecastError as error:
            self.problems.append(f"{what}: {type(error).__name__}: {error}")


@dataclass(slots=True)
class Request:
    """A request under an idempotency key, as its writes were recorded."""

    invokes: list[Invoke] = field(default_factory=list)
    acknowledged: bool = False

    def send(self, db: tablecast.Database) -> tablecast.Result:
        key = self.invokes[0].txn_id
        rows = [invoke.row or {} for invoke in self.invokes]
        if self.invokes[0].table == ACCOUNTS:
            return db.insert(ACCOUNTS, rows, mode="upsert", idempotency_key=key)
        entry, change = rows
        parameters = [*entry.values(), change["balance"], change["w"], change["id"]]
        return db.execute(ENTER_NEW, parameters, idempotency_key=key)


def examine(database: Path, history: Path, turn: int) -> Examined:
    """Opens, checks, and leaves the database closed; what it did itself is added to the history."""
    examined = Examined()
    with (
        examined.noting("the database cannot be opened"),
        tablecast.open(database, clock=clock_of(turn), jobs_interval_seconds=3600) as db,
        Recorder(history / "examiner.jsonl") as recorder,
    ):
        before = History.load(*sorted(history.glob("*.jsonl")))
        drained: set[Place] = set()
        with examined.noting("a request sent again"):
            examined.resent = _send_again(db, recorder, before.events)
        with examined.noting(f"group {GROUP!r}"):
            _drain(db, recorder, drained)
        observed = _observe(db)
        examined.came_back = len(drained)
        examined.problems += [
            *_not_back(before.events, observed.events, drained),
            *_lagging(db),
            *_remains(db),
            *verify_engine(db.engine).problems,
        ]
        recorded = History.load(*sorted(history.glob("*.jsonl")))
        examined.report = check(History([*recorded.events, *observed.events]), routes=RULES)
        examined.problems += [str(problem) for problem in examined.report.problems]
    return examined


# --- idempotency --------------------------------------------------------------------------------------------


def _send_again(db: tablecast.Database, recorder: Recorder, events: list[AnyEvent]) -> int:
    requests = _requests(events)
    unknown = [request for request in requests if not request.acknowledged]
    again = unknown + [request for request in requests if request.acknowledged][-REPEATED:]
    for request in again:
        result = request.send(db)
        recorder.ok(*(invoke.write_id for invoke in request.invokes), seq=result.seq)
    return len(again)


def _requests(events: list[AnyEvent]) -> list[Request]:
    requests: defaultdict[str, Request] = defaultdict(Request)
    of_write: dict[str, Request] = {}
    for event in events:
        if isinstance(event, Invoke) and event.txn_id is not None and event.txn_id.startswith(ONCE):
            of_write[event.write_id] = requests[event.txn_id]
            requests[event.txn_id].invokes.append(event)
        elif isinstance(event, Ok) and event.write_ids[0] in of_write:
            of_write[event.write_ids[0]].acknowledged = True
    return [request for request in requests.values() if request.acknowledged or _is_whole(request)]


def _is_whole(request: Request) -> bool:
    """Whether all of it was recorded before the kill. If not, it was never sent."""
    return len(request.invokes) == (4 if request.invokes[0].table == ACCOUNTS else 2)


# --- the group ----------------------------------------------------------------------------------------------


def _drain(db: tablecast.Database, recorder: Recorder, drained: set[Place]) -> None:
    """Reads the group to its end, and acknowledges. Claims of the dead have run out by the clock."""
    while True:
        asked = recorder.now()
        messages = db.consume(EVENTS, group=GROUP, consumer="examiner", limit=1000).messages
        if not messages:
            return
        recorder.delivered(GROUP, "examiner", EVENTS, messages, asked=asked)
        for partition, of_partition in itertools.groupby(messages, key=lambda message: message.partition_id):
            offsets = [message.offset for message in of_partition]
            db.ack(EVENTS, GROUP, offsets[-1], partition=partition, consumer="examiner")
            recorder.acked(GROUP, EVENTS, partition, offsets=offsets)
            drained |= {(partition, offset) for offset in offsets}


def _not_back(events: list[AnyEvent], observed: list[AnyEvent], drained: set[Place]) -> Iterator[str]:
    """What is on the log, was not acknowledged, and yet did not come."""
    acked: set[Place] = set()
    maybe: set[Place] = set()  # delivered to a consumer that may have sent its ack and died before the answer
    for event in events:
        if isinstance(event, Acked):
            acked |= {(event.partition, offset) for offset in event.offsets}
        elif isinstance(event, Delivered) and event.consumer != KEEPER:
            maybe |= {(message.partition, message.offset) for message in event.messages}
    on_log = {
        (message.partition, message.offset)
        for event in observed
        if getattr(event, "topic", None) == EVENTS
        for message in event.messages  # type: ignore[union-attr]
    }
    missing = on_log - acked - maybe - drained
    if missing:
        yield f"group {GROUP!r}: {len(missing)} unacknowledged messages did not come back, first {min(missing)}"


def _lagging(db: tablecast.Database) -> Iterator[str]:
    for partition, lag in db.query("SELECT partition_id, lag FROM system.topic_groups WHERE lag > 0").rows:
        yield f"group {GROUP!r}, partition {partition}: lag {lag} after it was drained"


# --- what is there ------------------------------------------------------------------------------------------


def _observe(db: tablecast.Database) -> History:
    recorder = Recorder()
    for table in (ACCOUNTS, LEDGER):
        rows = db.query(f"SELECT *, _seq FROM {table}").dicts()
        recorder.saw_table(table, rows, PRIMARY_KEYS[table])
    for number in range(WRITERS):
        rows = db.session(user(number)).query(f"SELECT *, _seq FROM {NOTES}").dicts()
        recorder.saw_table(NOTES, rows, PRIMARY_KEYS[NOTES], user_id=user(number))
    for topic in RULES:
        partitions = range(db.topic(topic).partitions)
        starts = {p: db.engine.log_range(db.topic(topic).topic_id, p)[0] for p in partitions}
        messages = [message for p in partitions for message in whole_partition(db, topic, p)]
        recorder.saw_topic(topic, messages, starts={p: start for p, start in starts.items() if start})
    return recorder.history()


def whole_partition(db: tablecast.Database, topic: str, partition: int) -> Iterator[Message]:
    start = EARLIEST
    while True:
        found = db.consume(topic, start=start, partition=partition, limit=10_000)
        yield from found.messages
        if not found.has_more:
            return
        assert found.next_offset is not None
        start = Start(StartKind.OFFSET, found.next_offset)


def _remains(db: tablecast.Database) -> Iterator[str]:
    """A dropped table or topic takes everything with it; a statement leaves all its rows or none."""
    everything = db.engine.whole_snapshot()
    tables, topics = db.engine.catalog.tables, db.engine.catalog.topics
    owners = {Family.ROWS: tables, Family.CHANGES: tables, Family.LOG: topics, Family.GROUPS: topics}
    for family, known in owners.items():
        ids = {int.from_bytes(key[:4]) for key, _ in everything.scan(family)}
        if ids - set(known):
            yield f"{family}: there are entries of {sorted(ids - set(known))}, which was dropped"
    if "app.scratch" in db.engine.catalog.table_ids:
        count = db.query("SELECT count(*) FROM app.scratch").scalar()
        if count not in (0, SCRATCH_ROWS):
            yield f"app.scratch has {count} rows of a statement that inserts {SCRATCH_ROWS}"
