"""Loads over HTTP: begun, sent in parts, committed as one; see engine.loads for what they mean.

Every call may be repeated: beginning finds the open load, a part replaces itself, a commit answers what it answered. So a
client that lost an answer asks again.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, BinaryIO, Literal, cast

import msgspec
from msgspec import Meta
from starlette.responses import Response

from tablecast.codec.load_plan import encode_plan
from tablecast.core.rights import require
from tablecast.engine.load_backfill import BACKFILL
from tablecast.engine.loads import LoadCommitted, LoadInfo, OpenLoad
from tablecast.engine.staging import MAX_PART_NUMBER
from tablecast.errors import InvalidRequest, TablecastError, UnknownLoad
from tablecast.model.change import Op
from tablecast.model.names import DEFAULT_NAMESPACE, full_name_of, read_name, read_part
from tablecast.model.pipeline import DuplicateLetters
from tablecast.model.schema import Role
from tablecast.model.topic import PayloadMode, Route
from tablecast.server.answers import accepted, answer
from tablecast.server.arriving import StreamedBody
from tablecast.server.bodies import ARROW, NDJSON, SEALED, Decoder, content_type
from tablecast.server.call import Call
from tablecast.sql.context import topic_name

Part = Annotated[int, Meta(ge=0, le=MAX_PART_NUMBER)]


class NewSource(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A source that the commit of a backfill adds, as ALTER TOPIC … ADD SOURCE tells it."""

    topic: str
    ops: Annotated[list[Literal["insert", "update", "delete"]], Meta(min_length=1, max_length=3)]
    filter: str | None = None
    partition_by: str | None = None
    payload: Literal["full", "key", "diff"] = "full"

    @property
    def route(self) -> Route:
        ops = tuple(sorted({Op[op.upper()] for op in self.ops}))
        return Route(0, ops, self.filter, self.partition_by, PayloadMode(self.payload))


class BeginRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`op_column` goes with mode changes: the column that says what each row is. `source` goes with mode backfill, whose
    parts are sealed and hold messages only."""

    table: str
    writer_id: str
    batch_id: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    mode: Literal["insert", "upsert", "delete", "changes", "backfill"] = "insert"
    kind: Literal["rows", "sealed"] = "rows"
    op_column: str | None = None
    source: NewSource | None = None
    namespace: str = DEFAULT_NAMESPACE


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Part and attempt of each that is to be committed, in this order; none for an empty load. Rows of a load of
    mode insert whose key is there already become dead letters of the same commit if `duplicates` says where to."""

    parts: list[tuple[Part, str]]
    duplicates: DuplicateLetters | None = None


class CommittedOut(msgspec.Struct, frozen=True):
    """`already`: it was committed before, by this request or by a later batch of the writer. `total_rows` counts the rows
    of every batch that the writer has committed into the table."""

    seq: int
    row_count: int
    already: bool
    total_rows: int


class BeginAnswer(msgspec.Struct, frozen=True):
    """With `committed` there is nothing to send, and `load_id` is empty. `plan`: see codec.load_plan. `created_ms` and
    `user_id` are what NOW() and CURRENT_USER() are for all of its rows, if they are sealed."""

    load_id: str
    load_number: int
    committed: CommittedOut | None
    plan: bytes
    created_ms: int
    user_id: str


class PartAnswer(msgspec.Struct, frozen=True):
    part: int
    attempt: str
    rows: int
    bytes: int


class AbortAnswer(msgspec.Struct, frozen=True):
    aborted: bool


class LoadsAnswer(msgspec.Struct, frozen=True):
    loads: list[OpenLoad]


_begin, _commit = Decoder(BeginRequest), Decoder(CommitRequest)


async def begin(call: Call) -> Response:
    request, _ = await call.decoded(_begin)
    table = full_name_of(request.table, request.namespace)
    if (request.mode == BACKFILL) != (request.source is not None):
        raise InvalidRequest("a source goes with mode backfill, and mode backfill with a source", mode=request.mode)
    if request.source is not None:
        return await _begin_backfill(call, request, request.source, table)
    with call.denials("LOAD", table):
        require(call.who, Role.SERVICE, f"loading into {table}")
        info = await call.services.loads.decide(
            call.services.db.engine.loads.begin, call.who, table, request.writer_id, request.batch_id,
            mode=request.mode, kind=request.kind, op_column=request.op_column,
        )  # fmt: skip
    return answer(_begun(info), accepted(call.headers))


async def _begin_backfill(call: Call, request: BeginRequest, source: NewSource, table: str) -> Response:
    catalog = call.services.db.engine.catalog
    topic = topic_name(catalog, read_name(source.topic), read_part(request.namespace))
    with call.denials("ADD SOURCE", topic):
        info = await call.services.loads.decide(
            call.services.db.engine.loads.begin_backfill, call.who, topic, table, source.route, request.writer_id,
            request.batch_id,
        )  # fmt: skip
    return answer(_begun(info), accepted(call.headers))


def _begun(info: LoadInfo) -> BeginAnswer:
    committed = None if info.committed is None else _committed(info.committed)
    plan = encode_plan([info.table], info.routes)
    return BeginAnswer(info.load_id, info.load_number, committed, plan, info.created_ms, info.user_id)


def _committed(committed: LoadCommitted) -> CommittedOut:
    return CommittedOut(committed.seq, committed.row_count, committed.already, committed.total_rows)


async def put_part(call: Call) -> Response:
    load_id, part, attempt = _place(call)
    content_type(call.headers, (ARROW, SEALED, NDJSON))
    settings = call.services.settings
    body = StreamedBody(
        call.headers, call.receive, max_bytes=settings.max_part_bytes, timeout_seconds=settings.body_timeout_seconds,
        limit_name="max_part_bytes",
    )  # fmt: skip
    call.incoming = body
    try:
        _may_load(call, load_id)
        staged = await call.services.loads.stage(load_id, part, attempt, cast(BinaryIO, body.file()))
    except TablecastError:
        await body.discard()
        raise
    return answer(PartAnswer(staged.part, staged.attempt, staged.rows, staged.bytes), accepted(call.headers))


def _place(call: Call) -> tuple[str, int, str]:
    attempt = call.query("attempt").get("attempt", "0")
    part = call.path["part"]
    if not (part.isascii() and part.isdecimal() and len(part) < 11 and int(part) <= MAX_PART_NUMBER):
        raise InvalidRequest(f"part {part[:60]!r}: it is a number, from 0 to {MAX_PART_NUMBER}", part=part[:60])
    return call.path["load"], int(part), attempt


def _may_load(call: Call, load_id: str) -> None:
    """Whoever began it, and those above, who may do anything to its table anyway."""
    with call.denials("LOAD", load_id[:100]):
        require(call.who, Role.SERVICE, "loading")
        if call.services.db.engine.loads.actor(load_id).user_id != call.who.user_id:
            require(call.who, Role.DBA, "a load that another user began")


async def commit(call: Call) -> Response:
    request, _ = await call.decoded(_commit)
    load_id = call.path["load"]
    _may_load(call, load_id)
    committed = await call.services.loads.commit(load_id, request.parts, request.duplicates)
    return answer(_committed(committed), accepted(call.headers))


async def abort(call: Call) -> Response:
    call.query()
    load_id = call.path["load"]
    with call.denials("LOAD", load_id[:100]):
        require(call.who, Role.SERVICE, "loading")
    with contextlib.suppress(UnknownLoad):  # aborted already, or never begun
        _may_load(call, load_id)
        await call.services.loads.decide(call.services.db.engine.loads.abort, load_id)
    return answer(AbortAnswer(True), accepted(call.headers))


async def list_loads(call: Call) -> Response:
    call.query()
    with call.denials("LOAD", ""):
        require(call.who, Role.SERVICE, "listing loads")
    found = await call.services.loads.decide(call.services.db.engine.loads.open)
    return answer(LoadsAnswer(found), accepted(call.headers))
