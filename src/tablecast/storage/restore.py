"""A database made of a backup: whole and durable at its place, or nothing.

    copy      every file into `<target>.partial`, the marker last: what was interrupted is not a database
    sync      every file and directory
    check     whatever the caller wants to know of the copy, which it may open
    sync      again, since a store that was opened and closed has written
    rename    to `<target>`, and sync the directory above

The backup is only read. It must not change meanwhile: if a file of it does, a process has it open and the copy would
mix two moments, so it is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tablecast.errors import BackupError
from tablecast.storage.home import MARKER, PARTIAL, STORE, WATERMARK, Marker, sync_directory, sync_tree
from tablecast.storage.private import make_private, narrow
from tablecast.storage.reserve import RESERVE

CHUNK_BYTES = 4 << 20

Progress = Callable[[int, int], None]
Check = Callable[[Path], None]
Files = dict[Path, tuple[int, int]]  # relative path -> size and time of the last change


def restore(backup: Path, target: Path, progress: Progress | None = None, *, check: Check | None = None) -> None:
    """Copies `backup` to `target`. `progress(done, total)` counts bytes; a `check` that raises stops it.

    Raises BackupError if the backup is incomplete or changes, the target is not free, or the disk says no.
    """
    files = _require_whole(backup)
    partial = target.with_name(target.name + PARTIAL)
    for taken in (target, partial):
        if taken.exists() or taken.is_symlink():
            raise BackupError(f"{taken} exists already; a restored database needs a free place", path=str(taken))
    try:
        _copy(backup, partial, files, progress or _ignore)
        if _files(backup) != files:
            message = (
                f"{backup} changed while it was copied: close it in the process that has it open, or take a backup"
            )
            raise BackupError(message, path=str(backup))
        if check is not None:
            sync_tree(partial)
            check(partial)
        narrow(partial)
        sync_tree(partial)
        partial.rename(target)
        sync_directory(target.parent)
    except OSError as error:
        raise BackupError(f"restoring {backup} to {target} failed: {error}", path=str(target)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require_whole(backup: Path) -> Files:
    if not backup.is_dir():
        raise BackupError(f"there is no backup at {backup}: a backup is a directory", path=str(backup))
    missing = [name for name in (MARKER, WATERMARK, STORE) if not (backup / name).exists()]
    if missing or _is_being_made(backup / MARKER):
        lacks = f"{missing[0]} is missing" if missing else f"{MARKER} says that it was never finished"
        message = f"{backup} is not a complete backup: {lacks}; it was interrupted, or it is something else"
        raise BackupError(message, path=str(backup))
    return _files(backup)


def _is_being_made(marker: Path) -> bool:
    try:
        return msgspec.json.decode(marker.read_bytes(), type=Marker).creating
    except msgspec.MsgspecError as error:
        raise BackupError(f"the marker {marker} cannot be read: {error}", path=str(marker)) from error


def _files(directory: Path) -> Files:
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != RESERVE:
            stat = path.stat()
            found[path.relative_to(directory)] = stat.st_size, stat.st_mtime_ns
    return found


def _copy(backup: Path, partial: Path, files: Files, progress: Progress) -> None:
    total, done = sum(size for size, _ in files.values()), 0
    make_private(partial)
    for name in sorted(files, key=lambda name: (name == Path(MARKER), name)):
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        with (partial / name).open("wb") as copy:
            for chunk in _chunks(backup / name):
                copy.write(chunk)
                done += len(chunk)
                progress(done, total)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _ignore(done: int, total: int) -> None:
    pass
