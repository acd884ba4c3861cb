"""Statements that move groups and dead letters say how much they moved, at every door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_fixture import invoke
from faces import FACES, face
from server_fixture import ServerThread

import tablecast

SCHEMA = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY);
CREATE TOPIC app.work PARTITIONS 2 WITH (max_deliveries = 1, dead_letter = 'app.dead');
ALTER TOPIC app.work ADD SOURCE app.jobs ON INSERT;
INSERT INTO app.jobs VALUES (1), (2), (3), (4), (5), (6), (7), (8);
"""
ENDS = "SELECT end_offset FROM system.topic_partitions WHERE topic = 'app.work' ORDER BY partition_id"


@pytest.mark.parametrize("kind", FACES)
def test_reset_and_redrive_answer_with_counts(kind: str) -> None:
    with face(kind, SCHEMA) as db:
        ends = [end for (end,) in db.query(ENDS).rows]
        found = db.consume("app.work", group="g", limit=100).messages
        for partition in (0, 1):
            offsets = [m.offset for m in found if m.partition_id == partition]
            db.nack("app.work", "g", offsets, partition=partition)
        db.database.run_job("claims")

        sent = db.execute("REDRIVE TOPIC app.dead")
        assert (sent.message, sent.row_count) == ("REDRIVE 8", 8)
        assert sent.columns == ("topic", "group_id", "partition_id", "messages")
        assert sorted(sent.rows) == [("app.work", "g", partition, ends[partition]) for partition in (0, 1)]
        again = db.execute("REDRIVE TOPIC app.dead")
        assert (again.message, again.row_count, again.rows) == ("REDRIVE 0", 0, [])

        moved = db.execute("RESET GROUP 'g' ON app.work TO OFFSET 1")
        assert (moved.message, moved.row_count) == ("RESET GROUP 2", 2)
        assert moved.columns == ("partition_id", "offset", "lag")
        assert moved.rows == [(partition, 1, ends[partition] - 1) for partition in (0, 1)]
        assert db.execute("RESET GROUP 'g' ON app.work PARTITION 1 TO LATEST").rows == [(1, ends[1], 0)]


def test_what_was_appended_as_new_is_of_no_group() -> None:
    with face("embedded", SCHEMA) as db:
        found = db.consume("app.work", group="g", partition=0, limit=100).messages
        db.nack("app.work", "g", [m.offset for m in found], partition=0)
        db.database.run_job("claims")
        db.execute("CLEAR TOPIC app.work")
        assert db.execute("REDRIVE TOPIC app.dead").rows == [("app.work", None, 0, len(found))]


def test_over_http_and_on_the_command_line(tmp_path: Path) -> None:
    with ServerThread() as server:
        server.sql(SCHEMA)
        [moved] = server.sql("RESET GROUP 'g' ON app.work PARTITION 0 TO EARLIEST")
        end = server.sql(ENDS)[0]["rows"][0][0]
        assert (moved["row_count"], moved["message"], moved["rows"]) == (1, "RESET GROUP 1", [[0, "0", end]])
    with tablecast.open(tmp_path / "db") as db:
        db.execute_all(SCHEMA)
    done = invoke("sql", tmp_path / "db", "-c", "RESET GROUP 'g' ON app.work TO LATEST", "--format", "json")
    assert [row["lag"] for row in json.loads(done.stdout)] in ([0, 0], ["0", "0"])
