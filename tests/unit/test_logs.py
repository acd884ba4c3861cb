"""Logs: one line per thing, true about whom it is for, and nothing in it that a client could forge or must not be read."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tablecast.errors import InvalidRequest
from tablecast.server.logs import (
    CLIENT_GONE,
    UNROUTED,
    AccessLog,
    App,
    Message,
    Receive,
    Scope,
    Send,
    accepted_request_id,
    configure_logging,
    current_request,
    identify,
)

LOGGERS = ("", "tablecast", "uvicorn", "uvicorn.error", "uvicorn.access")
log = logging.getLogger("tablecast.test")


@dataclass(frozen=True)
class Chosen:
    log_format: str = "json"
    log_level: str = "info"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Logging is the process's: what a test configures must not stay."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def stream() -> io.StringIO:
    stream = io.StringIO()
    configure_logging(Chosen(), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


# --- lines ---


def test_a_line_is_one_json_object(stream: io.StringIO) -> None:
    log.info("%d things\nhappened", 2, extra={"fields": {"table": "app.orders", "rows": 7}})
    [line] = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "tablecast.test",
        "message": r"2 things\x0ahappened",
        "fields": {"table": "app.orders", "rows": 7},
    }


def test_an_exception_is_in_its_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("a mistake")
    except ValueError:
        log.exception("it failed")
    [line] = lines(stream)
    assert line["level"] == "error"
    assert line["exception"].endswith("ValueError: a mistake")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_what_is_not_text_does_not_cost_the_line(log_format: str) -> None:
    stream = io.StringIO()
    configure_logging(Chosen(log_format), stream)
    log.info("half \ud83d an emoji", extra={"fields": {"odd": "\udcff", "object": Chosen, "list": ["\udcff"]}})
    assert stream.getvalue().encode().endswith(b"\n")
    assert r"half \ud83d an emoji" in stream.getvalue().replace(r"\\", "\\")


def test_a_client_cannot_begin_a_line_of_its_own_in_text() -> None:
    stream = io.StringIO()
    configure_logging(Chosen("text"), stream)
    log.info("user %s", "ann\n2026-01-01 INFO forged", extra={"fields": {"path": "/a\r\nforged\x1b[2J\u2028forged"}})
    assert len(stream.getvalue().splitlines()) == 1
    assert r"ann\x0a2026-01-01 INFO forged path=/a\x0d\x0aforged\x1b[2J\u2028forged" in stream.getvalue()


def test_levels_are_ours_and_libraries_are_heard_from_warnings_on() -> None:
    stream = io.StringIO()
    configure_logging(Chosen(log_level="debug"), stream)
    log.debug("ours")
    logging.getLogger("some.library").info("not heard")
    logging.getLogger("some.library").warning("heard")
    logging.getLogger("uvicorn.error").info("started")
    logging.getLogger("uvicorn.access").warning("not heard: we have our own")
    assert [line["message"] for line in lines(stream)] == ["ours", "heard", "started"]


@pytest.mark.parametrize(("chosen", "name"), [(Chosen("xml"), "log_format"), (Chosen(log_level="loud"), "log_level")])
def test_an_unknown_setting_is_named(chosen: Chosen, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} '(xml|loud)' is unknown: use "):
        configure_logging(chosen)


# --- requests ---


class Told:
    """Metrics that only remember."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int]] = []

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        assert seconds >= 0
        self.requests.append((method, route, status))


def scope_of(path: str = "/v1/api/sql", *, headers: list[tuple[bytes, bytes]] | None = None) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"password=hunter2",
        "headers": headers or [],
    }


def serve(app: App, scope: dict[str, Any], told: Told | None = None) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(_called(AccessLog(app, told or Told()), scope, receive, send))
    return sent


async def _called(app: AccessLog, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


async def answering(scope: Scope, receive: Receive, send: Send) -> None:
    identify("ann")
    log.info("inside")
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"12345", "more_body": True})
    await send({"type": "http.response.body", "body": b"678"})


def test_a_request_is_one_line_one_metric_and_an_id_in_the_answer(stream: io.StringIO) -> None:
    told = Told()
    sent = serve(answering, scope_of(headers=[(b"x-request-id", b"abc-1")]), told)
    assert (b"x-request-id", b"abc-1") in sent[0]["headers"]
    assert (b"content-type", b"text/plain") in sent[0]["headers"]
    inside, line = lines(stream)
    assert (inside["message"], inside["request_id"], inside["user"]) == ("inside", "abc-1", "ann")
    assert (line["logger"], line["request_id"], line["user"]) == ("tablecast.access", "abc-1", "ann")
    assert line["fields"].pop("ms") >= 0
    assert line["fields"] == {"method": "POST", "path": "/v1/api/sql", "status": 201, "bytes": 8}
    assert told.requests == [("POST", UNROUTED, 201)]
    assert current_request() is None


def test_credentials_and_parameters_are_not_logged(stream: io.StringIO) -> None:
    serve(answering, scope_of(headers=[(b"authorization", b"Basic c3lzdGVtOmh1bnRlcjI=")]))
    assert "hunter2" not in stream.getvalue()
    assert "c3lzdGVt" not in stream.getvalue()


def test_the_route_is_the_metric_and_the_path_is_the_line(stream: io.StringIO) -> None:
    class Route:
        path = "/v1/api/tables/{table}/rows"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = Route()
        await answering(scope, receive, send)

    told = Told()
    serve(app, scope_of("/v1/api/tables/app.orders/rows"), told)
    assert told.requests == [("POST", "/v1/api/tables/{table}/rows", 201)]
    assert lines(stream)[-1]["fields"]["path"] == "/v1/api/tables/app.orders/rows"


def test_an_application_that_fails_is_a_500(stream: io.StringIO) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a mistake")

    told = Told()
    with pytest.raises(RuntimeError):
        serve(app, scope_of(), told)
    assert told.requests == [("POST", UNROUTED, 500)]
    assert [(line["level"], line["fields"]["status"]) for line in lines(stream)] == [("error", 500)]


def test_a_client_that_went_away_was_not_answered(stream: io.StringIO) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        return

    told = Told()
    serve(app, scope_of(), told)
    assert told.requests == [("POST", UNROUTED, CLIENT_GONE)]


def test_probes_are_logged_at_debug(stream: io.StringIO) -> None:
    serve(answering, scope_of("/health"))
    assert [line["message"] for line in lines(stream)] == ["inside"]
    configure_logging(Chosen(log_level="debug"), stream)
    serve(answering, scope_of("/health"))
    assert [line["message"] for line in lines(stream)] == ["inside", "inside", "request"]


def test_the_user_is_known_outside_of_the_task_or_thread_that_found_out(stream: io.StringIO) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.create_task(_identify("bob"))
        await asyncio.to_thread(log.info, "in a thread")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    serve(app, scope_of(headers=[(b"x-request-id", b"t1")]))
    assert [(line["request_id"], line["user"]) for line in lines(stream)] == [("t1", "bob")] * 2


async def _identify(user: str) -> None:
    identify(user)


def test_requests_at_the_same_time_do_not_mix(stream: io.StringIO) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        mine = scope["headers"][0][1].decode()
        identify(f"user of {mine}")
        await asyncio.sleep(0)
        log.info("inside", extra={"fields": {"mine": mine}})
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def all_at_once() -> None:
        access = AccessLog(app, Told())
        scopes = [scope_of(headers=[(b"x-request-id", b"r%d" % i)]) for i in range(20)]
        await asyncio.gather(*(access(scope, _nothing, _swallow) for scope in scopes))

    asyncio.run(all_at_once())
    inside = [line for line in lines(stream) if line["message"] == "inside"]
    assert len(inside) == 20
    assert all(line["request_id"] == line["fields"]["mine"] for line in inside)
    assert all(line["user"] == f"user of {line['request_id']}" for line in lines(stream))


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _swallow(message: Message) -> None:
    pass


def test_lines_outside_of_requests_are_nobodys(stream: io.StringIO) -> None:
    identify("nobody is served")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(log.info, "a job").result()
    assert {"request_id", "user"}.isdisjoint(lines(stream)[0])


@pytest.mark.parametrize("given", ["abc-1", "A.b_c:d/e+f=", "x" * 128])
def test_a_clients_request_id_is_taken(given: str) -> None:
    assert accepted_request_id(given) == given


@pytest.mark.parametrize("given", [None, "", "a b", "a\nb", "x" * 129, "é", '"', "\u0661"])
def test_one_that_could_not_stand_in_a_line_is_replaced(given: str | None) -> None:
    made = accepted_request_id(given)
    assert made != given
    assert made != accepted_request_id(given)


def test_other_kinds_of_connection_pass_through(stream: io.StringIO) -> None:
    seen = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    told = Told()
    asyncio.run(_called(AccessLog(app, told), {"type": "lifespan"}, _nothing, _swallow))
    assert (seen, told.requests, lines(stream)) == (["lifespan"], [], [])
