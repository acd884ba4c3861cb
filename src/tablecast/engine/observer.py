"""Who watches the engine work: told once per commit, fsync, job and refusal, never per row.

The engine counts nothing for its observer that it does not know anyway, and measures with a handful of clock reads per
commit. A commit's report is not even made while nobody observes.

An observer is called by the thread that did the work: the syncing thread for commits and fsyncs, before the commit's
callers are acknowledged, so what a caller knows to be durable has been told. It must be quick; if it fails, that is
logged and nobody else is harmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, Protocol

from tablecast.engine.commit import Commit
from tablecast.model.topic import Topic

P = ParamSpec("P")
_log = logging.getLogger("tablecast.observer")


@dataclass(frozen=True, slots=True)
class CommitReport:
    """How one commit came about. All of its commands count, also those that were refused or changed nothing."""

    commit: Commit
    commands: int
    waited_seconds: float  # from the submission of its oldest command: no command of the commit waited longer
    decide_seconds: float
    write_seconds: float  # closing it (log batches, ids) and writing the batch; the fsync is told on its own

    @property
    def rows(self) -> int:
        loaded = self.commit.loaded
        return sum(len(run.keys) for run in self.commit.runs) + (loaded.rows if loaded else 0)

    @property
    def messages(self) -> dict[str, int]:
        """How many messages each topic got, by its full name."""
        found: dict[str, int] = {}
        for (topic_id, _), count in self.commit.appended.items():
            if (topic := self.commit.catalog.topics.get(topic_id)) is not None:  # the outbox is no topic of users
                found[topic.full_name] = found.get(topic.full_name, 0) + count
        return found


class Observer(Protocol):
    def committed(self, report: CommitReport) -> None:
        """A commit is durable, as far as the durability asks for it, and visible."""
        ...

    def synced(self, seconds: float) -> None:
        """An fsync succeeded: that of a commit, or one by interval."""
        ...

    def refused(self) -> None:
        """A caller was told to come back: the write queue was full, or stayed full while it waited."""
        ...

    def redelivered(self, topic: Topic, count: int) -> None:
        """A group was given messages again that it had been given before."""
        ...

    def job_ended(self, name: str, result: str, seconds: float) -> None:
        """`result` is done, cancelled or failed."""
        ...


class Nobody:
    """The observer of an engine that nobody observes."""

    def committed(self, report: CommitReport) -> None:
        pass

    def synced(self, seconds: float) -> None:
        pass

    def refused(self) -> None:
        pass

    def redelivered(self, topic: Topic, count: int) -> None:
        pass

    def job_ended(self, name: str, result: str, seconds: float) -> None:
        pass


NOBODY = Nobody()


def tell(about: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Calls an observer. Its mistake must not stop the writer."""
    try:
        about(*args, **kwargs)
    except Exception:
        _log.exception("the engine's observer failed")
