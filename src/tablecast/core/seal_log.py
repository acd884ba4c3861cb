"""Log batches of a sealed part: what the engine would have cut a commit's messages into, made as messages come in.

A batch is cut as soon as it is known where it ends, and handed on: a part's messages are never all in memory. If rows
turn out not to belong to the part after all (a key that came before), `without` makes the partition's batches again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from tablecast.codec.log import LOG_BATCH_BYTES, LOG_BATCH_MESSAGES, LogBatch, MessageClass, encode_log_columns
from tablecast.core.columns import lengths
from tablecast.core.seal_routes import BatchRoute, Messages, RouteRun

Emit = Callable[[int, int, int, bytes], None]  # topic id, partition, messages, log batch
Places = dict[tuple[int, int], np.ndarray]  # (topic id, partition) -> which of its messages, counted from 0


class LogCutter:
    """The messages of one partition on their way into log batches."""

    def __init__(self, message_class: MessageClass) -> None:
        self._class = message_class
        self._waiting: list[Messages] = []
        self._count = self._bytes = 0

    @property
    def nbytes(self) -> int:
        return self._bytes

    def add(self, messages: Messages) -> Iterator[tuple[int, bytes]]:
        """(messages, log batch) for each batch whose end is known now."""
        self._waiting.append(messages)
        self._count += len(messages.keys)
        self._bytes += int(lengths(messages.payloads).sum())
        if self._count < LOG_BATCH_MESSAGES and self._bytes <= LOG_BATCH_BYTES:
            return
        ends = np.concatenate([[0], *(lengths(piece.payloads) for piece in self._waiting)]).cumsum()
        start = 0
        while start < len(ends) - 1 and (stop := _cut(ends, start)) is not None:
            self._count -= stop - start
            self._bytes -= int(ends[stop] - ends[start])
            yield stop - start, encode_log_columns(self._class, self._taken(stop - start))
            start = stop

    def rest(self) -> Iterator[tuple[int, bytes]]:
        """The last one."""
        if self._waiting:
            yield self._count, encode_log_columns(self._class, self._waiting)
        self._waiting, self._count, self._bytes = [], 0, 0

    def _taken(self, count: int) -> list[Messages]:
        """The first of those that wait."""
        taken = []
        while count:
            first = self._waiting.pop(0)
            if len(first.keys) > count:
                self._waiting.insert(0, _part(first, count, len(first.keys)))
                first = _part(first, 0, count)
            taken.append(first)
            count -= len(first.keys)
        return taken


def _cut(ends: np.ndarray, start: int) -> int | None:
    """Where the log batch that begins at `start` ends, as engine.logs cuts; None while more messages may join it."""
    count = len(ends) - 1
    fitting = int(np.searchsorted(ends, ends[start] + LOG_BATCH_BYTES, side="right")) - 1
    stop = min(start + LOG_BATCH_MESSAGES, max(fitting, start + 1))
    return stop if stop < count or stop == start + LOG_BATCH_MESSAGES or fitting < count else None


def _part(messages: Messages, start: int, stop: int) -> Messages:
    return Messages(messages.keys[start:stop], messages.payloads[start:stop], messages.hashes[start:stop])


class RouteLog:
    """The log batches of one route, in all its partitions. `rows` of the part are counted from 0."""

    def __init__(self, route: BatchRoute) -> None:
        self._route = route
        self._cutters: dict[int, LogCutter] = {}
        self._rows: dict[int, list[np.ndarray]] = {}

    @property
    def nbytes(self) -> int:
        return sum(cutter.nbytes for cutter in self._cutters.values())

    def add(self, run: RouteRun, first_row: int, emit: Emit) -> None:
        for partition, start, stop in run.bounds:
            if partition not in self._cutters:
                self._cutters[partition], self._rows[partition] = LogCutter(self._route.message_class), []
            mine = np.arange(start, stop) if run.rows is None else run.rows[start:stop]
            self._rows[partition].append((mine + first_row).astype(np.uint32))
            for count, batch in self._cutters[partition].add(_part(run.messages, start, stop)):
                emit(self._route.topic_id, partition, count, batch)

    def finish(self, emit: Emit) -> None:
        for partition, cutter in self._cutters.items():
            for count, batch in cutter.rest():
                emit(self._route.topic_id, partition, count, batch)

    def places_of(self, left_out: np.ndarray) -> Places:
        """Where the messages of rows that are marked stand in their partitions."""
        found = {
            (self._route.topic_id, partition): np.flatnonzero(left_out[np.concatenate(rows)])
            for partition, rows in self._rows.items()
        }
        return {where: places for where, places in found.items() if len(places)}


def without(batches: Iterable[bytes], places: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """A partition's log batches made again without the messages at these places."""
    cutter: LogCutter | None = None
    first = 0
    for data in batches:
        batch = LogBatch(data)
        count = batch.head.count
        mine = places[(places >= first) & (places < first + count)] - first
        first += count
        kept = np.delete(np.arange(count), mine)
        messages = Messages(batch.key_array(), batch.payload_array(), np.asarray(batch.hash_array())).taken(kept)
        cutter = cutter or LogCutter(batch.classes()[0])
        if len(kept):
            yield from cutter.add(messages)
    if cutter is not None:
        yield from cutter.rest()
