"""Sealed parts as files (codec.sealed): log batches as they are made, then the SST, which is written beside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tablecast.codec.sealed import SealedBatch, SealedWriter, read_batch
from tablecast.core.columns import as_list
from tablecast.core.seal import evened
from tablecast.core.seal_log import Emit, without
from tablecast.core.seal_part import Sealed
from tablecast.storage.sst import write_sst


@dataclass(frozen=True, slots=True)
class PartFile:
    path: Path
    rows: int
    bytes: int


class PartSealer(Protocol):
    """Rows in, parts out: `core.seal.Sealer`, or `core.seal_messages.MessageSealer`."""

    @property
    def full(self) -> bool: ...
    @property
    def empty(self) -> bool: ...
    def add(self, batch: pa.RecordBatch, emit: Emit) -> None: ...
    def part(self, emit: Emit) -> Sealed: ...


def seal_parts(sealer: PartSealer, batches: Iterable[pa.RecordBatch], directory: Path, name: str) -> Iterator[PartFile]:
    """Seals all rows into files NAME-0.part, NAME-1.part, … and yields each when it is written; none without a row. The
    caller removes them; the sealer tells of rejects. Nothing is synced: a part is to be sent, and if it is lost with its
    sender it is made again."""
    made = 0
    part: _Part | None = None
    try:
        for batch in evened(batches):
            part = part or _Part(directory / f"{name}-{made}.part")
            sealer.add(batch, part.writer.add_batch)
            if sealer.full:
                yield part.finish(sealer)
                made, part = made + 1, None
        if part is not None and not sealer.empty:
            yield part.finish(sealer)
            part = None
    finally:
        if part is not None:
            part.abandon()


class _Part:
    """A part that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sst = path.with_name(path.name + ".sst")
        self._file = path.open("wb+")
        self.writer = SealedWriter(self._file)

    def finish(self, sealer: PartSealer) -> PartFile:
        try:
            sealed = sealer.part(self.writer.add_batch)
            if sealed.left_out:
                self._write_batches_again(sealed)
            written = self._finish(sealed)
        except BaseException:
            self.abandon()
            raise
        self._file.close()
        self._sst.unlink(missing_ok=True)
        return PartFile(self._path, sealed.rows, written)

    def _finish(self, sealed: Sealed) -> int:
        values = chain.from_iterable(map(as_list, sealed.values))
        sst_bytes = write_sst(self._sst, as_list(sealed.keys), values) if sealed.rows else 0
        with self._sst.open("rb") if sst_bytes else nullcontext() as sst:
            part = self.writer.finish(
                table_id=sealed.table_id,
                load_number=sealed.load_number,
                row_keys=sealed.keys,
                sst=sst,
                sst_size=sst_bytes,
            )
        return part.size

    def _write_batches_again(self, sealed: Sealed) -> None:
        """Some rows are not in the part after all: another file takes the place of this one."""
        old, batches = self._file, _by_partition(self.writer.batches)
        self._path.unlink()
        with old:
            self._file = self._path.open("wb+")
            self.writer = SealedWriter(self._file)
            for (topic_id, partition), mine in batches.items():
                stored = (read_batch(old, batch) for batch in mine)
                places = sealed.left_out.get((topic_id, partition))
                again = zip((b.count for b in mine), stored, strict=True) if places is None else without(stored, places)
                for count, batch in again:
                    self.writer.add_batch(topic_id, partition, count, batch)

    def abandon(self) -> None:
        self._file.close()
        for path in (self._path, self._sst):
            path.unlink(missing_ok=True)


def _by_partition(batches: Iterable[SealedBatch]) -> dict[tuple[int, int], list[SealedBatch]]:
    found: dict[tuple[int, int], list[SealedBatch]] = {}
    for batch in batches:
        found.setdefault((batch.topic_id, batch.partition), []).append(batch)
    return found
