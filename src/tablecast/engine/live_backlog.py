"""Commits on their way from the writer's syncing thread to a hub on its event loop.

Bounded by rows. What comes over the bound is dropped, all of it: the hub then goes on from the kept changes of its tables,
where everything since is one net difference, however much it is.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from tablecast.engine.commit import Commit

MAX_BACKLOG_ROWS = 100_000  # changed rows that wait for a hub: some tens of megabytes, and about a second of its work


class Heard(NamedTuple):
    """`upto` is the last commit heard of, with or without something to tell; `lost` says that commits were dropped."""

    commits: list[Commit]
    upto: int
    lost: bool


class Backlog:
    def __init__(self, max_rows: int = MAX_BACKLOG_ROWS) -> None:
        self._lock = threading.Lock()
        self._max_rows = max_rows
        self._commits: list[Commit] = []
        self._rows = 0
        self._upto = 0
        self._lost = False

    def start(self, seq: int) -> None:
        """Commits up to `seq` need not be heard of."""
        with self._lock:
            self._upto = max(self._upto, seq)

    def add(self, commit: Commit) -> None:
        rows = 1 + max(
            sum([len(run.keys) for run in commit.runs]), sum([len(befores) for befores in commit.befores.values()])
        )
        with self._lock:
            self._upto = commit.seq
            if self._rows + rows > self._max_rows:
                self._commits, self._rows, self._lost = [], 0, True
            else:
                self._commits.append(commit)
                self._rows += rows

    def passed(self, commit: Commit) -> None:
        """A commit that concerns nobody."""
        with self._lock:
            self._upto = commit.seq

    def take(self) -> Heard:
        with self._lock:
            heard = Heard(self._commits, self._upto, self._lost)
            self._commits, self._rows, self._lost = [], 0, False
            return heard

    def idle_at(self) -> int | None:
        """The last commit heard of, if nothing waits."""
        with self._lock:
            return None if self._commits or self._lost else self._upto
