"""Live queries of system tables: sampled, because there is nothing to be told by.

A lag in seconds grows, a counter moves, a runner reports: no commit says so. So while somebody follows a system table it is
read every `seconds`, and what is different from the answer before, by the table's key, is told as any change is.

    Sampling               of a hub
      a task per table     pause, read the table once, judge the queries over it, tell
        SampledGroup       equal queries: one answer, evaluated and told once for all who ask
          SampledSubscription

Reading and judging are done in one thread, beside the event loop and one table after the other. A table that takes long to
read is read less often: reading never takes more than READING_SHARE of the time. Rights are looked at with every sample.

Samples have numbers of their own, in the place of commit numbers and above all of them: what is told later has a greater
one, whatever is committed meanwhile. Nothing is kept to resume from: who was away fetches again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tablecast.codec.catalog import User
from tablecast.codec.rows import Row
from tablecast.core.live_query import LiveQuery
from tablecast.engine.live_access import check_access, system_table_of
from tablecast.engine.live_groups import Group, GroupStats
from tablecast.engine.live_subscription import LiveSubscription, Mode, Subscriber
from tablecast.engine.live_telling import Telling, as_ours
from tablecast.engine.live_told import Counts, Shown, Told
from tablecast.errors import Overloaded, TablecastError, TooLarge
from tablecast.model.change import Op

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine
    from tablecast.engine.live import LiveHub
    from tablecast.engine.system import SystemTable

SAMPLE_SECONDS: Final = 1.0
READING_SHARE: Final = 0.1  # of the time, at most, that reading one table takes
MAX_SAMPLED_QUERIES: Final = 100  # different ones at a time: each is judged with every sample of its table
MAX_SAMPLED_ROWS: Final = 10_000  # in one answer, which is kept, and compared with the next one
PIECE_ROWS: Final = 1_000  # read, and judged for one query after the other
SAMPLES_FROM: Final = 2**52  # above every commit number, and small enough for whoever reads JSON

Values = tuple[Any, ...]
Answer = Mapping[Values, Values]
Pause = Callable[[float], Awaitable[None]]

_log = logging.getLogger("tablecast.live")


class Sample(NamedTuple):
    """What a query answered, by key and in its order. It is never changed."""

    number: int
    answer: Answer


class SampledRows:
    """The rows of a sample, given as `InitialRows` gives those of a snapshot."""

    def __init__(self, answer: Answer, limit: int | None) -> None:
        rows = list(answer.values())
        self._left = rows if limit is None else rows[: -limit - 1 : -1]

    def take(self, count: int, looked_at: int | None = None) -> tuple[list[Values], bool]:
        taken, self._left = self._left[:count], self._left[count:]
        return taken, not self._left

    def close(self) -> None:
        self._left = []


class SampledGroup(Group):
    """From its first member's `open` on, until the last has left."""

    __slots__ = ("first", "sample", "seconds")

    def __init__(self, channel: int, query: LiveQuery, seconds: float) -> None:
        super().__init__(channel, query)
        self.seconds = seconds
        self.sample: Sample | None = None  # None: the first one is being taken
        self.first: asyncio.Task[Sample]

    async def newest(self) -> Sample:
        return await asyncio.shield(self.first) if self.sample is None else self.sample

    def stats(self) -> GroupStats:
        return super().stats()._replace(sampled_seconds=self.seconds)


class SampledSubscription(LiveSubscription):
    __slots__ = ("_began",)

    def __init__(
        self, hub: LiveHub, query: LiveQuery, subscriber: Subscriber, mode: Mode, account: User | None, seconds: float
    ) -> None:
        super().__init__(hub, query, subscriber, mode, 0, account, reached=0, sampled_seconds=seconds)
        self._began: Answer = {}

    def start(self, sample: Sample) -> None:
        """With the rows of this sample."""
        self.seq, self._began = sample
        self._initial = SampledRows(sample.answer, self.query.limit)

    async def _catch_up(self) -> list[Shown] | None:
        group = self.group
        assert isinstance(group, SampledGroup) and group.sample is not None
        self.check()
        found = difference(self._began, group.sample.answer)
        self.seq, self._began, self.live = group.sample.number, {}, True
        return found


class Sampling:
    """Belongs to the hub's event loop. `pause` is how it waits until the next sample."""

    def __init__(self, engine: Engine, telling: Telling, counts: Counts, seconds: float = SAMPLE_SECONDS) -> None:
        self.seconds = seconds
        self.pause: Pause = asyncio.sleep
        self._engine = engine
        self._telling = telling
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(SAMPLES_FROM + engine.now_ms())  # so that they go on after a restart
        self._groups: dict[Hashable, SampledGroup] = {}
        self._following: dict[SystemTable, asyncio.Task[None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tablecast-sampling")

    # --- who follows ---

    async def open(
        self, hub: LiveHub, query: LiveQuery, subscriber: Subscriber, mode: Mode, account: User | None
    ) -> SampledSubscription:
        group = self._groups.get(query.identity) or self._begin(query)
        subscription = SampledSubscription(hub, query, subscriber, mode, account, self.seconds)
        subscription.group, subscription.channel = group, group.channel
        group.members[subscription] = None
        try:
            subscription.start(await group.newest())
        except BaseException:
            hub.close(subscription)
            raise
        return subscription

    def _begin(self, query: LiveQuery) -> SampledGroup:
        if len(self._groups) >= MAX_SAMPLED_QUERIES:
            raise Overloaded(
                f"{MAX_SAMPLED_QUERIES} different live queries of system tables are followed, and more are not; "
                "retry when some have ended, or ask what others ask",
                limit=MAX_SAMPLED_QUERIES,
            )
        group = self._groups[query.identity] = SampledGroup(next(self._engine.live_channels), query, self.seconds)
        group.first = self._loop.create_task(self._first(group))
        group.first.add_done_callback(_heard)
        table = system_table_of(query)
        if table not in self._following:
            self._following[table] = self._loop.create_task(self._follow(table))
        return group

    def remove(self, subscription: SampledSubscription) -> None:
        """The last one to leave ends the reading. Again and again, if need be."""
        group, subscription.group = subscription.group, None
        if group is None:
            return
        assert isinstance(group, SampledGroup)
        del group.members[subscription]
        if group.members:
            return
        del self._groups[group.query.identity]
        group.first.cancel()
        table = system_table_of(group.query)
        if not self._of(table):
            self._following.pop(table).cancel()

    def _of(self, table: SystemTable) -> list[SampledGroup]:
        return [group for group in self._groups.values() if system_table_of(group.query) is table]

    # --- reading ---

    async def _first(self, group: SampledGroup) -> Sample:
        try:
            answer = await self._loop.run_in_executor(self._thread, answer_of, group.query, self._engine)
        except Exception as error:
            raise as_ours(error, group.query) from error
        group.sample = Sample(next(self._numbers), answer)
        return group.sample

    async def _follow(self, table: SystemTable) -> None:
        seconds = 0.0
        while True:
            await self.pause(max(self.seconds, seconds / READING_SHARE))
            began = perf_counter()
            groups = [group for group in self._of(table) if group.sample is not None]
            try:
                for judged in await self._loop.run_in_executor(self._thread, _judge, table, self._engine, groups):
                    await self._take(judged)
            except Exception:
                _log.exception("sampling %s failed; its subscribers resume", table.schema.full_name)
                await self._telling.lose([member for group in groups for member in group.members])
            seconds = perf_counter() - began

    async def _take(self, judged: _Judged) -> None:
        group = judged.group
        group.evaluation_seconds += judged.seconds
        self._counts.evaluation_seconds += judged.seconds
        await self._recheck(group)
        if judged.error is not None:
            await self._telling.end(list(group.members), as_ours(judged.error, group.query))
        elif judged.shown and group.members:
            sample = group.sample = Sample(next(self._numbers), judged.answer)
            told = Told(group.channel, sample.number, judged.shown, group.query, self._counts)
            await self._telling.tell(group, told)

    async def _recheck(self, group: SampledGroup) -> None:
        catalog = self._engine.published.catalog
        for subscription in list(group.members):
            try:
                check_access(subscription.query, subscription.account, catalog)
            except TablecastError as error:
                await self._telling.end([subscription], error)

    # --- the rest ---

    def stats(self) -> list[GroupStats]:
        return [group.stats() for group in list(self._groups.values())]

    def members(self) -> Iterator[LiveSubscription]:
        for group in list(self._groups.values()):
            yield from list(group.members)

    def stop(self) -> None:
        """To be called when everybody has left. What the thread still reads is for nobody."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def is_empty(self) -> bool:
        return not self._groups and not self._following


# --- in the thread ------------------------------------------------------------------------------------------------


class _Judged:
    """A query on its way through the rows of its table, and what became of it."""

    def __init__(self, group: SampledGroup) -> None:
        assert group.sample is not None
        self.group = group
        self.answer: Answer = {}
        self.shown: list[Shown] = []
        self.error: Exception | None = None
        self.seconds = 0.0
        self._found: dict[Values, Values] = {}
        self._before = group.sample.answer

    def take(self, rows: Iterable[Row]) -> None:
        self._timed(lambda: _collect(self.group.query, rows, self._found))

    def finish(self) -> None:
        self._timed(self._compare)

    def _compare(self) -> None:
        self.answer = _in_order(self._found)
        self.shown = difference(self._before, self.answer)

    def _timed(self, step: Callable[[], None]) -> None:
        if self.error is None:
            began = perf_counter()
            try:
                step()
            except Exception as error:
                self.error = error
            self.seconds += perf_counter() - began


def _judge(table: SystemTable, engine: Engine, groups: list[SampledGroup]) -> list[_Judged]:
    """The table is read once for all of them, and never held as a whole."""
    judged = [_Judged(group) for group in groups]
    try:
        for rows in _pieces(table.rows(engine)):
            for each in judged:
                each.take(rows)
    except Exception as error:
        for each in judged:
            each.error = error
    for each in judged:
        each.finish()
    return judged


def answer_of(query: LiveQuery, engine: Engine) -> Answer:
    found: dict[Values, Values] = {}
    for rows in _pieces(system_table_of(query).rows(engine)):
        _collect(query, rows, found)
    return _in_order(found)


def difference(before: Answer, after: Answer) -> list[Shown]:
    """What makes one answer of the other."""
    gone = [Shown(Op.DELETE, key) for key in before if key not in after]
    return gone + [
        Shown(Op.UPDATE if key in before else Op.INSERT, values)
        for key, values in after.items()
        if before.get(key) != values
    ]


def _collect(query: LiveQuery, rows: Iterable[Row], found: dict[Values, Values]) -> None:
    matches, key_of, shown = query.matches, query.key_of, query.shown
    found.update({key_of(row): shown(row) for row in rows if matches(row)})
    if len(found) > MAX_SAMPLED_ROWS:
        raise TooLarge(
            f"{query.text} has more than {MAX_SAMPLED_ROWS} rows, which a live query of a system table may have: ask for "
            "fewer with WHERE",
            limit=MAX_SAMPLED_ROWS,
        )


def _pieces(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while piece := list(itertools.islice(rows, PIECE_ROWS)):
        yield piece


def _in_order(found: dict[Values, Values]) -> Answer:
    return {key: found[key] for key in sorted(found)}


def _heard(first: asyncio.Task[Sample]) -> None:
    """Whoever waited for it is told what went wrong; if nobody does any more, nobody needs to be."""
    if not first.cancelled():
        first.exception()
