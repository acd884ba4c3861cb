"""Log batches that a reader stopped inside of, or that somebody waits for.

A batch is stored and read as a whole, and one commit may have written thousands of messages. Consumers that take a
hundred at a time would read such a batch again for every hundred; here it stays until it has been read to its end by
the last of them, or until others need the room. And a consumer that waits reads what a commit brought right after it:
a small batch is handed to it from here, without a seek in the store. Stored batches never change, and neither topics
nor offsets come twice, so nothing kept here can be wrong.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict

from tablecast.codec.log import LogBatch

RECENT_BYTES = 32 * 2**20
ENTRY_BYTES = 4 * 2**10  # what a batch counts beside its own size: it bounds how many small ones are kept


class RecentBatches:
    """Shared by all readers of one database."""

    def __init__(self, limit_bytes: int = RECENT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, int, int], LogBatch] = OrderedDict()  # by first offset, least used first
        self._firsts: dict[tuple[int, int], list[int]] = {}  # of each partition, ascending
        self._bytes = 0

    def find(self, topic_id: int, partition: int, offset: int) -> LogBatch | None:
        """The batch that holds an offset, if it is kept."""
        with self._lock:
            firsts = self._firsts.get((topic_id, partition))
            at = bisect_right(firsts, offset) - 1 if firsts else -1
            if not firsts or at < 0:
                return None
            key = topic_id, partition, firsts[at]
            batch = self._kept[key]
            if offset >= batch.head.end_offset:
                return None
            self._kept.move_to_end(key)
            return batch

    def keep(self, topic_id: int, partition: int, batch: LogBatch) -> None:
        key = topic_id, partition, batch.head.first_offset
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = batch
            self._bytes += batch.size + ENTRY_BYTES
            insort(self._firsts.setdefault((topic_id, partition), []), batch.head.first_offset)
            while self._bytes > self._limit_bytes:
                self._forget_one()

    def _forget_one(self) -> None:
        (topic_id, partition, first), batch = self._kept.popitem(last=False)
        self._bytes -= batch.size + ENTRY_BYTES
        firsts = self._firsts[topic_id, partition]
        firsts.remove(first)
        if not firsts:
            del self._firsts[topic_id, partition]
