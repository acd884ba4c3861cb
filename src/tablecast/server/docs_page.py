"""`/openapi.json`, and `/docs`: the same as one page of plain HTML, without scripts and without anybody else's servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from typing import Any

import msgspec
from starlette.responses import Response

from tablecast.server.bodies import JSON
from tablecast.server.call import Call
from tablecast.server.openapi import description

_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
section { border-top: 1px solid #8884; margin-top: 2rem }
h2 { font-family: ui-monospace, monospace; font-size: 1.1rem }
pre { background: #8881; overflow-x: auto; padding: .8rem }
td, th { border-bottom: 1px solid #8884; padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }
"""


async def openapi_json(call: Call) -> Response:
    return Response(_described(), media_type=JSON)


async def docs_html(call: Call) -> Response:
    return Response(_page(), headers=_POLICY, media_type="text/html")


@cache
def _described() -> bytes:
    return msgspec.json.encode(description())


@cache
def _page() -> bytes:
    return "".join(_lines(description())).encode()


def _lines(api: dict[str, Any]) -> Iterator[str]:
    title, about = escape(api["info"]["title"]), escape(api["info"]["description"])
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title} {escape(api['info']['version'])}</h1>"
    yield f'<p>{about} The same for programs: <a href="/openapi.json">openapi.json</a>.</p><ul>'
    operations = [(method.upper(), path, o) for path, methods in api["paths"].items() for method, o in methods.items()]
    for method, path, operation in operations:
        yield f'<li><a href="#{operation["operationId"]}">{method} {escape(path)}</a> {escape(operation["summary"])}</li>'
    yield "</ul>"
    for method, path, operation in operations:
        yield f'<section id="{operation["operationId"]}"><h2>{method} {escape(path)}</h2>'
        yield from _operation(operation)
        yield "</section>"
    yield "<section><h2>Types</h2>"
    for name, schema in api["components"]["schemas"].items():
        yield f'<h3 id="type-{escape(name)}">{escape(name)}</h3>{_code(schema)}'
    yield "</section></body></html>"


def _operation(operation: dict[str, Any]) -> Iterator[str]:
    yield f"<p>{escape(operation['summary'])} {'Needs credentials.' if operation['security'] else ''}</p>"
    if "parameters" in operation:
        rows = [(p["name"], p["in"], p["description"]) for p in operation["parameters"]]
        yield _table(("parameter", "in", ""), rows)
    if "requestBody" in operation:
        yield from _content("Request", operation["requestBody"]["content"])
    yield from _content("Answer", operation["responses"]["200"]["content"])
    errors = [(status, r["description"]) for status, r in operation["responses"].items() if status != "200"]
    yield _table(("status", "codes"), errors)


def _content(heading: str, content: dict[str, Any]) -> Iterator[str]:
    yield f"<h3>{heading}: {escape(', '.join(content))}</h3>"
    for media in content.values():
        for example in media.get("examples", {}).values():
            yield _code(example["value"])


def _code(value: Any) -> str:
    return f"<pre>{escape(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())}</pre>"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    shown = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{shown}</table>"
