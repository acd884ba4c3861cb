"""A real server, watched from outside: scrapes, log lines, and spans that reach a collector."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.parser import text_string_to_metric_families
from server_fixture import PASSWORD, Address, ServerProcess, ServerThread
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router

from tablecast.errors import InvalidRequest
from tablecast.server.logs import AccessLog, App, Message, trace_id
from tablecast.server.tracing import Traced, traced, traces_address

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
JOIN_SECONDS = 60.0


# --- metrics ---


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as server:
        server.sql("CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY, amount BIGINT)")
        server.sql("CREATE TOPIC app.events; ALTER TOPIC app.events ADD SOURCE app.orders ON INSERT")
        server.sql("CREATE USER 'watcher' WITH PASSWORD 'a long password' ROLE 'service'")
        yield server


def scraped(server: Address, **credentials: Any) -> dict[tuple[str, ...], float]:
    """Samples by name and label values, sorted by label."""
    answer = server.get("/metrics", **credentials)
    assert answer.status == 200, answer.body
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def test_a_scrape_counts_what_clients_did(server: ServerThread) -> None:
    rows = [{"id": i, "amount": i} for i in range(25)]
    assert server.post("/tables/app.orders/rows?mode=insert", rows).status == 200
    assert server.post("/tables/app.orders/rows?mode=insert", rows).status == 422
    consume = {"topic": "app.events", "group_id": "g", "start": {"type": "Earliest"}, "limit": 10}
    assert len(server.post("/topics/consume", consume).json()["messages"]) == 10
    by_short_name = consume | {"topic": "events", "namespace": "app", "limit": 5}
    assert len(server.post("/topics/consume", by_short_name).json()["messages"]) == 5
    samples = scraped(server)
    rows_route = "/v1/api/tables/{table}/rows"
    assert samples["tablecast_http_requests_total", "POST", rows_route, "200"] == 1
    assert samples["tablecast_http_requests_total", "POST", rows_route, "422"] == 1
    assert samples["tablecast_http_request_seconds_count", "POST", rows_route] == 2
    assert samples["tablecast_errors_total", "duplicate_key"] == 1
    assert samples["tablecast_messages_in_total", "app.events"] == 25
    assert samples["tablecast_messages_out_total", "app.events"] == 15
    assert samples["tablecast_group_lag_messages", "g", "app.events"] == 25
    assert samples["tablecast_commit_rows_sum",] == 25


def test_a_consume_that_waits_is_counted_while_it_does(server: ServerThread) -> None:
    consume = {"topic": "app.events", "group_id": "g", "timeout_seconds": 60}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.post, "/topics/consume", consume)
        while not server.db.parked:
            assert not waiting.done()
        assert scraped(server)["tablecast_long_polls_parked",] == 1
        server.sql("INSERT INTO app.orders VALUES (1, 1)")
        assert len(waiting.result().json()["messages"]) == 1
    assert scraped(server)["tablecast_long_polls_parked",] == 0


def test_paths_that_are_not_ours_are_one_route(server: ServerThread) -> None:
    for i in range(5):
        assert server.get(f"/wp-admin/{i}").status == 404
    assert scraped(server)["tablecast_http_requests_total", "GET", "unrouted", "404"] == 5


def test_a_scrape_takes_the_role_service(server: ServerThread) -> None:
    server.sql("CREATE USER 'ann' WITH PASSWORD 'another long password' ROLE 'user'")
    assert server.get("/metrics", user=None).status == 401
    assert server.get("/metrics", user="ann", password="another long password").status == 403
    assert scraped(server, user="watcher", password="a long password")


def test_a_public_scrape_takes_nothing() -> None:
    with ServerThread(metrics_public=True) as server:
        assert scraped(server, user=None)


# --- logs ---


def test_a_server_logs_one_json_line_per_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ServerProcess(tmp_path / "data", "--log-format", "json") as server:
        secret = {"sql": "SELECT ? AS one", "params": ["a secret parameter"]}
        answer = server.post("/sql", secret, headers={"X-Request-Id": "from-the-client"})
        assert answer.headers["x-request-id"] == "from-the-client"
        made = server.get("/v1/api/auth/me?token=a-secret-parameter").headers["x-request-id"]
        assert server.post("/sql", {"sql": "SELEC 1"}, password="a wrong password").status == 401
        assert server.terminate() == 0
    written = capfd.readouterr().err
    lines = [json.loads(line) for line in written.splitlines()]
    requests = [line for line in lines if line["logger"] == "tablecast.access"]
    assert [(r.get("user"), r["fields"]["path"], r["fields"]["status"]) for r in requests] == [
        ("system", "/v1/api/sql", 200),
        ("system", "/v1/api/auth/me", 200),
        (None, "/v1/api/sql", 401),
    ]
    assert [r["request_id"] for r in requests[:2]] == ["from-the-client", made]
    assert requests[0]["fields"]["bytes"] == len(answer.body)
    for secret_text in (PASSWORD, "a wrong password", "a secret parameter", "a-secret-parameter", "SELEC"):
        assert secret_text not in written


# --- traces ---


async def hello(request: Request) -> PlainTextResponse:
    if request.path_params["name"] == "nobody":
        raise RuntimeError("there is nobody")
    return PlainTextResponse(trace_id.get() or "no trace", 503 if request.path_params["name"] == "busy" else 200)


async def alive(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


class Unmeasured:
    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        pass


def application() -> App:
    return AccessLog(Router([Route("/hello/{name}", hello), Route("/health", alive)]), Unmeasured())


def ask(app: App, path: str, headers: dict[str, str] | None = None) -> list[Message]:
    sent: list[Message] = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async def call() -> None:
        await app(scope, receive, send)

    asyncio.run(call())
    return sent


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def watched(exporter: InMemorySpanExporter) -> Iterator[App]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Traced(application(), provider)
    provider.shutdown()


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    [span] = exporter.get_finished_spans()
    return span


def test_a_request_is_a_span(watched: App, exporter: InMemorySpanExporter) -> None:
    ask(watched, "/hello/ann", {"x-request-id": "r-1"})
    span = only(exporter)
    assert (span.name, span.kind, span.parent) == ("GET /hello/{name}", SpanKind.SERVER, None)
    assert dict(span.attributes or {}) == {
        "http.request.method": "GET",
        "http.route": "/hello/{name}",
        "http.response.status_code": 200,
        "url.path": "/hello/ann",
        "tablecast.request_id": "r-1",
    }
    assert span.status.status_code is StatusCode.UNSET


def test_the_callers_trace_goes_on(watched: App, exporter: InMemorySpanExporter) -> None:
    sent = ask(watched, "/hello/ann", {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    span = only(exporter)
    assert span.context is not None and span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert sent[1]["body"].decode() == TRACE, "what is logged inside carries the trace"


def test_a_traceparent_that_is_none_begins_a_trace(watched: App, exporter: InMemorySpanExporter) -> None:
    ask(watched, "/hello/ann", {"traceparent": "00-nonsense"})
    assert only(exporter).parent is None


def test_the_log_line_of_a_request_has_its_trace(watched: App, caplog: pytest.LogCaptureFixture) -> None:
    traces = []
    handler = logging.Handler()
    handler.emit = lambda record: traces.append(trace_id.get())  # type: ignore[method-assign]
    logger = logging.getLogger("tablecast.access")
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "tablecast.access"):
            ask(watched, "/hello/ann", {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    finally:
        logger.removeHandler(handler)
    assert traces == [TRACE]
    assert trace_id.get() is None


def test_a_failure_is_an_error_without_its_text(watched: App, exporter: InMemorySpanExporter) -> None:
    with pytest.raises(RuntimeError):
        ask(watched, "/hello/nobody")
    ask(watched, "/hello/busy")
    failed, busy = exporter.get_finished_spans()
    assert (failed.attributes or {})["http.response.status_code"] == 500
    assert (busy.attributes or {})["http.response.status_code"] == 503
    for span in (failed, busy):
        assert span.status.status_code is StatusCode.ERROR
        assert "nobody" not in str(span.status.description)
        assert span.events == ()


def test_probes_are_no_spans(watched: App, exporter: InMemorySpanExporter) -> None:
    assert ask(watched, "/health")[0]["status"] == 200
    assert exporter.get_finished_spans() == ()


@dataclass(frozen=True)
class Chosen:
    otel_endpoint: str = ""


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, ExportTraceServiceRequest]]]]:
    """Something that takes spans as a collector does: its address, and what arrived."""
    arrived: list[tuple[str, ExportTraceServiceRequest]] = []

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            arrived.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as its base calls it
            pass

    with HTTPServer(("127.0.0.1", 0), Taking) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}", arrived
        finally:
            listening.shutdown()
            thread.join(JOIN_SECONDS)


def test_spans_reach_a_collector_by_the_end() -> None:
    with collector() as (address, arrived):
        with traced(application(), Chosen(address), {}) as app:
            ask(app, "/hello/ann")
        [(path, request)] = arrived
    assert path == "/v1/traces"
    [resource] = request.resource_spans
    assert ("service.name", "tablecast") in [(a.key, a.value.string_value) for a in resource.resource.attributes]
    assert [span.name for scope in resource.scope_spans for span in scope.spans] == ["GET /hello/{name}"]


def test_a_server_sends_its_spans_before_it_ends(tmp_path: Path) -> None:
    with collector() as (address, arrived):
        with ServerProcess(tmp_path / "data", "--set", f"otel_endpoint={address}") as server:
            parent = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "r-1"}
            assert server.post("/sql", {"sql": "SELECT 1 AS one"}, headers=parent).status == 200
            assert server.terminate() == 0
        [span] = [
            span
            for _, request in arrived
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex()) == ("POST /v1/api/sql", TRACE, PARENT)
    assert ("tablecast.request_id", "r-1") in [(a.key, a.value.string_value) for a in span.attributes]


def test_opentelemetrys_own_variable_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector() as (address, arrived):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        with traced(application(), Chosen(), {"OTEL_EXPORTER_OTLP_ENDPOINT": address}) as app:
            ask(app, "/hello/ann")
        assert [path for path, _ in arrived] == ["/v1/traces"]


def test_without_an_endpoint_nothing_is_traced() -> None:
    plain = application()
    with traced(plain, Chosen(), {}) as app:
        assert app is plain


def test_missing_packages_are_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with (
        pytest.raises(InvalidRequest, match=r"pip install 'tablecast\[otel\]'"),
        traced(application(), Chosen("http://localhost:4318"), {}),
    ):
        pass


def test_a_server_without_traces_does_not_import_opentelemetry() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import sys, tablecast.server.serve, tablecast.server.tracing; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "tablecast.server.tracing" in said
    assert "opentelemetry" not in said


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
        ("https://otel.example/v1/traces", "https://otel.example/v1/traces"),
        ("", None),
    ],
)
def test_the_address_of_a_collector_may_have_its_path(given: str, used: str | None) -> None:
    assert traces_address(given) == used
