"""A pipeline's table holds what the same query over the same rows gives in DuckDB: batch by batch adds up to the whole."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from pipelining import Flow
from reading import Shop

pytestmark = pytest.mark.long

ROWS, BATCH = 320, 80
SEED = int(os.environ.get("TABLECAST_SEED", "20260131"))  # other data: another number
EPOCH = datetime(2026, 1, 31, tzinfo=UTC)
WORDS = ("ann", "Bob", "cy d", "", "Zoë", None)


class Query(NamedTuple):
    """`duck` where DuckDB says it in other words."""

    name: str
    target: str
    spark: str
    duck: str | None = None


QUERIES = [
    Query(
        "filters", "id BIGINT PRIMARY KEY, n INT", "SELECT id, n FROM facts WHERE n > 10 AND (ok OR word LIKE '%n%')"
    ),
    Query(
        "expressions",
        "id BIGINT PRIMARY KEY, a BIGINT, b DECIMAL(14,2), c BOOLEAN, d INT",
        "SELECT id, n * 3 - 1 AS a, amount + amount AS b, n IS NULL OR n < 5 AS c, coalesce(n, -1) AS d FROM facts",
    ),
    Query(
        "joined",
        "id BIGINT PRIMARY KEY, city TEXT, rate DECIMAL(6,2)",
        "SELECT f.id, p.city, p.rate FROM facts f JOIN places p ON f.place = p.place WHERE p.rate > 1",
    ),
    Query(
        "left_joined",
        "id BIGINT PRIMARY KEY, city TEXT",
        "SELECT f.id, coalesce(p.city, 'nowhere') AS city FROM facts f LEFT JOIN places p ON f.place = p.place",
    ),
    Query(
        "grouped",
        "place INT PRIMARY KEY, n BIGINT, known BIGINT, total DECIMAL(16,2), least INT, most INT, mean DOUBLE",
        """SELECT place, count(*) AS n, count(n) AS known, sum(amount) AS total, min(n) AS least, max(n) AS most,
                  avg(n) AS mean FROM facts GROUP BY place""",
    ),
    Query(
        "frequent",
        "word TEXT PRIMARY KEY, n BIGINT",
        "SELECT coalesce(word, '-') AS word, count(*) AS n FROM facts GROUP BY 1 HAVING count(*) > 30",
    ),
    Query(
        "distinct_values",
        "place INT, ok BOOLEAN, PRIMARY KEY (place, ok)",
        "SELECT DISTINCT place, coalesce(ok, FALSE) AS ok FROM facts",
    ),
    Query(
        "cases",
        "id BIGINT PRIMARY KEY, size TEXT, sign INT",
        """SELECT id, CASE WHEN n IS NULL THEN 'none' WHEN n < 10 THEN 'small' WHEN n < 30 THEN 'medium' ELSE 'large' END
                  AS size, CASE WHEN amount < 0 THEN -1 ELSE 1 END AS sign FROM facts""",
    ),
    Query(
        "texts",
        "id BIGINT PRIMARY KEY, a TEXT, b INT, c TEXT, d TEXT",
        "SELECT id, upper(word) AS a, length(word) AS b, word || '-' || city_of AS c, substring(word, 1, 2) AS d FROM facts",
    ),
    Query(
        "dates",
        "id BIGINT PRIMARY KEY, y INT, m INT, next DATE, gap INT, hour TIMESTAMP",
        """SELECT id, year(day) AS y, month(day) AS m, date_add(day, 1) AS next, datediff(DATE'2026-12-31', day) AS gap,
                  date_trunc('hour', at) AS hour FROM facts""",
        """SELECT id, year(day) AS y, month(day) AS m, (day + INTERVAL 1 DAY)::DATE AS next,
                  date_diff('day', day, DATE '2026-12-31') AS gap, date_trunc('hour', "at") AS hour FROM facts""",
    ),
]

LONG, DELAY = timedelta(minutes=10), timedelta(minutes=5)  # of a window; how late a row may be
WINDOWS = {"tumbling": LONG, "sliding": timedelta(minutes=4)}  # how far apart windows begin; 4 does not divide 10
WINDOWED = """
SELECT window.start AS start, place % 2 AS odd, count(*) AS n, sum(amount) AS total FROM TOPIC app.facts_ev
GROUP BY window(at, '10 minutes', '{slide} minutes'), place % 2
"""
# The same in DuckDB, over the windows that each row counts for: those that had not ended before its batch's watermark.
IN_WINDOWS = """
WITH placed AS (
  SELECT *, time_bucket(to_minutes({slide}), "at", TIMESTAMPTZ '1970-01-01 00:00:00+00') - to_minutes({slide} * back) AS start
  FROM facts CROSS JOIN range(0, {most}) AS earlier(back)
), fitting AS (SELECT * FROM placed WHERE start + INTERVAL 10 MINUTES > "at")
"""
COUNTED = "FROM fitting WHERE watermark IS NULL OR start + INTERVAL 10 MINUTES > watermark"

FACTS = pa.schema(
    [
        ("id", pa.int64()), ("word", pa.string()), ("n", pa.int32()), ("amount", pa.decimal128(10, 2)),
        ("place", pa.int32()), ("ok", pa.bool_()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")),
        ("city_of", pa.string()),
    ]
)  # fmt: skip
PLACES = pa.table(
    {
        "place": pa.array([0, 1, 2, 3], pa.int32()),
        "city": ["Ulm", "Bern", None, "Oslo"],
        "rate": pa.array([Decimal("1.00"), Decimal("1.25"), Decimal("7.50"), None], pa.decimal128(6, 2)),
    }
)


def facts(rng: random.Random) -> pa.Table:
    """Time goes on from row to row, by and large: some rows come late, some far too late."""
    rows = []
    for i in range(ROWS):
        late = rng.choice([0, 0, rng.randrange(15), rng.randrange(120), rng.randrange(120)])
        at = EPOCH + timedelta(minutes=i // 2 - late, seconds=rng.randrange(60))
        rows.append(
            (i, rng.choice(WORDS), rng.choice([None, rng.randrange(50)]), Decimal(rng.randrange(-9_999, 99_999)) / 100,
             rng.randrange(6), rng.choice([True, False, None]), date(2026, 1, 1) + timedelta(days=rng.randrange(500)), at,
             rng.choice(["x", "yy"]))
        )  # fmt: skip
    columns = zip(*rows, strict=True)
    return pa.Table.from_arrays([pa.array(list(c), f.type) for c, f in zip(columns, FACTS, strict=True)], schema=FACTS)


@pytest.fixture(scope="module")
def worked_off(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> tuple[Flow, pa.Table]:
    """Every query as a pipeline, run over the same rows in several batches."""
    flow = Flow(shop, tmp_path_factory.mktemp("checkpoints"))
    given = facts(random.Random(SEED))
    flow.sql(
        """CREATE TABLE app.facts (id BIGINT PRIMARY KEY, word TEXT, n INT, amount DECIMAL(10,2), place INT, ok BOOLEAN,
                                   day DATE, at TIMESTAMP, city_of TEXT)""",
        "CREATE TABLE app.places (place INT PRIMARY KEY, city TEXT, rate DECIMAL(6,2))",
        "CREATE TOPIC app.facts_ev",
        "ALTER TOPIC app.facts_ev ADD SOURCE app.facts ON INSERT",
    )
    for name, slide in WINDOWS.items():
        flow.sql(
            f"CREATE TABLE app.{name} (start TIMESTAMP, odd INT, n BIGINT, total DECIMAL(16,2), PRIMARY KEY (start, odd))",
            f"""CREATE PIPELINE app.{name} INTO app.{name} AS {WINDOWED.format(slide=minutes(slide))}
                WITH (max_messages = {BATCH}, watermark = 'at 5 minutes')""",
        )
    for query in QUERIES:
        marked = query.spark.replace("FROM facts", "FROM TOPIC app.facts_ev").replace(
            "JOIN places", "JOIN TABLE app.places"
        )
        flow.sql(f"CREATE TABLE app.{query.name} ({query.target})")
        flow.sql(f"CREATE PIPELINE app.{query.name} INTO app.{query.name} AS {marked} WITH (max_messages = {BATCH})")
    database = shop.server.db.database
    database.insert("app.places", PLACES)
    database.insert("app.facts", given)
    assert flow.once() == 0, flow.rows("SELECT name, last_error FROM system.pipelines WHERE last_error IS NOT NULL")
    return flow, given


def minutes(span: timedelta) -> int:
    return span // timedelta(minutes=1)


def held(flow: Flow, name: str) -> list[tuple[Any, ...]]:
    return in_order(flow.shop.server.db.database.query(f"SELECT * FROM app.{name}"))


def in_order(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    """Comparable, whoever made the times."""
    return sorted((tuple(map(_in_utc, row)) for row in rows), key=repr)


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_it_agrees_with_duckdb(worked_off: tuple[Flow, pa.Table], query: Query) -> None:
    flow, given = worked_off
    with duckdb.connect() as duck:
        duck.execute("SET timezone = 'UTC'")
        duck.register("facts", given)
        duck.register("places", PLACES)
        columns = list(flow.shop.server.db.database.query(f"SELECT * FROM app.{query.name} LIMIT 0").columns)
        expected = duck.sql(f"SELECT {', '.join(columns)} FROM ({query.duck or query.spark})").to_arrow_table()
    assert expected.num_rows > 1
    assert held(flow, query.name) == in_order(row.values() for row in expected.to_pylist()), f"seed {SEED}"


def with_watermarks(given: pa.Table) -> pa.Table:
    """Each row with the watermark of its batch: the latest time that Spark knew when the batch before was begun, less the
    delay. The first two batches have none."""
    times = given.column("at").to_pylist()
    latest = [max(times[first : first + BATCH]) for first in range(0, ROWS, BATCH)]
    marks = [max(latest[: batch - 1]) - DELAY if batch > 1 else None for batch in range(len(latest))]
    each = pa.array([marks[i // BATCH] for i in range(ROWS)], pa.timestamp("us", "UTC"))
    return given.append_column("watermark", each)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_leave_out_what_comes_too_late(worked_off: tuple[Flow, pa.Table], name: str) -> None:
    """Tumbling and sliding: a row counts for a window unless that had ended before the watermark."""
    flow, given = worked_off
    slide = WINDOWS[name]
    placed = IN_WINDOWS.format(slide=minutes(slide), most=-(-LONG // slide))
    with duckdb.connect() as duck:
        duck.execute("SET timezone = 'UTC'")
        duck.register("facts", with_watermarks(given))
        counted = (
            f"{placed} SELECT start, place % 2 AS odd, count(*) AS n, sum(amount) AS total {COUNTED} GROUP BY 1, 2"
        )
        expected = duck.sql(counted).to_arrow_table()
        late = duck.sql(f"{placed} SELECT (SELECT count(*) FROM fitting) - (SELECT count(*) {COUNTED})").fetchall()
    assert late[0][0] > 5
    assert held(flow, name) == in_order(row.values() for row in expected.to_pylist()), f"seed {SEED}"


def test_it_took_several_batches(worked_off: tuple[Flow, pa.Table]) -> None:
    flow, _ = worked_off
    for name, rows_in, batch_id in flow.rows("SELECT name, rows_in, batch_id FROM system.pipelines"):
        assert int(rows_in) == ROWS, name
        assert int(batch_id) >= ROWS // BATCH - 1, name
