"""Space for the day the disk is full: a file of zeros that is given up so that a database opens, and what is deleted goes.

RocksDB cannot open without writing (a MANIFEST, and what the write-ahead log holds, as files), and removing data takes
space before it gives any back. So a database keeps a file half as large again as itself, 1 to 64 MiB; 64 is what its
memtables can hold. Opened on a full disk, it gives the file up.

Without the reserve that it should have, it takes what removes and refuses what adds with `disk_full`, or it would soon be
stuck for good. When the disk has room for twice the reserve, the reserve is made again, and all is as it was.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from tablecast.errors import DiskFull
from tablecast.storage.private import private_opener

RESERVE = "RESERVE"
LITTLE_BYTES = 4 << 20  # of the disk: what opening takes, and the first commits
_LEAST, _MOST = 1 << 20, 64 << 20
_FULL = ("No space left on device", "Disk quota exceeded")


class Reserve:
    def __init__(self, directory: Path) -> None:
        self._file = directory / RESERVE
        self._directory = directory
        self.is_short = False
        self._database_bytes = 0  # about
        self._looked_at = 0  # how many of these, when the file was last made as large

    def free_bytes(self) -> int:
        disk = os.statvfs(self._directory)
        return disk.f_bavail * disk.f_frsize

    def give_up(self) -> bool:
        """Whether there was one."""
        with suppress(FileNotFoundError):
            self._file.unlink()
            self.is_short = True
            return True
        return False

    def keep(self, database_bytes: int) -> None:
        """Makes the file as large as it should be, if that leaves some room; after it was short, as much again."""
        self._database_bytes = self._looked_at = database_bytes
        wanted = min(_LEAST + database_bytes * 3 // 2, _MOST)
        there = self._file.stat().st_size if self._file.exists() else 0
        spare = wanted if self.is_short else LITTLE_BYTES
        self.is_short = there < wanted and not (self.free_bytes() >= wanted - there + spare and self._made(wanted))

    def _made(self, size: int) -> bool:
        """False if the disk is too full. A file system that reserves nothing, or a limit of the process, is no reason to
        refuse anything."""
        try:
            with open(self._file, "ab", opener=private_opener) as file:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            return error.errno not in (errno.ENOSPC, errno.EDQUOT)
        return True

    def grown(self, size: int) -> None:
        """Told of each write: the reserve grows with what it is for, in few steps."""
        self._database_bytes += size
        if self._looked_at < _MOST and self._database_bytes - self._looked_at > max(self._looked_at // 4, _LEAST):
            self.keep(self._database_bytes)

    def require(self) -> None:
        if self.is_short:
            raise DiskFull(
                f"the disk of {self._directory} is full ({self.free_bytes() >> 10:,} KiB are free): until there is room, "
                "only what removes data is taken (DELETE, DROP TABLE, DROP TOPIC, CLEAR TOPIC, retention), and reads",
                path=str(self._directory),
            )


def is_full(error: Exception) -> bool:
    return any(text in str(error) for text in _FULL)
