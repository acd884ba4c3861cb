"""A little change-event database in memory that keeps every promise, and records a history while it runs.

Two tables: `app.orders` feeds three topics (everything in full; large amounts as diffs; keys only),
`app.notes` feeds none. A transaction ends in one of four ways: acknowledged, refused, or its writer dies and
it is there or not. `steps` generates what can happen to it.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st

from tablecast.model.change import Op
from tablecast.model.message import Message
from tablecast.model.topic import PayloadMode
from tablecast.testing.history import History, Recorder, TopicRule, Write

ORDERS, NOTES = "app.orders", "app.notes"
EVERYTHING, LARGE, KEYS = "app.everything", "app.large", "app.keys"
PARTITIONS = 3
LARGE_AMOUNT = 50


def is_large(write: Write) -> bool:
    large = write.row is not None and write.row["amount"] > LARGE_AMOUNT
    return write.table == ORDERS and write.op != "delete" and large


ROUTES = {
    EVERYTHING: TopicRule(lambda write: write.table == ORDERS, folds=(ORDERS,)),
    LARGE: is_large,
    KEYS: TopicRule(lambda write: write.table == ORDERS),
}


@dataclass(frozen=True)
class Change:
    op: str
    table: str
    id: int
    amount: int = 0


@dataclass(frozen=True)
class Txn:
    changes: tuple[Change, ...]
    fate: str = "ok"  # ok, refused, died_after, died_before


@dataclass(frozen=True)
class Commit:
    """Transactions that are sent together and share one commit."""

    txns: tuple[Txn, ...]


@dataclass(frozen=True)
class Poll:
    group: str
    consumer: str
    limit: int


@dataclass(frozen=True)
class Ack:
    """Everything up to the first offset that is not delivered, or one open offset."""

    group: str
    single: bool = False


@dataclass(frozen=True)
class Expire:
    group: str


@dataclass(frozen=True)
class Reset:
    group: str


Step = Commit | Poll | Ack | Expire | Reset


@dataclass
class GroupState:
    next: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    acked: set[tuple[int, int]] = field(default_factory=set)
    claims: dict[tuple[int, int], bool] = field(default_factory=dict)  # delivered, not acked -> expired?
    counts: dict[tuple[int, int], int] = field(default_factory=dict)


class ReferenceLog:
    def __init__(self) -> None:
        self.recorder = Recorder(now=itertools.count(1).__next__)
        self._tables: dict[str, dict[int, dict[str, Any]]] = {ORDERS: {}, NOTES: {}}
        self._topics: dict[str, list[list[Message]]] = {
            topic: [[] for _ in range(PARTITIONS)] for topic in (EVERYTHING, LARGE, KEYS)
        }
        self._groups: dict[str, GroupState] = {}
        self._seq = 0
        self._ts = 1000
        self._message_ids = itertools.count(1)
        self._write_ids = itertools.count(1)

    def run(self, steps: list[Step]) -> History:
        for step in steps:
            match step:
                case Commit():
                    self._commit(step)
                case Poll():
                    self._poll(step)
                case Ack():
                    self._ack(step)
                case Expire():
                    claims = self._group(step.group).claims
                    claims.update(dict.fromkeys(claims, True))
                case Reset():
                    self._reset(step)
        return self._observe()

    # --- writing --------------------------------------------------------------------------------------------

    def _commit(self, commit: Commit) -> None:
        self._seq += 1
        self._ts += 7
        sent = [(txn, self._invoke(txn)) for txn in commit.txns]
        for txn, write_ids in sent:
            fits = txn.fate in ("ok", "died_after") and self._fits(txn)
            done = [fits and self._apply(c, w) for c, w in zip(txn.changes, write_ids, strict=True)]
            if txn.fate == "refused" or (txn.fate == "ok" and not fits):
                self.recorder.fail(*write_ids, error="not today")
            elif txn.fate == "ok":
                self._acknowledge(write_ids, done)

    def _fits(self, txn: Txn) -> bool:
        """Whether no insert meets a row that is there."""
        there = {(table, row_id) for table, rows in self._tables.items() for row_id in rows}
        for change in txn.changes:
            place = (change.table, change.id)
            if change.op == "insert" and place in there:
                return False
            if change.op in ("insert", "upsert"):
                there.add(place)
            elif change.op == "delete":
                there.discard(place)
        return True

    def _acknowledge(self, write_ids: list[str], done: list[bool]) -> None:
        effectless = [w for w, did in zip(write_ids, done, strict=True) if not did]
        if effectless:
            self.recorder.ok(*effectless, seq=None)
        if any(done):
            self.recorder.ok(*(w for w, did in zip(write_ids, done, strict=True) if did), seq=self._seq)

    def _invoke(self, txn: Txn) -> list[str]:
        write_ids = [f"w{next(self._write_ids)}" for _ in txn.changes]
        for write_id, change in zip(write_ids, txn.changes, strict=True):
            row = None if change.op == "delete" else _row(change, write_id)
            txn_id = f"t-{write_ids[0]}" if len(write_ids) > 1 else None
            self.recorder.invoke(write_id, change.table, change.op, [change.id], row, txn_id=txn_id)
        return write_ids

    def _apply(self, change: Change, write_id: str) -> bool:
        rows = self._tables[change.table]
        before = rows.get(change.id)
        op = change.op if change.op != "upsert" else ("insert" if before is None else "update")
        if (op == "insert") != (before is None):
            return False  # an update or delete that finds no row
        after = None if op == "delete" else _row(change, write_id)
        if after is None:
            del rows[change.id]
        else:
            rows[change.id] = after | {"_seq": self._seq}
        if change.table == ORDERS:
            self._publish(Op[op.upper()], change, _without_seq(before), after)
        return True

    def _publish(self, op: Op, change: Change, before: Any, after: Any) -> None:
        image = after if after is not None else before
        self._append(EVERYTHING, op, change.id, PayloadMode.FULL, image)
        self._append(KEYS, op, change.id, PayloadMode.KEY, {"id": image["id"]})
        if op is not Op.DELETE and image["amount"] > LARGE_AMOUNT:
            said = image if op is Op.INSERT else _diff(before, after)
            self._append(LARGE, op, change.id, PayloadMode.DIFF, said)

    def _append(self, topic: str, op: Op, row_id: int, mode: PayloadMode, said: dict[str, Any]) -> None:
        key = msgspec.json.encode([str(row_id)])
        partition = zlib.crc32(key) % PARTITIONS
        log = self._topics[topic][partition]
        message = Message(
            topic_id=1,
            partition_id=partition,
            offset=len(log),
            message_id=next(self._message_ids),
            source_table=ORDERS,
            op=op,
            ts=self._ts,
            payload_mode=mode,
            key=key,
            payload=msgspec.json.encode({"_table": ORDERS, **said, "id": str(row_id)}),
            user_id=None,
            seq=self._seq,
            content_hash=0,
        )
        log.append(message)

    # --- reading --------------------------------------------------------------------------------------------

    def _group(self, name: str) -> GroupState:
        return self._groups.setdefault(name, GroupState())

    def _poll(self, poll: Poll) -> None:
        group = self._group(poll.group)
        asked = self.recorder.now()
        given = [place for place, expired in group.claims.items() if expired][: poll.limit]
        for partition, log in enumerate(self._topics[EVERYTHING]):
            end = min(len(log), group.next[partition] + poll.limit - len(given))
            given += [(partition, offset) for offset in range(group.next[partition], end)]
            group.next[partition] = max(end, group.next[partition])
        messages = [self._give(group, place) for place in given]
        self.recorder.delivered(poll.group, poll.consumer, EVERYTHING, messages, asked=asked)

    def _give(self, group: GroupState, place: tuple[int, int]) -> Message:
        group.claims[place] = False
        group.counts[place] = group.counts.get(place, 0) + 1
        message = self._topics[EVERYTHING][place[0]][place[1]]
        return msgspec.structs.replace(message, delivery=group.counts[place])

    def _ack(self, ack: Ack) -> None:
        group = self._group(ack.group)
        if not group.claims:
            return
        partition, offset = next(iter(group.claims))
        if ack.single:
            self.recorder.acked(ack.group, EVERYTHING, partition, offsets=[offset])
            covered = {(partition, offset)}
        else:
            offset = group.next[partition] - 1
            self.recorder.acked(ack.group, EVERYTHING, partition, upto=offset)
            covered = {place for place in group.claims if place[0] == partition}
        group.acked |= covered
        group.claims = {p: e for p, e in group.claims.items() if p not in covered}

    def _reset(self, reset: Reset) -> None:
        self._groups[reset.group] = GroupState()
        self.recorder.started(reset.group, EVERYTHING, dict.fromkeys(range(PARTITIONS), 0))

    def _observe(self) -> History:
        for table, rows in self._tables.items():
            self.recorder.saw_table(table, rows.values(), ["id"])
        for topic, partitions in self._topics.items():
            self.recorder.saw_topic(topic, itertools.chain(*partitions))
        return self.recorder.history()


def _row(change: Change, write_id: str) -> dict[str, Any]:
    return {"id": change.id, "amount": change.amount, "write": write_id}


def _without_seq(row: dict[str, Any] | None) -> dict[str, Any] | None:
    return row and {name: value for name, value in row.items() if name != "_seq"}


def _diff(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    changed = {name: {"old": before[name], "new": after[name]} for name in after if after[name] != before[name]}
    return {"id": after["id"], **changed}


groups = st.sampled_from(["billing", "search"])
changes = st.builds(
    Change,
    op=st.sampled_from(["insert", "update", "delete", "upsert"]),
    table=st.sampled_from([ORDERS, NOTES]),
    id=st.integers(1, 8),
    amount=st.integers(0, 100),
)
txns = st.builds(
    Txn,
    changes=st.lists(changes, min_size=1, max_size=4).map(tuple),
    fate=st.sampled_from(["ok", "ok", "ok", "refused", "died_after", "died_before"]),
)
steps = st.one_of(
    st.builds(Commit, st.lists(txns, min_size=1, max_size=3).map(tuple)),
    st.builds(Poll, groups, st.sampled_from(["ann", "bob"]), st.integers(1, 5)),
    st.builds(Ack, groups, st.booleans()),
    st.builds(Expire, groups),
    st.builds(Reset, groups),
)
