"""What a runner makes of Spark's reports of a query's progress."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tablecast.spark.pipelines.seen import Seen


def offset(topic_id: int, *offsets: int) -> dict[str, Any]:
    return {"topic_id": topic_id, "partitions": {str(p): at for p, at in enumerate(offsets)}}


def source(topic_id: int, *offsets: int) -> dict[str, Any]:
    return {"endOffset": offset(topic_id, *offsets)}


def report(batch_id: int, rows: int, sources: Iterable[Mapping[str, Any]], *, done: bool = True) -> str:
    """As Spark writes one. One of nothing to do has no step `addBatch`, and the number of the batch that comes next."""
    return json.dumps(
        {
            "batchId": batch_id,
            "numInputRows": rows,
            "batchDuration": 40,
            "durationMs": {"latestOffset": 3, "triggerExecution": 40} | ({"addBatch": 30} if done else {}),
            "inputRowsPerSecond": rows * 2.0,
            "processedRowsPerSecond": rows * 4.0,
            "sources": list(sources),
        }
    )


def seen(*topics: str) -> Seen:
    made = Seen("app.p")
    made.expect(dict(enumerate(topics, 1)))
    return made


def test_a_report_of_nothing_does_not_stand_for_the_next_batch(caplog: pytest.LogCaptureFixture) -> None:
    progress = seen("app.a")
    first = report(0, 5, [source(1, 3, 2)])
    idle = report(1, 0, [source(1, 3, 2)], done=False)
    assert progress.take([first])
    assert not progress.take([first, idle, idle])
    assert (progress.batch_id, progress.rows_in, progress.rates) == (0, 5, (10.0, 20.0))
    with caplog.at_level("INFO", logger="tablecast.pipelines"):
        assert progress.take([first, idle, idle, report(1, 7, [source(1, 9, 3)])])
    assert (progress.batch_id, progress.rows_in, progress.rates) == (1, 12, (14.0, 28.0))
    assert progress.positions == {"app.a": [9, 3]}
    assert [entry.message for entry in caplog.records] == ["app.p: batch 1, 7 messages in 40 ms"]


def test_where_a_query_stands_before_its_first_batch_of_this_run() -> None:
    progress = seen("app.a")
    assert not progress.take([report(8, 0, [source(1, 30)], done=False)])
    assert (progress.batch_id, progress.positions) == (None, {"app.a": [30]})
    assert not progress.take([report(9, 0, [{"endOffset": None}], done=False)])
    assert progress.positions == {"app.a": [30]}


def test_old_reports_are_taken_once_and_move_nothing_back() -> None:
    progress = seen("app.a")
    reports = [
        report(0, 0, [source(1, 0)], done=False),
        report(0, 5, [source(1, 5)]),
        report(1, 0, [source(1, 5)], done=False),
        report(1, 2, [source(1, 7)]),
    ]
    assert progress.take(reports)
    assert not progress.take(reports)
    assert (progress.rows_in, progress.positions) == (7, {"app.a": [7]})


def test_a_batch_of_no_messages_counts_as_one() -> None:
    """Such as Spark runs to close windows."""
    progress = seen("app.a")
    assert not progress.take([report(3, 0, [source(1, 5)])])
    assert progress.batch_id == 3


def test_offsets_belong_to_the_topic_whose_id_they_hold() -> None:
    """The plan of b.join(a) has b first, whatever the order in which the pipeline names its inputs."""
    progress = seen("app.a", "app.b")
    progress.take([report(0, 9, [source(2, 8), source(1, 1)])])
    assert progress.positions == {"app.a": [1], "app.b": [8]}


def test_a_topic_that_is_read_twice_stands_where_the_slower_reader_does() -> None:
    progress = seen("app.a")
    progress.take([report(0, 9, [source(1, 8, 2), source(1, 5, 4)])])
    assert progress.positions == {"app.a": [5, 2]}


def test_sources_of_others_are_left_alone() -> None:
    progress = seen("app.a")
    progress.take([report(0, 9, [{"endOffset": 17}, {"endOffset": {"logOffset": 1}}, source(77, 1), source(1, 2)])])
    assert progress.positions == {"app.a": [2]}


def test_what_a_query_went_past_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    first = {"startOffset": None, "endOffset": offset(1, 4, 4), "numInputRows": 8}  # where it began, nobody says
    lossy = {"startOffset": offset(1, 4, 4), "endOffset": offset(1, 9, 6), "numInputRows": 3}
    whole = {"startOffset": offset(2, 0), "endOffset": offset(2, 5), "numInputRows": 5}
    reports = [report(0, 8, [first]), report(1, 11, [lossy, whole, lossy]), report(2, 0, [], done=False)]
    progress = Seen("app.p", skips=True)
    progress.take(reports)
    progress.take(reports)
    assert progress.skipped == 4
    assert "app.p: batch 1 went past 4 messages that are gone" in caplog.text
    strict = Seen("app.p")
    strict.take(reports)
    assert strict.skipped == 0
