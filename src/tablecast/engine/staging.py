"""Where loads wait: one directory each, on the database's own disk.

    staging/<load id>/LOAD                     what the load is: version byte 1, then MessagePack of `Description`
    staging/<load id>/<part>.<attempt>.part    a part as it came
    staging/<load id>/<part>.<attempt>.sst     the rows of a sealed part, as a file that the store can take in
    staging/<load id>/log.sst                  the log batches of a sealed load, at their places

Every file is durable before it has its name, so what has a name is whole. Nothing here is part of a table: a load that
is never committed is just removed.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from tablecast.codec.sealed import SealedPart, copy_sst, read_sealed
from tablecast.core import failpoint
from tablecast.errors import CorruptData, InvalidPart, InvalidRequest, UnknownLoad
from tablecast.model.schema import Actor
from tablecast.storage.base import StorageFailure
from tablecast.storage.home import replace_durably, sync_directory

MAX_PART_NUMBER = 2**31 - 1  # numbers need not follow one another: a Spark task has 4,096 for its parts
DESCRIPTION = "LOAD"
LOG_FILE = "log.sst"
PARTIAL = "arriving-"  # what the name of a part that is still arriving begins with
_FORMAT = 1
_COPY_BYTES = 1 << 20
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PART = re.compile(r"(\d+)\.([A-Za-z0-9_-]{1,64})\.part")


class Description(msgspec.Struct, frozen=True):
    """What `begin` was asked. `plan` is the fingerprint of the table and its routes then."""

    load_id: str
    load_number: int
    table_id: int
    table: str
    writer_id: str
    batch_id: int
    kind: str
    mode: str
    op_column: str | None
    plan: bytes
    actor: Actor
    created_ms: int


class Directory:
    """One load's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, staging: str, description: Description) -> Directory:
        path = Path(staging, description.load_id)
        with storing(path):
            path.mkdir(parents=True)
            replace_durably(path / DESCRIPTION, bytes([_FORMAT]) + msgspec.msgpack.encode(description))
            sync_directory(path.parent)
        return cls(path)

    def description(self) -> Description:
        data = (self.path / DESCRIPTION).read_bytes()
        if data[:1] != bytes([_FORMAT]):
            raise CorruptData(f"{self.path} has format {data[:1].hex()}; this tablecast reads {_FORMAT}")
        try:
            return msgspec.msgpack.decode(data[1:], type=Description)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
            raise CorruptData(f"{self.path / DESCRIPTION} does not decode: {e}") from e

    def part(self, part: int, attempt: str) -> Path:
        if not 0 <= part <= MAX_PART_NUMBER:
            raise InvalidRequest(f"parts are numbered from 0 to {MAX_PART_NUMBER}, not {part}", part=part)
        if not _ATTEMPT.fullmatch(attempt):
            raise InvalidRequest(f"attempt {attempt!r}: use 1 to 64 letters, digits, _ and -", attempt=attempt)
        return self.path / f"{part}.{attempt}.part"

    def parts(self) -> dict[tuple[int, str], int]:
        """(part, attempt) -> bytes."""
        found = {}
        for entry in os.scandir(self.path):
            match = _PART.fullmatch(entry.name)
            if match:
                found[int(match[1]), match[2]] = entry.stat().st_size
        return found

    @contextmanager
    def arriving(self, target: Path, source: BinaryIO, placing: AbstractContextManager[object]) -> Iterator[Path]:
        """All of `source` in a file that becomes `target`, durably, unless the block raises. Rows that the block takes
        out of it (`sst_of`) go with it, both within `placing`."""
        with storing(target):
            try:
                descriptor, name = tempfile.mkstemp(dir=self.path, prefix=PARTIAL, suffix=".part")
            except FileNotFoundError:
                raise UnknownLoad("the load was ended meanwhile") from None
            try:
                with os.fdopen(descriptor, "wb") as file:
                    shutil.copyfileobj(source, file, _COPY_BYTES)
                    _sync(file)
                yield Path(name)
                failpoint.hit("during_staging")
                with placing:
                    if not self.path.exists():
                        raise UnknownLoad("the load was ended meanwhile")
                    if sst_of(Path(name)).exists():
                        sst_of(Path(name)).replace(sst_of(target))
                    Path(name).replace(target)
                    sync_directory(self.path)
            except FileNotFoundError:
                if self.path.exists():
                    raise
                raise UnknownLoad("the load was ended meanwhile") from None
            finally:
                Path(name).unlink(missing_ok=True)
                sst_of(Path(name)).unlink(missing_ok=True)

    def clear(self) -> None:
        """Everything but the description: what was committed is in the store. What arrives too late clears up itself."""
        try:
            entries = list(os.scandir(self.path))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.name != DESCRIPTION and not entry.name.startswith(PARTIAL):
                Path(entry.path).unlink(missing_ok=True)

    def remove(self) -> int:
        """All of it; how many bytes there were."""
        try:
            size = sum(entry.stat().st_size for entry in os.scandir(self.path) if entry.is_file())
        except FileNotFoundError:
            return 0
        (self.path / DESCRIPTION).unlink(missing_ok=True)  # first: without it, what is left is not a load
        shutil.rmtree(self.path, ignore_errors=True)
        return size


def found_loads(staging: str) -> Iterator[tuple[Directory, Description]]:
    """The loads that an earlier process left. What is not a load is removed."""
    for entry in list(os.scandir(staging)):
        directory = Directory(Path(entry.path))
        if not (directory.path / DESCRIPTION).is_file():
            shutil.rmtree(entry.path, ignore_errors=True)
            continue
        for left in list(os.scandir(directory.path)):
            if left.is_dir():
                shutil.rmtree(left.path, ignore_errors=True)
            elif left.name.startswith(PARTIAL):
                Path(left.path).unlink(missing_ok=True)
        yield directory, directory.description()


@contextmanager
def storing(what: Path) -> Iterator[None]:
    """A full disk fails the load that needs it, and nothing else."""
    try:
        yield
    except OSError as error:
        raise StorageFailure(f"cannot stage {what}: {error.strerror or error}", path=str(what)) from error


def read_part(path: Path) -> SealedPart:
    """What a sealed part says of itself, its checksum compared."""
    try:
        with path.open("rb") as file:
            return read_sealed(file)
    except CorruptData as e:
        raise InvalidPart(e.message) from e


def sst_of(part: Path) -> Path:
    return part.with_suffix(".sst")


def take_out_rows(part: Path, sealed: SealedPart, target: Path) -> None:
    """The SST in a sealed part as a file of its own, durable."""
    with storing(target), part.open("rb") as file, target.open("wb") as copy:
        copy_sst(file, sealed, copy)
        _sync(copy)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
