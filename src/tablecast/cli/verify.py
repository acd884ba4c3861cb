"""`tablecast verify`: reads everything and says whether it agrees.

The store is read directly: an engine could refuse to open what is to be explained here, and would run its jobs.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from tablecast.cli.console import output, visible
from tablecast.cli.opening import ASK_IT, connected, explained_lock
from tablecast.cli.progress import counting
from tablecast.cli.target import Target
from tablecast.engine.engine import system_clock
from tablecast.engine.recovery import load_catalog, load_logs
from tablecast.engine.verify import MAX_PROBLEMS, verify
from tablecast.errors import TablecastError
from tablecast.model.verify import VerifyReport
from tablecast.sql.database import open as open_database
from tablecast.storage.base import Reader
from tablecast.storage.home import FORMAT, Home
from tablecast.storage.rocks import RocksStore


def run(target: Target) -> int:
    """Prints what was found; the exit code."""
    target.check()
    report = _verified_there(target) if target.is_server else verified(Path(target.place))
    print_report(report)
    return 0 if report.sound else 1


def _verified_there(target: Target) -> VerifyReport:
    with connected(target) as client, counting({"rows": None, "messages": None}) as progress:
        return client.verify(progress)


def verified(path: Path) -> VerifyReport:
    with explained_lock(str(path), ASK_IT):
        _upgrade(path)
        store = RocksStore.open(str(path), create=False)
    try:
        snapshot = store.snapshot()
        with counting({"rows": None, "messages": _messages(snapshot)}) as progress:
            return verify(snapshot, system_clock(), progress)
    finally:
        store.close()


def _upgrade(path: Path) -> None:
    """A database of an older format is judged as what it becomes when it is opened; if it cannot be, by what it is."""
    if Home(path).format < FORMAT:
        with suppress(TablecastError):
            open_database(path, create=False).close()


def _messages(reader: Reader) -> int | None:
    """How many there should be; None if that cannot be told, which verify will explain."""
    try:
        logs = load_logs(reader, load_catalog(reader))
    except TablecastError:
        return None
    return sum(log.next_offset - log.start.offset for log in logs.partitions.values())


def print_report(report: VerifyReport) -> None:
    for problem in report.problems:
        sys.stdout.write(visible(problem) + "\n")
    for warning in report.warnings:
        sys.stdout.write(f"warning: {visible(warning)}\n")
    if len(report.problems) >= MAX_PROBLEMS:
        sys.stdout.write(f"stopped after {MAX_PROBLEMS} problems\n")
    figures = (
        f"tables {report.tables:,}, rows {report.rows:,}, topics {report.topics:,}, messages {report.messages:,}, "
        f"group positions {report.groups:,}, topics equal to their tables {report.folded:,}"
    )
    verdict = "[green]sound[/]" if report.sound else "[bold red]not sound[/]"
    output().print(f"{figures}: {verdict}")
