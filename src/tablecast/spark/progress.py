"""How far a job is: a bar on a terminal, lines elsewhere, nothing unless somebody asked.

Spark tells nothing of a stage before it is over, except how many of its tasks are done: that is looked up while a chunk
runs, so that a bar moves within a chunk too.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

LOOK_SECONDS = 0.5  # between two looks at Spark's tasks
LINE_SECONDS = 10.0  # between two lines where there is no terminal


class Watcher(Protocol):
    """Who is told. `rows` and `rejects` count from the beginning of the job; `unit` is what is counted, if not rows."""

    def began(self, title: str, total: int, unit: str = "rows") -> None: ...
    def reached(self, rows: int, rejects: int) -> None: ...
    def ended(self) -> None: ...


class Quiet:
    def began(self, title: str, total: int, unit: str = "rows") -> None:
        pass

    def reached(self, rows: int, rejects: int) -> None:
        pass

    def ended(self) -> None:
        pass


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        told = "" if task.speed is None else f"{task.speed:,.0f} {task.fields['unit']}/s"
        return Text(told, style="progress.data.speed")


class Bar:
    """On a terminal; gone when the job is over."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} {task.fields[unit]}"),
            _Rate(),
            TextColumn("{task.fields[rejects]}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
            transient=True,
        )
        self._task: Any = None

    def began(self, title: str, total: int, unit: str = "rows") -> None:
        self._progress.start()
        self._task = self._progress.add_task(title, total=total, rejects="", unit=unit)

    def reached(self, rows: int, rejects: int) -> None:
        self._progress.update(self._task, completed=rows, rejects=f"{rejects:,} rejects" if rejects else "")

    def ended(self) -> None:
        self._progress.stop()


class Lines:
    """Where output is kept: a line now and then."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._title, self._total, self._unit = "", 0, ""
        self._began = self._told = 0.0

    def began(self, title: str, total: int, unit: str = "rows") -> None:
        self._title, self._total, self._unit = title, total, unit
        self._began = self._told = time.monotonic()

    def reached(self, rows: int, rejects: int) -> None:
        now = time.monotonic()
        if now - self._told >= LINE_SECONDS or (rows >= self._total > 0):
            self._told = now
            rate = rows / max(now - self._began, 1e-3)
            told = f"{self._title}: {rows:,} of {self._total:,} {self._unit}, {rate:,.1f} {self._unit}/s"
            print(told + (f", {rejects:,} rejects" if rejects else ""), file=self._stream, flush=True)

    def ended(self) -> None:
        pass


def shown() -> Watcher:
    """What suits standard error."""
    return Bar() if sys.stderr.isatty() else Lines()


# --- within a chunk -------------------------------------------------------------------------------------------------


@contextmanager
def moving(spark: SparkSession, watcher: Watcher, before: int, rows: int, rejects: int) -> Iterator[None]:
    """Tells `watcher` about how many of a chunk's `rows` are done while it runs. Connect has no such news."""
    if isinstance(watcher, Quiet) or not hasattr(spark, "_jvm"):
        yield
        return
    over = threading.Event()
    looking = threading.Thread(target=_look, args=(spark, watcher, before, rows, rejects, over), daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _look(spark: SparkSession, watcher: Watcher, before: int, rows: int, rejects: int, over: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(LOOK_SECONDS):
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        tasks = sum(stage.numTasks for stage in stages if stage is not None)
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if tasks:
            watcher.reached(before + rows * done // tasks, rejects)
