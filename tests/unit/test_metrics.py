"""Metrics: what is told is what a scrape shows, and what users can name stays bounded."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

import tablecast
from tablecast.core import failpoint
from tablecast.errors import WritesStopped
from tablecast.server import metrics as module
from tablecast.server.metrics import CONTENT_TYPE, LAG_KEPT_SECONDS, OTHER, Metrics
from tablecast.sql.database import Database
from tablecast.storage.base import StorageFailure
from tablecast.testing.clock import FakeClock
from tablecast.testing.failpoints import raising


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def db(clock: FakeClock) -> Iterator[Database]:
    with tablecast.open(":memory:", clock=clock, jobs_interval_seconds=3600) as db:
        db.execute("CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY)")
        db.execute("CREATE TOPIC app.events ALIAS 'news' PARTITIONS 2 WITH (dedup_window_seconds = 60)")
        db.execute("ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT")
        yield db


class Scrape(dict[tuple[str, frozenset[str]], float]):
    """Samples by name and label values."""

    def __init__(self, metrics: Metrics) -> None:
        for family in text_string_to_metric_families(metrics.render().decode()):
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.values())
                assert key not in self, f"{key} is there twice"
                self[key] = sample.value

    def of(self, name: str, *labels: str) -> float:
        return self.get((name, frozenset(labels)), math.nan)

    def labels(self, name: str) -> set[frozenset[str]]:
        return {labels for found, labels in self if found == name}


def test_a_commit_is_counted_by_the_time_it_is_acknowledged(db: Database) -> None:
    metrics = Metrics(db.engine)
    db.insert("app.orders", [{"id": i} for i in range(12)])
    scrape = Scrape(metrics)
    assert scrape.of("tablecast_write_latency_seconds_count") == 1
    assert scrape.of("tablecast_commit_commands_sum") == 1
    assert scrape.of("tablecast_commit_rows_sum") == 12
    assert scrape.of("tablecast_commit_decide_seconds_count") == 1
    assert scrape.of("tablecast_commit_write_seconds_count") == 1
    assert scrape.of("tablecast_fsync_seconds_count") == 1
    assert scrape.of("tablecast_messages_in_total", "app.events") == 12
    assert scrape.of("tablecast_commit_number") == db.engine.seq


def test_skipped_messages_are_counted(db: Database) -> None:
    metrics = Metrics(db.engine)
    for _ in range(3):
        db.insert("app.orders", [{"id": 1}])
        db.execute("DELETE FROM app.orders WHERE id = 1")
    scrape = Scrape(metrics)
    assert scrape.of("tablecast_messages_in_total", "app.events") == 1
    assert scrape.of("tablecast_messages_deduplicated_total") == 2


def test_lag_is_over_all_partitions_in_messages_and_in_seconds(db: Database, clock: FakeClock) -> None:
    metrics = Metrics(db.engine)
    db.insert("app.orders", [{"id": i} for i in range(10)])
    [first, *_] = db.consume("app.events", group="g", start=tablecast.EARLIEST, limit=1).messages
    db.ack("app.events", "g", first.offset, partition=first.partition_id)
    clock.advance(90_000)
    scrape = Scrape(metrics)
    shown = db.query("SELECT sum(lag), max(lag_seconds) FROM system.topic_groups WHERE group_id = 'g'").rows
    assert shown == [(scrape.of("tablecast_group_lag_messages", "app.events", "g"), 90.0)]
    assert scrape.of("tablecast_group_lag_seconds", "app.events", "g") == 90.0


def test_lag_is_read_at_most_once_a_second(db: Database) -> None:
    now = [0.0]
    metrics = Metrics(db.engine, clock=lambda: now[0])
    db.insert("app.orders", [{"id": 1}])
    db.consume("app.events", group="g", start=tablecast.LATEST)
    assert Scrape(metrics).of("tablecast_topic_messages", "app.events") == 1
    db.insert("app.orders", [{"id": 2}])
    now[0] += LAG_KEPT_SECONDS / 2
    scrape = Scrape(metrics)
    assert scrape.of("tablecast_topic_messages", "app.events") == 1
    assert scrape.of("tablecast_messages_in_total", "app.events") == 2, "what is counted is never old"
    now[0] += LAG_KEPT_SECONDS
    assert Scrape(metrics).of("tablecast_topic_messages", "app.events") == 2


def test_lag_that_nobody_can_know_is_not_made_up(db: Database, clock: FakeClock) -> None:
    """Retention took what the group has not read: how old that was is gone with it."""
    db.execute("CREATE TOPIC app.short WITH (retention_seconds = 1)")
    db.execute("ALTER TOPIC app.short ADD SOURCE app.orders ON INSERT")
    metrics = Metrics(db.engine)
    db.insert("app.orders", [{"id": 1}])
    assert len(db.consume("app.short", group="g", start=tablecast.EARLIEST).messages) == 1
    clock.advance(3_600_000)
    db.run_job("retention")
    scrape = Scrape(metrics)
    assert scrape.of("tablecast_group_lag_messages", "app.short", "g") == 1
    assert frozenset({"app.short", "g"}) not in scrape.labels("tablecast_group_lag_seconds")


def test_requests_errors_and_readers(db: Database) -> None:
    metrics = Metrics(db.engine)
    metrics.request("POST", "/v1/api/sql", 200, 0.2)
    metrics.request("POST", "/v1/api/sql", 400, 0.1)
    metrics.error("sql_syntax")
    metrics.messages_out("app.events", 3)
    metrics.messages_out("default.news", 2)
    metrics.messages_out("app.gone", 1)
    scrape = Scrape(metrics)
    assert scrape.of("tablecast_http_requests_total", "POST", "/v1/api/sql", "400") == 1
    assert scrape.of("tablecast_http_request_seconds_count", "POST", "/v1/api/sql") == 2
    assert scrape.of("tablecast_http_request_seconds_sum", "POST", "/v1/api/sql") == pytest.approx(0.3)
    assert scrape.of("tablecast_errors_total", "sql_syntax") == 1
    assert scrape.of("tablecast_messages_out_total", "app.events") == 5, "an alias is the topic it stands for"
    assert scrape.of("tablecast_messages_out_total", OTHER) == 1


def test_parked_polls_are_asked_for(db: Database) -> None:
    metrics = Metrics(db.engine)
    assert not Scrape(metrics).labels("tablecast_long_polls_parked")
    metrics.parked(lambda: 7)
    assert Scrape(metrics).of("tablecast_long_polls_parked") == 7


def test_the_engines_state_is_shown(db: Database) -> None:
    scrape = Scrape(Metrics(db.engine))
    assert scrape.of("tablecast_build_info", tablecast.__version__) == 1
    assert scrape.of("tablecast_write_queue_commands") == 0
    assert scrape.of("tablecast_writes_stopped") == 0
    assert scrape.of("tablecast_store_bytes") > 0
    assert scrape.of("process_resident_memory_bytes") > 0


def test_stopped_writes_are_shown(db: Database) -> None:
    metrics = Metrics(db.engine)
    with failpoint.armed("before_sync", raising(StorageFailure("the disk is gone"))), pytest.raises(WritesStopped):
        db.insert("app.orders", [{"id": 1}])
    scrape = Scrape(metrics)
    assert scrape.of("tablecast_writes_stopped") == 1
    assert scrape.of("tablecast_commit_rows_count") == 0


def test_jobs_are_counted(db: Database) -> None:
    metrics = Metrics(db.engine)
    db.run_job("claims")
    db.run_job("claims")
    assert Scrape(metrics).of("tablecast_jobs_total", "claims", "done") == 2


def test_topics_beyond_the_limit_share_a_label(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOPIC_LABELS", 2)
    metrics = Metrics(db.engine)
    for name in ("a", "b", "c"):
        db.execute(f"CREATE TOPIC app.{name}; ALTER TOPIC app.{name} ADD SOURCE app.orders ON INSERT")
    db.insert("app.orders", [{"id": 1}])
    db.insert("app.orders", [{"id": 2}])
    scrape = Scrape(metrics)
    counted = scrape.labels("tablecast_messages_in_total")
    assert len(counted) == 3
    assert scrape.of("tablecast_messages_in_total", OTHER) == 2 * 2, "two topics of four"
    assert len(scrape.labels("tablecast_topic_bytes")) == 2


def test_groups_beyond_the_limit_share_a_label(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_GROUP_LABELS", 2)
    metrics = Metrics(db.engine)
    db.insert("app.orders", [{"id": i} for i in range(5)])
    for i in range(4):
        db.consume("app.events", group=f"g{i}", start=tablecast.EARLIEST)
    scrape = Scrape(metrics)
    assert len(scrape.labels("tablecast_group_lag_messages")) == 3
    assert scrape.of("tablecast_group_lag_messages", OTHER) == 10


def test_a_method_is_a_word_of_the_client(db: Database) -> None:
    metrics = Metrics(db.engine)
    for i in range(50):
        metrics.request(f"METHOD{i}", "unrouted", 405, 0.0)
    assert Scrape(metrics).of("tablecast_http_requests_total", OTHER, "unrouted", "405") == 50


def test_label_values_are_escaped(db: Database) -> None:
    metrics = Metrics(db.engine)
    group = 'a "quoted"\nname\\'
    db.insert("app.orders", [{"id": 1}])
    db.consume("app.events", group=group, start=tablecast.EARLIEST)
    assert Scrape(metrics).of("tablecast_group_lag_messages", "app.events", group) == 1


def test_two_servers_in_one_process_count_apart(db: Database) -> None:
    with tablecast.open(":memory:") as other:
        metrics, others = Metrics(db.engine), Metrics(other.engine)
        metrics.error("overloaded")
        assert Scrape(metrics).of("tablecast_errors_total", "overloaded") == 1
        assert not Scrape(others).labels("tablecast_errors_total")


def test_a_scrape_has_no_second_series_per_series(db: Database) -> None:
    assert b"_created" not in Metrics(db.engine).render()
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")
