"""Directories that only their owner can use: 0700, and every file below 0600, whatever the umask is.

RocksDB creates files in C++, in threads of its own, at any time, with 0644 less the umask. The umask belongs to the
program that embeds the database and is not ours to change. So the directory decides: Linux gives a new file or directory
the default ACL of the directory it is created in, and then ignores the umask. The ACL here has the owner alone.

A filesystem without ACLs (NFS 4, FAT, other systems than Linux) leaves the modes to the umask. There the files are narrowed
when the database is opened and when it is closed; in between, the 0700 of the directory keeps others out.
"""

from __future__ import annotations

import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

from tablecast.storage.base import StorageFailure

_DIRECTORY, _FILE = 0o700, 0o600

_ACL = "system.posix_acl_default"
_OWNER, _GROUP, _OTHERS, _NOBODY = 0x01, 0x04, 0x20, 0xFFFFFFFF
_ALONE = struct.pack("<I", 2) + b"".join(  # version 2; then (tag, rights, id) of each entry
    struct.pack("<HHI", tag, rights, _NOBODY) for tag, rights in ((_OWNER, 7), (_GROUP, 0), (_OTHERS, 0))
)


def make_private(directory: Path) -> None:
    """Creates it if it is not there. Raises StorageFailure if it is there and belongs to somebody else."""
    directory.mkdir(mode=_DIRECTORY, parents=True, exist_ok=True)
    _own(directory)


def narrow(directory: Path) -> None:
    """Makes the directory private, and all that is in it. A file that goes meanwhile is none of ours any more."""
    for folder, _, names in os.walk(directory):
        _own(Path(folder))
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118 - a third of the cost, and there may be thousands
            with suppress(FileNotFoundError):
                mode = os.lstat(path).st_mode
                if stat.S_ISREG(mode) and stat.S_IMODE(mode) != _FILE:
                    _change(path, _FILE)


def private_opener(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE)


def _own(directory: Path) -> None:
    if stat.S_IMODE(directory.stat().st_mode) != _DIRECTORY:
        _change(directory, _DIRECTORY)
    with suppress(OSError, AttributeError):  # no ACLs here, or no such call
        if not _has_acl(directory):
            os.setxattr(directory, _ACL, _ALONE)


def _has_acl(directory: Path) -> bool:
    with suppress(OSError):
        return os.getxattr(directory, _ACL) == _ALONE
    return False


def _change(path: Path | str, mode: int) -> None:
    try:
        os.chmod(path, mode)  # noqa: PTH101
    except PermissionError as error:
        found = os.stat(path)  # noqa: PTH116
        message = (
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o} and belongs to user {found.st_uid}, not to user "
            f"{os.geteuid()}, who runs this: others could read it. Open it as its owner, or use a directory of your own"
        )
        raise StorageFailure(message, path=str(path)) from error
