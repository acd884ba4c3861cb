"""Streaming a topic: offsets, limits, restarts, what is lost and what is another topic."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import WAIT_SECONDS
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from reading import Shop

FROM_START = {"startingOffsets": "earliest"}


def ids(batches: list[tuple[int, list[Any]]]) -> list[int]:
    return sorted(json.loads(row.key)[0] if hasattr(row, "key") else row.id for _, rows in batches for row in rows)


def as_ids(numbers: Any) -> list[str]:
    return sorted(str(number) for number in numbers)


def lags(shop: Shop, topic: str, group: str) -> list[int]:
    rows = shop.sql(f"SELECT lag FROM system.topic_groups WHERE topic = '{topic}' AND group_id = '{group}'")[0]["rows"]
    return [int(row[0] if isinstance(row, list) else row["lag"]) for row in rows]


def test_limits_batches_restarts_and_a_group(shop: Shop, tmp_path: Path) -> None:
    """Thirty messages in batches of at most seven; then a restart that reads only what came since."""
    shop.topic("flow", partitions=3)
    shop.insert("flow", 0, 30)
    frame = shop.stream(topic="app.flow_ev", maxOffsetsPerTrigger=7, group="spark", **FROM_START)
    batches = shop.drained(frame, tmp_path / "c")
    assert len(batches) >= 5
    assert max(len(rows) for _, rows in batches) <= 7
    assert sum(len(rows) for _, rows in batches) == 30
    assert ids(batches) == as_ids(range(30))
    # While every partition has a backlog, each gets its share of a batch.
    assert {row.partition_id for row in batches[0][1]} == {0, 1, 2}
    assert lags(shop, "app.flow_ev", "spark") == [0, 0, 0]
    shop.insert("flow", 30, 5)
    again = shop.drained(frame, tmp_path / "c")
    assert ids(again) == as_ids(range(30, 35))
    assert again[0][0] == batches[-1][0] + 1


def test_it_begins_where_it_is_told(shop: Shop, tmp_path: Path) -> None:
    shop.topic("begin", partitions=2)
    shop.insert("begin", 0, 20)
    log = {p: len([r for r in shop.read(topic="app.begin_ev").collect() if r.partition_id == p]) for p in (0, 1)}
    given = json.dumps({"0": log[0] - 2, "1": "latest"})
    found = shop.drained(shop.stream(topic="app.begin_ev", startingOffsets=given), tmp_path / "a")
    assert sorted((row.partition_id, row.offset) for _, rows in found for row in rows) == [
        (0, log[0] - 2),
        (0, log[0] - 1),
    ]
    assert shop.drained(shop.stream(topic="app.begin_ev"), tmp_path / "b") == []  # a stream begins with what comes
    future = shop.stream(topic="app.begin_ev", startingTimestamp="2999-01-01T00:00:00Z")
    assert shop.drained(future, tmp_path / "c") == []


def test_an_empty_topic_and_what_comes_later(shop: Shop, tmp_path: Path) -> None:
    shop.topic("later", partitions=2)
    frame = shop.stream(topic="app.later_ev", decode="true")
    assert shop.drained(frame, tmp_path / "c") == []
    shop.insert("later", 1, 3)
    assert ids(shop.drained(frame, tmp_path / "c")) == [1, 2, 3]


def test_a_column_added_while_a_stream_lives(shop: Shop, tmp_path: Path) -> None:
    shop.topic("grow")
    shop.insert("grow", 0, 2)
    frame = shop.stream(topic="app.grow_ev", decode="true", **FROM_START)
    assert ids(shop.drained(frame, tmp_path / "c")) == [0, 1]
    shop.sql(
        "ALTER TABLE app.grow ADD COLUMN more INT",
        "ALTER TABLE app.grow ADD COLUMN word TEXT DEFAULT 'none'",
        "INSERT INTO app.grow VALUES (2, 'c', 7, 'said')",
    )
    ((_, old),) = shop.drained(frame, tmp_path / "c")  # the plan that was made before has the columns of before
    assert [row.asDict().keys() & {"more", "word"} for row in old] == [set()]
    shop.sql("INSERT INTO app.grow VALUES (3, 'd', 8, 'too')")
    anew = shop.stream(topic="app.grow_ev", decode="true", **FROM_START)
    ((_, rows),) = shop.drained(anew, tmp_path / "c")
    assert [(row.id, row.more, row.word) for row in rows] == [(3, 8, "too")]
    whole = shop.drained(anew, tmp_path / "d")
    assert sorted((row.id, row.more, row.word) for _, found in whole for row in found) == [
        (0, None, "none"),
        (1, None, "none"),
        (2, 7, "said"),
        (3, 8, "too"),
    ]


def failure(shop: Shop, frame: DataFrame, checkpoint: Path) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        shop.drained(frame, checkpoint)
    return str(caught.value)


def test_what_retention_and_clearing_took_stops_a_stream_or_not(shop: Shop, tmp_path: Path) -> None:
    shop.topic("lossy")
    shop.insert("lossy", 0, 4)
    shop.drained(shop.stream(topic="app.lossy_ev", **FROM_START), tmp_path / "c")
    shop.insert("lossy", 4, 3)
    shop.expire("app.lossy_ev")
    shop.insert("lossy", 7, 3)
    shop.sql("CLEAR TOPIC app.lossy_ev")
    shop.insert("lossy", 10, 2)
    said = failure(shop, shop.stream(topic="app.lossy_ev", **FROM_START), tmp_path / "c")
    assert "OffsetOutOfRange" in said
    assert "partition 0 of app.lossy_ev: offsets 4 to 9 are no longer kept" in said
    bearing = shop.stream(topic="app.lossy_ev", failOnDataLoss="false", maxOffsetsPerTrigger=1, **FROM_START)
    left = shop.drained(bearing, tmp_path / "c")
    assert ids(left) == as_ids([10, 11])


def test_a_topic_made_anew_is_not_taken_for_the_old_one(shop: Shop, tmp_path: Path) -> None:
    shop.topic("anew")
    shop.insert("anew", 0, 3)
    frame = shop.stream(topic="app.anew_ev", **FROM_START)
    shop.drained(frame, tmp_path / "c")
    shop.sql("DROP TOPIC app.anew_ev", "CREATE TOPIC app.anew_ev", "ALTER TOPIC app.anew_ev ADD SOURCE app.anew ON ANY")
    shop.insert("anew", 3, 9)
    said = failure(shop, shop.stream(topic="app.anew_ev", **FROM_START), tmp_path / "c")
    assert "TopicRecreated" in said
    assert "dropped and created again" in said


def test_a_topic_that_is_dropped_under_a_running_stream(shop: Shop, tmp_path: Path) -> None:
    shop.topic("gone")
    shop.insert("gone", 0, 3)
    rows: list[int] = []
    query = (
        shop.stream(topic="app.gone_ev", decode="true", **FROM_START)
        .writeStream.foreachBatch(lambda frame, _: rows.extend(row.id for row in frame.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        query.processAllAvailable()
        assert sorted(rows) == [0, 1, 2]
        shop.sql("DROP TOPIC app.gone_ev")
        with pytest.raises(StreamingQueryException, match=r"UnknownTopic.*app\.gone_ev"):
            query.awaitTermination(WAIT_SECONDS)
        assert not query.isActive
    finally:
        query.stop()


def test_what_cannot_be_streamed_is_refused(shop: Shop, tmp_path: Path) -> None:
    shop.topic("still")
    assert "a table is not a stream" in failure(shop, shop.stream(table="app.still"), tmp_path / "a")
    ending = shop.stream(topic="app.still_ev", endingOffsets="latest")
    assert "a stream does not end" in failure(shop, ending, tmp_path / "b")
