"""Progress on standard error: on a terminal only, gone when the work is done.

A number that is known in advance makes a bar; one that is not makes a bar that moves to and fro beside the count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from tablecast.cli.console import messages

SPINNER_AFTER_SECONDS = 1.0
COUNTED_LINES = 10_000  # fewer are written in a moment; also how often the count is shown


def _progress(*columns: ProgressColumn) -> Progress:
    shown = sys.stderr.isatty()
    return Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, console=messages(), transient=True, disable=not shown
    )


@contextmanager
def counting(totals: Mapping[str, int | None]) -> Iterator[Callable[[str, int], None]]:
    """One bar per name; the function yielded says how far one of them is."""
    with _progress(MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        bars: dict[str, TaskID] = {name: progress.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name, count: progress.update(bars[name], completed=count)


@contextmanager
def by_bytes(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar of bytes; the function yielded takes how many are done, and of how many."""
    with _progress(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def counted(lines: Iterable[str], title: str, total: int) -> Iterator[str]:
    """The lines, with a bar of how many went by, if that takes a while and they go elsewhere than to the terminal."""
    if total < COUNTED_LINES or sys.stdout.isatty():
        yield from lines
        return
    with _progress(MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task(title, total=total)
        for number, line in enumerate(lines):
            yield line
            if number % COUNTED_LINES == 0:
                progress.update(bar, completed=number)


@contextmanager
def spinner(title: str) -> Iterator[None]:
    """Something that moves, if what happens inside takes longer than a moment."""
    if not sys.stderr.isatty():
        yield
        return
    status = messages().status(title)
    timer = threading.Timer(SPINNER_AFTER_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
