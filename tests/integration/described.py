"""Whether an answer is one that the API's description names: its status, its content type, and its body."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jsonschema_rs  # which schemathesis checks with, too
from server_fixture import Answer

from tablecast.server.openapi import description

JSON = "application/json"


def assert_described(method: str, path: str, answer: Answer) -> None:
    operation = _operation(method, path.partition("?")[0])
    what = f"{method} {path}: {answer.status}"
    response = operation["responses"].get(str(answer.status))
    assert response is not None, f"{what} is not described"
    media_type = answer.headers.get("content-type", "").partition(";")[0]
    assert media_type in response["content"], f"{what}: {media_type!r} is not described"
    if media_type == JSON:
        schema = {**response["content"][JSON]["schema"], "components": _api()["components"]}
        jsonschema_rs.validate(schema, answer.json())
    for name in response.get("headers", {}):
        assert answer.status == 200 or name.lower() in answer.headers, f"{what} has no {name}"


@cache
def _api() -> dict[str, Any]:
    return description()


def _operation(method: str, path: str) -> Any:
    """Of the paths that fit, the one with the most fixed parts."""
    fitting = [known for known in _api()["paths"] if re.fullmatch(re.sub(r"\{[^}]+\}", "[^/]+", known), path)]
    known = min(fitting, key=lambda known: known.count("{"))
    return _api()["paths"][known][method.lower()]
