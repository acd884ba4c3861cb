"""A consumer group against a model that keeps one record per message and knows nothing of ranges.

Each rule does one step on both and compares the results; the invariants compare every offset. At the end of
each run the group is drained: whatever was not acknowledged, dead or skipped must be given once more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tablecast.codec.group import Acked, Claim, GroupState, Returned, Status, decode, encode
from tablecast.core import group
from tablecast.errors import Conflict, OffsetOutOfRange

CONSUMERS = ("ann", "bob", "cid")
VISIBILITY_MS = st.integers(1, 40)
LIMIT = st.integers(1, 8)


@dataclass(frozen=True)
class Record:
    status: str  # claimed, acked, returned
    consumer: str | None = None
    deadline_ms: int = 0
    deliveries: int = 0
    reason: str = ""


@dataclass
class Model:
    """The contract, message by message. `records` holds every offset from `begin` that was ever given."""

    begin: int
    records: dict[int, Record] = field(default_factory=dict)

    @property
    def next_offset(self) -> int:
        return self.begin + len(self.records)

    @property
    def committed(self) -> int:
        open_offsets = [at for at, record in self.records.items() if record.status != "acked"]
        return min(open_offsets, default=self.next_offset)

    @property
    def acknowledged(self) -> int | None:
        return self.committed - 1 if self.committed else None

    def where(self, status: str) -> list[int]:
        return sorted(at for at, record in self.records.items() if record.status == status)

    def held_by(self, consumer: str | None) -> list[int]:
        return [at for at in self.where("claimed") if self.records[at].consumer == consumer]

    def put(self, offset: int, record: Record) -> None:
        self.records[offset] = record

    def acknowledge(self, offset: int) -> None:
        self.put(offset, Record("acked"))

    def expire(self, now_ms: int) -> int:
        overdue = [at for at in self.where("claimed") if self.records[at].deadline_ms <= now_ms]
        for at in overdue:
            old = self.records[at]
            self.put(at, Record("returned", old.consumer, 0, old.deliveries, "visibility timeout"))
        return len(overdue)

    def lost(self, log_start: int) -> list[int]:
        returned = [at for at in self.where("returned") if at < log_start]
        return returned + list(range(self.next_offset, log_start))

    def claim(self, consumer: str, limit: int, log_end: int, deadline_ms: int, max_deliveries: int) -> group.Claimed:
        def is_dead(at: int) -> bool:
            return 0 < max_deliveries <= self.records[at].deliveries

        dead = [at for at in self.where("returned") if is_dead(at)][:limit]
        letters = tuple(group.DeadLetter(at, self.records[at].deliveries, self.records[at].reason) for at in dead)
        for at in dead:
            self.acknowledge(at)
        waiting = [at for at in self.where("returned") if not is_dead(at)]
        given = [at for i, at in enumerate(waiting) if at == waiting[0] + i][:limit]
        given = given or list(range(self.next_offset, min(self.next_offset + limit, log_end)))
        start = given[0] if given else self.next_offset
        for at in given:
            count = self.records.get(at, Record("returned")).deliveries + 1
            self.put(at, Record("claimed", consumer, deadline_ms, count))
        counts = tuple(self.records[at].deliveries for at in given)
        return group.Claimed(start, start + len(given), counts, deadline_ms, letters)

    def ack_upto(self, upto: int, consumer: str | None) -> None:
        at_upto = self.records.get(upto, Record("acked"))
        who = consumer or at_upto.consumer
        for at, record in list(self.records.items()):
            if at <= upto and record.status != "acked" and who is not None and record.consumer == who:
                self.acknowledge(at)


def unfolded(state: GroupState) -> dict[int, Record]:
    """Every offset of the fragments as the model would write it down."""
    records: dict[int, Record] = {}
    for part in state.fragments:
        match part.status:
            case Acked():
                record = Record("acked")
            case Claim(consumer, deadline_ms, deliveries):
                record = Record("claimed", consumer, deadline_ms, deliveries)
            case Returned(holder, deliveries, reason):
                record = Record("returned", holder, 0, deliveries, reason)
        records |= dict.fromkeys(range(part.start, part.end), record)
    return records


class GroupMachine(RuleBasedStateMachine):
    @initialize(start=st.integers(0, 5), max_deliveries=st.integers(0, 3))
    def begin(self, start: int, max_deliveries: int) -> None:
        self.now_ms = 0
        self.log_start, self.log_end = 0, 10
        self.unnamed = 0
        self.max_deliveries = max_deliveries
        self.model = Model(start)
        self.state = group.first(start)
        self.high_water = start

    # --- the log and the clock ---

    @rule(count=st.integers(1, 10))
    def produce(self, count: int) -> None:
        self.log_end += count

    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        self.log_start = data.draw(st.integers(self.log_start, min(self.log_start + 4, self.log_end)))

    @rule(elapsed_ms=st.integers(1, 30))
    def pass_time(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms

    # --- claims ---

    def claim(self, consumer: str, limit: int, visibility_ms: int, auto_offset_reset: bool = False) -> group.Claimed:
        self.state, given = group.claim(
            self.state,
            consumer=consumer,
            limit=limit,
            log_start=self.log_start,
            log_end=self.log_end,
            now_ms=self.now_ms,
            visibility_ms=visibility_ms,
            max_deliveries=self.max_deliveries,
            auto_offset_reset=auto_offset_reset,
        )
        return given

    @rule(consumer=st.sampled_from((*CONSUMERS, None)), limit=LIMIT, visibility_ms=VISIBILITY_MS)
    def claims(self, consumer: str | None, limit: int, visibility_ms: int) -> None:
        if consumer is None:
            self.unnamed += 1
            consumer = f"#{self.unnamed}"
        before = self.state
        expired = Model(self.model.begin, dict(self.model.records))
        expired.expire(self.now_ms)
        lost = expired.lost(self.log_start)
        if lost:
            with pytest.raises(OffsetOutOfRange) as refused:
                self.claim(consumer, limit, visibility_ms)
            assert refused.value.details == {"lost_from": lost[0], "log_start": self.log_start}
            assert self.state == before
            return
        self.model = expired
        busy = set(self.model.where("claimed")) | set(self.model.where("acked"))
        given = self.claim(consumer, limit, visibility_ms)
        assert busy.isdisjoint(range(given.start, given.end))
        assert given == self.model.claim(
            consumer, limit, self.log_end, self.now_ms + visibility_ms, self.max_deliveries
        )

    @rule(limit=LIMIT)
    def claims_with_auto_offset_reset(self, limit: int) -> None:
        self.model.expire(self.now_ms)
        lost = self.model.lost(self.log_start)
        for at in lost:
            self.model.acknowledge(at)
        given = self.claim("ann", limit, 20, auto_offset_reset=True)
        assert given.skipped == ((lost[0], self.log_start) if lost else None)
        wanted = self.model.claim("ann", limit, self.log_end, self.now_ms + 20, self.max_deliveries)
        assert given._replace(skipped=None) == wanted

    # --- acks ---

    @rule(data=st.data(), consumer=st.sampled_from((*CONSUMERS, None)))
    def acks_upto(self, data: st.DataObject, consumer: str | None) -> None:
        upto = data.draw(st.integers(0, self.model.next_offset + 1))
        if upto >= self.model.next_offset:
            with pytest.raises(OffsetOutOfRange) as refused:
                group.ack_upto(self.state, upto, consumer=consumer)
            assert refused.value.details == {"offset": upto, "next_offset": self.model.next_offset}
            return
        expired, _ = group.expire(self.state, self.now_ms)
        late, _ = group.ack_upto(expired, upto, consumer=consumer)
        self.state, position = group.ack_upto(self.state, upto, consumer=consumer)
        self.model.ack_upto(upto, consumer)
        assert position == self.model.acknowledged
        assert group.expire(self.state, self.now_ms)[0] == late, "an ack must not depend on when claims expire"

    @precondition(lambda self: self.model.records)
    @rule(data=st.data(), consumer=st.sampled_from((*CONSUMERS, None)))
    def acks_single(self, data: st.DataObject, consumer: str | None) -> None:
        offsets = data.draw(st.lists(st.sampled_from(sorted(self.model.records)), max_size=6))
        claimed = {at: self.model.records[at].consumer for at in self.model.where("claimed")}
        theirs = {at for at in offsets if consumer is not None and claimed.get(at, consumer) != consumer}
        self.state, result = group.ack(self.state, offsets, consumer=consumer)
        for at in set(offsets) - theirs:
            self.model.acknowledge(at)
        assert result == group.Acknowledged(self.model.acknowledged, tuple(sorted(theirs)))

    @precondition(lambda self: self.model.where("claimed"))
    @rule(data=st.data(), reason=st.sampled_from(("bad row", "later")))
    def nacks(self, data: st.DataObject, reason: str) -> None:
        consumer = data.draw(st.sampled_from([self.model.records[at].consumer for at in self.model.where("claimed")]))
        offsets = data.draw(st.sets(st.sampled_from(self.model.held_by(consumer)), min_size=1))
        self.state, count = group.nack(self.state, offsets, reason=reason, consumer=consumer)
        assert count == len(offsets)
        for at in offsets:
            self.model.put(at, Record("returned", None, 0, self.model.records[at].deliveries, reason))

    @precondition(lambda self: self.model.records)
    @rule(data=st.data(), consumer=st.sampled_from((*CONSUMERS, None)))
    def nack_of_what_is_not_held_is_refused(self, data: st.DataObject, consumer: str | None) -> None:
        held = set(self.model.where("claimed") if consumer is None else self.model.held_by(consumer))
        offsets = data.draw(st.sets(st.sampled_from(sorted(self.model.records)), max_size=5))
        if offsets <= held:
            return
        with pytest.raises(Conflict) as refused:
            group.nack(self.state, offsets, reason="no", consumer=consumer)
        assert refused.value.details["offsets"] == sorted(offsets - held)

    # --- consumers that come and go ---

    @rule(consumer=st.sampled_from(CONSUMERS), visibility_ms=VISIBILITY_MS)
    def extends(self, consumer: str, visibility_ms: int) -> None:
        held = self.model.held_by(consumer)
        if not held:
            with pytest.raises(Conflict):
                group.extend(self.state, consumer=consumer, now_ms=self.now_ms, visibility_ms=visibility_ms)
            return
        self.state, deadline_ms = group.extend(
            self.state, consumer=consumer, now_ms=self.now_ms, visibility_ms=visibility_ms
        )
        for at in held:
            self.model.put(at, replace(self.model.records[at], deadline_ms=deadline_ms))
        assert deadline_ms == self.now_ms + visibility_ms

    @rule(consumer=st.sampled_from(CONSUMERS), delivered=st.booleans())
    def releases(self, consumer: str, delivered: bool) -> None:
        held = self.model.held_by(consumer)
        self.state, count = group.release(self.state, consumer, delivered=delivered)
        assert count == len(held)
        for at in held:
            deliveries = self.model.records[at].deliveries - (0 if delivered else 1)
            self.model.put(at, Record("returned", consumer, 0, deliveries, "released by its consumer"))

    @rule()
    def expires(self) -> None:
        self.state, count = group.expire(self.state, self.now_ms)
        assert count == self.model.expire(self.now_ms)

    @rule(data=st.data())
    def resets(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log_start, self.log_end))
        self.state, dropped = group.reset(self.state, offset)
        assert dropped == len(self.model.where("claimed"))
        self.model = Model(offset)
        self.high_water = offset

    # --- what always holds ---

    @invariant()
    def every_offset_is_as_in_the_model(self) -> None:
        open_records = {at: record for at, record in self.model.records.items() if at >= self.model.committed}
        assert self.state.committed == self.model.committed
        assert self.state.next_offset == self.model.next_offset
        assert unfolded(self.state) == open_records

    @invariant()
    def fragments_tile_without_gap_in_canonical_form(self) -> None:
        start = self.state.committed
        below: Status = Acked()
        for part in self.state.fragments:
            assert part.start == start < part.end
            assert part.status != below
            start, below = part.end, part.status

    @invariant()
    def committed_never_moves_back(self) -> None:
        assert self.state.committed >= self.high_water
        self.high_water = self.state.committed

    @invariant()
    def counts_agree(self) -> None:
        acked = len(self.model.where("acked"))
        deadlines = [self.model.records[at].deadline_ms for at in self.model.where("claimed")]
        assert group.lag(self.state, self.log_end) == self.log_end - self.model.begin - acked
        assert group.claimed(self.state) == len(deadlines)
        assert group.next_deadline(self.state) == min(deadlines, default=None)

    @invariant()
    def bytes_round_trip(self) -> None:
        assert decode(encode(self.state)) == self.state

    def teardown(self) -> None:
        """Nothing is forgotten: one consumer that acks everything sees all that is left, up to the end."""
        self.now_ms += 1_000
        acked = set(self.model.where("acked"))
        seen: set[int] = set()
        while True:
            given = self.claim("last", 5, 20, auto_offset_reset=True)
            if given.start == given.end and not given.dead:
                break
            seen.update(range(given.start, given.end), (letter.offset for letter in given.dead))
            if given.start < given.end:
                self.state, _ = group.ack_upto(self.state, given.end - 1, consumer="last")
        available = range(max(self.log_start, self.model.begin), self.log_end)
        assert seen == {at for at in available if at not in acked}
        assert self.state == group.first(self.log_end)


GroupMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestGroup = GroupMachine.TestCase
