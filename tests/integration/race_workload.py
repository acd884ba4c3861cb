"""What is written, and what is asked, while live queries come and go."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from tablecast.errors import TablecastError

CLIENTS = 200
WRITERS = 6  # of each user
KEYS = 60
USERS = {"ann": "correct horse", "bob": "battery staple"}
COLUMNS = "id INT PRIMARY KEY, grp INT, v INT NOT NULL"
TABLES = f"""
CREATE NAMESPACE app;
CREATE TABLE app.shared ({COLUMNS}) WITH (ACCESS_LEVEL = 'PUBLIC');
CREATE USER TABLE app.own ({COLUMNS})
"""
QUESTIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("SELECT * FROM {}", ()),
    ("SELECT v, id FROM {}", ()),
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

    @property
    def kept(self) -> Sequence[Row]:
        """The rows that it has."""


@dataclass
class Raced:
    """One run. `met` counts what happened to the clients."""

    seed: int
    kind: str
    commits: int = 0
    met: Counter[str] = field(default_factory=Counter)
    violation: str | None = None

    def judge(self, clients: Sequence[Client], answers: dict[Question, Sequence[Row]]) -> None:
        for number, client in enumerate(clients):
            found, expected = sorted(client.kept, key=repr), sorted(answers[client.question], key=repr)
            if found != expected:
                self.violation = (
                    f"{self.kind} run {self.seed}, client {number}, {client.question}: it has "
                    f"{[row for row in found if row not in expected]} and lacks "
                    f"{[row for row in expected if row not in found]}"
                )
                return


async def write(chance: random.Random, count: int, execute: Write, execute_all: Write) -> None:
    """As fast as the answers come."""
    for _ in range(count):
        with suppress(TablecastError):  # a key that is there already
            if chance.random() < 0.15:
                steps = "; ".join(_statement(chance) for _ in range(chance.randrange(2, 5)))
                await execute_all(f"BEGIN; {steps}; COMMIT")
            elif chance.random() < 0.5:
                await execute(*_upsert(chance))
            else:
                await execute(_statement(chance))


def _upsert(chance: random.Random) -> tuple[str, Row]:
    """Sent often and planned once: the quick way."""
    update = "ON CONFLICT (id) DO UPDATE SET grp = excluded.grp, v = excluded.v"
    return f"INSERT INTO {_table(chance)} (id, grp, v) VALUES (?, ?, ?) {update}", (
        chance.randrange(KEYS), chance.choice([0, 1, 2, None]), chance.randrange(100),
    )  # fmt: skip


def _statement(chance: random.Random) -> str:
    table, key, other, v = _table(chance), chance.randrange(KEYS), chance.randrange(KEYS), chance.randrange(100)
    rows = ", ".join(f"({k}, {k % 3}, {v})" for k in range(key, key + 12))
    return chance.choice([
        f"UPDATE {table} SET v = {v} WHERE id = {key}",
        f"UPDATE {table} SET grp = {v % 4} WHERE id = {key}",
        f"UPDATE {table} SET id = {other} WHERE id = {key}",
        f"UPDATE {table} SET v = {v} WHERE id < {key // 4}",
        f"DELETE FROM {table} WHERE id = {key}",
        f"DELETE FROM {table} WHERE v = {v}",
        f"INSERT INTO {table} (id, grp, v) VALUES {rows} ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    ])  # fmt: skip


def _table(chance: random.Random) -> str:
    return chance.choice(["app.shared", "app.own"])


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
