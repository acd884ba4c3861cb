"""Loads: one write to one table, staged in parts and committed as one.

    begin ──▶ stage, stage, … (any order, in parallel, again after a failure) ──▶ commit, or abort

A load is known by (table, writer id, batch id). What is staged is durable and invisible; the commit makes all of it
visible at once, with its messages, and remembers in the same commit that this batch of this writer was done: a replay,
also after a restart, is answered `already`.

Parts are of one of two kinds: `rows` are Arrow streams, decided like any other write (engine.load_rows), and beside them
dead letters, of rows that could not be (engine.load_letters); `sealed` ones are finished, and only taken in
(engine.load_sealed). A backfill is a load of sealed messages for a source that its commit
adds (engine.load_backfill).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

from tablecast.core import failpoint
from tablecast.core.rights import require, require_write, row_owner
from tablecast.engine.ddl import AddSource
from tablecast.engine.decision import Command, StalePlan
from tablecast.engine.generated import StatementValues
from tablecast.engine.guards import ChangeGuard, InsertGuard, SetGuard
from tablecast.engine.intents import ForgetIntent, stored_intent
from tablecast.engine.load_backfill import (
    BACKFILL,
    Backfill,
    backfill_routes,
    commit_backfill,
    require_no_rows,
)
from tablecast.engine.load_batches import BatchName, LoadCommitted, OncePerBatch, RecallBatch, TakeLoadNumber
from tablecast.engine.load_letters import WithLetters, count_letters, holds_letters, letters_of
from tablecast.engine.load_rows import RowsBuilder, RowsPart, count_rows
from tablecast.engine.load_sealed import (
    CommitSealed,
    LogPlacer,
    Part,
    Routes,
    batches_of,
    check_keys,
    check_noted,
    check_part,
    insert_routes,
    plan_of,
    require_plan,
    require_sealable,
)
from tablecast.engine.retention import Removed
from tablecast.engine.staging import Description, Directory, found_loads, read_part, sst_of, take_out_rows
from tablecast.errors import CorruptData, InvalidPart, InvalidRequest, StaleLoad, UnknownLoad
from tablecast.model.pipeline import DuplicateLetters
from tablecast.model.schema import Actor, Role, TableSchema
from tablecast.model.topic import Route

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine

MODES = ("insert", "upsert", "delete", "changes")
KINDS = ("rows", "sealed")
ABANDONED_MS = 24 * 3600 * 1000  # without activity for this long, what is staged is removed
COMMITTED_KEPT_MS = 3600 * 1000  # a commit sent again finds its load for this long, if no later batch came
MAX_OPEN_LOADS = 10_000  # each is a directory; more means that somebody begins loads and never ends them
_ATTEMPTS = 3  # at a commit whose table changes while it is prepared

__all__ = ["LoadCommitted", "LoadInfo", "Loads", "OpenLoad", "StagedPart"]


@dataclass(frozen=True, slots=True)
class LoadInfo:
    """An open load, or, with `committed`, one that is done: then `load_id` is empty and there is nothing to stage.

    `plan` is a fingerprint of the table and its insert routes: a sealed part is good for this plan only."""

    load_id: str
    load_number: int
    table: TableSchema
    routes: Routes
    plan: bytes
    committed: LoadCommitted | None = None
    created_ms: int = 0  # its NOW(), and
    user_id: str = ""  # its CURRENT_USER(), for whoever seals


@dataclass(frozen=True, slots=True)
class StagedPart:
    part: int
    attempt: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """One row of system.loads."""

    load_id: str
    table: str
    writer_id: str
    batch_id: int
    kind: str
    mode: str
    state: str  # open, committing or committed
    parts: int
    bytes: int
    created_ms: int
    active_ms: int
    user_id: str


@dataclass(slots=True, eq=False)
class _Load:
    """A load that has a directory."""

    about: Description
    directory: Directory
    active_ms: int
    parts: dict[tuple[int, str], int] = field(default_factory=dict)  # (part, attempt) -> bytes
    committed: bool = False
    backfill: Backfill | None = None
    ending: threading.Lock = field(default_factory=threading.Lock)  # held to commit or to remove it

    @property
    def name(self) -> BatchName:
        return BatchName(self.about.table_id, self.about.writer_id, self.about.batch_id)

    @property
    def state(self) -> str:
        return "committed" if self.committed else "committing" if self.ending.locked() else "open"


class Loads:
    """`engine.loads`. Every call may come from any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._beginning = threading.Lock()
        self._known: dict[str, _Load] = {}
        self._by_name: dict[BatchName, _Load] = {}
        now_ms = engine.now_ms()
        for directory, about in found_loads(engine.store.staging()):
            load = _Load(about, directory, now_ms)
            load.committed = load.name.recall(engine.store) is not None
            if load.committed:
                directory.clear()
            elif about.mode == BACKFILL:  # nobody noted what was written to its table meanwhile
                directory.remove()
                continue
            load.parts = directory.parts()
            self._add(load)

    # --- beginning ---

    def begin(
        self,
        actor: Actor,
        table: str,
        writer_id: str,
        batch_id: int,
        *,
        mode: str,
        kind: str,
        op_column: str | None = None,
    ) -> LoadInfo:
        """Opens a load, or finds the one that is open. `table` is its full name, `mode` insert, upsert, delete or
        changes (`op_column` then says what each row is), `kind` rows or sealed.

        A load that is open for another mode or kind, or a sealed one for another plan, is replaced: its parts would not
        fit."""
        catalog = self._engine.catalog
        schema = catalog.table(table).schema
        require_write(actor, schema)
        _check_how(schema, mode, kind, op_column)
        name = BatchName(schema.table_id, writer_id, batch_id)
        name.check()
        routes = insert_routes(catalog, schema.table_id)
        if kind == "sealed":
            require_sealable(schema, routes, mode)
        return self._begun(actor, schema, routes, name, kind, mode, op_column)

    def begin_backfill(
        self, actor: Actor, topic: str, table: str, route: Route, writer_id: str, batch_id: int
    ) -> LoadInfo:
        """Opens a load whose commit adds the source, with the messages of the rows that there are then: see
        engine.load_backfill. Rows that the parts tell must be read after it returned."""
        catalog = self._engine.catalog
        require(actor, Role.DBA, "ADD SOURCE")
        schema = catalog.table(table).schema
        name = BatchName(schema.table_id, writer_id, batch_id)
        name.check()
        done = self._recall(name)
        if done is not None:  # then the source is there, and could not be added
            return LoadInfo("", 0, schema, (), b"", done)
        source = AddSource(catalog.topic(topic).full_name, schema.full_name, route, backfill=True)
        routes = backfill_routes(catalog, source)
        return self._begun(actor, schema, routes, name, "sealed", BACKFILL, None, source)

    def _begun(
        self,
        actor: Actor,
        schema: TableSchema,
        routes: Routes,
        name: BatchName,
        kind: str,
        mode: str,
        op_column: str | None,
        source: AddSource | None = None,
    ) -> LoadInfo:
        plan = plan_of(schema, routes)
        with self._beginning:
            done = self._recall(name)
            if done is not None:
                return LoadInfo("", 0, schema, routes, plan, done)
            wanted = (kind, mode, op_column, plan, actor)
            found = self._by_name.get(name)
            if found is not None and self._is_for(found, wanted):
                found.active_ms = self._engine.now_ms()
                return _info(found.about, schema, routes)
            if found is not None:
                self.abort(found.about.load_id)
                done = self._recall(name)  # it may have been just committing
                if done is not None:
                    return LoadInfo("", 0, schema, routes, plan, done)
            made = self._open(actor, schema, name, kind, mode, op_column, plan)
            if source is not None:
                made.backfill = Backfill(source, ChangeGuard(schema.table_id))
                self._engine.execute(SetGuard(self._engine.guards, made.backfill.guard, True))
        return _info(made.about, schema, routes)

    def _is_for(self, load: _Load, wanted: tuple[str, str, str | None, bytes, Actor]) -> bool:
        about, (*how, plan, actor) = load.about, wanted
        if [about.kind, about.mode, about.op_column] != how or about.actor != actor:
            return False
        if load.backfill is not None and load.backfill.guard.overrun:
            return False
        return about.kind == "rows" or about.plan == plan  # rows are decided on the table that is there at the commit

    def _open(
        self,
        actor: Actor,
        schema: TableSchema,
        name: BatchName,
        kind: str,
        mode: str,
        op_column: str | None,
        plan: bytes,
    ) -> _Load:
        self._drop_earlier(name)
        self._engine.store.require_room()
        if sum(not load.committed for load in list(self._known.values())) >= MAX_OPEN_LOADS:
            raise InvalidRequest(f"{MAX_OPEN_LOADS} loads are open; commit or abort some first", limit=MAX_OPEN_LOADS)
        number: int = self._engine.execute(TakeLoadNumber()) if kind == "sealed" else 0
        now_ms = self._engine.now_ms()
        about = Description(
            uuid4().hex, number, name.table_id, schema.full_name, name.writer_id, name.batch_id, kind, mode, op_column,
            plan, actor, now_ms,
        )  # fmt: skip
        load = _Load(about, Directory.create(self._engine.store.staging(), about), now_ms)
        self._add(load)
        return load

    def _drop_earlier(self, name: BatchName) -> None:
        """A writer that begins its next batch has heard of the ones before."""
        for load in list(self._known.values()):
            other = load.name
            if load.committed and (other.table_id, other.writer_id) == (name.table_id, name.writer_id):
                self._remove(load)

    def _add(self, load: _Load) -> None:
        self._known[load.about.load_id] = load
        self._by_name[load.name] = load

    def _recall(self, name: BatchName) -> LoadCommitted | None:
        if name.recall(self._engine.store) is None:
            return None
        found: LoadCommitted | None = self._engine.execute(RecallBatch(name))  # now it is durable
        return found

    def _find(self, load_id: str) -> _Load:
        load = self._known.get(load_id)
        if load is None:
            raise UnknownLoad(
                f"there is no load {load_id!r}: it was aborted, or abandoned for a day; begin it again", load=load_id
            )
        return load

    def actor(self, load_id: str) -> Actor:
        """Who began it."""
        return self._find(load_id).about.actor

    # --- staging ---

    def stage(self, load_id: str, part: int, attempt: str, source: BinaryIO) -> StagedPart:
        """Keeps what `source` holds. Durable when it returns; the same part and attempt again replaces it."""
        load = self._find(load_id)
        target = load.directory.part(part, attempt)
        load.active_ms = self._engine.now_ms()
        with load.directory.arriving(target, source, self._placing(load)) as path:
            size = path.stat().st_size
            if load.about.kind == "rows":
                rows = count_letters(path) if holds_letters(path) else count_rows(str(path))
            else:
                sealed = read_part(path)
                check_part(load.about.table_id, load.about.load_number, self._routes(load), path, sealed)
                rows = sealed.rows
                if load.backfill is not None:
                    require_no_rows(sealed)
                if rows:
                    take_out_rows(path, sealed, sst_of(path))
                    self._check_bounds(str(sst_of(path)), sealed.first_key, sealed.last_key)
        load.parts[part, attempt] = size
        load.active_ms = self._engine.now_ms()
        return StagedPart(part, attempt, rows, size)

    def _routes(self, load: _Load) -> Routes:
        """Those that its messages may be for."""
        catalog = self._engine.catalog
        if load.backfill is not None:
            return backfill_routes(catalog, load.backfill.source)
        return insert_routes(catalog, load.about.table_id)

    @contextmanager
    def _placing(self, load: _Load) -> Iterator[None]:
        """A part is not replaced while its load is committed, and not added afterwards."""
        with load.ending:
            if load.committed:
                raise InvalidRequest(
                    "the load was committed meanwhile: it takes no more parts", load=load.about.load_id
                )
            yield

    def _check_bounds(self, path: str, first: bytes, last: bytes) -> None:
        """That the store will take the file, and that its rows are where the part says: nothing of it is trusted."""
        try:
            bounds = self._engine.store.bounds(path)
        except CorruptData as e:
            raise InvalidPart(f"the rows of the part are not a sorted file: {e.message}") from e
        if bounds != (first, last):
            raise InvalidPart("the rows of the part are not between the keys that it says")

    # --- ending ---

    def commit(
        self,
        load_id: str,
        parts: Sequence[tuple[int, str]],
        duplicates: DuplicateLetters | None = None,
    ) -> LoadCommitted:
        """Commits these (part, attempt), in this order, and nothing else that was staged. None: an empty load.

        Dead letters among them go to their topic in the same commit. So do rows whose key is there already, if
        `duplicates` says where to."""
        load = self._find(load_id)
        with load.ending:
            done = self._recall(load.name)
            if done is None:
                self._require_staged(load, parts)
                load.active_ms = self._engine.now_ms()
                if load.about.kind == "rows":
                    done = self._commit_rows(load, parts, duplicates)
                elif duplicates is not None:
                    raise InvalidRequest("duplicates are put aside by loads of kind rows")
                else:
                    done = self._commit_sealed(load, parts)
            self._unguard(load)
            load.committed = True
            load.active_ms = self._engine.now_ms()
            failpoint.hit("before_forgetting")
            self._forget_parts(load)
        return done

    def _require_staged(self, load: _Load, parts: Sequence[tuple[int, str]]) -> None:
        if self._known.get(load.about.load_id) is not load:
            raise UnknownLoad(f"load {load.about.load_id!r} was aborted", load=load.about.load_id)
        seen = set()
        for part, attempt in parts:
            if part in seen:
                raise InvalidRequest(f"part {part} is named twice", part=part)
            seen.add(part)
            if (part, attempt) not in load.parts:
                raise InvalidPart(f"part {part}, attempt {attempt!r}, was not staged", part=part, attempt=attempt)

    def _commit_rows(
        self,
        load: _Load,
        parts: Sequence[tuple[int, str]],
        duplicates: DuplicateLetters | None,
    ) -> LoadCommitted:
        about, engine = load.about, self._engine
        if duplicates is not None and about.mode != "insert":
            raise InvalidRequest(f"duplicates are put aside by loads of mode insert, not {about.mode}")
        staged = [RowsPart(p, str(load.directory.part(p, a)), load.parts[p, a]) for p, a in parts]
        letters = letters_of([Path(part.path) for part in staged])
        files = [part for part in staged if not holds_letters(Path(part.path))]

        def attempt() -> LoadCommitted:
            table = engine.catalog.tables.get(about.table_id)
            if table is None:
                raise StaleLoad("the table was dropped since the load began")
            values = StatementValues(engine.now_ms, engine.ids, about.actor.user_id)
            owner = row_owner(about.actor, table.schema)
            builder = RowsBuilder(table, owner, about.mode, about.op_column, values, duplicates)
            command: Command = builder.build(files)
            if letters or duplicates is not None:
                command = WithLetters(command, table.schema.full_name, letters)
            done: LoadCommitted = engine.execute(OncePerBatch(load.name, command))
            return done

        return _until_planned(attempt)

    def _commit_sealed(self, load: _Load, parts: Sequence[tuple[int, str]]) -> LoadCommitted:
        paths = [(number, load.directory.part(number, attempt)) for number, attempt in parts]
        sealed = [Part(number, path, read_part(path)) for number, path in paths]
        if load.backfill is not None:
            return commit_backfill(self._engine, load.about, load.name, load.backfill, sealed, load.directory.path)
        return _until_planned(lambda: self._decide_sealed(load, sealed))

    def _decide_sealed(self, load: _Load, parts: Sequence[Part]) -> LoadCommitted:
        about, engine = load.about, self._engine
        table = require_plan(engine.catalog, about.table_id, about.plan)
        guards, guard = engine.guards, InsertGuard(about.table_id)
        engine.execute(SetGuard(guards, guard, True))
        try:
            check_keys(engine.store, table, parts)
            placer = LogPlacer(batches_of(parts), engine.ids, load.directory.path)
            began = {place: engine.log_end(*place) for place in placer.places}
            prepared = placer.place(engine.seq + 1, engine.now_ms(), began)
            check_noted(table, parts, guard.take())  # most of it here: the writer compares only what comes from now on
            command = CommitSealed(
                load.name, about.load_id, about.load_number, about.plan, parts, guard, placer, prepared
            )
            done: LoadCommitted = engine.execute(command)
        finally:
            engine.execute(SetGuard(guards, guard, False))
        return done

    def _unguard(self, load: _Load) -> None:
        if load.backfill is not None:
            self._engine.execute(SetGuard(self._engine.guards, load.backfill.guard, False))
            load.backfill = None

    def _forget_parts(self, load: _Load) -> None:
        """The parts are in the store. The description stays for a while, so that a commit sent again is understood."""
        if load.about.kind == "sealed":
            self._engine.execute(ForgetIntent(load.about.load_id))
        load.parts.clear()
        load.directory.clear()

    def abort(self, load_id: str) -> None:
        """Forgets what was staged. Aborting what is not open is fine."""
        load = self._known.get(load_id)
        if load is not None:
            with load.ending:
                if not load.committed:
                    self._remove(load)

    def _remove(self, load: _Load) -> int:
        if self._is_intended(load):
            return 0  # its files are still being taken in; it is removed another time
        self._unguard(load)
        self._known.pop(load.about.load_id, None)
        if self._by_name.get(load.name) is load:
            del self._by_name[load.name]
        return load.directory.remove()

    def _is_intended(self, load: _Load) -> bool:
        intent = stored_intent(self._engine.store)
        return intent is not None and intent.load_id == load.about.load_id

    # --- looking after ---

    def open(self) -> list[OpenLoad]:
        """Every load that has a directory, for system.loads."""
        return [
            OpenLoad(
                a.load_id, a.table, a.writer_id, a.batch_id, a.kind, a.mode, load.state, len(load.parts),
                sum(load.parts.values()), a.created_ms, load.active_ms, a.actor.user_id,
            )
            for load in list(self._known.values())
            for a in (load.about,)
        ]  # fmt: skip

    def sweep(self) -> Iterator[Removed]:
        """Removes loads that nobody will go on with: abandoned ones, those of dropped tables, and committed ones."""
        for load in list(self._known.values()):
            if not load.ending.acquire(blocking=False):
                continue
            try:
                if self._is_over(load):
                    size = self._remove(load)
                    yield Removed(1, size)
                elif load.committed and load.parts:
                    self._forget_parts(load)
            finally:
                load.ending.release()

    def _is_over(self, load: _Load) -> bool:
        if not load.committed:
            load.committed = load.name.recall(self._engine.store) is not None
        idle_ms = self._engine.now_ms() - load.active_ms
        is_idle = idle_ms >= (COMMITTED_KEPT_MS if load.committed else ABANDONED_MS)
        return is_idle or load.about.table_id not in self._engine.catalog.tables


def _info(about: Description, schema: TableSchema, routes: Routes) -> LoadInfo:
    return LoadInfo(
        about.load_id, about.load_number, schema, routes, about.plan, None, about.created_ms, about.actor.user_id
    )


def _check_how(schema: TableSchema, mode: str, kind: str, op_column: str | None) -> None:
    if mode not in MODES:
        raise InvalidRequest(f"mode {mode!r} is unknown: use one of {', '.join(MODES)}", mode=mode)
    if kind not in KINDS:
        raise InvalidRequest(f"kind {kind!r} is unknown: use one of {', '.join(KINDS)}", kind=kind)
    if (mode == "changes") != (op_column is not None):
        raise InvalidRequest("an op column goes with mode changes, and mode changes with an op column", mode=mode)
    if op_column is not None and schema.index_of(op_column) is not None:
        raise InvalidRequest(f"{op_column!r} is a column of {schema.full_name}; the op column must be another")


def _until_planned(attempt: Callable[[], LoadCommitted]) -> LoadCommitted:
    """A table that is altered just then is looked at again."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return attempt()
        except StalePlan:
            continue
    try:
        return attempt()
    except StalePlan as e:
        raise StaleLoad(f"{e.message}; commit the load again") from e
