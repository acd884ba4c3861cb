"""Recording a history, and reading it back.

A recorder with a path appends one line per event with one unbuffered write: a process that is killed at any
instruction leaves every event it recorded, and at worst one torn line at the end. The order of recording
makes that safe. An `invoke` is recorded before the write is sent, so a torn one was never sent; an `ok` after
the acknowledgement, so a torn one leaves the write with an unknown outcome.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

import msgspec

from tablecast.errors import CorruptData, InvalidRequest
from tablecast.model.message import Message
from tablecast.testing.history.events import (
    WRITE_OPS,
    Acked,
    AnyEvent,
    Delivered,
    Fail,
    Invoke,
    Logged,
    Ok,
    Rows,
    Seen,
    Started,
)
from tablecast.testing.history.values import Row, canonical_key, recordable

PART_SIZE = 1000  # rows or messages on one line of an observation

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyEvent).decode
_at = attrgetter("at")

T = TypeVar("T")


class History:
    """Events in the order of their recording."""

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        self.events = sorted(events, key=_at)

    @classmethod
    def load(cls, *paths: str | os.PathLike[str]) -> History:
        """One history from the files of all recorders. A torn last line is dropped; other damage raises."""
        return cls(itertools.chain.from_iterable(_read(Path(path)) for path in paths))

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_bytes(b"".join(_encode(event) + b"\n" for event in self.events))


def _read(path: Path) -> Iterator[AnyEvent]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _decode(line)
            except msgspec.MsgspecError as error:
                raise CorruptData(f"{path} line {number} is not a history event: {error}", line=number) from error


class Recorder:
    """Writes events down: into a file when there is a path, else into memory. Safe to use from any thread.

    Make every write tell itself apart, for example by a column that holds its `write_id`. Of two equal writes
    with unknown outcomes nobody can say later which one is on the topic.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, now: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._path = path
        self._file: BinaryIO | None = None if path is None else _open_untorn(Path(path))
        self._events: list[AnyEvent] = []
        self._lock = threading.Lock()
        self._now = now

    def now(self) -> int:
        """For `asked` of `delivered`: take it before the request is sent."""
        return self._now()

    def history(self) -> History:
        return History(self._events) if self._path is None else History.load(self._path)

    # --- writers --------------------------------------------------------------------------------------------

    def invoke(
        self,
        write_id: str,
        table: str,
        op: str,
        key: bytes | Sequence[Any],
        row: Row | None = None,
        *,
        txn_id: str | None = None,
        user_id: str | None = None,
    ) -> None:
        """A write is about to be sent. Rows of one statement or transaction share a `txn_id`.

        `row` holds the columns that the write sets; for a delete, if it is known, the row that it removes.
        """
        if op not in WRITE_OPS:
            raise InvalidRequest(f"write {write_id!r}: unknown op {op!r}; one of {sorted(WRITE_OPS)}", op=op)
        said = None if row is None else recordable(dict(row))
        text = canonical_key(key)
        self._record(Invoke, write_id, table, op, text, said, txn_id, user_id)

    def ok(self, *write_ids: str, seq: int | None) -> None:
        """The writes were acknowledged in commit `seq`; None: they changed nothing.

        Name all writes of a transaction in one call: they were acknowledged together.
        """
        self._record(Ok, write_ids, seq)

    def fail(self, *write_ids: str, error: object) -> None:
        """The writes were refused for certain. After a timeout or a lost connection record nothing."""
        self._record(Fail, write_ids, str(error))

    # --- consumers ------------------------------------------------------------------------------------------

    def started(self, group: str, topic: str, starts: Mapping[int, int]) -> None:
        """The group begins elsewhere than at the log start (partition -> offset), or was reset to there."""
        self._record(Started, group, topic, dict(starts))

    def delivered(
        self, group: str, consumer: str, topic: str, messages: Iterable[Message], *, asked: int | None = None
    ) -> None:
        """A consumer of the group got messages. Give `asked` when other consumers work at the same time."""
        seen = tuple(Seen.of(message) for message in messages)
        self._record(Delivered, group, consumer, topic, self._now() if asked is None else asked, seen)

    def acked(
        self, group: str, topic: str, partition: int, *, upto: int | None = None, offsets: Iterable[int] = ()
    ) -> None:
        """The system confirmed an ack: of everything up to and including `upto`, or of single `offsets`."""
        single = tuple(offsets)
        self._record(Acked, group, topic, partition, upto, single)

    # --- observations at the end ----------------------------------------------------------------------------

    def saw_table(
        self, table: str, rows: Iterable[Row], primary_key: Sequence[str], *, user_id: str | None = None
    ) -> None:
        """The whole content of a table, or of one user's share of it. With `_seq` more can be checked."""
        keyed = ((canonical_key([row[name] for name in primary_key]), recordable(dict(row))) for row in rows)
        for part, last, items in _parts(keyed):
            self._record(Rows, table, part, last, tuple(items), user_id)

    def saw_topic(self, topic: str, messages: Iterable[Message], *, starts: Mapping[int, int] | None = None) -> None:
        """The whole content of a topic, partitions in the order they were read; `starts`: those above 0."""
        seen = (Seen.of(message) for message in messages)
        above = dict(starts or {})
        for part, last, items in _parts(seen):
            self._record(Logged, topic, part, last, tuple(items), above)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _record(self, kind: Callable[..., AnyEvent], *fields: Any) -> None:
        with self._lock:  # the time is taken inside, so that a file is in the order of its times
            event = kind(self._now(), *fields)
            if self._file is None:
                self._events.append(event)
            else:
                _append(self._file, _encode(event) + b"\n")


def _open_untorn(path: Path) -> BinaryIO:
    """Opens for appending, without the torn line of a killed predecessor: it would end up in the middle."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    return path.open("ab", buffering=0)


def _append(file: BinaryIO, line: bytes) -> None:
    written = file.write(line)
    if written != len(line):
        raise OSError(f"wrote only {written} of {len(line)} bytes of a history event")


def _parts(items: Iterable[T]) -> Iterator[tuple[int, bool, list[T]]]:
    """Lists of at most PART_SIZE, numbered, and whether it is the last; one empty part for nothing."""
    source = iter(items)
    part = list(itertools.islice(source, PART_SIZE))
    for number in itertools.count():
        following = list(itertools.islice(source, PART_SIZE))
        yield number, not following, part
        if not following:
            return
        part = following
