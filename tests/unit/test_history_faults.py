"""Each way to break a promise, planted into a history that keeps them all, is found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_log import (
    EVERYTHING,
    KEYS,
    LARGE,
    NOTES,
    ORDERS,
    PARTITIONS,
    ROUTES,
    Ack,
    Change,
    Commit,
    Poll,
    ReferenceLog,
    Step,
    Txn,
    steps,
)

from tablecast.testing.history import History, Kind, check
from tablecast.testing.history.events import Acked, AnyEvent, Delivered, Fail, Invoke, Logged, Ok, Rows, Seen


def one(op: str, table: str, row_id: int, amount: int = 0, fate: str = "ok") -> Commit:
    return Commit((Txn((Change(op, table, row_id, amount),), fate),))


def many(*changes: Change, fate: str = "ok") -> Commit:
    return Commit((Txn(changes, fate),))


# Whatever else happens, a history in which something of every kind can go wrong. Ids from 100 on are its own.
PRELUDE: list[Step] = [
    *(one("insert", ORDERS, row_id, 60 + row_id % 10) for row_id in range(100, 112)),
    *(one("update", ORDERS, row_id, 80) for row_id in range(100, 108)),
    *(one("insert", NOTES, row_id, 5) for row_id in range(120, 124)),
    *(one("update", NOTES, row_id, 6) for row_id in range(120, 122)),
    many(
        Change("insert", ORDERS, 130, 70),
        Change("insert", ORDERS, 131, 71),
        Change("update", ORDERS, 130, 72),
    ),
    many(Change("insert", ORDERS, 140, 70), Change("insert", ORDERS, 141, 71), fate="died_after"),
    many(Change("insert", NOTES, 150, 1), Change("insert", NOTES, 151, 1), fate="died_after"),
    one("insert", ORDERS, 160, 90, fate="died_before"),
    one("insert", ORDERS, 170, 90, fate="refused"),
    one("insert", NOTES, 171, 90, fate="refused"),
    one("insert", ORDERS, 180, 10),
    Poll("billing", "ann", 50),
    Ack("billing"),
    Poll("search", "bob", 50),
]


def history_of(after: list[Step]) -> History:
    return ReferenceLog().run([*PRELUDE, *after])


class World:
    """A recorded history taken apart, to be tampered with and put together again."""

    def __init__(self, history: History, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.events: list[AnyEvent] = [e for e in history.events if not isinstance(e, Logged | Rows)]
        self.logs = {e.topic: list(e.messages) for e in history.events if isinstance(e, Logged)}
        self.tables = {e.table: list(e.rows) for e in history.events if isinstance(e, Rows)}
        self._draw = draw
        self.end = history.events[-1].at

    def pick(self, candidates: list[Any]) -> Any:
        return self._draw(st.sampled_from(candidates))

    def history(self) -> History:
        at = self.end + 1000
        rows = [Rows(at, table, 0, True, tuple(pairs)) for table, pairs in self.tables.items()]
        logs = [Logged(at, topic, 0, True, tuple(log)) for topic, log in self.logs.items()]
        return History([*self.events, *rows, *logs])

    def later(self) -> int:
        self.end += 1
        return self.end

    # What is there to be picked

    def writes(self, outcome: type[Ok] | type[Fail] | None) -> dict[str, Invoke]:
        """Invocations by write id: acknowledged with an effect, refused, or (None) of unknown outcome."""
        ended = {w: e for e in self.events if isinstance(e, Ok | Fail) for w in e.write_ids}
        invoked = [e for e in self.events if isinstance(e, Invoke)]
        if outcome is None:
            return {e.write_id: e for e in invoked if e.write_id not in ended}
        kept = {w for w, e in ended.items() if isinstance(e, outcome) and getattr(e, "seq", 0) is not None}
        return {e.write_id: e for e in invoked if e.write_id in kept}

    def messages(self, topic: str, write_ids: dict[str, Invoke]) -> list[Seen]:
        """Messages whose row names one of the writes. Keys and deletes name none."""
        return [m for m in self.logs[topic] if m.op != "delete" and written_by(m) in write_ids]

    def row(self, table: str, row_id: int) -> tuple[str, dict[str, Any]]:
        return next(pair for pair in self.tables[table] if pair[1]["id"] == row_id)

    # What can be done to it

    def remove(self, topic: str, message: Seen) -> None:
        self.logs[topic].remove(message)

    def replace(self, topic: str, message: Seen, **fields: Any) -> None:
        at = self.logs[topic].index(message)
        self.logs[topic][at] = msgspec.structs.replace(message, **fields)

    def insert_after(self, topic: str, message: Seen, new: Seen) -> None:
        self.logs[topic].insert(self.logs[topic].index(message) + 1, new)

    def renumber(self, topic: str) -> None:
        """As if the topic had been written this way: offsets without gap."""
        next_offset = dict.fromkeys(range(PARTITIONS), 0)
        for i, message in enumerate(self.logs[topic]):
            offset = next_offset[message.partition]
            next_offset[message.partition] = offset + 1
            self.logs[topic][i] = msgspec.structs.replace(message, offset=offset)

    def deliver(self, message: Seen, group: str = "billing") -> None:
        at = self.later()
        self.events.append(Delivered(at, group, "eve", EVERYTHING, at, (message,)))


def written_by(message: Seen) -> str:
    write = message.value.get("write")
    return write["new"] if isinstance(write, dict) else write


def retold(message: Seen, **columns: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({**message.value, **columns}))


Fault = Callable[[World], None]
faults: list[Any] = []


def fault(*kinds: Kind, also: set[Kind] | None = None) -> Callable[[Fault], Fault]:
    """A way to break a history, the kinds that must be found, and those that may follow from it."""

    def register(plant: Fault) -> Fault:
        faults.append(pytest.param(plant, set(kinds), also or set(), id=plant.__name__))
        return plant

    return register


@fault(Kind.LOST, also={Kind.TORN})
def a_message_was_never_written(world: World) -> None:
    world.remove(LARGE, world.pick(world.messages(LARGE, world.writes(Ok))))
    world.renumber(LARGE)


@fault(Kind.LOST, Kind.SKIPPED, also={Kind.TORN})
def a_message_vanished_from_the_log(world: World) -> None:
    log = world.logs[LARGE]
    acknowledged = world.messages(LARGE, world.writes(Ok))
    world.remove(LARGE, world.pick([m for m in acknowledged if any(_follows(n, m) for n in log)]))


def _follows(after: Seen, message: Seen) -> bool:
    return after.partition == message.partition and after.offset > message.offset


@fault(Kind.LOST, Kind.TORN)
def a_message_of_an_acknowledged_transaction_was_never_written(world: World) -> None:
    world.remove(LARGE, world.pick([m for m in world.logs[LARGE] if m.key in ('["130"]', '["131"]')]))
    world.renumber(LARGE)


@fault(Kind.LOST)
def a_row_vanished(world: World) -> None:
    world.tables[NOTES].remove(world.row(NOTES, world.pick([120, 121, 122, 123])))


@fault(Kind.LOST)
def an_update_vanished(world: World) -> None:
    key, row = pair = world.row(NOTES, world.pick([120, 121]))
    insert = next(e for e in world.events if isinstance(e, Invoke) and e.op == "insert" and e.key == key)
    seq = next(e.seq for e in world.events if isinstance(e, Ok) and insert.write_id in e.write_ids)
    world.tables[NOTES].remove(pair)
    world.tables[NOTES].append((key, {**row, **(insert.row or {}), "_seq": seq}))


@fault(Kind.DUPLICATED)
def a_write_is_on_the_topic_twice(world: World) -> None:
    message = world.pick(world.logs[LARGE])
    world.insert_after(LARGE, message, msgspec.structs.replace(message, message_id=10**9))
    world.renumber(LARGE)


@fault(Kind.DUPLICATED)
def an_offset_is_there_twice(world: World) -> None:
    message = world.pick(world.logs[KEYS])
    world.insert_after(KEYS, message, message)


@fault(Kind.DUPLICATED)
def a_message_id_is_there_twice(world: World) -> None:
    first, *others = world.logs[LARGE]
    world.replace(LARGE, world.pick(others), message_id=first.message_id)


@fault(Kind.DUPLICATED)
def a_request_was_committed_twice(world: World) -> None:
    write_id = world.pick(sorted(world.writes(Ok)))
    world.events.append(Ok(world.later(), (write_id,), 10**6))


@fault(Kind.DUPLICATED)
def a_row_is_there_twice(world: World) -> None:
    world.tables[NOTES].append(world.pick(world.tables[NOTES]))


@fault(Kind.REORDERED)
def two_changes_of_a_row_are_in_the_wrong_order(world: World) -> None:
    log = world.logs[LARGE]
    row = world.pick([m.key for m in log if m.op == "update" and int(m.value["id"]) >= 100])
    first, last = [i for i, m in enumerate(log) if m.key == row][:2]
    log[first], log[last] = log[last], log[first]
    world.renumber(LARGE)


@fault(Kind.REORDERED)
def two_messages_were_read_in_the_wrong_order(world: World) -> None:
    log = world.logs[LARGE]
    i = world.pick([i for i in range(len(log) - 1) if log[i].partition == log[i + 1].partition])
    log[i], log[i + 1] = log[i + 1], log[i]


@fault(Kind.REORDERED)
def the_time_went_back(world: World) -> None:
    log = world.logs[LARGE]
    i = world.pick([i for i in range(1, len(log)) if log[i].partition == log[i - 1].partition])
    world.replace(LARGE, log[i], ts=log[i - 1].ts - 1)


@fault(Kind.SKIPPED)
def offsets_were_left_out(world: World) -> None:
    log = world.logs[LARGE]
    hole = world.pick(log)
    for message in [m for m in log if m.partition == hole.partition and m.offset >= hole.offset]:
        world.replace(LARGE, message, offset=message.offset + 3)


@fault(Kind.SKIPPED)
def an_ack_passed_over_a_message(world: World) -> None:
    ack = next(e for e in world.events if isinstance(e, Acked) and e.upto is not None)
    offset = world.pick(list(range((ack.upto or 0) + 1)))

    def kept(m: Seen) -> bool:
        return (m.partition, m.offset) != (ack.partition, offset)

    for i, event in enumerate(world.events):
        if isinstance(event, Delivered) and event.group == ack.group:
            messages = tuple(m for m in event.messages if kept(m))
            world.events[i] = msgspec.structs.replace(event, messages=messages)


@fault(Kind.TORN)
def an_unknown_transaction_is_half_on_the_topic(world: World) -> None:
    world.remove(LARGE, world.pick([m for m in world.logs[LARGE] if m.key in ('["140"]', '["141"]')]))
    world.renumber(LARGE)


@fault(Kind.TORN)
def an_unknown_transaction_is_half_in_the_table(world: World) -> None:
    world.tables[NOTES].remove(world.row(NOTES, world.pick([150, 151])))


@fault(Kind.TORN)
def a_row_has_no_message(world: World) -> None:
    unsent = next(e for e in world.events if isinstance(e, Invoke) and e.key == '["160"]')
    world.tables[ORDERS].append((unsent.key, {**(unsent.row or {}), "_seq": 10**6}))


@fault(Kind.TORN)
def a_message_has_no_row(world: World) -> None:
    world.tables[ORDERS].remove(world.row(ORDERS, world.pick([140, 141])))


@fault(Kind.TORN)
def the_fold_of_the_topic_is_not_the_table(world: World) -> None:
    key, row = pair = world.pick(world.tables[ORDERS])
    world.tables[ORDERS].remove(pair)
    world.tables[ORDERS].append((key, {**row, "never_written": 1}))


@fault(Kind.PHANTOM)
def nobody_wrote_a_message(world: World) -> None:
    last = world.logs[LARGE][-1]
    payload = retold(last, id="999", write="nobody")
    phantom = msgspec.structs.replace(last, offset=last.offset + 1, message_id=10**9, key='["999"]', payload=payload)
    world.insert_after(LARGE, last, phantom)


@fault(Kind.PHANTOM)
def nobody_wrote_a_row(world: World) -> None:
    world.tables[NOTES].append(('["999"]', {"id": 999, "amount": 1, "write": "nobody", "_seq": 1}))


@fault(Kind.PHANTOM)
def a_refused_write_is_on_the_topic(world: World) -> None:
    refused = next(e for e in world.events if isinstance(e, Invoke) and e.key == '["170"]')
    last = world.logs[LARGE][-1]
    payload = msgspec.Raw(msgspec.json.encode({"_table": ORDERS, **(refused.row or {})}))
    there = {"offset": last.offset + 1, "message_id": 10**9, "key": refused.key, "payload": payload}
    world.insert_after(LARGE, last, msgspec.structs.replace(last, op="insert", **there))


@fault(Kind.PHANTOM)
def a_refused_write_is_in_the_table(world: World) -> None:
    refused = next(e for e in world.events if isinstance(e, Invoke) and e.key == '["171"]')
    world.tables[NOTES].append((refused.key, {**(refused.row or {}), "_seq": 1}))


@fault(Kind.PHANTOM)
def a_topic_has_what_it_did_not_ask_for(world: World) -> None:
    small = next(m for m in world.logs[EVERYTHING] if m.key == '["180"]')
    same_partition = [
        i for i, m in enumerate(world.logs[LARGE]) if m.partition == small.partition and m.seq <= small.seq
    ]
    at = same_partition[-1] + 1 if same_partition else 0
    world.logs[LARGE].insert(at, msgspec.structs.replace(small, message_id=10**9))
    world.renumber(LARGE)


@fault(Kind.PHANTOM)
def a_consumer_got_what_is_not_on_the_log(world: World) -> None:
    message = world.pick(world.logs[EVERYTHING])
    world.deliver(msgspec.structs.replace(message, offset=10**6))


@fault(Kind.REDELIVERED)
def a_message_came_back_after_its_ack(world: World) -> None:
    ack = next(e for e in world.events if isinstance(e, Acked) and e.group == "billing")
    acked = [m for m in world.logs[EVERYTHING] if m.partition == ack.partition and m.offset <= (ack.upto or 0)]
    again = msgspec.structs.replace(world.pick(acked), delivery=1000)
    # At the time of the ack, so that no reset comes between; asked for after it.
    world.events.append(Delivered(ack.at, "billing", "eve", EVERYTHING, ack.at + 1, (again,)))


@fault(Kind.CLAIMED_TWICE)
def a_message_was_given_to_two_consumers(world: World) -> None:
    given = next(e for e in world.events if isinstance(e, Delivered) and e.group == "search")
    twice = Delivered(given.at, "search", "eve", EVERYTHING, given.asked, (world.pick(list(given.messages)),))
    world.events.append(twice)


@fault(Kind.WRONG_CONTENT)
def a_message_says_something_else(world: World) -> None:
    message = world.pick(world.messages(LARGE, world.writes(Ok)))
    world.replace(LARGE, message, payload=retold(message, amount=51.5))


@fault(Kind.WRONG_CONTENT)
def a_message_names_another_table(world: World) -> None:
    message = world.pick(world.messages(LARGE, world.writes(Ok)))
    world.replace(LARGE, message, payload=retold(message, _table=NOTES))


@fault(Kind.WRONG_CONTENT)
def a_message_has_the_wrong_op(world: World) -> None:
    inserts = [m for m in world.messages(LARGE, world.writes(Ok)) if m.op == "insert" and int(m.value["id"]) >= 100]
    world.replace(LARGE, world.pick(inserts), op="update")


@fault(Kind.WRONG_CONTENT)
def a_message_is_of_another_commit(world: World) -> None:
    first = next(m for m in world.logs[LARGE] if m.offset == 0)
    world.replace(LARGE, first, seq=first.seq - 1)


@fault(Kind.WRONG_CONTENT)
def a_row_says_something_else(world: World) -> None:
    key, row = pair = world.row(NOTES, world.pick([120, 121, 122, 123]))
    world.tables[NOTES].remove(pair)
    world.tables[NOTES].append((key, {**row, "amount": 51.5}))


@fault(Kind.WRONG_CONTENT)
def a_consumer_got_something_else(world: World) -> None:
    at, delivered = world.pick([(i, e) for i, e in enumerate(world.events) if isinstance(e, Delivered) and e.messages])
    first, *others = delivered.messages
    wrong = msgspec.structs.replace(first, payload=retold(first, amount=51.5))
    world.events[at] = msgspec.structs.replace(delivered, messages=(wrong, *others))


@fault(Kind.WRONG_PARTITION)
def a_key_is_in_two_partitions(world: World) -> None:
    log = world.logs[LARGE]
    key = world.pick([f'["{row_id}"]' for row_id in range(100, 108)])
    moved = [m for m in log if m.key == key][-1]
    log.remove(moved)
    log.append(msgspec.structs.replace(moved, partition=(moved.partition + 1) % PARTITIONS))
    log.sort(key=lambda m: (m.partition, m.seq))
    world.renumber(LARGE)


@pytest.mark.parametrize(("plant", "expected", "also"), faults)
@given(after=st.lists(steps, max_size=6), data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_planted_fault_is_found_and_named(
    plant: Fault, expected: set[Kind], also: set[Kind], after: list[Step], data: st.DataObject
) -> None:
    world = World(history_of(after), data.draw)
    plant(world)
    report = check(world.history(), routes=ROUTES)
    assert expected <= report.kinds() <= expected | also, report.table()


def test_a_copy_is_named_where_its_commit_has_a_write_that_the_topic_did_not_ask_for() -> None:
    """It is not that write's message with wrong content: nothing of the commit lacks a message."""
    unasked_then_asked = many(Change("insert", ORDERS, 5, 0), Change("update", ORDERS, 5, 51))
    history = history_of([unasked_then_asked])
    world = World(history, lambda _: next(m for m in world.logs[LARGE] if m.key == '["5"]'))
    a_write_is_on_the_topic_twice(world)
    report = check(world.history(), routes=ROUTES)
    assert report.kinds() == {Kind.DUPLICATED}, report.table()


def test_every_kind_of_problem_is_planted() -> None:
    assert set().union(*(fault.values[1] for fault in faults)) == set(Kind)
