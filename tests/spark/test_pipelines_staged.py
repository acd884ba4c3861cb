"""What leaves a pipeline's executors: parts with rows and with dead letters, and not a row through the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pipelining import Flow
from reading import COLUMNS, Shop

from tablecast.engine.loads import Loads
from tablecast.spark.pipelines import sink
from tablecast.spark.pipelines.letters import MAX_LETTERS
from tablecast.spark.task import partition_of


@pytest.fixture
def flow(shop: Shop, tmp_path: Path) -> Iterator[Flow]:
    made = Flow(shop, tmp_path / "checkpoints")
    yield made
    for (name,) in made.rows("SELECT name FROM system.pipelines WHERE definition IS NOT NULL"):
        made.sql(f"DROP PIPELINE {name}")


class Heard:
    """What the server is asked to do with loads."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.staged: list[tuple[int, str]] = []
        self.committed: list[list[tuple[int, str]]] = []
        begin, stage, commit = Loads.begin, Loads.stage, Loads.commit

        def begins(loads: Loads, *args: Any, **kwargs: Any) -> Any:
            self.begun += 1
            return begin(loads, *args, **kwargs)

        def stages(loads: Loads, load_id: str, part: int, attempt: str, *args: Any) -> Any:
            self.staged.append((part, attempt))
            return stage(loads, load_id, part, attempt, *args)

        def commits(loads: Loads, load_id: str, parts: Any, *args: Any) -> Any:
            self.committed.append([(part, attempt) for part, attempt in parts])
            return commit(loads, load_id, parts, *args)

        patch.setattr(Loads, "begin", begins)
        patch.setattr(Loads, "stage", stages)
        patch.setattr(Loads, "commit", commits)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    return Heard(monkeypatch)


def source(flow: Flow, name: str, target: str = "id BIGINT PRIMARY KEY, v TEXT") -> None:
    flow.shop.topic(name, partitions=2)
    flow.sql(f"CREATE TABLE app.{name}_out ({target})")


def open_loads(flow: Flow) -> list[tuple[Any, ...]]:
    return flow.rows("SELECT load_id FROM system.loads WHERE state <> 'committed'")


def count(flow: Flow, table: str) -> int:
    [(found,)] = flow.rows(f"SELECT count(*) AS n FROM {table}")
    return int(found)


def test_every_task_stages_its_own_part(flow: Flow, heard: Heard) -> None:
    source(flow, "parts", "id BIGINT PRIMARY KEY, n SMALLINT")
    flow.sql(
        """CREATE PIPELINE app.parts INTO app.parts_out AS
           SELECT id, max(CASE WHEN id % 10 = 3 THEN 'three' ELSE '3' END) AS n FROM TOPIC app.parts_ev GROUP BY id
           WITH (dead_letter = 'app.parts_dlq')"""
    )
    flow.shop.insert("parts", 0, 200)
    assert flow.once() == 0
    assert flow.pipeline("parts", "rows_in, rows_out, rejected") == ("200", "180", "20")
    [named] = heard.committed
    assert sorted(named) == sorted(heard.staged)
    assert sorted(partition_of(part) for part, _ in named) == [0, 0, 1, 1]  # rows and letters of two tasks
    assert len({attempt for _, attempt in named}) == 2
    letters = flow.letters("app.parts_dlq")
    assert sorted(letter["row"]["id"] for letter in letters) == list(range(3, 200, 10))
    assert flow.shop.server.db.database.verify().sound


def test_a_batch_without_rows_asks_the_server_nothing(flow: Flow, heard: Heard) -> None:
    source(flow, "none")
    flow.sql("CREATE PIPELINE app.none INTO app.none_out AS SELECT id, v FROM TOPIC app.none_ev WHERE id < 0")
    flow.shop.insert("none", 0, 10)
    assert flow.once() == 0
    assert flow.pipeline("none", "state, rows_in, rows_out, batch_id, lag") == ("stopped", "10", "0", "0", "0")
    assert flow.pipeline("none", "last_batch_at") != (None,)
    assert (heard.begun, heard.staged, heard.committed) == (0, [], [])


def test_what_a_failed_batch_staged_is_forgotten(flow: Flow, heard: Heard) -> None:
    source(flow, "kept", "id BIGINT PRIMARY KEY, n INT")
    query = "CREATE PIPELINE app.kept INTO app.kept_out AS SELECT id, max(v) AS n FROM TOPIC app.kept_ev GROUP BY id"
    flow.sql(query)
    values = ", ".join(f"({i}, '{i if i % 5 else 'none'}')" for i in range(100))
    flow.sql(f"INSERT INTO app.kept VALUES {values}")
    assert flow.once() == 1
    assert "20 rows do not fit app.kept_out" in flow.pipeline("kept", "last_error")[0]  # of all tasks together
    assert len(heard.staged) == 6  # by two tasks, and it was tried three times
    assert heard.committed == []
    assert open_loads(flow) == []
    flow.sql("DROP PIPELINE app.kept", f"{query} WITH (dead_letter = 'app.kept_dlq')")
    assert flow.once() == 0
    assert count(flow, "app.kept_out") == 80


def test_a_query_that_fails_leaves_nothing_staged(flow: Flow) -> None:
    """The other task has staged its rows, or not: the driver does not know."""
    source(flow, "torn")
    flow.sql(
        """CREATE PIPELINE app.torn INTO app.torn_out AS
           SELECT id, CASE WHEN id = 7 THEN raise_error('seven') ELSE v END AS v FROM TOPIC app.torn_ev"""
    )
    flow.shop.insert("torn", 0, 100)
    assert flow.once() == 1
    assert "seven" in flow.pipeline("torn", "last_error")[0]
    assert (open_loads(flow), count(flow, "app.torn_out")) == ([], 0)


def test_more_letters_than_a_batch_may_have(flow: Flow) -> None:
    source(flow, "many", "id BIGINT PRIMARY KEY, n SMALLINT NOT NULL")
    flow.sql(
        """CREATE PIPELINE app.many INTO app.many_out AS
           SELECT id * 100000 + k AS id, CASE WHEN k = 0 THEN 1 END AS n
           FROM (SELECT id, explode(sequence(0, 5000)) AS k FROM TOPIC app.many_ev)
           WITH (dead_letter = 'app.many_dlq')"""
    )
    flow.shop.insert("many", 0, 2)
    assert flow.once() == 0  # 10,000 of them, from two messages
    assert flow.pipeline("many", "rows_out, rejected") == ("2", str(MAX_LETTERS))
    flow.shop.insert("many", 2, 3)
    assert flow.once() == 1
    error = flow.pipeline("many", "last_error")[0]
    assert f"15000 rows of batch 1 do not fit app.many_out, and {MAX_LETTERS} may be put aside" in error
    assert "column 'n'" in error
    assert (open_loads(flow), count(flow, "app.many_out")) == ([], 2)


def test_more_rows_than_one_commit_takes(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all tasks together; nothing of it is there, and the error says what to do."""
    monkeypatch.setattr(sink, "MAX_ROWS", 100)  # of the driver; a million rows take their time
    source(flow, "flood")
    flow.sql(
        "CREATE PIPELINE app.flood INTO app.flood_out AS SELECT id, max(v) AS v FROM TOPIC app.flood_ev GROUP BY id"
    )
    flow.shop.insert("flood", 0, 100)
    assert flow.once() == 0
    assert count(flow, "app.flood_out") == 100
    flow.shop.insert("flood", 100, 101)
    assert flow.once() == 1
    error = flow.pipeline("flood", "last_error")[0]
    assert "batch 1 has 101 rows, and one commit takes 100: lower max_messages" in error
    assert (open_loads(flow), count(flow, "app.flood_out")) == ([], 100)


def test_all_types(flow: Flow) -> None:
    flow.shop.topic("typed", columns=COLUMNS)
    names = ", ".join(column.split()[0] for column in COLUMNS.replace("(12,2)", "").split(", "))
    flow.sql(
        f"CREATE TABLE app.typed_out ({COLUMNS})",
        "INSERT INTO app.typed (id) VALUES (1)",
        """INSERT INTO app.typed VALUES (2, 'añ', 12.34, -7, '{"a": [1]}', '0190b6a1-7f5e-7cc2-8a4b-000000000001',
           '2026-01-31', '23:59:59.123456', '2026-01-31 10:00:00.5', X'00ff', 3, 1.5, 2.25, TRUE)""",
        f"CREATE PIPELINE app.typed INTO app.typed_out AS SELECT {names} FROM TOPIC app.typed_ev",
    )
    assert flow.once() == 0
    wanted = flow.rows(f"SELECT {names} FROM app.typed ORDER BY id")
    assert flow.rows(f"SELECT {names} FROM app.typed_out ORDER BY id") == wanted


def test_a_value_that_python_has_not_is_a_letter_all_the_same(flow: Flow) -> None:
    source(flow, "far", "id BIGINT PRIMARY KEY, at TIMESTAMP")
    flow.sql(
        """CREATE PIPELINE app.far INTO app.far_out AS
           SELECT id, timestamp_micros(CASE WHEN id = 1 THEN 900000000000000000 ELSE 0 END) AS at FROM TOPIC app.far_ev
           WITH (dead_letter = 'app.far_dlq')"""
    )
    flow.shop.insert("far", 0, 3)
    assert flow.once() == 0
    [letter] = flow.letters("app.far_dlq")
    assert letter["_rejected"]["column"] == "at"
    assert letter["row"] == {"id": 1, "at": "900000000000000000 as timestamp[us, tz=UTC]"}
    assert count(flow, "app.far_out") == 2


@pytest.mark.long
def test_a_batch_that_was_committed_is_computed_again_and_not_written(flow: Flow, heard: Heard) -> None:
    """The runner died after the commit, and the power with it: neither Spark's note of the batch nor its state are there."""
    source(flow, "again", "k BIGINT PRIMARY KEY, n BIGINT, word TEXT")
    flow.sql(  # wide, so that there is more of it than waits in the buffers between Spark and its worker
        """CREATE PIPELINE app.again INTO app.again_out AS
           SELECT k, count(*) AS n, repeat('x', 300) AS word
           FROM (SELECT explode(sequence(1, 20000)) AS k FROM TOPIC app.again_ev) GROUP BY k"""
    )
    found = "SELECT count(*) AS k, min(n) AS low, max(n) AS high, count(DISTINCT _seq) AS seqs FROM app.again_out"
    flow.shop.insert("again", 0, 1)
    assert flow.once() == 0
    assert flow.rows(found) == [("20000", "1", "1", "1")]
    spark = flow.checkpoints / "app.again" / "1"
    (spark / "commits" / "0").unlink()
    lost = list((spark / "state").rglob("1.delta"))
    assert len(lost) == 2
    for path in lost:
        path.unlink()
    assert flow.once() == 0
    assert flow.rows(found) == [("20000", "1", "1", "1")]
    assert len(heard.committed) == 1  # the replay asked for no commit
    flow.shop.insert("again", 1, 1)
    assert flow.once() == 0
    assert flow.rows(found) == [("20000", "2", "2", "1")]
    assert len(heard.committed) == 2
