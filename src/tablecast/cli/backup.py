"""`tablecast backup` and `tablecast restore`."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

from tablecast.cli.console import output
from tablecast.cli.opening import STOP_IT, connected, local
from tablecast.cli.progress import by_bytes
from tablecast.cli.target import Target
from tablecast.cli.verify import print_report, verified
from tablecast.errors import BackupError
from tablecast.storage.home import PARTIAL
from tablecast.storage.restore import restore

LOOK_SECONDS = 0.1


def back_up(source: Target, target: Path) -> None:
    source.check()
    if source.is_server:
        with connected(source) as client, by_bytes("receiving") as progress:
            client.backup(target, progress)
    else:
        _copy_local(source.place, target)
    output().print(f"backed up to {target} ({size_bytes(target):,} bytes)", markup=False)


def _copy_local(path: str, target: Path) -> None:
    """The store copies by itself and tells nothing meanwhile: how far it is shows in what it has written."""
    partial = target.with_name(target.name + PARTIAL)
    with local(path) as database, ThreadPoolExecutor(1) as worker, by_bytes("copying") as progress:
        total = size_bytes(Path(path))
        copying = worker.submit(database.backup, target)
        while wait([copying], timeout=LOOK_SECONDS).not_done:
            progress(size_bytes(partial), total)
        copying.result()


def size_bytes(directory: Path) -> int:
    """Of the files that are there; some may go while they are counted."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(folder, name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def begin_anew(path: Path) -> None:
    """The backup is older than what its database told since, and must not take the same numbers for the same: neither
    those of events, as a node, nor those of commits, which readers of live queries come back with."""
    with local(str(path), instead=STOP_IT) as database:
        database.engine.replication.begin_epoch()
        database.engine.begin_history()


def restore_from(backup: Path, target: Path, check: bool) -> None:
    with ExitStack() as bars:
        progress = bars.enter_context(by_bytes("copying"))

        def require_sound(copy: Path) -> None:
            bars.close()  # verifying shows bars of its own
            report = verified(copy)
            if not report.sound:
                message = f"{backup} is not sound, so nothing was restored: {report.problems[0]}"
                raise BackupError(message, path=str(backup))
            print_report(report)

        def settle(copy: Path) -> None:
            if check:
                require_sound(copy)
            bars.close()
            begin_anew(copy)

        restore(backup, target, progress, check=settle)
    output().print(f"restored to {target} ({size_bytes(target):,} bytes)", markup=False)
