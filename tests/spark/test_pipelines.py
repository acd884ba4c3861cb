"""Pipelines kept running: followed, restarted, kept apart, and exact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pipelining import Flow, Running, until
from reading import Shop

from tablecast.engine.snapshots import SNAPSHOTS_PER_USER
from tablecast.errors import UnknownPipeline
from tablecast.spark.pipelines.declare import load_file
from tablecast.spark.pipelines.definition import of_declared


@pytest.fixture
def flow(shop: Shop, tmp_path: Path) -> Iterator[Flow]:
    made = Flow(shop, tmp_path / "check points 100%20")  # a place may be called anything
    yield made
    for (name,) in made.rows("SELECT name FROM system.pipelines WHERE definition IS NOT NULL"):
        made.sql(f"DROP PIPELINE {name}")


def source(flow: Flow, name: str, target: str = "id BIGINT PRIMARY KEY, v TEXT") -> None:
    """Table app.NAME, its topic app.NAME_ev, and a target app.NAME_out."""
    flow.shop.topic(name, partitions=2)
    flow.sql(f"CREATE TABLE app.{name}_out ({target})")


def test_what_is_worked_off_once_is_not_again(flow: Flow) -> None:
    source(flow, "once")
    flow.shop.insert("once", 0, 100)
    flow.sql("UPDATE app.once SET v = 'changed' WHERE id = 7")
    flow.sql(
        """CREATE PIPELINE app.once INTO app.once_out MODE insert AS
           SELECT id, upper(v) AS v FROM TOPIC app.once_ev WHERE _op = 'insert' AND id % 2 = 1"""
    )
    assert flow.once() == 0
    expected = [(str(i), f"V{i}") for i in range(1, 100, 2)]
    assert flow.rows("SELECT id, v FROM app.once_out ORDER BY id") == expected
    assert flow.pipeline("once", "state, rows_in, rows_out, lag, last_error") == ("stopped", "101", "50", "0", None)
    assert (flow.checkpoints / "app.once" / "1" / "offsets" / "0").exists()  # what is made durable is what Spark wrote
    before = flow.rows("SELECT max(_seq) AS s FROM app.once_out")
    flow.shop.insert("once", 100, 10)
    assert flow.once("app.once") == 0
    assert len(flow.rows("SELECT id FROM app.once_out")) == 55
    assert flow.rows("SELECT max(_seq) AS s FROM app.once_out WHERE id < 100") == before  # inserted once


def test_a_pipeline_follows_what_is_wished(flow: Flow) -> None:
    source(flow, "wish")
    with Running(flow.runner()) as running:
        flow.sql(
            """CREATE PIPELINE app.wish INTO app.wish_out AS SELECT id, v FROM TOPIC app.wish_ev
               WITH (trigger_seconds = 0.1)"""
        )
        flow.shop.insert("wish", 0, 5)
        until("it runs", lambda: flow.pipeline("wish", "state, rows_out, lag") == ("running", "5", "0"))
        flow.sql("STOP PIPELINE app.wish")
        until("it is stopped", lambda: flow.pipeline("wish", "state") == ("stopped",))
        flow.shop.insert("wish", 5, 5)
        assert flow.rows("SELECT count(*) AS n FROM app.wish_out") == [("5",)]
        flow.sql("START PIPELINE app.wish")
        until("it goes on", lambda: flow.rows("SELECT count(*) AS n FROM app.wish_out") == [("10",)])
        assert flow.pipeline("wish", "runner") == (running.runner.name,)
        flow.sql("DROP PIPELINE app.wish")
        until("it is gone", lambda: not running.runner.names)
        assert flow.rows("SELECT name FROM system.pipelines WHERE name = 'app.wish'") == []
        flow.shop.insert("wish", 10, 5)
    assert running.code == 0
    assert flow.rows("SELECT count(*) AS n FROM app.wish_out") == [("10",)]


def test_a_failing_pipeline_harms_no_other_and_comes_back(flow: Flow) -> None:
    source(flow, "bad")
    source(flow, "good")
    flow.sql(
        """CREATE PIPELINE app.bad INTO app.bad_out AS
           SELECT id, CASE WHEN v = 'poison' THEN raise_error('it is poison') ELSE v END AS v
           FROM TOPIC app.bad_ev WITH (trigger_seconds = 0.1)""",
        """CREATE PIPELINE app.good INTO app.good_out AS SELECT id, v FROM TOPIC app.good_ev
           WITH (trigger_seconds = 0.1)""",
        "INSERT INTO app.bad VALUES (1, 'poison')",
    )
    with Running(flow.runner()):
        until("it is tried again", lambda: int(flow.pipeline("bad", "restarts")[0] or 0) >= 2)
        flow.shop.insert("good", 0, 5)
        until("the other one works", lambda: flow.rows("SELECT count(*) AS n FROM app.good_out") == [("5",)])
        state, error = flow.pipeline("bad", "state, last_error")
        assert "it is poison" in error
        assert state in ("backing_off", "starting", "running")
        assert flow.pipeline("good", "state, restarts, last_error") == ("running", "0", None)
        # What is wrong is put right without touching the runner: the target gets a row that is not poison any more.
        flow.sql("DROP PIPELINE app.bad")
        flow.sql(
            """CREATE PIPELINE app.mended INTO app.bad_out AS
               SELECT id, v FROM TOPIC app.bad_ev WITH (trigger_seconds = 0.1)"""
        )
        until("it is mended", lambda: flow.rows("SELECT v FROM app.bad_out") == [("poison",)])


def test_rows_that_do_not_fit_are_put_aside(flow: Flow) -> None:
    source(flow, "fit", "id BIGINT PRIMARY KEY, n SMALLINT NOT NULL CHECK (n <> 13), d DATE")
    flow.sql(
        """CREATE PIPELINE app.fit INTO app.fit_out AS
           SELECT id, nullif(v, 'null') AS n, '2026-01-31' AS d FROM TOPIC app.fit_ev
           WITH (dead_letter = 'app.fit_dlq')""",
        "INSERT INTO app.fit VALUES (1, '1'), (2, 'two'), (3, 'null'), (4, '13'), (5, '99999'), (6, '6')",
    )
    assert flow.once() == 0
    assert flow.rows("SELECT id, n, d FROM app.fit_out ORDER BY id") == [("1", 1, "2026-01-31"), ("6", 6, "2026-01-31")]
    letters = {letter["row"]["id"]: letter["_rejected"] for letter in flow.letters("app.fit_dlq")}
    assert {number: (why["code"], why["column"]) for number, why in letters.items()} == {
        2: ("type_mismatch", "n"),
        3: ("not_null_violation", "n"),
        4: ("check_violation", None),
        5: ("type_mismatch", "n"),
    }
    assert letters[2]["pipeline"] == "app.fit"
    assert flow.pipeline("fit", "rows_out, rejected") == ("2", "4")
    rows = flow.rows("SELECT DISTINCT _seq FROM app.fit_out")
    messages = flow.shop.server.db.database.consume("app.fit_dlq", group="g", limit=10).messages
    assert {(str(message.seq),) for message in messages} == set(rows)  # one commit
    assert flow.shop.server.db.database.verify().sound


def test_names_that_keep_their_case(flow: Flow) -> None:
    """Beside things whose names differ in case only."""
    source(flow, "cased")
    flow.sql(
        'CREATE TABLE app."Cased" (id BIGINT PRIMARY KEY, v TEXT); CREATE TABLE app."Cased_out" (id BIGINT PRIMARY KEY, v INT)',
        'CREATE TOPIC app."Cased_ev"; ALTER TOPIC app."Cased_ev" ADD SOURCE app."Cased" ON ANY',
        """CREATE PIPELINE app."Cased" INTO app."Cased_out" AS
           SELECT id, v FROM TOPIC app.`Cased_ev` WITH (dead_letter = 'App."Cased_dlq"')""",
        """INSERT INTO app."Cased" VALUES (1, '1'), (2, 'two'); INSERT INTO app.cased VALUES (3, '3')""",
    )
    assert flow.once('app."Cased"') == 0
    assert flow.pipeline("Cased", "rows_out, rejected, lag") == ("1", "1", "0")
    assert flow.rows('SELECT id, v FROM app."Cased_out"') == [("1", 1)]
    assert [letter["row"]["id"] for letter in flow.letters('app."Cased_dlq"')] == [2]
    flow.sql('DROP PIPELINE app."Cased"')


def test_a_key_that_is_there_already_is_put_aside(flow: Flow) -> None:
    """In MODE insert, one that the table had, and the second of two in a batch."""
    source(flow, "dup")
    flow.sql(
        """CREATE PIPELINE app.dup INTO app.dup_out MODE insert AS
           SELECT id % 4 AS id, v FROM TOPIC app.dup_ev WITH (dead_letter = 'app.dup_dlq')""",
        "INSERT INTO app.dup_out VALUES (2, 'before')",
    )
    flow.shop.insert("dup", 0, 5)
    assert flow.once() == 0
    kept = flow.rows("SELECT id, v FROM app.dup_out ORDER BY id")
    assert [row[0] for row in kept] == ["0", "1", "2", "3"]
    assert kept[2] == ("2", "before")
    letters = flow.letters("app.dup_dlq")
    assert sorted((each["_rejected"]["code"], each["row"]["id"]) for each in letters) == [
        ("duplicate_key", 0),
        ("duplicate_key", 2),
    ]
    assert flow.pipeline("dup", "state, rows_out, rejected, last_error") == ("stopped", "3", "2", None)
    assert flow.shop.server.db.database.verify().sound


def test_without_a_dead_letter_topic_nothing_is_left_out(flow: Flow) -> None:
    source(flow, "strict", "id BIGINT PRIMARY KEY, n INT")
    flow.sql(
        "CREATE PIPELINE app.strict INTO app.strict_out AS SELECT id, v AS n FROM TOPIC app.strict_ev",
        "INSERT INTO app.strict VALUES (1, '1'), (2, 'two')",
    )
    assert flow.once() == 1
    assert flow.rows("SELECT id FROM app.strict_out") == []
    state, error = flow.pipeline("strict", "state, last_error")
    assert state == "failed"
    assert "1 rows do not fit app.strict_out" in error
    assert "dead_letter" in error


def test_a_changed_definition_is_refused_until_it_may_begin_anew(flow: Flow) -> None:
    source(flow, "turn")
    flow.shop.insert("turn", 0, 4)
    query = "CREATE PIPELINE app.turn INTO app.turn_out AS SELECT id, {} AS v FROM TOPIC app.turn_ev"
    flow.sql(query.format("v"))
    assert flow.once() == 0
    flow.sql("DROP PIPELINE app.turn", query.format("upper(v)"))
    assert flow.once() == 1
    error = flow.pipeline("turn", "last_error")[0]
    assert "pipeline_changed" in error
    assert "changed: query" in error
    assert "--restart-from-start" in error
    assert flow.once(restart=True) == 0
    assert flow.rows("SELECT v FROM app.turn_out ORDER BY id") == [(f"V{i}",) for i in range(4)]
    flow.sql("DROP PIPELINE app.turn", query.format("upper(v)"))  # the same again: it goes on where it was
    assert flow.once() == 0


def overtaken(flow: Flow, name: str, options: str) -> None:
    """A stopped pipeline of which the retention job took messages 10 to 19, and 20 to 24 are there."""
    source(flow, name)
    flow.sql(f"CREATE PIPELINE app.{name} INTO app.{name}_out AS SELECT id, v FROM TOPIC app.{name}_ev {options}")
    flow.shop.insert(name, 0, 10)
    assert flow.once(f"app.{name}") == 0
    flow.shop.insert(name, 10, 10)
    flow.shop.expire(f"app.{name}_ev")
    flow.shop.insert(name, 20, 5)


def test_a_pipeline_that_retention_overtook_stops_and_says_so(flow: Flow) -> None:
    overtaken(flow, "late", "")
    with Running(flow.runner("app.late")):
        until("it has failed", lambda: flow.pipeline("late", "state") == ("failed",))
        error, restarts = flow.pipeline("late", "last_error, restarts")
    assert "OffsetOutOfRange: partition" in error
    assert "are no longer kept" in error
    assert "fail_on_data_loss = FALSE" in error
    assert restarts == "0"
    assert len(flow.rows("SELECT id FROM app.late_out")) == 10
    flow.sql(
        "DROP PIPELINE app.late",
        """CREATE PIPELINE app.late INTO app.late_out AS SELECT id, v FROM TOPIC app.late_ev
           WITH (fail_on_data_loss = FALSE)""",
    )
    assert flow.once() == 0  # with the progress it had
    assert flow.rows("SELECT id FROM app.late_out ORDER BY id") == [(str(i),) for i in (*range(10), *range(20, 25))]
    assert flow.pipeline("late", "state, rows_in, skipped, last_error") == ("stopped", "5", "10", None)


def test_one_runner_per_pipeline(flow: Flow) -> None:
    source(flow, "lone")
    flow.sql("CREATE PIPELINE app.lone INTO app.lone_out AS SELECT id, v FROM TOPIC app.lone_ev")
    with Running(flow.runner()):
        until("it runs", lambda: flow.pipeline("lone", "state") == ("running",))
        with closing(flow.runner(once=True)) as other:
            assert other.run() == 1
            assert "another runner" in (other.last_error("app.lone") or "")


def test_the_source_gets_a_column_meanwhile(flow: Flow) -> None:
    source(flow, "grow", "id BIGINT PRIMARY KEY, v TEXT, extra BIGINT")
    flow.sql(
        """CREATE PIPELINE app.grow INTO app.grow_out AS SELECT id, v FROM TOPIC app.grow_ev
           WITH (trigger_seconds = 0.1)"""
    )
    with Running(flow.runner()):
        flow.shop.insert("grow", 0, 3)
        until("it runs", lambda: flow.rows("SELECT count(*) AS n FROM app.grow_out") == [("3",)])
        flow.sql(
            "ALTER TABLE app.grow ADD COLUMN extra BIGINT DEFAULT 7",
            "ALTER TABLE app.grow_out ADD COLUMN further TEXT",
            "INSERT INTO app.grow VALUES (3, 'v3', 8)",
        )
        until("it goes on", lambda: flow.rows("SELECT count(*) AS n FROM app.grow_out") == [("4",)])
        assert flow.pipeline("grow", "restarts, last_error") == ("0", None)
        flow.sql("DROP PIPELINE app.grow")
        flow.sql("CREATE PIPELINE app.grown INTO app.grow_out AS SELECT id, v, extra FROM TOPIC app.grow_ev")
        until("all have it", lambda: flow.rows("SELECT extra FROM app.grow_out ORDER BY id") == [("7",)] * 3 + [("8",)])


def test_a_table_is_read_anew_for_every_batch(flow: Flow) -> None:
    source(flow, "joined", "id BIGINT PRIMARY KEY, name TEXT")
    flow.sql(
        "CREATE TABLE app.names (v TEXT PRIMARY KEY, name TEXT)",
        "INSERT INTO app.names VALUES ('v0', 'zero')",
        """CREATE PIPELINE app.joined INTO app.joined_out AS
           SELECT j.id, n.name FROM TOPIC app.joined_ev j LEFT JOIN TABLE app.names n ON j.v = n.v
           WITH (trigger_seconds = 0.1)""",
    )
    with Running(flow.runner()):
        flow.shop.insert("joined", 0, 2)
        until("it runs", lambda: len(flow.rows("SELECT id FROM app.joined_out")) == 2)
        flow.sql("INSERT INTO app.names VALUES ('v2', 'two')")
        flow.shop.insert("joined", 2, 1)
        until("it goes on", lambda: len(flow.rows("SELECT id FROM app.joined_out")) == 3)
    assert flow.rows("SELECT name FROM app.joined_out ORDER BY id") == [("zero",), (None,), ("two",)]
    with flow.runner().client as client:  # none is left behind: as many as there may be can be opened
        opened = [client.open_snapshot("app.names").snapshot_id for _ in range(SNAPSHOTS_PER_USER)]
        for snapshot_id in opened:
            client.close_snapshot(snapshot_id)


def test_deletes(flow: Flow) -> None:
    source(flow, "del")
    flow.shop.insert("del", 0, 6)
    flow.sql(
        "INSERT INTO app.del_out SELECT * FROM app.del",
        """CREATE PIPELINE app.del INTO app.del_out MODE delete AS
           SELECT id FROM TOPIC app.del_ev WHERE _op = 'delete'""",
        "DELETE FROM app.del WHERE id < 4",
    )
    assert flow.once() == 0
    assert flow.rows("SELECT id FROM app.del_out ORDER BY id") == [("4",), ("5",)]


FILE = """
from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, sum as total, udf

from tablecast.spark import pipeline, table, topic


@dataclass
class Shout:
    mark: str

    def at(self, word: str) -> str:
        return word + self.mark


SHOUT = Shout("!")


@pipeline(into="app.py_out", inputs={"words": topic("app.py_ev"), "names": table("app.py_names")}, dead_letter="app.py_dlq")
def shouted(words: DataFrame, names: DataFrame) -> DataFrame:
    shout = udf(lambda word: SHOUT.at(word))
    return words.join(names, "v").groupBy("name").agg(count("*").alias("n")).select(shout(col("name")).alias("name"), "n")
"""


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_functions_of_a_file(flow: Flow, tmp_path: Path) -> None:
    source(flow, "py", "name TEXT PRIMARY KEY, n BIGINT")
    flow.sql(
        "CREATE TABLE app.py_names (v TEXT PRIMARY KEY, name TEXT)",
        "INSERT INTO app.py_names VALUES ('v0', 'few'), ('v1', 'few'), ('v2', 'one')",
        "CREATE TOPIC app.py_dlq",
    )
    flow.shop.insert("py", 0, 5)
    file = tmp_path / "flows.py"
    file.write_text(FILE)
    [declared] = load_file(file)
    with closing(flow.runner(definitions=[of_declared(declared)], once=True)) as runner:
        assert runner.run() == 0
    assert flow.rows("SELECT name, n FROM app.py_out ORDER BY name") == [("few!", "2"), ("one!", "1")]
    assert flow.rows("SELECT name, target, state, sql FROM system.pipelines") == [
        ("app.shouted", "app.py_out", "stopped", None)
    ]


def test_an_unknown_name(flow: Flow) -> None:
    with pytest.raises(UnknownPipeline, match=r"app\.nobody"):
        flow.once("app.nobody")
