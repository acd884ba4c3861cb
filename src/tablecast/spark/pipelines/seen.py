"""What a pipeline's query has done, out of Spark's reports of its progress.

Spark reports a batch when it is done, and now and then that there is nothing to do. A report of nothing bears the number
of the *next* batch: were it taken for that batch, the batch itself would be taken for one that was seen before. What
tells them apart is whether anything was given to the sink.

Sources stand in a report as they stand in the plan, which is not how the pipeline names its inputs: a query may begin
with the last of them. The topic's id, which every offset holds, says whose it is.

A query that may go past messages that are gone reads fewer than lie between its offsets: the rest is `skipped`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tablecast.spark.offsets import StreamOffset, stream_offset

_DONE = "addBatch"  # the step of a batch in which the sink gets it
_log = logging.getLogger("tablecast.pipelines")


class Seen:
    """Since the runner started the pipeline, however often its query was started since."""

    def __init__(self, name: str, *, skips: bool = False) -> None:
        self._name = name
        self._skips = skips
        self._topics: Mapping[int, str] = {}
        self.batch_id: int | None = None
        self.rows_in = 0
        self.skipped = 0
        self.rates: tuple[float | None, float | None] = (None, None)
        self.positions: dict[str, list[int]] = {}

    def expect(self, topics: Mapping[int, str]) -> None:
        """The names of the topics that the query reads, by their ids."""
        self._topics = topics

    def take(self, reports: Iterable[str]) -> bool:
        """Takes in what is new of them, oldest first. Whether a batch with messages was."""
        taken = [self._took(msgspec.json.decode(report, type=_Report)) for report in reports]
        return True in taken

    def _took(self, report: _Report) -> bool:
        if self.batch_id is not None and report.batchId <= self.batch_id:
            return False
        self._take_positions(report.sources)
        if _DONE not in report.durationMs:
            return False
        self.batch_id = report.batchId
        self.rows_in += report.numInputRows
        self.rates = report.inputRowsPerSecond, report.processedRowsPerSecond
        if self._skips:
            self._take_skipped(report)
        if report.numInputRows:
            _log.info(
                "%s: batch %d, %d messages in %d ms", self._name, report.batchId, report.numInputRows,
                report.batchDuration,
            )  # fmt: skip
        return report.numInputRows > 0

    def _take_skipped(self, report: _Report) -> None:
        """A topic that is read twice skips the same messages twice."""
        gone: dict[int, int] = {}
        for source in report.sources:
            start, end = _offset(source.startOffset), _offset(source.endOffset)
            if start is not None and end is not None:
                between = sum(end.offsets.values()) - sum(start.offsets.values())
                gone[end.topic_id] = max(gone.get(end.topic_id, 0), between - source.numInputRows)
        skipped = sum(gone.values())
        self.skipped += skipped
        if skipped:
            _log.warning("%s: batch %d went past %d messages that are gone", self._name, report.batchId, skipped)

    def _take_positions(self, sources: Iterable[_Source]) -> None:
        """A topic that is read twice stands where the slower of its readers does."""
        taken: dict[str, list[int]] = {}
        for source in sources:
            end = _offset(source.endOffset)
            if end is not None and end.topic_id in self._topics:
                topic = self._topics[end.topic_id]
                offsets = [end.offsets[partition] for partition in sorted(end.offsets)]
                taken[topic] = list(map(min, taken.get(topic, offsets), offsets))
        self.positions = {**self.positions, **taken}  # whole: the runner's thread looks at it


def _offset(told: Any) -> StreamOffset | None:
    """None before the first batch, and for a source that is not ours: a function may bring any."""
    return stream_offset(told) if isinstance(told, dict) and "topic_id" in told else None


class _Source(msgspec.Struct):
    startOffset: Any = None  # noqa: N815
    endOffset: Any = None  # noqa: N815
    numInputRows: int = 0  # noqa: N815


class _Report(msgspec.Struct):
    """What of Spark's report is looked at."""

    batchId: int  # noqa: N815
    numInputRows: int = 0  # noqa: N815
    batchDuration: int = 0  # noqa: N815
    durationMs: dict[str, int] = {}  # noqa: N815
    inputRowsPerSecond: float | None = None  # noqa: N815
    processedRowsPerSecond: float | None = None  # noqa: N815
    sources: list[_Source] = []
