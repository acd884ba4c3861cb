"""Reading a range of a topic's log from the server, to its end.

The client goes on where a connection broke: no message comes twice, and none is left out, through restarts of the server.
What is final ends the read: the topic is another one, or retention was faster and that is not to be borne.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tablecast.client.bulk import BulkClient, Server, TopicInfo
from tablecast.codec.log import LogBatch
from tablecast.errors import OffsetOutOfRange
from tablecast.spark.offsets import LogRange, PartitionRange, lost_error, tell_lost


@dataclass(frozen=True, slots=True)
class TopicLog:
    """Which topic to read, and what to do when something of it is gone. Travels to the executors."""

    server: Server
    topic: str
    topic_id: int
    fail_on_data_loss: bool = True

    def batches(self, client: BulkClient, piece: LogRange) -> Iterator[LogBatch]:
        """The stored batches of a range, cut to it."""
        at = piece.start
        while at < piece.end:
            try:
                for data in client.stream_log(self.topic, piece.partition, at, piece.end, topic_id=self.topic_id):
                    batch = LogBatch(data)
                    at = batch.head.end_offset
                    yield batch
            except OffsetOutOfRange as e:
                at = self._after_loss(client, piece, at, e)

    def _after_loss(self, client: BulkClient, piece: LogRange, at: int, error: OffsetOutOfRange) -> int:
        """Where the log goes on, if that is wanted."""
        log_start = described(client, self.topic)[1][piece.partition].start
        if log_start <= at:
            raise error  # not retention: the range was never there
        lost = LogRange(piece.partition, at, min(log_start, piece.end))
        if self.fail_on_data_loss:
            raise lost_error(self.topic, lost._replace(end=log_start)) from error
        tell_lost(self.topic, lost)
        return lost.end


def described(client: BulkClient, topic: str, ts_ms: int | None = None) -> tuple[TopicInfo, list[PartitionRange]]:
    """What the topic is, and its partitions in order. With a time, also where each stood then."""
    said = client.describe_topic(topic, timestamp_ms=ts_ms)
    ranges = [
        PartitionRange(p.partition_id, p.start_offset, p.end_offset, p.offset_at_timestamp) for p in said.partitions
    ]
    return said, sorted(ranges)
