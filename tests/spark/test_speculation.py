"""Spark's own second attempts at slow tasks: both stage their rows, one counts."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from processes import HOST, WAIT_SECONDS, Cluster, Driver
from server_fixture import PASSWORD, ServerThread
from speculation_driver import ROWS
from writing import Writing

import tablecast
from tablecast.engine.loads import Loads, StagedPart
from tablecast.spark.task import Task, partition_of

pytestmark = pytest.mark.long

SLOW = 1  # the partition whose first attempt is slow
HOSTS = (HOST, "127.0.0.2")  # two machines, for Spark
TARGETS = ("app.sealed", "app.sent", "app.streamed", "app.piped")


class SlowAnswers:
    """The server stages what the first attempt at a partition sends, and does not answer until it has staged the same
    part of another attempt: the task is slow, and both attempts have done all of their work."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.attempts: dict[tuple[str, int], list[str]] = defaultdict(list)
        self.waited_in_vain = False
        self._staged = threading.Condition()
        stage = Loads.stage

        def staged(loads: Loads, load_id: str, part: int, attempt: str, *args: Any) -> StagedPart:
            done = stage(loads, load_id, part, attempt, *args)
            self._wait_for_another((loads._find(load_id).about.table, part), attempt)
            return done

        patch.setattr(Loads, "stage", staged)

    def _wait_for_another(self, place: tuple[str, int], attempt: str) -> None:
        with self._staged:
            attempts = self.attempts[place]
            if attempt not in attempts:
                attempts.append(attempt)
            self._staged.notify_all()
            if partition_of(place[1]) == SLOW and not self._staged.wait_for(lambda: len(attempts) > 1, WAIT_SECONDS):
                self.waited_in_vain = True


def test_both_attempts_stage_and_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowAnswers(monkeypatch)
    with (
        ServerThread(tmp_path / "data") as server,
        tablecast.connect(server.url, user="system", password=PASSWORD) as client,
    ):
        w = Writing(server.url, client)
        client.execute("CREATE NAMESPACE app")
        for table in TARGETS:
            w.table(table.removeprefix("app."), "id BIGINT PRIMARY KEY, n BIGINT")
        client.execute_all(
            "CREATE TABLE app.given (id BIGINT PRIMARY KEY, n BIGINT); CREATE TOPIC app.asked PARTITIONS 4;"
            "ALTER TOPIC app.asked ADD SOURCE app.given ON INSERT;"
            "CREATE PIPELINE app.piped INTO app.piped AS SELECT id, max(n) AS n FROM TOPIC app.asked GROUP BY id"
        )
        client.insert("app.given", [{"id": i, "n": i * 2} for i in range(ROWS)])
        with Cluster(tmp_path, HOSTS) as cluster:
            arguments = (cluster.master, server.url, str(tmp_path))
            with Driver(
                "speculation_driver.py", *arguments, log=tmp_path / "driver.log", TABLECAST_PASSWORD=PASSWORD
            ) as driver:
                driver.finish(2 * WAIT_SECONDS)
        assert not slow.waited_in_vain
        speculative = _speculative_attempts(tmp_path)
        for table in TARGETS:
            attempts = slow.attempts[table, Task(SLOW, "").part(0)]
            assert len(attempts) > 1, table
            assert {int(made.partition("-")[0]) for made in attempts} & speculative, table
            assert w.rows(table) == [(i, i * 2) for i in range(ROWS)], table
            told = w.messages(table)
            assert len(told) == len({message.key for message in told}) == ROWS, table
            assert len({message.seq for message in told}) == 1, table
        assert w.open_loads() == []
        assert server.db.database.verify().sound


def _speculative_attempts(directory: Path) -> set[int]:
    """The task ids of those that Spark says it started so, in its event log."""
    found = set()
    for file in directory.glob("eventlog_v2_*/events_*"):
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskStart" and event["Task Info"]["Speculative"]:
                found.add(event["Task Info"]["Task ID"])
    return found
