"""Live queries: the hub between the feed and everybody who subscribed.

    commit ─▶ feed ─▶ backlog ─▶ hub ─▶ fan-out index ─▶ groups ─▶ subscribers
    (syncing thread)  (bounded)  (one event loop)

The hub takes commits in order. What a commit did to a table is judged once for each group that it may concern, and what it
means to that group is one `Told` for all its members. Members are told in chunks with a turn of the event loop between
them; they may come and go meanwhile, since each knows the last commit it was told (`seq`) and is never told one twice.

When the backlog overflows, commits are dropped and the hub goes on from the kept changes (engine.changes): one net
difference for all that was missed. What is not kept there cannot be told; those subscribers are told to resume, and learn
then that they must fetch again. Nobody is ever silently short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec, TypeVar

from tablecast.codec.rows import Row
from tablecast.core.live_query import LiveQuery
from tablecast.engine.catalog import Catalog, Table
from tablecast.engine.changes import NetChange, changes_since, commit_changes
from tablecast.engine.commit import Commit
from tablecast.engine.engine import Engine, Published
from tablecast.engine.live_access import check_access, is_sampled, schema_of, table_of
from tablecast.engine.live_backlog import MAX_BACKLOG_ROWS, Backlog
from tablecast.engine.live_groups import Groups, GroupStats
from tablecast.engine.live_rows import InitialRows
from tablecast.engine.live_sampling import SAMPLE_SECONDS, SampledSubscription, Sampling
from tablecast.engine.live_subscription import NEAR_COMMITS, LiveSubscription, Mode, Subscriber
from tablecast.engine.live_telling import Telling
from tablecast.engine.live_told import Counts, Shown, Told, judge
from tablecast.errors import DatabaseClosed, InvalidRequest, TablecastError

__all__ = ["GroupStats", "HubStats", "LiveHub", "LiveSubscription", "Shown", "Subscriber", "Told"]

CHUNK = 256  # subscribers told between two turns of the event loop
THREADS = 2  # that read large snapshots and long differences; more wait
USE_NOTED_SECONDS = 30.0  # how often the hub says which tables it follows: far less than an unused one is kept

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("tablecast.live")


@dataclass(frozen=True, slots=True)
class HubStats:
    groups: list[GroupStats]
    subscriptions: int
    behind: int  # commits between the last one and the last one told
    counts: Counts


class LiveHub:
    """Belongs to the event loop it is made on; only `stats` and `concerns` may be called from elsewhere."""

    def __init__(
        self,
        engine: Engine,
        *,
        chunk: int = CHUNK,
        backlog_rows: int = MAX_BACKLOG_ROWS,
        sample_seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self.engine = engine
        self.seq = engine.seq  # every commit up to this one was told
        self.counts = Counts()
        self._loop = asyncio.get_running_loop()
        self._groups = Groups(engine.live_channels)
        self._telling = Telling(self._groups, self.counts, chunk, self.close)
        self.sampling = Sampling(engine, self._telling, self.counts, sample_seconds)  # of system tables
        self._watched: frozenset[int] = frozenset()  # replaced as a whole: the syncing thread reads it
        self._catalog: Catalog = engine.catalog  # the one that rights were last looked at in
        self._backlog = Backlog(backlog_rows)
        self._woken = False
        self._stop_listening: Callable[[], None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._noting: asyncio.TimerHandle | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tablecast-live")
        self._stopped = False
        engine.live_stats.append(self.stats)

    # --- subscribing ---

    async def open(
        self, query: LiveQuery, subscriber: Subscriber, resume: int | None = None, history: str | None = None
    ) -> LiveSubscription:
        """Takes the snapshot, or what was missed since commit `resume` of the engine's `history`.

        If that is not known, or the history is another one, the mode is `refetch`.
        """
        self._check_running()
        if resume is not None and history is None:
            raise InvalidRequest("resume takes history beside it, as `subscribed` told both", parameter="history")
        account = self.engine.published.catalog.users.get(query.actor.user_id)
        mode: Mode = "snapshot" if resume is None else "refetch"
        if is_sampled(query):
            check_access(query, account, self.engine.published.catalog)
            return await self.sampling.open(self, query, subscriber, mode, account)
        await self._keep(query.table.table_id)
        published = self.engine.published
        check_access(query, account, published.catalog)
        if resume is not None and history == self.engine.history:
            missed = await self._missed(query, resume, published)
            if missed is not None:
                return LiveSubscription(
                    self, query, subscriber, "resumed", resume, account, reached=published.seq, missed=missed
                )
        initial = InitialRows(published, query, self.engine.now_ms())
        seq = published.seq
        return LiveSubscription(self, query, subscriber, mode, seq, account, reached=seq, initial=initial)

    async def _keep(self, table_id: int) -> None:
        start = self.engine.changes_from(table_id)
        if start is None or start > self.engine.seq:
            await self.in_thread(self.engine.keep_changes, table_id)
        else:
            self.engine.use_changes(table_id)

    async def _missed(self, query: LiveQuery, since: int, published: Published) -> list[Shown] | None:
        if since > published.seq:
            return None  # it did not happen yet: whoever asks made it up
        if published.seq - since <= NEAR_COMMITS:
            return self.difference(query, since, published)
        return await self.in_thread(self.difference, query, since, published)

    def difference(self, query: LiveQuery, since: int, published: Published) -> list[Shown] | None:
        """What changed between two commits, to one query; None if that is no longer known. From any thread."""
        table = table_of(query, published.catalog)
        if since == published.seq:
            return []
        changes = changes_since(self.engine, published, table, query.owner, since)
        return None if changes is None else judge(query, changes)

    def enter(self, subscription: LiveSubscription) -> None:
        """Into the indexes, before it is told anything: see `begin`."""
        self._check_running()
        self._groups.add(subscription)
        self._watch()

    def begin(self, subscription: LiveSubscription, seq: int) -> None:
        """From here on it is told every commit after `seq`."""
        group = subscription.group
        assert group is not None
        if group.born is None:
            group.born = seq
        self.progress()
        subscription.seq = seq
        subscription.live = True

    def progress(self) -> int:
        """The commit up to which everybody was told everything; `seq`, and what came since that concerned nobody."""
        idle_at = None if self._draining is not None else self._backlog.idle_at()
        if idle_at is not None:
            self.seq = max(self.seq, idle_at)
        return self.seq

    def close(self, subscription: LiveSubscription) -> None:
        """Out of every index; nothing is told from here on. Again and again, if need be."""
        if subscription.live:
            subscription.seq = max(subscription.seq, self.seq)
        subscription.release()
        if isinstance(subscription, SampledSubscription):
            self.sampling.remove(subscription)
        else:
            self._groups.remove(subscription)
            self._watch()

    def detach(self, subscription: LiveSubscription) -> int:
        """As `close`; the commit from which it is to be resumed."""
        self.close(subscription)
        return subscription.seq

    def _watch(self) -> None:
        watched = self._groups.tables
        if watched == self._watched:
            return
        begins, self._watched = not self._watched, watched
        if begins:
            self._stop_listening = self.engine.feed.listen(self._hear)
            _, self._catalog, self.seq = self.engine.published
            self._backlog.start(self.seq)
            self._note_use()
        if not watched:
            self._unlisten()

    def _unlisten(self) -> None:
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        if self._noting is not None:
            self._noting.cancel()
            self._noting = None
        self._backlog.take()

    def _note_use(self) -> None:
        for table_id in self._watched:
            self.engine.use_changes(table_id)
        self._noting = self._loop.call_later(USE_NOTED_SECONDS, self._note_use)

    # --- hearing, on the syncing thread ---

    def _hear(self, commit: Commit) -> None:
        if commit.catalog is self._catalog and self._watched.isdisjoint(commit.touched):
            self._backlog.passed(commit)
            return
        self._backlog.add(commit)
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._wake)

    def concerns(self, commit: Commit) -> bool:
        """Whether it may be told to anybody. From any thread."""
        return not self._watched.isdisjoint(commit.touched)

    def _wake(self) -> None:
        self._woken = False  # first: what comes from here on wakes again
        if self._draining is None and not self._stopped:
            self._draining = self._loop.create_task(self._drain())

    # --- telling ---

    async def _drain(self) -> None:
        try:
            while (heard := self._backlog.take()).commits or heard.lost:
                if heard.lost:
                    await self._catch_up()
                for commit in heard.commits:
                    if commit.seq > self.seq:
                        await self._take(commit)
                self.seq = max(self.seq, heard.upto)
        except Exception:
            _log.exception("the hub of live queries failed; its subscribers resume")
            for table_id in self._groups.tables:
                await self._telling.lose(self._groups.members(table_id))
        finally:
            self._draining = None
            if self._backlog.idle_at() is None:
                self._wake()

    async def _take(self, commit: Commit) -> None:
        if commit.catalog is not self._catalog:
            await self._recheck()
        for table_id in commit.touched & self._watched:
            if table_id in commit.unlisted:
                await self._telling.lose(s for s in self._groups.members(table_id) if s.seq < commit.seq)
            else:
                table = commit.catalog.tables[table_id]
                await self._telling.fan_out(*self._newest(table, commit_changes(commit, table_id)), commit.seq)
        self.seq = max(self.seq, commit.seq)

    def _newest(self, table: Table, changes: list[NetChange]) -> tuple[Table, list[NetChange]]:
        """With rows of the newest version: a group may ask for a column that the table did not have then."""
        newest = self.engine.published.catalog.tables.get(table.table_id, table)
        if newest.schema.version == table.schema.version:
            return table, changes
        return newest, [NetChange(c.key, _as_of(newest, c.before), _as_of(newest, c.after)) for c in changes]

    async def _catch_up(self) -> None:
        """All that was missed, as one difference."""
        self.counts.caught_up += 1
        published, since = self.engine.published, self.seq
        await self._recheck()
        for table_id in self._watched:
            # Who joined after `since` holds rows that this difference does not begin with.
            await self._telling.lose(s for s in self._groups.members(table_id) if since < s.seq < published.seq)
            table = published.catalog.tables.get(table_id)
            if table is None:
                continue  # dropped, and its subscriptions ended
            changes = await self.in_thread(changes_since, self.engine, published, table, None, since)
            if changes is None:
                await self._telling.lose(s for s in self._groups.members(table_id) if s.seq < published.seq)
            else:
                await self._telling.fan_out(*self._newest(table, changes), published.seq)
        self.seq = max(self.seq, published.seq)

    async def _recheck(self) -> None:
        """After a change of the catalog: who lost its table, its columns or its right?"""
        before, catalog = self._catalog, self.engine.published.catalog
        self._catalog = catalog
        for table_id in self._watched:
            if before.users is not catalog.users or schema_of(before, table_id) is not schema_of(catalog, table_id):
                for subscription in self._groups.members(table_id):
                    try:
                        check_access(subscription.query, subscription.account, catalog)
                    except TablecastError as error:
                        await self._telling.end([subscription], error)
                    await self._telling.worked(1)

    # --- the rest ---

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_running()
        return await self._loop.run_in_executor(self._pool, partial(function, *args, **kwargs))

    def stats(self) -> HubStats:
        groups = self._groups.stats() + self.sampling.stats()
        behind = max(0, self.engine.seq - self.seq) if self._draining is not None else 0
        return HubStats(groups, sum(group.subscribers for group in groups), behind, replace(self.counts))

    async def settled(self) -> None:
        """Returns when everything committed so far was told."""
        upto = self.engine.seq
        while self._watched:
            idle_at = self._backlog.idle_at()
            if self._draining is not None:
                await asyncio.wait([self._draining])
            elif idle_at is not None and idle_at >= upto:
                return
            else:
                await asyncio.sleep(0)

    @property
    def is_telling(self) -> bool:
        """Whether somebody is still to be told of a commit."""
        return self._woken or self._draining is not None

    @property
    def is_empty(self) -> bool:
        """Whether no index holds anything: what must be true when everybody has gone."""
        return not self._groups and not self._watched and self._stop_listening is None and self.sampling.is_empty

    async def stop(self) -> None:
        """Ends all of it; nobody is told. Idempotent."""
        if not self._stopped:
            self.engine.live_stats.remove(self.stats)
        self._stopped = True
        for table_id in self._groups.tables:
            for subscription in self._groups.members(table_id):
                self.close(subscription)
        for subscription in self.sampling.members():
            self.close(subscription)
        self.sampling.stop()
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _check_running(self) -> None:
        if self._stopped:
            raise DatabaseClosed("live queries have been stopped")


def _as_of(table: Table, row: Row | None) -> Row | None:
    """A row of an earlier version of the table: columns are only appended, and an added one has a constant default."""
    return None if row is None else table.codec.struct(*table.codec.values(row))
