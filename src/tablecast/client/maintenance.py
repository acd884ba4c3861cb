"""A backup of a server's database into a local directory, and a verification that the server does."""

from __future__ import annotations

import http.client
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

import msgspec

from tablecast.client.bulk import BulkClient, Server
from tablecast.client.failures import Failure, rebuilt
from tablecast.client.transport import NoAnswer
from tablecast.errors import BackupError, CorruptData, Timeout, Unreachable
from tablecast.model.verify import Progress, VerifyReport

MARKER = "TABLECAST"  # the last file of a backup: without it, it is not opened
PARTIAL = ".partial"
TAR, NDJSON = "application/x-tar", "application/x-ndjson"
CHUNK_BYTES = 1 << 20

Bytes = Callable[[int, int], None]
"""How many are there, and of how many."""


def back_up(server: Server, target: str | os.PathLike[str], progress: Bytes | None = None) -> None:
    """The database as it is now, in the directory `target`: whole and durable, or not there at all."""
    path = Path(target)
    partial = path.with_name(path.name + PARTIAL)
    for taken in (path, partial):
        if taken.exists() or taken.is_symlink():
            raise BackupError(f"{taken} exists already; a backup needs a free place", path=str(taken))
    try:
        with BulkClient(server) as client:
            _receive(client, partial, progress or _ignore)
        _sync_tree(partial)
        partial.rename(path)
        _sync(path.parent)
    except NoAnswer as e:
        raise _lost(server, e) from e
    except (OSError, tarfile.TarError, http.client.HTTPException) as e:
        raise BackupError(f"the backup of {server.url} to {path} failed: {e}", path=str(path)) from e
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def verify(server: Server, progress: Progress | None = None) -> VerifyReport:
    """Done by the server while it serves; it must go on to its end, or say that it did not."""
    tell = progress or _ignore
    try:
        with BulkClient(server) as client:
            for line in client._post("/verify", accept=NDJSON).body:
                said = _decoded(line)
                for what, count in (said.progress or {}).items():
                    tell(what, count)
                if said.error is not None:
                    raise rebuilt(Failure(said.error.code, said.error.message, said.error.details))
                if said.report is not None:
                    return said.report
    except NoAnswer as e:
        raise _lost(server, e) from e
    except (OSError, http.client.HTTPException) as e:
        raise Timeout(f"{server.url} broke off while it verified: {e}", url=server.url) from e
    raise Timeout(f"{server.url} broke off while it verified", url=server.url)


# --- what arrives -----------------------------------------------------------------------------------------------


class _Said(msgspec.Struct):
    class Error(msgspec.Struct):
        code: str
        message: str
        details: dict[str, object]

    progress: dict[str, int] | None = None
    report: VerifyReport | None = None
    error: Error | None = None


def _decoded(line: bytes) -> _Said:
    try:
        return msgspec.json.decode(line, type=_Said)
    except msgspec.MsgspecError as e:
        raise CorruptData(f"the server's answer does not decode: {e}") from e


def _receive(client: BulkClient, partial: Path, progress: Bytes) -> None:
    arriving = client._post("/backup", accept=TAR)
    counted = _Counted(arriving.body, int(arriving.headers.get("content-length", 0)), progress)
    partial.mkdir(mode=0o700, parents=True)
    last = ""
    with tarfile.open(fileobj=counted, mode="r|", bufsize=CHUNK_BYTES) as tar:  # type: ignore[call-overload]
        for member in tar:
            last = member.name
            content = tar.extractfile(member) if member.isreg() else None
            if content is None or not _is_inside(last):
                raise BackupError(f"the server sent {last!r}, which is no file of a backup", file=last)
            _write(partial / last, content)
    while counted.read(CHUNK_BYTES):
        pass
    if last != MARKER or counted.done != counted.total:
        message = f"the server broke off after {counted.done:,} of {counted.total:,} bytes"
        raise BackupError(message, done=counted.done, total=counted.total)


class _Counted:
    def __init__(self, body: IO[bytes], total: int, progress: Bytes) -> None:
        self._body, self._progress = body, progress
        self.done, self.total = 0, total

    def read(self, size: int) -> bytes:
        piece = self._body.read(size)
        self.done += len(piece)
        self._progress(self.done, self.total)
        return piece


def _is_inside(name: str) -> bool:
    """A server, too, may be somebody else's: it names files below the directory only."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts


def _write(path: Path, content: IO[bytes]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        shutil.copyfileobj(content, file, CHUNK_BYTES)


def _sync_tree(path: Path) -> None:
    for directory, _, names in os.walk(path, topdown=False):
        for name in names:
            _sync(Path(directory, name))
        _sync(Path(directory))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lost(server: Server, cause: NoAnswer) -> Timeout | Unreachable:
    if not cause.sent:
        return Unreachable(f"{server.url} cannot be reached: {cause.reason}", url=server.url)
    return Timeout(f"{server.url} gave no answer: {cause.reason}", url=server.url)


def _ignore(*how_far: object) -> None:
    pass
