"""Where a group begins: its first read, ack or reset says so for every partition, in one commit, and nothing later does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from faces import FACES, Face, face

from tablecast import EARLIEST, LATEST, Start, StartKind
from tablecast.codec import keys
from tablecast.engine.decision import Decision, View
from tablecast.errors import InvalidRequest, OffsetOutOfRange, UnknownGroup
from tablecast.storage.base import Family

PARTITIONS = 4
SCHEMA = f"""
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY);
CREATE TOPIC app.events PARTITIONS {PARTITIONS};
ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT;
"""
EVERYTHING = 1000


@pytest.fixture(params=FACES)
def db(request: pytest.FixtureRequest) -> Iterator[Face]:
    with face(request.param, SCHEMA) as opened:
        yield opened
        assert opened.database.verify().problems == []


def add(db: Face, *ids: int) -> None:
    db.insert("app.orders", [{"id": i} for i in ids])


def ends(db: Face) -> list[int]:
    topic = db.database.topic("app.events")
    return [db.database.engine.log_range(topic.topic_id, p)[1] for p in range(PARTITIONS)]


def given(db: Face, group: str = "g", **request: Any) -> list[tuple[int, int]]:
    """Until there is no more."""
    places: list[tuple[int, int]] = []
    while messages := db.consume("app.events", group=group, **request).messages:
        places += [(m.partition_id, m.offset) for m in messages]
    return places


def from_on(starts: list[int], ends: list[int]) -> list[tuple[int, int]]:
    return [(p, offset) for p in range(PARTITIONS) for offset in range(starts[p], ends[p])]


def lag(db: Face, group: str = "g") -> list[tuple[int, int]]:
    sql = f"SELECT partition_id, lag FROM system.topic_groups WHERE group_id = '{group}' ORDER BY partition_id"
    rows: list[tuple[int, int]] = db.query(sql).rows
    return rows


def committed(db: Face, group: str = "g") -> list[int | None]:
    """What was acknowledged, per partition."""
    sql = f"SELECT last_acked_offset FROM system.topic_offsets WHERE group_id = '{group}' ORDER BY partition_id"
    return [row[0] for row in db.query(sql).rows]


# --- the first read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [EARLIEST, LATEST, Start(StartKind.OFFSET, 3), None])
@pytest.mark.parametrize("first", ["earliest", "latest", "offset", "timestamp"])
def test_the_first_read_decides_for_every_partition(db: Face, first: str, later: Start | None) -> None:
    add(db, *range(20))
    before = ends(db)
    moment = max(m.ts for m in db.consume("app.events", start=EARLIEST, limit=EVERYTHING).messages) + 1
    starts = {
        "earliest": (EARLIEST, [0] * PARTITIONS),
        "latest": (LATEST, before),
        "offset": (Start(StartKind.OFFSET, 2), [2] * PARTITIONS),
        "timestamp": (Start(StartKind.TIMESTAMP, moment), before),
    }
    start, offsets = starts[first]
    seen = [(m.partition_id, m.offset) for m in db.consume("app.events", group="g", start=start, limit=1).messages]
    add(db, *range(20, 40)) if first != "timestamp" else None
    expected = from_on(offsets, ends(db))
    assert sum(n for _, n in lag(db)) == len(expected), "of all partitions, before they were read"
    assert [p for p, _ in lag(db)] == list(range(PARTITIONS))
    assert sorted(seen + given(db, start=later)) == expected


def test_a_first_read_that_finds_nothing_begins_there(db: Face) -> None:
    add(db, *range(20))
    before = ends(db)
    assert db.consume("app.events", group="g", start=LATEST).messages == []
    add(db, *range(20, 30))
    assert sorted(given(db, start=LATEST)) == from_on(before, ends(db))


def test_a_first_read_of_one_partition_begins_in_all(db: Face) -> None:
    add(db, *range(20))
    before = ends(db)
    assert db.consume("app.events", group="g", partition=1, start=LATEST).messages == []
    add(db, *range(20, 40))
    assert sorted(given(db)) == from_on(before, ends(db))


def test_an_offset_is_one_of_the_partition_that_is_read_and_the_others_begin_at_their_beginning(db: Face) -> None:
    add(db, *range(40))
    seen = given(db, partition=1, start=Start(StartKind.OFFSET, 3))
    assert sorted(seen + given(db, start=LATEST)) == from_on([0, 3, 0, 0], ends(db))


def test_an_offset_that_one_partition_does_not_have_begins_no_group(db: Face) -> None:
    add(db, *range(20))
    beyond = Start(StartKind.OFFSET, min(ends(db)) + 1)
    with pytest.raises(OffsetOutOfRange, match=r"partition \d of app.events holds 0 to"):
        db.consume("app.events", group="g", start=beyond)
    assert lag(db) == []
    assert len(given(db, start=EARLIEST)) == 20


def test_to_begin_is_one_commit_and_to_look_again_none(db: Face) -> None:
    seq = db.database.engine.seq
    assert db.consume("app.events", group="g").messages == []
    assert db.database.engine.seq == seq + 1
    for partition in (None, *range(PARTITIONS)):
        assert db.consume("app.events", group="g", partition=partition).messages == []
    assert db.database.engine.seq == seq + 1


def test_a_read_without_a_group_begins_none(db: Face) -> None:
    add(db, 1)
    db.consume("app.events", start=EARLIEST)
    assert db.query("SELECT * FROM system.topic_groups").rows == []


def test_of_first_reads_at_the_same_moment_one_decides() -> None:
    with face("embedded", SCHEMA) as db, ThreadPoolExecutor(8) as threads:
        add(db, *range(40))
        for turn in range(20):
            barrier = threading.Barrier(8)

            def first(reader: int, group: str = f"g{turn}", barrier: threading.Barrier = barrier) -> list[Any]:
                barrier.wait()
                start = LATEST if reader % 2 else EARLIEST
                found = db.consume("app.events", group=group, partition=reader % PARTITIONS, start=start)
                return list(found.messages)

            began = [m for messages in threads.map(first, range(8)) for m in messages]
            rest = given(db, f"g{turn}")
            assert len(began) + len(rest) in (0, 40), "from one start in all partitions, whoever was first"


def test_a_partition_that_the_group_has_no_record_of_begins_at_its_beginning(db: Face) -> None:
    """A group of an older version, which wrote down only what was read."""
    add(db, *range(40))
    db.consume("app.events", group="g", partition=0, start=LATEST)
    topic = db.database.topic("app.events")
    db.database.engine.execute(_Forget(topic.topic_id, "g", [1, 2, 3]))
    expected = from_on([ends(db)[0], 0, 0, 0], ends(db))
    assert sum(n for _, n in lag(db)) == len(expected)
    assert sorted(given(db, start=LATEST)) == expected


class _Forget:
    weight = 1

    def __init__(self, topic_id: int, group: str, partitions: list[int]) -> None:
        self._keys = [keys.group_key(topic_id, group, partition) for partition in partitions]

    def decide(self, view: View) -> Decision:
        return Decision(records=[(Family.GROUPS, key, None) for key in self._keys])


# --- the first ack ----------------------------------------------------------------------------------------------


def test_who_reads_without_a_group_commits_as_one(db: Face) -> None:
    """Over and over: what was read is committed, and the group goes on behind it."""
    add(db, *range(40))
    for offset in (1, 4, 2):
        db.ack("app.events", "g", offset, partition=2)
    assert committed(db) == [None, None, 4, None], "never backwards"
    assert sorted(given(db, start=LATEST)) == from_on([0, 0, 5, 0], ends(db))


def test_single_offsets_are_committed_and_those_between_them_given(db: Face) -> None:
    add(db, *range(40))
    assert db.ack("app.events", "g", partition=2, offsets=[1, 4]) is None
    assert db.ack("app.events", "g", partition=2, offsets=[0, 6]) == 1
    expected = [(p, o) for p, o in from_on([0] * PARTITIONS, ends(db)) if p != 2 or o not in (0, 1, 4, 6)]
    found = [m for _ in range(40) for m in db.consume("app.events", group="g", limit=EVERYTHING).messages]
    assert sorted((m.partition_id, m.offset) for m in found) == expected
    assert {m.delivery for m in found} == {1}


def test_an_ack_with_a_read_commits_too(db: Face) -> None:
    add(db, *range(40))
    read = db.consume("app.events", start=EARLIEST, partition=2, limit=3)
    seen = db.consume("app.events", group="g", partition=2, ack=_as_given(read))
    assert [m.offset for m in seen.messages] == list(range(3, ends(db)[2]))


def _as_given(read: Any) -> Any:
    last = read.messages[-1]
    return replace(read, given=((last.partition_id, read.messages[0].offset, last.offset + 1),))


def test_what_is_not_in_the_log_is_not_committed(db: Face) -> None:
    add(db, *range(40))
    end = ends(db)[2]
    for ack in ({"upto_offset": end}, {"offsets": [0, end]}):
        with pytest.raises(OffsetOutOfRange, match=f"partition 2 of app.events holds 0 to {end - 1}"):
            db.ack("app.events", "g", partition=2, **ack)
    assert committed(db) == []


def test_a_group_that_claims_has_its_acks_checked(db: Face) -> None:
    """Another partition's offset must not make it pass over what nobody was given."""
    add(db, *range(40))
    db.consume("app.events", group="g", partition=0, limit=1)
    with pytest.raises(OffsetOutOfRange, match="not given to this group"):
        db.ack("app.events", "g", 5, partition=1)


def test_only_an_ack_creates_a_group(db: Face) -> None:
    add(db, 1)
    with pytest.raises(UnknownGroup, match="CONSUME, ACK or RESET GROUP"):
        db.nack("app.events", "g", [0])
    for name in ("", "$redrive", "x" * 256):
        with pytest.raises(InvalidRequest, match="group"):
            db.ack("app.events", name, 0)
    with pytest.raises(InvalidRequest, match="partitions 0 to 3"):
        db.ack("app.events", "g", 0, partition=4)
    assert db.query("SELECT * FROM system.topic_groups").rows == []


# --- the first reset --------------------------------------------------------------------------------------------


def test_reset_creates_a_group(db: Face) -> None:
    add(db, *range(40))
    before = ends(db)
    db.execute("RESET GROUP 'g' ON app.events TO LATEST")
    db.execute("RESET GROUP 'h' ON app.events PARTITION 1 TO OFFSET 3")
    add(db, *range(40, 60))
    assert sorted(given(db, "g", start=EARLIEST)) == from_on(before, ends(db))
    assert sorted(given(db, "h", start=LATEST)) == from_on([0, 3, 0, 0], ends(db))


def test_a_reset_that_is_refused_creates_none(db: Face) -> None:
    with pytest.raises(OffsetOutOfRange, match="holds nothing, its next offset is 0"):
        db.execute("RESET GROUP 'g' ON app.events TO OFFSET 7")
    assert lag(db) == []


# --- what an ack answers ----------------------------------------------------------------------------------------


def test_an_ack_answers_none_while_nothing_is_acknowledged(db: Face) -> None:
    add(db, *range(40))
    first = {m.partition_id: m.offset for _ in range(8) for m in db.consume("app.events", group="g").messages}
    for partition in first:
        assert db.nack("app.events", "g", [0], partition=partition) is None
        assert db.ack("app.events", "g", offsets=[1], partition=partition) is None
    nothing = "nothing is acknowledged yet"
    assert db.execute("ACK app.events GROUP 'g' PARTITION 1 OFFSET 2").message == f"ACK: {nothing}"
    assert db.execute("NACK app.events GROUP 'g' PARTITION 1 OFFSET 3").message == f"NACK: {nothing}"
    assert db.ack("app.events", "g", offsets=[0], partition=1) == 2
