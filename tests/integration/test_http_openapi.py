"""The description is true: it names every route, its examples fit its types, and a fuzzer that believes it finds no lie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server_fixture import PASSWORD, ServerThread, basic

from tablecast.server.app import SERVED
from tablecast.server.bodies import ARROW, JSON, SEALED
from tablecast.server.openapi import description
from tablecast.server.operations import OPERATIONS, Operation


@schemathesis.serializer(ARROW, SEALED)
def as_it_is(_: Any, value: Any) -> bytes:
    """The fuzzer has no way of its own to send what is not text."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


EXAMPLES = 25  # of each operation: the whole takes seconds
WRONG_EXAMPLES = 6
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread(max_consume_timeout=0.01, statement_timeout_seconds=5) as running:
        running.sql("CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY, amount DECIMAL(12,2))")
        running.sql("CREATE TOPIC app.order_events; ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY")
        yield running


def test_it_describes_exactly_what_is_served() -> None:
    described = {(operation.method, operation.path) for operation in OPERATIONS}
    assert described == {(served.method, served.path) for served in SERVED}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_examples_fit_their_types(operation: Operation) -> None:
    if operation.example is not None:
        msgspec.convert(operation.example, operation.takes[JSON])
    if operation.answer_example is not None:
        msgspec.convert(operation.answer_example, operation.answers[JSON], str_keys=True)  # as in JSON
    assert (operation.example is not None) == (JSON in operation.takes)
    assert operation.answer_example is not None or JSON not in operation.answers or operation.name == "openapi"


def test_it_is_served_to_programs_and_to_people(server: ServerThread) -> None:
    served = server.get("/openapi.json", user=None)
    assert served.json() == msgspec.json.decode(msgspec.json.encode(description()))
    page = server.get("/docs", user=None)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    text = page.body.decode()
    assert all(operation.path in text for operation in OPERATIONS)
    assert not re.search(r"<script|https?://", text), "the page needs nobody else"


def test_every_reference_leads_somewhere() -> None:
    api = description()
    references = set(re.findall(r'"\$ref":"#/components/schemas/([^"]+)"', msgspec.json.encode(api).decode()))
    assert references == references & set(api["components"]["schemas"])


def _operations() -> list[Any]:
    schema = schemathesis.openapi.from_dict(description())
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.hypothesis
@pytest.mark.parametrize("operation", _operations(), ids=lambda operation: operation.label)
def test_a_fuzzer_finds_no_lie(server: ServerThread, operation: Any) -> None:
    """Requests as the description allows them: none makes the server fail, and every answer is one that it names."""

    _fuzz(server, operation, GenerationMode.POSITIVE, EXAMPLES)


def _refusable() -> list[Any]:
    """Operations that can be asked wrongly: they take something, or credentials."""
    takes = {f"{each.method} {each.path}": each.takes or each.parameters or not each.public for each in OPERATIONS}
    return [operation for operation in _operations() if takes[operation.label]]


@pytest.mark.hypothesis
@pytest.mark.parametrize("operation", _refusable(), ids=lambda operation: operation.label)
def test_nor_with_what_the_description_does_not_allow(server: ServerThread, operation: Any) -> None:
    _fuzz(server, operation, GenerationMode.NEGATIVE, WRONG_EXAMPLES)


def _fuzz(server: ServerThread, operation: Any, mode: GenerationMode, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(data=st.data())
    def fuzz(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        case.call_and_validate(base_url=server.url, checks=CHECKS, headers={"Authorization": basic("system", PASSWORD)})

    fuzz()
