"""For the model of live queries: the questions that are asked, what they mean in plain Python, and who asks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import event

from tablecast.engine.live import LiveHub, LiveSubscription, Shown, Told
from tablecast.errors import TablecastError
from tablecast.model.change import Op

Record = dict[str, Any]  # a row by column names
Key = tuple[Any, ...]
State = Mapping[int, Record]  # the rows of one user (or all) in one table, by id


@dataclass(frozen=True)
class Question:
    """`matches` and `shown` say what the SQL says."""

    select: str
    where: str
    params: tuple[Any, ...]
    matches: Callable[[Record], bool]
    shown: Callable[[Record], tuple[Any, ...]]

    def sql(self, table: str) -> str:
        return f"SELECT {self.select} FROM {table}{self.where and ' WHERE ' + self.where}"

    def answer(self, state: State) -> dict[Key, tuple[Any, ...]]:
        return {(key,): self.shown(record) for key, record in state.items() if self.matches(record)}


def _all(record: Record) -> bool:
    return True


QUESTIONS = [
    Question("*", "", (), _all, lambda r: tuple(r.values())),
    Question("v, id", "", (), _all, lambda r: (r["v"], r["id"])),
    Question("id, v", "grp = ?", (1,), lambda r: r["grp"] == 1, lambda r: (r["id"], r["v"])),
    Question("id, v", "grp = ?", (2,), lambda r: r["grp"] == 2, lambda r: (r["id"], r["v"])),
    Question("v", "grp IS NULL", (), lambda r: r["grp"] is None, lambda r: (r["v"],)),
    Question("grp", "v > ?", (2,), lambda r: r["v"] > 2, lambda r: (r["grp"],)),
    Question(
        "v * 10 AS tens", "grp = ? AND v < ?", (1, 4), lambda r: r["grp"] == 1 and r["v"] < 4, lambda r: (r["v"] * 10,)
    ),
    Question("id", "id = ?", (3,), lambda r: r["id"] == 3, lambda r: (r["id"],)),
]


@dataclass(eq=False)
class Follower:
    """A subscriber that folds what it is told. `rows` are whole as of commit `seq` once it was live.

    The hub survives whatever a subscriber raises. So what goes wrong in a callback is kept, and the model asks for it.
    """

    user: str
    table: str
    question: Question
    check: Callable[[Follower], None]  # called after each step that moved it
    rows: dict[Key, tuple[Any, ...]] = field(default_factory=dict)
    seq: int = 0
    version: int = 0  # of the table, as of the last time it subscribed
    whole: bool = False
    resumes: bool = False  # it is out of the hub and goes on from `seq`
    error: TablecastError | None = None
    failure: Exception | None = None  # the first in a callback
    subscription: LiveSubscription | None = None

    @property
    def sub(self) -> LiveSubscription:
        assert self.subscription is not None
        return self.subscription

    @property
    def live(self) -> bool:
        return self.subscription is not None and self.subscription.live

    # --- what the hub calls ---

    @contextmanager
    def noticed(self) -> Iterator[None]:
        try:
            yield
        except Exception as failure:
            self.failure = self.failure or failure
            raise

    def told(self, subscription: LiveSubscription, told: Told) -> None:
        with self.noticed():
            assert subscription is self.subscription
            assert self.seq < told.seq, "told again, or out of order"
            assert told.channel == subscription.channel
            assert told.changes, "told nothing"
            self.fold(told.changes, told.seq)

    def ended(self, subscription: LiveSubscription, error: TablecastError) -> None:
        with self.noticed():
            assert subscription is self.subscription and subscription.closed
            self.error = error

    def must_resume(self, subscription: LiveSubscription) -> None:
        with self.noticed():
            assert subscription is self.subscription and subscription.closed
            assert subscription.seq >= self.seq, "sent back to a commit that it was told of"
            self.seq, self.resumes = subscription.seq, True

    # --- what it does itself ---

    async def subscribe(self, hub: LiveHub, query: Any) -> None:
        resume = self.seq if self.whole and self.version == query.table.version else None
        self.resumes, self.version = False, query.table.version
        self.subscription = await hub.open(query, self, resume, hub.engine.history)
        if self.sub.mode == "resumed":
            assert self.sub.seq == resume
        else:
            assert (resume is None) == (self.sub.mode == "snapshot")
            self.rows, self.whole, self.seq = {}, False, self.sub.seq

    async def read(self, count: int) -> bool:
        rows, last = await self.sub.rows(count)
        assert len(rows) <= count
        self.put(rows)
        if last and not self.whole:
            self.whole = True
            self.check(self)
        return last

    async def go_live(self) -> None:
        changes = await self.sub.go_live()
        if changes is None:
            self.resumes = True
        else:
            event(f"went live, {'with' if changes else 'without'} changes")
            keys = [self.key(shown) for shown in changes]
            assert len(set(keys)) == len(keys), "a row came twice"
            self.fold(changes, self.sub.seq)

    def put(self, rows: Sequence[tuple[Any, ...]]) -> None:
        for row in rows:
            self.rows[self.key(Shown(Op.INSERT, row))] = self.visible(row)

    def fold(self, changes: Sequence[Shown], seq: int) -> None:
        for shown in changes:
            key = self.key(shown)
            if shown.op is Op.DELETE:
                self.rows.pop(key, None)
            else:
                self.rows[key] = self.visible(shown.values)
        self.seq = seq
        self.check(self)

    def key(self, shown: Shown) -> Key:
        if shown.op is Op.DELETE:
            return shown.values
        return tuple(shown.values[i] for i in self.sub.query.key_indexes)

    def visible(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(value for value, column in zip(row, self.sub.query.columns, strict=True) if not column.hidden)
