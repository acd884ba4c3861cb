"""An answer says of each partition where to go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from faces import FACES, Face, face

from tablecast import EARLIEST, LATEST, Start, StartKind

PARTITIONS = 4
SCHEMA = f"""
CREATE NAMESPACE app;
CREATE TABLE app.orders (id INT PRIMARY KEY);
CREATE TOPIC app.events PARTITIONS {PARTITIONS};
ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT;
"""


@pytest.fixture(params=FACES)
def db(request: pytest.FixtureRequest) -> Iterator[Face]:
    with face(request.param, SCHEMA) as opened:
        opened.insert("app.orders", [{"id": i} for i in range(40)])
        yield opened


def ends(db: Face) -> dict[int, int]:
    return dict(db.query("SELECT partition_id, end_offset FROM system.topic_partitions ORDER BY 1").rows)


def places(messages: Any) -> list[tuple[int, int]]:
    return [(m.partition_id, m.offset) for m in messages]


@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_a_reader_of_all_partitions_goes_on_in_each_where_it_stopped(db: Face, limit: int) -> None:
    read = db.consume("app.events", start=EARLIEST, limit=limit)
    assert (read.next_offset, set(read.next_offsets)) == (None, set(range(PARTITIONS)))
    seen = places(read.messages)
    for partition, offset in read.next_offsets.items():
        rest = db.consume("app.events", partition=partition, start=Start(StartKind.OFFSET, offset), limit=1000)
        assert rest.next_offsets == {partition: rest.next_offset} == {partition: ends(db)[partition]}
        seen += places(rest.messages)
    assert sorted(seen) == [(p, offset) for p, end in ends(db).items() for offset in range(end)]


def test_a_reader_that_found_nothing_knows_where_it_stands(db: Face) -> None:
    assert db.consume("app.events", start=LATEST).next_offsets == ends(db)
    assert db.consume("app.events", start=LATEST, timeout_seconds=0.01).next_offsets == ends(db)


def test_a_group_is_told_it_of_the_partitions_that_gave_something(db: Face) -> None:
    seen: dict[int, int] = {}
    while (found := db.consume("app.events", group="g", limit=6)).messages:
        last = {partition: offset + 1 for partition, offset in places(found.messages)}
        assert found.next_offsets == last
        seen |= last
    assert found.next_offsets == {}
    assert seen == ends(db)
