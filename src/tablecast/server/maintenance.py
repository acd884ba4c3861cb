"""Work on the whole database while it is served: a backup and a verification at a time, in threads of their own.

A backup is made in the staging directory, as links to the store's files where the file system can, and is sent from there
as a tar. Its marker comes last, so what was cut off is not taken for a backup. A process that dies leaves the directory,
which the next opening removes.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tablecast.engine.engine import Engine
from tablecast.errors import CorruptData, InUse, InvalidRequest
from tablecast.model.schema import Actor
from tablecast.storage.home import MARKER
from tablecast.storage.memory import MemoryStore

CHUNK_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)

R = TypeVar("R")


class Maintenance:
    """Of one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="tablecast-maintenance")
        self._running: dict[str, str] = {}

    def begin(self, what: str, actor: Actor) -> None:
        """Raises InUse if somebody else does the same just now. To be ended with `end`."""
        if what in self._running:
            raise InUse(
                f"user {self._running[what]!r} is at a {what} just now; ask again later", user=self._running[what]
            )
        self._running[what] = actor.user_id

    def end(self, what: str) -> None:
        del self._running[what]

    @contextmanager
    def beginning(self, what: str, actor: Actor) -> Iterator[None]:
        """Ended if the block raises; else the answer goes on with it, and ends it."""
        self.begin(what, actor)
        try:
            yield
        except BaseException:
            self.end(what)
            raise

    async def in_thread(self, function: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def start(self, function: Callable[[], R]) -> asyncio.Future[R]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function)


# --- a backup as a tar ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parcel:
    """A backup that waits to be sent. `files`: name and bytes."""

    directory: Path
    files: tuple[tuple[str, int], ...]

    @classmethod
    def made(cls, engine: Engine) -> Parcel:
        if isinstance(engine.store, MemoryStore):
            raise InvalidRequest("this server's database is in memory and has no files to back up")
        directory = Path(engine.store.staging(), f"backup-{secrets.token_hex(8)}")
        engine.backup(str(directory))
        names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
        names.sort(key=MARKER.__eq__)
        return cls(directory, tuple((name, (directory / name).stat().st_size) for name in names))

    @property
    def size(self) -> int:
        return sum(_BLOCK + size + _padding(size) for _, size in self.files) + len(_END)

    def pieces(self) -> Iterator[bytes]:
        for name, size in self.files:
            info = tarfile.TarInfo(name)
            info.size, info.mode = size, 0o600
            yield info.tobuf(tarfile.GNU_FORMAT)
            yield from _content(self.directory / name, size)
            yield bytes(_padding(size))
        yield _END

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def _padding(size: int) -> int:
    return -size % _BLOCK


def _content(path: Path, size: int) -> Iterator[bytes]:
    left = size
    with path.open("rb") as file:
        while left:
            chunk = file.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise CorruptData(f"{path} ended {left} bytes early", path=str(path))
            left -= len(chunk)
            yield chunk
