"""What is written, and what is asked, while live queries come and go."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from tablecast.errors import DuplicateKey, TransactionConflict

CLIENTS = 200
LIVES = 3  # of each client, at least, while it is written
KEYS = 60
MOST_SECONDS = (
    120.0  # of writing: it takes a few, and a client that never comes to its lives would let it go on for ever
)
LEAST_COMMITS = 40  # of a run of full size: many writes are one commit
USERS = {"ann": "correct horse", "bob": "battery staple"}
COLUMNS = "id INT PRIMARY KEY, grp INT, v INT NOT NULL, body TEXT"
TABLES = f"""
CREATE NAMESPACE app;
CREATE TABLE app.shared ({COLUMNS}) WITH (ACCESS_LEVEL = 'PUBLIC');
CREATE USER TABLE app.own ({COLUMNS})
"""
QUESTIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("SELECT * FROM {}", ()),
    ("SELECT v, id FROM {}", ()),
    ("SELECT id, body FROM {}", ()),
    *(("SELECT id, v FROM {} WHERE grp = ?", (grp,)) for grp in range(3)),
    ("SELECT id FROM {} WHERE grp IS NULL", ()),
    ("SELECT grp, id FROM {} WHERE v > ?", (50,)),
    ("SELECT id, v * 2 AS twice FROM {} WHERE grp = ? AND v < ?", (1, 70)),
    *(("SELECT id, grp, v FROM {} WHERE id = ?", (key,)) for key in range(3)),
]  # each shows the key

Row = tuple[Any, ...]
Write = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Question:
    """`user` asks: what app.own has depends on it."""

    user: str
    sql: str
    params: tuple[Any, ...]

    @classmethod
    def any(cls, chance: random.Random) -> Question:
        sql, params = chance.choice(QUESTIONS)
        return cls(chance.choice(list(USERS)), sql.format(chance.choice(["app.shared", "app.own"])), params)


class Client(Protocol):
    question: Question
    lives: int  # subscriptions that it began

    @property
    def kept(self) -> Sequence[Row]:
        """The rows that it has."""


@dataclass
class Raced:
    """One run. `met` counts what happened to the clients while it was written."""

    seed: int
    kind: str
    commits: int = 0
    written: int = 0  # statements and transactions that were acknowledged
    refused: int = 0  # those that found their key taken, or their rows written by somebody else
    met: Counter[str] = field(default_factory=Counter)
    violation: str | None = None

    def violated(self, what: object) -> None:
        """The first is told."""
        self.violation = self.violation or f"{self.kind} run {self.seed}: {what}"

    def judge(self, clients: Sequence[Client], answers: dict[Question, Sequence[Row]]) -> None:
        for number, client in enumerate(clients):
            found, expected = sorted(client.kept, key=repr), sorted(answers[client.question], key=repr)
            if found != expected:
                self.violated(
                    f"client {number}, {client.question}: it has {[row for row in found if row not in expected]} "
                    f"and lacks {[row for row in expected if row not in found]}"
                )
                return

    def count(self, clients: Sequence[Client], commits: int, least_commits: int = LEAST_COMMITS) -> None:
        """A run in which little happened proves little."""
        self.commits = commits
        if commits < least_commits or self.written < 2 * self.refused:
            self.violated(f"{commits} commits, {self.written} written and {self.refused} refused: that is no race")
        if (fewest := min((client.lives for client in clients), default=LIVES)) < LIVES:
            self.violated(f"a client lived only {fewest} times while it was written")


@dataclass
class Writing:
    """One writer of a race: as fast as the answers come, until it wrote enough and every client lived often enough."""

    raced: Raced
    clients: Sequence[Client]
    chance: random.Random
    enough: int
    wide: int  # characters of a body

    async def write(self, execute: Write, execute_all: Write) -> None:
        number, until = 0, monotonic() + MOST_SECONDS
        while monotonic() < until and (number < self.enough or any(client.lives < LIVES for client in self.clients)):
            number += 1
            try:
                await self._one(execute, execute_all)
                self.raced.written += 1
            except (DuplicateKey, TransactionConflict):  # nothing else may happen to it
                self.raced.refused += 1

    async def _one(self, execute: Write, execute_all: Write) -> None:
        if self.chance.random() < 0.15:
            steps = "; ".join(self._statement() for _ in range(self.chance.randrange(2, 5)))
            await execute_all(f"BEGIN; {steps}; COMMIT")
        elif self.chance.random() < 0.5:
            await execute(*self._upsert())
        else:
            await execute(self._statement())

    def _upsert(self) -> tuple[str, Row]:
        """Sent often and planned once: the quick way."""
        chance = self.chance
        update = "ON CONFLICT (id) DO UPDATE SET grp = excluded.grp, v = excluded.v, body = excluded.body"
        return f"INSERT INTO {_table(chance)} (id, grp, v, body) VALUES (?, ?, ?, ?) {update}", (
            chance.randrange(KEYS), chance.choice([0, 1, 2, None]), chance.randrange(100),
            chr(chance.randrange(97, 123)) * self.wide,
        )  # fmt: skip

    def _statement(self) -> str:
        chance = self.chance
        table, key, other, v = _table(chance), chance.randrange(KEYS), chance.randrange(KEYS), chance.randrange(100)
        rows = ", ".join(f"({k}, {k % 3}, {v}, 'short')" for k in range(key, key + 12))
        return chance.choice([
            f"UPDATE {table} SET v = {v} WHERE id = {key}",
            f"UPDATE {table} SET grp = {v % 4} WHERE id = {key}",
            f"UPDATE {table} SET id = {other} WHERE id = {key}",
            f"UPDATE {table} SET v = {v} WHERE id < {key // 4}",
            f"DELETE FROM {table} WHERE id = {key}",
            f"DELETE FROM {table} WHERE v = {v}",
            f"INSERT INTO {table} (id, grp, v, body) VALUES {rows} ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        ])  # fmt: skip


def _table(chance: random.Random) -> str:
    return chance.choice(["app.shared", "app.own"])


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
