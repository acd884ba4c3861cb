"""One request on its way: who sent it, what it carries, and what serves it.

An `Endpoint` is a path of the API: it checks the method, finds out who asks, calls its handler and sends the answer. All
that can go wrong on the way becomes an answer here, and only here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tablecast.engine.audit import Outcome
from tablecast.engine.catalog import DEFAULT_NAMESPACE
from tablecast.engine.snapshots import Snapshots
from tablecast.errors import (
    InvalidRequest,
    MethodNotAllowed,
    PermissionDenied,
    TablecastError,
    Timeout,
    TooLarge,
    TransactionState,
)
from tablecast.model.message import Consumed
from tablecast.model.schema import Actor
from tablecast.server.accounts import Accounts
from tablecast.server.auth import Authenticator, SignedIn
from tablecast.server.bodies import JSON, MSGPACK, Body, ClientGone, Decoder, content_type, in_thread_if_large
from tablecast.server.connection import ANSWER, PROMPT
from tablecast.server.errors import error_response, internal_error
from tablecast.server.lifecycle import Lifecycle
from tablecast.server.live import LiveService
from tablecast.server.load_work import LoadWork
from tablecast.server.logs import current_request, identify, new_request_id
from tablecast.server.maintenance import Maintenance
from tablecast.server.metrics import Metrics
from tablecast.server.prompt_answer import HttpPrompt
from tablecast.server.sessions import Sessions
from tablecast.server.settings import Settings
from tablecast.server.transactions import Transactions
from tablecast.sql.aio import AsyncDatabase, AsyncSession

REQUEST_TIMEOUT = 408  # a body that did not come; `timeout` is 504 when it is the server that was too slow
_log = logging.getLogger("tablecast.server")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Services:
    """What every call can rely on. One per process."""

    db: AsyncDatabase
    settings: Settings
    auth: Authenticator
    metrics: Metrics
    lifecycle: Lifecycle
    sessions: Sessions
    transactions: Transactions
    snapshots: Snapshots
    loads: LoadWork
    live: LiveService
    maintenance: Maintenance
    accounts: Accounts


class Call:
    """A request, seen by its handler."""

    def __init__(self, services: Services, scope: Scope, receive: Receive) -> None:
        self.services = services
        self.scope = scope
        self.receive = receive
        self.headers = Headers(scope=scope)
        self.path: dict[str, Any] = scope.get("path_params", {})
        settings = services.settings
        self.incoming: Body = Body(
            self.headers, receive, max_bytes=settings.max_body_bytes, timeout_seconds=settings.body_timeout_seconds
        )
        self.actor: Actor | None = None
        self.signed_in: SignedIn | None = None
        self._prompt: HttpPrompt | None = None

    @property
    def address(self) -> str:
        client = self.scope.get("client")
        return client[0] if client else "unknown"

    @property
    def idempotency_key(self) -> str | None:
        return self.headers.get("idempotency-key")

    @property
    def transaction_id(self) -> str | None:
        """The transaction that the request belongs to."""
        return self.headers.get("transaction-id")

    @asynccontextmanager
    async def in_transaction(self, namespace: str) -> AsyncIterator[AsyncSession]:
        self.refuse_idempotency_key("inside a transaction the whole transaction is what happens once")
        async with self.services.transactions.use(self.transaction_id or "", self.who, namespace) as session:
            yield session

    def refuse_transaction(self) -> None:
        """Where it would be taken for a part of the transaction, and is none."""
        if self.transaction_id is not None:
            raise TransactionState(
                "this takes no Transaction-Id: inside a transaction there are /sql and /tables/…/rows"
            )

    def refuse_idempotency_key(self, why: str) -> None:
        """Where a key would be accepted and do nothing: it promises something."""
        if self.idempotency_key is not None:
            raise InvalidRequest(f"Idempotency-Key is not taken here: {why}")

    @property
    def who(self) -> Actor:
        assert self.actor is not None, "only a public endpoint has no actor"
        return self.actor

    def prompt(self, body: Callable[[Consumed], bytes], media_type: str) -> HttpPrompt | None:
        """A way to answer past the event loop, if the connection has one."""
        make, request = self.scope.get(PROMPT), current_request()
        if make is not None and request is not None:
            self._prompt = make(body, media_type, request.request_id)
        return self._prompt

    def was_given(self) -> None:
        """The answer that is returned next went that way."""
        assert self._prompt is not None
        self.scope[ANSWER].was_given(self._prompt.unsent)

    async def sign_in(self) -> None:
        self.signed_in = await self.services.auth.signed_in(self.headers.get("authorization"), self.address)
        self.actor = self.signed_in.actor
        identify(self.actor.user_id)

    async def session(self, namespace: str = DEFAULT_NAMESPACE) -> AsyncSession:
        return await self.services.sessions.get(self.who, namespace)

    @contextmanager
    def denials(self, action: str, target: str) -> Iterator[None]:
        """Who was refused what is in the audit log."""
        try:
            yield
        except PermissionDenied as error:
            self.services.db.database.audit(self.who, action, target, Outcome.DENIED, error.message)
            raise

    async def in_thread(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """For what takes a moment of computation or reading; what takes long has threads of its own."""
        context = copy_context()  # so that the thread knows the request it works for
        run = partial(context.run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(None, run)

    async def decoded(self, decoder: Decoder) -> tuple[Any, str]:
        """The body as the decoder's type, and the content type it came in."""
        media_type = content_type(self.headers, (JSON, MSGPACK))
        body = await self.incoming.read()
        return await in_thread_if_large(len(body), decoder, body, media_type), media_type

    def query(self, *known: str) -> dict[str, str]:
        """The parameters of the address; an unknown one is refused, a misspelt one must not go unnoticed."""
        given = dict(QueryParams(self.scope["query_string"]))
        for name in given:
            if name not in known:
                raise InvalidRequest(f"{name!r} is no parameter here: there is {', '.join(known)}", parameter=name)
        return given


Handler = Callable[[Call], Awaitable[Response]]


class Endpoint:
    """An ASGI application: one path, and a handler for each method that it takes."""

    def __init__(self, services: Services, path: str, handlers: Mapping[str, Handler], *, public: bool = False) -> None:
        self._services = services
        self._handlers = dict(handlers)
        if "GET" in handlers:
            self._handlers["HEAD"] = handlers["GET"]
        self.path = path
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self._services, scope, receive)
        try:
            response = await self._response(call)
        except ClientGone:
            return
        await response(scope, receive, send)

    async def _response(self, call: Call) -> Response:
        try:
            handler = self._handler(call.scope["method"])
            if not self._public:
                await call.sign_in()
            return await handler(call)
        except TablecastError as error:
            return self.refusal(call, error)
        except ClientGone:
            raise
        except MemoryError:
            return self.refusal(
                call, TooLarge("the request needs more memory than there is: make it smaller, or do it in parts")
            )
        except Exception:
            return failure(self._services.metrics)

    def _handler(self, method: str) -> Handler:
        handler = self._handlers.get(method)
        if handler is None:
            allow = ", ".join(self._handlers)
            raise MethodNotAllowed(f"{self.path} takes {allow}, not {method}", allow=allow)
        return handler

    def refusal(self, call: Call, error: TablecastError) -> Response:
        self._services.metrics.error(error.code)
        if call.incoming.unread and (call.incoming.is_streamed or isinstance(error, Timeout | TooLarge)):
            return error_response(error, status=REQUEST_TIMEOUT if isinstance(error, Timeout) else None, close=True)
        return error_response(error)


def failure(metrics: Metrics) -> Response:
    """Logs what nobody foresaw, and answers without telling."""
    request = current_request()
    request_id = new_request_id() if request is None else request.request_id
    _log.exception("a request failed unexpectedly")
    metrics.error(TablecastError.code)
    return internal_error(request_id)
