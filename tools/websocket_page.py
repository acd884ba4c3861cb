"""`python tools/websocket_page.py`: writes docs/websocket.md from docs/live.asyncapi.yaml, which a test compares with the codec.

The document is for machines; the page says the same to people, message by message. `page()` is the whole text, so that a test
can compare it with the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[1] / "docs"
SOURCE, PAGE = DOCS / "live.asyncapi.yaml", DOCS / "websocket.md"
HEAD = """\
# WebSocket reference

Live queries on the wire, for whoever speaks to a server without one of our clients. What a live query is: [live
queries](live.md). The same messages travel as server-sent events: [HTTP](http.md#get-v1apilivesqlselectidamountfromapporders).

*This page is made from [live.asyncapi.yaml](live.asyncapi.yaml) by `tools/websocket_page.py`; tests compare both with the code.*

"""


def page(document: dict[str, Any]) -> str:
    return HEAD + "\n".join(_lines(document)) + "\n"


def _lines(document: dict[str, Any]) -> Iterator[str]:
    messages = document["components"]["messages"]
    address = document["channels"]["live"]["address"]
    yield f"`ws://host:8080{address}`, or `wss://` with TLS.\n"
    yield "| from the client | from the server |"
    yield "|---|---|"
    yield f"| {_named(document, 'fromClient')} | {_named(document, 'toClient')} |\n"
    yield "## The protocol\n"
    yield document["info"]["description"].strip() + "\n"
    for operation, heading in (("fromClient", "What the client says"), ("toClient", "What the server says")):
        yield f"## {heading}\n"
        for name in _names(document, operation):
            yield from _message(name, messages[name])
    yield "## Shared types\n"
    yield from _types(document["components"]["schemas"])


def _names(document: dict[str, Any], operation: str) -> list[str]:
    return [each["$ref"].rpartition("/")[2] for each in document["operations"][operation]["messages"]]


def _named(document: dict[str, Any], operation: str) -> str:
    return ", ".join(f"[`{name}`](#{name})" for name in _names(document, operation))


def _message(name: str, message: dict[str, Any]) -> Iterator[str]:
    payload = message["payload"]
    yield f"### {name}\n"
    yield _one_line(message["summary"]) + "\n"
    yield "| field | type | | meaning |"
    yield "|---|---|---|---|"
    for field, schema in payload["properties"].items():
        needed = "required" if field in payload["required"] else ""
        yield f"| `{field}` | {_type(schema)} | {needed} | {_meaning(schema)} |"
    if "oneOf" in payload:
        choices = ", or ".join(" and ".join(f"`{field}`" for field in each["required"]) for each in payload["oneOf"])
        yield f"\nIt has either {choices}."
    for example in message["examples"]:
        yield f"\n```json\n{json.dumps(example['payload'], ensure_ascii=False)}\n```"
    yield ""


def _types(schemas: dict[str, Any]) -> Iterator[str]:
    yield "| type | is | meaning |"
    yield "|---|---|---|"
    for name, schema in schemas.items():
        yield f"| `{name}` | {_type(schema)} | {_meaning(schema) or _fields(schema)} |"


def _fields(schema: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` ({_type(each)})" for name, each in schema.get("properties", {}).items())


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"[{schema['$ref'].rpartition('/')[2]}](#shared-types)"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array" and "items" in schema:
        return f"array of {_type(schema['items'])}"
    if "type" not in schema and "oneOf" in schema:
        return " or ".join(map(_type, schema["oneOf"]))
    return f"{schema['type']}{_range(schema)}"


def _range(schema: dict[str, Any]) -> str:
    low, high = (schema.get(f"{end}imum", schema.get(f"{end}Length")) for end in ("min", "max"))
    ends = [f"from {low:,}"] if low is not None else []
    ends += [f"to {high:,}"] if high is not None else []
    unit = " characters" if "minLength" in schema or "maxLength" in schema else ""
    return f", {' '.join(ends)}{unit}" if ends else ""


def _meaning(schema: dict[str, Any]) -> str:
    said = schema.get("description", "")
    default = f" Default: `{json.dumps(schema['default'])}`." if "default" in schema else ""
    return _one_line(said).replace("|", "\\|") + default


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    PAGE.write_text(page(yaml.safe_load(SOURCE.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
