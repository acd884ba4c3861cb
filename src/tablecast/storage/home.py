"""The directory a database lives in, and the two small files that guard it.

    <path>/TABLECAST     the marker, JSON: {"format": 4, "created_by": "0.1.0"}
    <path>/SYNCED        the watermark: 8 bytes big-endian sequence number, 4 bytes CRC-32 of them
    <path>/store/        what the store keeps
    <path>/RESERVE       zeros, for the day the disk is full: see `reserve.py`
    <path>/staging/      files on their way into the store; made when there are any, and no part of a backup

All of it belongs to one user alone: see `private.py`.

**The marker** says "this is a tablecast database, of this format". It is durable before the store makes its
first file, so nothing of ours is ever found without it. While the store is being created it also says
`"creating": true`; a database that is complete is therefore never mistaken for one that was never finished,
and a lost `store/` is an error instead of a fresh, empty database. A directory of an older format gets the new number
as soon as its store is open, before anything that an older tablecast could not read is written.

    format 1   the first
    format 2   rows that name their load, and intents (engine.intents): what an older tablecast would leave out
    format 3   the families CHANGES, VERSIONS and BUCKETS, which an older tablecast would not open
    format 4   group states with a time, and of groups that only commit, which an older tablecast could not read

**The watermark** is the sequence number of the last write that a `sync` made durable, hence acknowledged. It
exists because a write-ahead log that was cut short looks exactly like one that ended there. It is overwritten
after every sync and itself not synced (one system call, no wait), which makes it a *lower bound*: exact after
the process died, possibly older after the machine did, never ahead of the log. A store that recovers less
than its watermark has lost acknowledged writes. Twelve bytes inside one sector are either the old or the new
ones.
"""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from importlib.metadata import version
from pathlib import Path

import msgspec

from tablecast.errors import CorruptData, FormatTooNew, NotADatabase
from tablecast.storage.base import StorageFailure
from tablecast.storage.private import make_private, narrow, private_opener

FORMAT = 4
MARKER = "TABLECAST"
WATERMARK = "SYNCED"
STORE = "store"
STAGING = "staging"
PARTIAL = ".partial"  # the ending of what is not finished: never opened, safe to remove

_WATERMARK = struct.Struct(">QI")


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    format: int
    created_by: str
    creating: bool = False


class Home:
    """Where one database lives. `settle` first; then a fresh one is `finish`ed, or `abandon`ed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.store = self.path / STORE
        self._made_directory = False

    def settle(self, *, create: bool) -> bool:
        """Makes sure a database of ours is here, or may be. True when the store is still to be created."""
        try:
            marker = self._read_marker()
            if marker is not None and (create or not marker.creating):
                narrow(self.path)
                return marker.creating
            if marker is None:
                self._require_vacant()
            if not create:
                raise NotADatabase(f"there is no database at {self.path}", path=str(self.path))
            self._made_directory = not self.path.exists()
            make_private(self.path)
            self._write_marker(creating=True)
            sync_directory(self.path.parent)
        except OSError as error:
            raise StorageFailure(f"cannot use {self.path}: {error.strerror}", path=str(self.path)) from error
        return True

    def finish(self) -> None:
        self._write_marker(creating=False)

    @property
    def format(self) -> int:
        """Of a database that is here."""
        marker = self._read_marker()
        return FORMAT if marker is None else marker.format

    def raise_format(self) -> None:
        """From now on only a tablecast that reads this format opens it."""
        marker = self._read_marker()
        if marker is not None and marker.format < FORMAT:
            replace_durably(self.path / MARKER, msgspec.json.encode(Marker(FORMAT, marker.created_by)))

    def abandon(self) -> None:
        """Removes a creation that failed, and the directory if it was made for it."""
        shutil.rmtree(self.store, ignore_errors=True)
        for name in (WATERMARK, MARKER, MARKER + PARTIAL):
            (self.path / name).unlink(missing_ok=True)
        if self._made_directory:
            self.path.rmdir()

    def _read_marker(self) -> Marker | None:
        if self.path.exists() and not self.path.is_dir():
            raise NotADatabase(f"{self.path} is a file; a database is a directory", path=str(self.path))
        file = self.path / MARKER
        try:
            marker = msgspec.json.decode(file.read_bytes(), type=Marker)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise CorruptData(f"the marker {file} cannot be read: {error}", path=str(file)) from error
        if marker.format > FORMAT:
            raise FormatTooNew(
                f"{self.path} has format {marker.format}, written by tablecast {marker.created_by}; this is "
                f"tablecast {version('tablecast')}, which reads up to format {FORMAT}: use a newer one",
                path=str(self.path),
                format=marker.format,
                supported=FORMAT,
            )
        if marker.format < 1:
            raise CorruptData(f"the marker {file} says format {marker.format}; formats start at 1", path=str(file))
        return marker

    def _require_vacant(self) -> None:
        # A marker whose writing was interrupted is all that an interrupted first step leaves behind.
        found = sorted(p.name for p in self.path.iterdir()) if self.path.exists() else []
        foreign = [name for name in found if name != MARKER + PARTIAL]
        if foreign:
            raise NotADatabase(
                f"{self.path} holds {foreign[0]!r} and no {MARKER} file: not a tablecast database, or an "
                f"unfinished backup; name a database, or an empty directory",
                path=str(self.path),
            )

    def _write_marker(self, *, creating: bool) -> None:
        marker = Marker(FORMAT, version("tablecast"), creating)
        replace_durably(self.path / MARKER, msgspec.json.encode(marker))


class Watermark:
    """The last sequence number known to be durable. See the module's text."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / WATERMARK).open("r+b", buffering=0)

    @staticmethod
    def write(directory: Path, sequence: int) -> None:
        """A new one, durable."""
        replace_durably(directory / WATERMARK, _pack(sequence))

    @staticmethod
    def read(directory: Path) -> int:
        path = directory / WATERMARK
        try:
            found = path.read_bytes()
        except FileNotFoundError as error:
            message = f"{path} is missing: without it, lost writes cannot be told from none"
            raise CorruptData(message, path=str(path)) from error
        sequence = int.from_bytes(found[:8])
        if found != _pack(sequence):
            raise CorruptData(f"{path} does not hold a sequence number and its checksum", path=str(path))
        return sequence

    def advance(self, sequence: int) -> None:
        """Only ever called with what is durable, in ascending order."""
        os.pwrite(self._file.fileno(), _pack(sequence), 0)

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


def _pack(sequence: int) -> bytes:
    return _WATERMARK.pack(sequence, zlib.crc32(sequence.to_bytes(8)))


def replace_durably(path: Path, content: bytes) -> None:
    """The file has its old content or all of the new, at any moment and after any crash."""
    partial = path.with_name(path.name + PARTIAL)
    with open(partial, "wb", opener=private_opener) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_directory(path.parent)


def cut_durably(path: Path, size: int) -> None:
    """The file ends there from now on, after any crash."""
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Every file below and every directory, durable."""
    for directory, _, names in os.walk(path, topdown=False):
        for name in names:
            sync_directory(Path(directory, name))  # fsync is the same call for both
        sync_directory(Path(directory))
