"""A backup and a verification of the database that is served, for dba and above; each once at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import asdict

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from tablecast.core.rights import require
from tablecast.engine.audit import Outcome
from tablecast.engine.verify import verify_engine
from tablecast.errors import DatabaseClosed, TablecastError
from tablecast.model.schema import Role
from tablecast.model.verify import VerifyReport
from tablecast.server.bodies import NDJSON, TAR
from tablecast.server.call import Call
from tablecast.server.errors import ErrorBody, error_body
from tablecast.server.maintenance import Parcel

BACKUP, VERIFY = "backup", "verification"
STALLED_SECONDS = 60.0  # a client that takes nothing for so long is let go, with the files that are kept for it
TELL_SECONDS = 1.0  # how often a verification says how far it is


async def backup(call: Call) -> Response:
    call.query()
    services = call.services
    with call.denials("BACKUP", ""):
        require(call.who, Role.DBA, "a backup")
    with services.maintenance.beginning(BACKUP, call.who):
        try:
            parcel = await services.maintenance.in_thread(lambda: Parcel.made(services.db.engine))
        except TablecastError as error:
            services.db.database.audit(call.who, "BACKUP", outcome=Outcome.FAILED, detail=error.code)
            raise
        services.db.database.audit(call.who, "BACKUP", detail=f"{parcel.size} bytes, sent to {call.address}")
        return _Sent(call, parcel)


class _Sent(StreamingResponse):
    """Whatever becomes of the sending, the files go and the next backup may begin: before the client has the last piece, so
    that it may ask for another at once."""

    def __init__(self, call: Call, parcel: Parcel) -> None:
        super().__init__(self._pieces(), media_type=TAR, headers={"Content-Length": str(parcel.size)})
        self._maintenance = call.services.maintenance
        self._parcel = parcel
        self._stalled_seconds = STALLED_SECONDS
        self._is_over = False

    async def _pieces(self) -> AsyncIterator[bytes]:
        pieces = self._parcel.pieces()
        piece: bytes | None = b""
        while piece is not None:
            following = await self._maintenance.in_thread(lambda: next(pieces, None))
            if following is None:
                await self._end()
            yield piece
            piece = following

    async def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            try:
                await asyncio.shield(self._maintenance.in_thread(self._parcel.remove))
            finally:
                self._maintenance.end(BACKUP)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def in_time(message: Message) -> None:
            async with asyncio.timeout(self._stalled_seconds):
                await send(message)

        try:
            await super().__call__(scope, receive, in_time)
        finally:
            await self._end()


# --- verifying --------------------------------------------------------------------------------------------------


class VerifyAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the answer: how far it is, again and again; the last one has the report, or the error that ended it."""

    progress: dict[str, int] | None = None
    report: VerifyReport | None = None
    error: ErrorBody | None = None


_encode = msgspec.json.Encoder(enc_hook=asdict).encode


async def verify(call: Call) -> Response:
    call.query()
    services = call.services
    with call.denials("VERIFY", ""):
        require(call.who, Role.DBA, "verifying the database")
    with services.maintenance.beginning(VERIFY, call.who):
        services.db.engine.check_open()
        services.db.database.audit(call.who, "VERIFY")
        return _Verifying(call)


class _Verifying(StreamingResponse):
    """The client that goes away ends the work, too."""

    def __init__(self, call: Call) -> None:
        super().__init__(self._lines(), media_type=NDJSON)
        self._services = call.services
        self._counts: dict[str, int] = {}
        self._ended = threading.Event()

    async def _lines(self) -> AsyncIterator[bytes]:
        work = self._services.maintenance.start(self._work)
        work.add_done_callback(asyncio.Future.exception)  # taken note of, if nobody waits for it any more
        while not work.done():
            yield _line(VerifyAnswer(progress=dict(self._counts)))
            await asyncio.wait([work], timeout=TELL_SECONDS)
        self._end()
        try:
            yield _line(VerifyAnswer(report=work.result()))
        except (TablecastError, _Ended) as e:
            error = e if isinstance(e, TablecastError) else DatabaseClosed("the server stops")
            self._services.metrics.error(error.code)
            yield _line(VerifyAnswer(error=error_body(error)))

    def _work(self) -> VerifyReport:
        return verify_engine(self._services.db.engine, self._progress)

    def _progress(self, what: str, count: int) -> None:
        self._counts[what] = count
        if self._ended.is_set() or self._services.lifecycle.draining:
            raise _Ended("the verification was given up")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()

    def _end(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._services.maintenance.end(VERIFY)


class _Ended(Exception):
    """Not a TablecastError, which verifying takes for a problem that it found."""


def _line(said: VerifyAnswer) -> bytes:
    return _encode(said) + b"\n"
