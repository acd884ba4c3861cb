"""Reading topics in one go: every message once, whatever the ranges, filters, types and accidents."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from cutting_proxy import CuttingProxy
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from reading import COLUMNS, Shop
from server_fixture import PASSWORD, ServerProcess

from tablecast.codec.log import MESSAGE_SCHEMA, LogBatch
from tablecast.engine.log import stored_batches
from tablecast.model.message import Message
from tablecast.spark.types import ENVELOPE


def offsets(rows: list[Any]) -> list[tuple[int, int]]:
    return sorted((row.partition_id, row.offset) for row in rows)


@pytest.fixture(scope="module")
def events(shop: Shop) -> Shop:
    """app.ev: 3 partitions, 60 inserts in six commits, updates and deletes after them."""
    shop.topic("ev", partitions=3)
    for first in range(0, 60, 10):
        shop.insert("ev", first, 10)
    shop.sql("UPDATE app.ev SET v = 'new' WHERE id < 5", "DELETE FROM app.ev WHERE id >= 58")
    return shop


def test_envelope_is_what_is_stored(events: Shop) -> None:
    assert [field.name for field in ENVELOPE.fields] == MESSAGE_SCHEMA.names
    engine = events.server.db.engine
    topic_id = engine.catalog.topic("app.ev_ev").topic_id
    stored = [
        message
        for partition in range(3)
        for batch in stored_batches(engine.store, topic_id, partition, *engine.log_range(topic_id, partition))
        for message in LogBatch(batch).messages(topic_id, partition)
    ]
    rows = events.read(topic="app.ev_ev").collect()
    assert len(rows) == 67
    assert sorted(map(_as_row, stored)) == sorted(_as_utc(row) for row in rows)


def _as_row(message: Message) -> tuple[Any, ...]:
    signed = message.content_hash - 2**64 * (message.content_hash >> 63)
    return (
        message.topic_id, message.partition_id, message.offset, message.message_id, message.source_table,
        message.op.label, message.payload_mode.value, message.user_id,
        datetime.fromtimestamp(message.ts // 1000, UTC).replace(microsecond=message.ts % 1000 * 1000),
        message.key.decode(), message.payload.decode(), message.seq, signed,
    )  # fmt: skip


def _as_utc(row: Any) -> tuple[Any, ...]:
    return tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)


@pytest.mark.parametrize("asked", [1, 2, 7])
def test_ranges_are_split_without_loss_or_repeat(events: Shop, asked: int) -> None:
    frame = events.read(topic="app.ev_ev", minPartitions=asked)
    assert frame.rdd.getNumPartitions() == asked
    rows = frame.collect()
    assert len(rows) == len(set(offsets(rows))) == 67


def test_offsets_and_times_bound_a_read(events: Shop) -> None:
    everything = events.read(topic="app.ev_ev").collect()
    ends = {p: 1 + max(row.offset for row in everything if row.partition_id == p) for p in range(3)}
    between = events.read(
        topic="app.ev_ev",
        startingOffsets='{"0": 3, "1": "earliest", "2": "latest"}',
        endingOffsets=f'{{"0": 7, "1": 2, "2": {ends[2]}}}',
    ).collect()
    assert offsets(between) == [*((0, o) for o in range(3, 7)), (1, 0), (1, 1)]
    middle = sorted({row.ts for row in everything})[3]
    after = events.read(topic="app.ev_ev", startingTimestamp=_iso(middle)).collect()
    before = events.read(topic="app.ev_ev", endingTimestamp=_iso(middle)).collect()
    assert offsets(after) == offsets([row for row in everything if row.ts >= middle])
    assert offsets(before) == offsets([row for row in everything if row.ts < middle])


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


# --- filters ----------------------------------------------------------------------------------------------------------

FILTERS = [
    "offset >= 5 AND offset < 9",
    "offset = 4 OR offset = 5",
    "offset IN (1, 3, 999)",
    "NOT offset IN (1, 3)",
    "offset > -5 AND offset <= 2",
    "partition_id = 1",
    "partition_id IN (0, 2) AND op = 'update'",
    "op <> 'insert'",
    "NOT (op = 'insert')",
    "op LIKE 'in%' AND key LIKE '%2\"]'",
    "key = '[\"7\"]'",
    "user_id IS NULL",
    "user_id IS NOT NULL",
    "NOT (user_id = 'ann')",
    "user_id <=> 'ann'",
    "NOT (user_id <=> 'ann')",
    "user_id <=> NULL",
    "user_id IN ('ann', NULL)",
    "NOT (user_id IN ('ann'))",
    "op = NULL",
    "offset = 4.0",
    "offset + 1 = 5",
    "partition_id > 3000000000",
    "source_table = 'app.ev' AND payload LIKE '%\"new\"%'",
]


@pytest.mark.parametrize("condition", FILTERS)
def test_filters_handed_down_mean_what_they_mean_in_spark(events: Shop, condition: str) -> None:
    frame = events.read(topic="app.ev_ev", pushFilters="true")
    everything = events.spark.createDataFrame(frame.collect(), frame.schema)
    assert offsets(frame.filter(condition).collect()) == offsets(everything.filter(condition).collect())


@pytest.mark.parametrize("comparison", [">=", ">", "<", "<=", "="])
def test_filters_on_time_narrow_what_is_read(events: Shop, comparison: str) -> None:
    frame = events.read(topic="app.ev_ev", pushFilters="true")
    rows = frame.collect()
    for moment in (sorted({row.ts for row in rows})[2], rows[0].ts.replace(microsecond=1)):
        found = frame.filter(f"ts {comparison} timestamp'{_iso(moment)}'").collect()
        wanted = {
            ">=": lambda t, m=moment: t >= m,
            ">": lambda t, m=moment: t > m,
            "<": lambda t, m=moment: t < m,
            "<=": lambda t, m=moment: t <= m,
            "=": lambda t, m=moment: t == m,
        }[comparison]
        assert offsets(found) == offsets([row for row in rows if wanted(row.ts)])


def test_filters_leave_nothing_for_spark_and_read_less(events: Shop) -> None:
    frame = events.read(topic="app.ev_ev", pushFilters="true").filter("offset >= 2 AND offset < 4 AND partition_id = 0")
    plan = frame._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert "Filter" not in plan.replace("RuntimeFilters", "")
    assert offsets(frame.collect()) == [(0, 2), (0, 3)]


def test_a_session_without_push_down_filters_by_itself(events: Shop, spark: SparkSession) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        found = events.read(topic="app.ev_ev", pushFilters="true").filter("partition_id = 0 AND offset < 2").collect()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert offsets(found) == [(0, 0), (0, 1)]


# --- decoded ----------------------------------------------------------------------------------------------------------


def test_decoded_rows_have_the_types_of_the_table(shop: Shop) -> None:
    shop.topic("kinds", columns=COLUMNS)
    shop.sql(
        "INSERT INTO app.kinds VALUES (9007199254740993, 'a\"b\\c é', 1.50, -7, '{\"x\":[1.0, 2]}', "
        "'00000000-0000-0000-0000-0000000000ff', '2024-02-29', '01:02:03.000004', '2024-01-01T00:00:00.000001Z', NULL, "
        "-3, 0.5, 1e300, TRUE)",
        "INSERT INTO app.kinds (id) VALUES (2)",
        "DELETE FROM app.kinds WHERE id = 2",
    )
    rows = shop.read(topic="app.kinds_ev", decode="true").orderBy("_offset").collect()
    first = rows[0].asDict()
    assert first["moment"].astimezone(UTC) == datetime(2024, 1, 1, 0, 0, 0, 1, UTC)
    del first["moment"], first["_ts"], first["_seq"]
    assert first == {
        "id": 9007199254740993, "customer": 'a"b\\c é', "amount": Decimal("1.50"), "n": -7,
        "note": '{"x":[1.0,2]}', "uid": "00000000-0000-0000-0000-0000000000ff", "day": date(2024, 2, 29),
        "at": time(1, 2, 3, 4), "raw": None, "small": -3, "f": 0.5, "d": 1e300, "ok": True,
        "_op": "insert", "_offset": 0, "_partition": 0, "_user": None,
    }  # fmt: skip
    assert [(row.id, row._op, row.customer) for row in rows[1:]] == [(2, "insert", None), (2, "delete", None)]


@pytest.mark.parametrize(
    "condition", ["id >= 3 AND v LIKE 'v%'", "_op = 'update'", "_offset < 2", "v IS NULL", "v = 'new'"]
)
def test_filters_on_decoded_columns(events: Shop, condition: str) -> None:
    frame = events.read(topic="app.ev_ev", decode="true", pushFilters="true")
    everything = events.spark.createDataFrame(frame.collect(), frame.schema)
    assert sorted(frame.filter(condition).collect()) == sorted(everything.filter(condition).collect())


def test_one_source_of_several_is_named(shop: Shop) -> None:
    shop.topic("first")
    shop.topic("second", columns="id BIGINT PRIMARY KEY, other INT")
    shop.sql("ALTER TOPIC app.first_ev ADD SOURCE app.second ON ANY")
    shop.sql("INSERT INTO app.first VALUES (1, 'a')", "INSERT INTO app.second VALUES (2, 5)")
    with pytest.raises(PySparkException, match="sourceTable"):
        shop.read(topic="app.first_ev", decode="true")
    with pytest.raises(PySparkException, match=r"app.third is not a source"):
        shop.read(topic="app.first_ev", decode="true", sourceTable="app.third")
    rows = shop.read(topic="app.first_ev", decode="true", sourceTable="second").collect()
    assert [(row.id, row.other, row._op) for row in rows] == [(2, 5, "insert")]


def test_payloads_that_lack_columns_are_refused_unless_allowed(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE app.keyed (id BIGINT PRIMARY KEY, v TEXT)", "CREATE TOPIC app.keyed_ev",
        "ALTER TOPIC app.keyed_ev ADD SOURCE app.keyed ON INSERT WITH (payload = 'key')",
        "INSERT INTO app.keyed VALUES (1, 'a')",
    )  # fmt: skip
    with pytest.raises(PySparkException, match="has payload 'key'"):
        shop.read(topic="app.keyed_ev", decode="true")
    rows = shop.read(topic="app.keyed_ev", decode="true", allowPartial="true").collect()
    assert [(row.id, row.v) for row in rows] == [(1, None)]


def test_a_schema_of_ones_own_takes_some_columns(events: Shop) -> None:
    reader = events.spark.read.format("tablecast").options(**events.options(topic="app.ev_ev"))
    assert reader.schema("op string, offset bigint").load().distinct().columns == ["op", "offset"]
    assert reader.schema("op string").load().distinct().count() == 3
    with pytest.raises(PySparkException, match="cannot be read as int"):
        reader.schema("offset int").load().collect()


# --- accidents --------------------------------------------------------------------------------------------------------


def test_an_empty_topic_has_no_rows(shop: Shop) -> None:
    shop.topic("empty", partitions=4)
    assert shop.read(topic="app.empty_ev").collect() == []
    assert shop.read(topic="app.empty_ev", decode="true", startingTimestamp="2020-01-01T00:00:00Z").count() == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "app.nothing"}, "UnknownTopic"),
        ({"topic": "app.ev_ev", "password": "wrong"}, "Unauthenticated"),
        ({"topic": "app.ev_ev", "startingOffsets": '{"0": 1}'}, "lacks partition 1"),
        ({"topic": "app.ev_ev", "startingOffsets": '{"0": 999, "1": 0, "2": 0}'}, "offset 999 of partition 0"),
        ({"topic": "app.ev_ev", "startingOffsets": "latest", "endingOffsets": "earliest"}, "the end comes first"),
        ({"topic": "app.ev_ev", "startOffsets": "latest"}, "did you mean"),
    ],
)
def test_errors_reach_the_user_with_their_reason(events: Shop, given: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException) as caught:
        events.read(**given).collect()
    assert said in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_what_retention_took_is_an_error_or_left_out(shop: Shop) -> None:
    shop.topic("short")
    shop.insert("short", 0, 10)
    shop.sql("CLEAR TOPIC app.short_ev")
    shop.insert("short", 10, 5)
    wanted = {"topic": "app.short_ev", "startingOffsets": '{"0": 3}'}
    with pytest.raises(PySparkException, match=r"offsets 3 to 9 are no longer kept"):
        shop.read(**wanted).collect()
    left = shop.read(**wanted, failOnDataLoss="false").collect()
    assert offsets(left) == [(0, o) for o in range(10, 15)]


def test_a_server_that_restarts_while_it_is_read_from(spark: SparkSession, tmp_path: Path) -> None:
    """Killed after a third of the log was sent, and started again: every message once."""
    servers = [ServerProcess(tmp_path / "db")]
    shop = Shop(servers[0], spark)
    shop.sql("CREATE NAMESPACE app")
    shop.topic("long")
    for first in range(0, 8000, 1000):
        values = ", ".join(f"({i}, '{token_hex(450)}')" for i in range(first, first + 1000))
        shop.sql(f"INSERT INTO app.long VALUES {values}")

    def restart() -> int:
        servers[0].kill()
        servers.append(ServerProcess(tmp_path / "db"))
        return servers[-1].port

    with CuttingProxy(servers[0].port, cut_after=3_000_000, then=restart) as proxy:
        frame = spark.read.format("tablecast").options(**{**shop.options(topic="app.long_ev"), "url": proxy.url})
        rows = frame.load().select("partition_id", "offset").collect()
    servers[-1].kill()
    assert len(servers) == 2
    assert offsets(rows) == [(0, o) for o in range(8000)]
