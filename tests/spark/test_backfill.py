"""ADD SOURCE with backfill = 'spark': the topic holds what a backfill in the database would have put there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from copying import ORDERS
from pyspark.sql import SparkSession
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast.client.bulk import Server
from tablecast.errors import DuplicateSource, ExpressionError, PermissionDenied
from tablecast.model.spark_job import Backfill
from tablecast.spark import copying
from tablecast.spark.progress import Quiet

ROWS = 20_000


class Shop:
    """`app.orders` with many rows, topics to feed, and a user who may only serve."""

    def __init__(self, server: ServerThread, client: tablecast.Client) -> None:
        self.server, self.client, self.count = server, client, 0

    def topics(self) -> tuple[str, str]:
        """One to be fed by Spark, and one by the database."""
        self.count += 1
        names = f"app.spark_{self.count}", f"app.database_{self.count}"
        for name in names:
            self.client.execute(f"CREATE TOPIC {name} PARTITIONS 3")
        return names

    def feed(self, topic: str, how: str, backfill: str, payload: str = "full") -> tablecast.Result:
        return self.client.execute(
            f"ALTER TOPIC {topic} ADD SOURCE app.orders {how} WITH (payload = '{payload}', backfill = {backfill})"
        )

    def told(self, topic: str) -> list[tuple[Any, ...]]:
        """What every message says and where, without what the commit assigned."""
        found = self.client.read_arrow(topic)
        names = ("partition_id", "source_table", "op", "payload_mode", "key", "payload", "content_hash")
        return sorted(zip(*(found.column(name).to_pylist() for name in names), strict=True))

    def is_sound(self) -> bool:
        return self.server.db.database.verify().sound

    def open_loads(self) -> int:
        return self.client.query("SELECT count(*) FROM system.loads WHERE state <> 'committed'").scalar()  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with (
        ServerThread(tmp_path_factory.mktemp("server") / "data") as server,
        tablecast.connect(server.url, user="system", password=PASSWORD) as client,
    ):
        client.execute_all(f"CREATE NAMESPACE app; CREATE TABLE app.orders ({ORDERS})")
        client.insert("app.orders", [(i, f"customer {i % 7}", i % 1000) for i in range(ROWS)])
        yield Shop(server, client)


@pytest.mark.parametrize(
    ("how", "payload"),
    [
        ("ON ANY", "full"),
        ("ON INSERT, DELETE WHERE amount > 500 AND customer <> 'customer 3' PARTITION BY customer", "key"),
    ],
)
def test_the_messages_are_those_of_a_backfill_in_the_database(how: str, payload: str, shop: Shop) -> None:
    spark_topic, database_topic = shop.topics()
    told = shop.feed(spark_topic, how, "'spark'", payload)
    expected = shop.feed(database_topic, how, "TRUE", payload)
    assert told.row_count == expected.row_count > 0
    assert shop.told(spark_topic) == shop.told(database_topic)
    with pytest.raises(DuplicateSource):
        shop.feed(spark_topic, how, "'spark'")
    assert shop.open_loads() == 0


def test_a_dry_run_counts_and_adds_nothing(shop: Shop) -> None:
    spark_topic, database_topic = shop.topics()
    how = "ON ANY WHERE amount > 500"
    told = shop.feed(spark_topic, how, "'spark', dry_run = TRUE")
    assert told.row_count == shop.feed(database_topic, how, "TRUE").row_count > 0
    assert told.message == f"ADD SOURCE, dry run: {told.row_count}"
    assert shop.told(spark_topic) == []
    assert shop.client.query(f"SELECT count(*) FROM system.topic_sources WHERE topic = '{spark_topic}'").scalar() == 0
    assert shop.open_loads() == 0
    with pytest.raises(DuplicateSource):
        shop.feed(database_topic, how, "'spark', dry_run = TRUE")


class Meddler(Quiet):
    """Does something when the snapshot was taken, and when everything is staged."""

    def __init__(self, *moments: Callable[[], Any]) -> None:
        self._moments = list(moments)

    def began(self, title: str, total: int, unit: str = "rows") -> None:
        self._next()

    def reached(self, rows: int, rejects: int) -> None:
        self._next()

    def _next(self) -> None:
        if self._moments:
            self._moments.pop(0)()


def backfilled(shop: Shop, spark: SparkSession, topic: str, *moments: Callable[[], Any]) -> tablecast.Result:
    job = Backfill(topic, "app.orders", ("insert", "update", "delete"), "amount <> 7", "customer")
    server = Server(shop.server.url, user="system", password=PASSWORD)
    return copying.run(job, server, spark=spark, watcher=Meddler(*moments))


def write(shop: Shop, first: int) -> None:
    shop.client.execute_all(
        f"UPDATE app.orders SET customer = 'moved', amount = amount + 1 WHERE id >= {first} AND id < {first + 700};"
        f"DELETE FROM app.orders WHERE id >= {first + 600} AND id < {first + 900};"
        f"INSERT INTO app.orders VALUES ({first + ROWS * 10}, 'new', 7), ({first + ROWS * 10 + 1}, 'new', 8)"
    )


def test_rows_that_are_written_meanwhile_are_told_as_they_are_then(shop: Shop, spark: SparkSession) -> None:
    spark_topic, database_topic = shop.topics()
    backfilled(shop, spark, spark_topic, lambda: write(shop, 1000), lambda: write(shop, 1500))
    shop.feed(database_topic, "ON ANY WHERE amount <> 7 PARTITION BY customer", "TRUE")
    assert shop.told(spark_topic) == shop.told(database_topic)
    assert shop.is_sound()


def test_a_load_that_is_gone_and_a_table_that_changes_make_it_begin_again(shop: Shop, spark: SparkSession) -> None:
    spark_topic, database_topic = shop.topics()
    loads = shop.server.db.engine.loads

    def lose() -> None:
        for load in loads.open():
            loads.abort(load.load_id)

    backfilled(
        shop, spark, spark_topic, lose, lambda: shop.client.execute("ALTER TABLE app.orders ADD COLUMN extra INT")
    )
    shop.feed(database_topic, "ON ANY WHERE amount <> 7 PARTITION BY customer", "TRUE")
    assert shop.told(spark_topic) == shop.told(database_topic)


def test_a_filter_that_fails_on_a_row_fails_as_in_the_database_and_leaves_nothing(shop: Shop) -> None:
    spark_topic, database_topic = shop.topics()
    how = "ON ANY WHERE CAST(id * 10 AS SMALLINT) > 0"
    with pytest.raises(ExpressionError) as there:
        shop.feed(database_topic, how, "TRUE")
    with pytest.raises(ExpressionError) as here:
        shop.feed(spark_topic, how, "'spark'")
    assert here.value.message.startswith(f"the filter of topic {spark_topic} cannot be evaluated for this row")
    assert there.value.message.startswith(f"the filter of topic {database_topic} cannot be evaluated for this row")
    assert shop.told(spark_topic) == []
    assert shop.open_loads() == 0
    assert not shop.server.db.engine.guards._open


def test_it_takes_the_right_to_manage_topics(shop: Shop) -> None:
    spark_topic, _ = shop.topics()
    shop.client.execute("CREATE USER 'etl' WITH PASSWORD 'a password of etl' ROLE 'service'")
    with (
        tablecast.connect(shop.server.url, user="etl", password="a password of etl") as client,
        pytest.raises(PermissionDenied, match="dba"),
    ):
        client.execute(f"ALTER TOPIC {spark_topic} ADD SOURCE app.orders ON ANY WITH (backfill = 'spark')")
