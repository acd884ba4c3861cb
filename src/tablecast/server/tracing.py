"""Traces: a span per request, sent to a collector by OpenTelemetry.

An extra: nothing of OpenTelemetry is imported unless traces are asked for, by the setting `otel_endpoint` or by the
variables with which OpenTelemetry itself is told where its collector is. A request that comes with a `traceparent`
continues the caller's trace. Log lines of the request carry the trace's id.

A span says what a log line says: method, route, status, request id. No bodies, SQL, parameters or error texts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tablecast.errors import InvalidRequest
from tablecast.server.logs import (
    CLIENT_GONE,
    PROBES,
    REQUEST_ID_HEADER,
    App,
    Message,
    Receive,
    Scope,
    Send,
    path_of,
    route_of,
    trace_id,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
TRACES_PATH = "/v1/traces"  # where a collector takes traces, below its address
SERVICE_NAME = "tablecast"


class TracingSettings(Protocol):
    @property
    def otel_endpoint(self) -> str: ...


@contextmanager
def traced(app: App, settings: TracingSettings, environment: Mapping[str, str] = os.environ) -> Iterator[App]:
    """The application with a span per request, or just the application when no traces are asked for.

    At the end what was not sent yet is sent. Raises InvalidRequest if the packages are missing.
    """
    if not settings.otel_endpoint and not any(environment.get(name) for name in ENDPOINT_VARIABLES):
        yield app
        return
    provider = _provider(settings.otel_endpoint, environment)
    try:
        yield Traced(app, provider)
    finally:
        provider.shutdown()


def _provider(endpoint: str, environment: Mapping[str, str]) -> TracerProvider:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise InvalidRequest(
            f"otel_endpoint is set, and the packages that send traces are not installed ({e}): "
            "pip install 'tablecast[otel]'",
            setting="otel_endpoint",
        ) from e
    name = environment.get("OTEL_SERVICE_NAME") or SERVICE_NAME
    provider = TracerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces_address(endpoint))))
    return provider


def traces_address(endpoint: str) -> str | None:
    """A collector's address with the path for traces, unless it has it; None leaves it to OpenTelemetry's variables."""
    if not endpoint:
        return None
    return endpoint if endpoint.endswith(TRACES_PATH) else endpoint.rstrip("/") + TRACES_PATH


class Traced:
    """An application around the application: one span per request, except for the probes of machines."""

    def __init__(self, app: App, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app = app
        self._tracer = provider.get_tracer(SERVICE_NAME)
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        with self._span(scope) as span:
            answer = _Answer(send)
            try:
                await self._app(scope, receive, answer.send)
            except Exception:
                answer.status = answer.status or 500
                raise
            finally:
                _describe(span, scope, answer)

    @contextmanager
    def _span(self, scope: Scope) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind

        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        parent = self._propagator.extract(carrier)
        with self._tracer.start_as_current_span(
            scope["method"], parent, SpanKind.SERVER, record_exception=False, set_status_on_exception=False
        ) as span:
            token = trace_id.set(f"{span.get_span_context().trace_id:032x}")
            try:
                yield span
            finally:
                trace_id.reset(token)


class _Answer:
    """The status and the request id, as they are sent."""

    __slots__ = ("_send", "request_id", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0  # none yet
        self.request_id = ""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.request_id = dict(message.get("headers", ())).get(REQUEST_ID_HEADER, b"").decode("latin-1")
        await self._send(message)


def _describe(span: Span, scope: Scope, answer: _Answer) -> None:
    """Named by the conventions for HTTP spans. What it is called is known only now: the route was found inside."""
    from opentelemetry.trace import StatusCode

    route, status = route_of(scope), answer.status or CLIENT_GONE
    span.update_name(f"{scope['method']} {route}")
    span.set_attributes(
        {
            "http.request.method": scope["method"],
            "http.route": route,
            "http.response.status_code": status,
            "url.path": path_of(scope),
            "tablecast.request_id": answer.request_id,
        }
    )
    if status >= 500:
        span.set_status(StatusCode.ERROR)
