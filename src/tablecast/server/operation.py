"""One call of the API, as its description tells it, and what many calls share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TEXT, HTML = "text/plain", "text/html"
BINARY = None  # the type of what is not described by a struct: Arrow streams, text

ALWAYS = (429, 500, 503)
SIGNED_IN = (401, 403)
WITH_BODY = (400, 408, 413, 415, 507)
Types = Mapping[str, Any]


@dataclass(frozen=True)
class Parameter:
    name: str
    place: str  # path, query or header
    meaning: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    example: Any = None


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    name: str
    summary: str
    answers: Types
    answer_example: Any = None
    takes: Types = field(default_factory=dict)
    example: Any = None
    errors: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    public: bool = False


ONCE = Parameter(
    "Idempotency-Key",
    "header",
    "a repeat with the same key within a day is answered like the first and commits nothing",
    {"type": "string", "minLength": 1, "maxLength": 255},
)
WITHIN = Parameter("Transaction-Id", "header", "an open transaction that the request belongs to")
NAMESPACE = Parameter("namespace", "query", "where names without a namespace are looked up; default: default")
