"""The description of the API, OpenAPI 3.1, made from the structs that the handlers use.

Nothing in it is written twice: types come from `msgspec`, calls and examples from `operations`, error codes from the
error tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec

from tablecast.codec.log_stream import LOG_STREAM
from tablecast.errors import TablecastError
from tablecast.server.api_status import StatusAnswer
from tablecast.server.bodies import ARROW, JSON, LOG, NDJSON, SEALED, TAR
from tablecast.server.errors import ErrorAnswer
from tablecast.server.operation import ALWAYS, Operation, Parameter, Types
from tablecast.server.operations import OPERATIONS

_REFERENCE = "#/components/schemas/{name}"
_REFERENCED = re.compile(_REFERENCE.format(name='([^"]+)'))
_OTHER_CODES = {408: ("timeout",)}  # statuses that belong to HTTP, not to a class
_BINARY = {
    TAR: {"type": "string", "format": "binary", "description": "a tar of files"},
    NDJSON: {"type": "string", "description": "one JSON object per line"},
    ARROW: {"type": "string", "format": "binary", "description": "an Arrow IPC stream"},
    LOG: {"type": "string", "format": "binary", "description": "stored log batches, for a group"},
    LOG_STREAM: {"type": "string", "format": "binary", "description": "stored log batches, in frames"},
    SEALED: {"type": "string", "format": "binary", "description": "rows and messages that were finished elsewhere"},
}
Described = dict[str, Any]


@cache
def description() -> Described:
    schemas, components = _schemas()
    paths: Described = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tablecast",
            "version": version("tablecast"),
            "description": "A change-event database: every table write, on every channel, exactly once.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    }


# --- types ------------------------------------------------------------------------------------------------------


def _schemas() -> tuple[dict[Any, Described], Described]:
    """The schema of every type that is named, and the structs that they refer to."""
    named = {str(kind): kind for operation in OPERATIONS for kind in _types(operation)}
    named |= {str(kind): kind for kind in (ErrorAnswer, StatusAnswer)}
    found, components = msgspec.json.schema_components(named.values(), ref_template=_REFERENCE)
    schemas = dict(zip(named, found, strict=True))
    for name in _taken(schemas, components):
        _allow_nulls(components[name])
    return schemas, dict(sorted(components.items()))


def _taken(schemas: dict[Any, Described], components: Described) -> set[str]:
    """The structs that requests are made of."""
    waiting = [schemas[str(kind)] for operation in OPERATIONS for kind in operation.takes.values() if kind is not None]
    found: set[str] = set()
    for schema in waiting:
        for name in _REFERENCED.findall(msgspec.json.encode(schema).decode()):
            if name not in found:
                found.add(name)
                waiting.append(components[name])
    return found


def _allow_nulls(struct: Described) -> None:
    """In a request a null for a field that may be left out means that it is (codec.nulls)."""
    for name, field in struct.get("properties", {}).items():
        if name not in struct.get("required", ()) and "default" in field and not _takes_null(field):
            kept = {key: field.pop(key) for key in ("description", "default") if key in field}
            struct["properties"][name] = kept | {"anyOf": [field, {"type": "null"}]}


def _takes_null(field: Described) -> bool:
    return not field.keys() - {"description", "default"} or {"type": "null"} in field.get("anyOf", ())


def _types(operation: Operation) -> Iterator[Any]:
    for types in (operation.takes, operation.answers):
        yield from (kind for kind in types.values() if kind is not None)


def _content(types: Types, schemas: dict[Any, Described], example: Any) -> Described:
    content: Described = {}
    for media_type, kind in types.items():
        schema = _BINARY.get(media_type, {"type": "string"}) if kind is None else schemas[str(kind)]
        content[media_type] = {"schema": schema}
        if media_type == JSON and example is not None:
            content[media_type]["examples"] = {"example": {"value": example}}
    return content


# --- operations -------------------------------------------------------------------------------------------------


def _operation(operation: Operation, schemas: dict[Any, Described]) -> Described:
    described: Described = {
        "operationId": operation.name,
        "summary": operation.summary,
        "security": [] if operation.public else [{"basic": []}, {"bearer": []}],
        "responses": _responses(operation, schemas),
    }
    if operation.parameters:
        described["parameters"] = [_parameter(parameter) for parameter in operation.parameters]
    if operation.takes:
        content = _content(operation.takes, schemas, operation.example)
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameter(parameter: Parameter) -> Described:
    described: Described = {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.meaning,
        "schema": dict(parameter.schema),
    }
    return described if parameter.example is None else described | {"example": parameter.example}


def _responses(operation: Operation, schemas: dict[Any, Described]) -> Described:
    good: Described = {
        "description": "done",
        "content": _content(operation.answers, schemas, operation.answer_example),
    }
    if operation.answer_headers:
        good["headers"] = {
            name: {"description": meaning, "schema": {"type": "string"}}
            for name, meaning in operation.answer_headers.items()
        }
    errors = {*operation.errors, 405, *ALWAYS}
    responses = {"200": good} | {str(status): _error(status, schemas) for status in sorted(errors)}
    if operation.path == "/ready":
        responses["503"]["content"][JSON]["schema"] = schemas[str(StatusAnswer)]
        responses["503"]["content"][JSON]["examples"] = {"draining": {"value": {"status": "draining"}}}
    return responses


def _error(status: int, schemas: dict[Any, Described]) -> Described:
    codes = sorted({*_codes(TablecastError, status), *_OTHER_CODES.get(status, ())})
    example = {"error": {"code": codes[0], "message": "what is wrong, and what would be right", "details": {}}}
    described: Described = {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}",
        "content": {JSON: {"schema": schemas[str(ErrorAnswer)], "examples": {codes[0]: {"value": example}}}},
    }
    if status in (429, 503):
        described["headers"] = {"Retry-After": {"description": "seconds to wait", "schema": {"type": "integer"}}}
    return described


def _codes(kind: type[TablecastError], status: int) -> Iterator[str]:
    """The codes of the error tree that have this status."""
    if kind.status == status:
        yield kind.code
    for below in kind.__subclasses__():
        if below.__module__ == TablecastError.__module__:
            yield from _codes(below, status)
