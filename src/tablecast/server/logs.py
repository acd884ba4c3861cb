"""Logs: one line per thing that happened, as JSON or as text, with the request and the user it happened for.

    {"timestamp": "2026-01-31T12:00:00.123Z", "level": "info", "logger": "tablecast.access", "message": "request",
     "request_id": "5f0c…", "user": "ann", "fields": {"method": "POST", "path": "/v1/api/sql", "status": 200, …}}

Whoever logs says what varies in `extra={"fields": {…}}`, so that a line can be searched by it. The request's id and
user are added to every line that is logged while the request is served, in whatever task or thread serves it. A line
never holds credentials, bodies, SQL, parameters or the query part of an address.

`AccessLog` goes around the whole application. It gives each request its id, tells the metrics, and writes the one line
that replaces the HTTP server's own access log.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Protocol, TextIO
from urllib.parse import quote

import msgspec

from tablecast.core.printable import printable
from tablecast.engine.audit import current_request_id
from tablecast.errors import InvalidRequest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOG_FORMATS = ("json", "text")
LOG_LEVELS = ("debug", "info", "warning", "error")
REQUEST_ID_HEADER = b"x-request-id"
SWITCHING = 101  # the status of an upgrade to a WebSocket
CLIENT_GONE = 499  # the status of a request whose client went away before it was answered
UNROUTED = "unrouted"  # the route of a path that is not ours: paths are the clients' choice, routes are ours
PROBES = frozenset({"/health", "/ready", "/metrics"})  # asked every few seconds by machines: logged at debug
_PROCESS, _numbers = os.urandom(10).hex(), itertools.count(1)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_access = logging.getLogger("tablecast.access")


# --- who is served ---


@dataclass(slots=True)
class RequestContext:
    """One request. The user becomes known later than the id, maybe in another task: so it is a field, not a variable."""

    request_id: str
    user: str | None = None


trace_id: ContextVar[str | None] = ContextVar("tablecast_trace_id", default=None)  # set by server.tracing
_current: ContextVar[RequestContext | None] = ContextVar("tablecast_request", default=None)


def current_request() -> RequestContext | None:
    """The request being served here, if any."""
    return _current.get()


def identify(user: str) -> None:
    """Says for whom the current request is served, once that is known."""
    request = _current.get()
    if request is not None:
        request.user = user


def accepted_request_id(given: str | None) -> str:
    """The client's own id if it is one that can stand in a log line, else a new one."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else new_request_id()


def new_request_id() -> str:
    """Like no other: chance of the process, then a number. Chance for each was a system call for each."""
    return f"{_PROCESS}{next(_numbers):012x}"


# --- lines ---


class Line(msgspec.Struct, omit_defaults=True):
    timestamp: str
    level: str
    logger: str
    message: str
    request_id: str | None = None
    user: str | None = None
    trace_id: str | None = None
    fields: dict[str, Any] | None = None
    exception: str | None = None


class LineFormatter(logging.Formatter):
    """Makes a `Line` of a record and the current request; `written` says how it looks. What strangers sent is made
    printable here, for every form."""

    def __init__(self, written: Callable[[Line], str]) -> None:
        super().__init__()
        self._written = written

    def format(self, record: logging.LogRecord) -> str:
        request = _current.get()
        line = Line(
            datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            record.levelname.lower(),
            record.name,
            printable(record.getMessage()),
            trace_id=trace_id.get(),
            fields=_clean(getattr(record, "fields", None)),
            exception=_lines(self.formatException(record.exc_info)) if record.exc_info else None,
        )
        if request is not None:
            line.request_id, line.user = request.request_id, request.user and printable(request.user)
        return self._written(line)


def as_json(line: Line) -> str:
    return msgspec.json.encode(line, enc_hook=_shown).decode()


def as_text(line: Line) -> str:
    """`timestamp LEVEL logger message key=value …`. What a client sent cannot begin a line of its own."""
    known = {"request_id": line.request_id, "user": line.user, "trace_id": line.trace_id} | (line.fields or {})
    fields = "".join(f" {name}={value}" for name, value in known.items() if value is not None)
    text = printable(f"{line.timestamp} {line.level.upper():<7} {line.logger} {line.message}{fields}")
    return text if line.exception is None else f"{text}\n{line.exception}"


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_clean(name): _clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def _shown(value: object) -> str:
    """What JSON has no form for."""
    return printable(str(value))


def _lines(traceback: str) -> str:
    """Of a traceback, indented: what is quoted in it cannot look like a line of the log."""
    return "\n".join(f"    {printable(line)}" for line in traceback.split("\n"))


# --- where they go ---


class LogSettings(Protocol):
    @property
    def log_format(self) -> str: ...
    @property
    def log_level(self) -> str: ...


def configure_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Sends everything the process logs to `stream` (standard error), and nothing anywhere else.

    The level is that of our own loggers; libraries are heard from warnings on, the HTTP server from its start and stop.
    """
    _check(settings.log_format, LOG_FORMATS, "log_format")
    _check(settings.log_level, LOG_LEVELS, "log_level")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(as_json if settings.log_format == "json" else as_text))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("tablecast").setLevel(settings.log_level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], name != "uvicorn.access"
    logging.getLogger("uvicorn").setLevel(settings.log_level.upper())


def _check(value: str, known: Iterable[str], name: str) -> None:
    if value not in known:
        raise InvalidRequest(f"{name} {value!r} is unknown: use {' or '.join(known)}", **{name: value})


# --- one line per request ---


class RequestMetrics(Protocol):
    def request(self, method: str, route: str, status: int, seconds: float) -> None: ...


class AccessLog:
    """An application around the application: request id in and out, one log line, one metric."""

    def __init__(self, app: App, metrics: RequestMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request = RequestContext(accepted_request_id(_header(scope, REQUEST_ID_HEADER)))
        token, audited = _current.set(request), current_request_id.set(request.request_id)
        answer = _Answer(request.request_id, send)
        began = perf_counter()
        try:
            await self._app(scope, receive, answer.send)
        except Exception:
            answer.status = answer.status or 500
            raise
        finally:
            self._tell(scope, answer, perf_counter() - began)
            _current.reset(token)
            current_request_id.reset(audited)

    def _tell(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        status = answer.status or CLIENT_GONE
        method = scope.get("method", "GET")  # of an upgrade to a WebSocket
        self._metrics.request(method, route_of(scope), status, seconds)
        level = logging.ERROR if status >= 500 else logging.DEBUG if scope["path"] in PROBES else logging.INFO
        if _access.isEnabledFor(level):
            fields = {
                "method": method,
                "path": path_of(scope),
                "status": status,
                "ms": round(seconds * 1000, 3),
                "bytes": answer.bytes,
            }
            _access.log(level, "request", extra={"fields": fields})


class _Answer:
    """What was sent: the status, how many bytes; and the request id, put among the headers."""

    __slots__ = ("_request_id", "_send", "bytes", "status")

    def __init__(self, request_id: str, send: Send) -> None:
        self._request_id = request_id.encode()
        self._send = send
        self.status = 0  # none yet
        self.bytes = 0

    async def send(self, message: Message) -> None:
        kind = message["type"].removeprefix("websocket.")
        if kind in ("http.response.start", "accept"):
            headers = [(name, value) for name, value in message.get("headers", ()) if name != REQUEST_ID_HEADER]
            message = {**message, "headers": [*headers, (REQUEST_ID_HEADER, self._request_id)]}
            self.status = message.get("status", SWITCHING)
        elif kind == "http.response.body":
            self.bytes += len(message.get("body", b""))
        await self._send(message)


def route_of(scope: Scope) -> str:
    """The path of the route that serves the request, with its parameters' names instead of their values."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else UNROUTED


def path_of(scope: Scope) -> str:
    """As it came, percent signs and all, without the query."""
    raw = scope.get("raw_path")
    return bytes(raw).decode("latin-1") if raw else quote(scope["path"])


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None
