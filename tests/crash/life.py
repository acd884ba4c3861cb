"""One database, killed again and again: its history goes on through all its deaths.

A kill comes from outside at a random moment, or from inside at a failpoint. Everything random follows from
the seed, except what the scheduler of the machine adds.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from child import READY
from examine import Examined, examine
from workload import SCHEMA, clock_of

import tablecast
from tablecast.core import failpoint
from tablecast.testing.failpoints import VARIABLE

CHILD = Path(__file__).with_name("child.py")
DEATH_LIMIT_SECONDS = 60.0  # a child that was to kill itself by then and did not, never will
RANDOM_KILL_SECONDS = 0.4  # of writing, at most, before a kill from outside

# How many hits of each failpoint to let pass, at most. A commit hits the first five; the others are rare.
HITS = dict.fromkeys(("before_write", "after_write", "before_sync", "after_sync", "before_ack"), 40) | {
    "during_retention": 4,
    "during_drop": 6,
    "during_checkpoint": 1,
    "during_open": 0,
}
# Those of loads are met in test_load_crash.py, each where it must be.
OF_LOADS = {"during_staging", "before_ingest", "during_ingest", "before_forgetting", "during_resolve"}
assert HITS.keys() | OF_LOADS == failpoint.NAMES

RANDOM = "random"
MOMENTS = (RANDOM, *sorted(HITS))


@dataclass(frozen=True, slots=True)
class Killed:
    """`wrote`: it had come to the point of writing before it died."""

    how: str
    wrote: bool


class Violation(AssertionError):
    """The database did not keep a promise, or the child met an error that nobody expected."""


class Life:
    def __init__(self, home: Path, seed: int, *, durability: str = "fsync", child: Path = CHILD) -> None:
        self.home = home
        self._seed = seed
        self._rng = random.Random(f"life {seed}")
        self._durability = durability
        self._child = child
        self._turn = 0
        self._history = home / "history"
        self._history.mkdir(parents=True)
        self.kills = 0
        self._be_born()

    @property
    def database(self) -> Path:
        return self.home / "db"

    def _be_born(self) -> None:
        """The first kill comes before there is a database: what was begun is finished by the next opening."""
        self._run("during_open", "during_open:kill")
        with tablecast.open(self.database, clock=clock_of(self._turn)) as db:
            db.execute(SCHEMA)

    def die(self, moment: str) -> tuple[Killed, Examined]:
        """Runs the child, kills it, looks at what is left. Raises Violation if a promise was broken."""
        spec = None if moment == RANDOM else f"{moment}:kill:after={self._rng.randint(0, HITS[moment])}"
        killed = self._run(moment, spec)
        self._turn += 1
        examined = examine(self.database, self._history, self._turn)
        if examined.problems:
            listed = "\n".join(examined.problems)
            raise Violation(f"after a kill at {killed.how} (seed {self._seed}, kill {self.kills}):\n{listed}")
        return killed, examined

    def _run(self, moment: str, spec: str | None) -> Killed:
        self._turn += 1
        self.kills += 1
        command = [sys.executable, str(self._child), str(self.database), str(self._history)]
        process = subprocess.Popen(
            [*command, str(self._turn), str(self._seed), self._durability],
            env=os.environ | {VARIABLE: spec or ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            return self._bury(process, moment, spec)

    def _bury(self, process: subprocess.Popen[str], moment: str, spec: str | None) -> Killed:
        assert process.stdout is not None and process.stderr is not None
        wrote = process.stdout.readline().strip() == READY
        limit = self._rng.uniform(0, RANDOM_KILL_SECONDS) if spec is None else DEATH_LIMIT_SECONDS
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            if spec is not None:
                raise Violation(f"failpoint {spec} was not reached within {limit:.0f} s") from None
        if process.returncode != -signal.SIGKILL:
            raise Violation(f"the child ended with {process.returncode}:\n{process.stderr.read()}")
        return Killed(spec or f"{moment}, {limit:.3f} s after it began to write", wrote)
