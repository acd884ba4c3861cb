"""The requests of docs/http.md are sent to a server, and the answers have the fields that are shown, and no others.

    <!-- POST /v1/api/sql -->         a request: the block below is its body, and `<!-- answer -->` is above its answer
    <!-- GET /v1/api/… -->            the block below is the answer
    <!-- POST /v1/api/… {"a": 1} -->  likewise, with the body in the comment

Of values, texts without a digit or `…` must be equal; of all others the type must be the same. Of lists the first and the
last are compared.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))  # for server_fixture
from pages import ROOT, Block, blocks
from server_fixture import PASSWORD, ServerThread, basic

PAGE = ROOT / "docs" / "http.md"
REQUEST = re.compile(r"(GET|POST) (/\S+)(?: (\{.*\}))?")
SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY, amount DECIMAL(12,2));
CREATE TOPIC app.order_events;
ALTER TOPIC app.order_events ADD SOURCE app.orders ON INSERT WHERE amount > 10;
INSERT INTO app.orders VALUES (7, 12.5), (1000000, 1);
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql(SETUP)
        yield running


def exchanges() -> Iterator[tuple[str, str, Any, Any]]:
    """(method, path, body, the answer that is shown, or None)."""
    json_blocks = [block for block in blocks(PAGE) if block.language == "json"]
    for block, following in zip(json_blocks, [*json_blocks[1:], Block("", "", 0, "")], strict=True):
        request = REQUEST.fullmatch(block.mark)
        if request is None:
            assert block.mark == "answer", f"line {block.line}: neither a request nor an answer"
            continue
        method, path, body = request.groups()
        if method == "GET" or body:
            yield method, path, body and json.loads(body), json.loads(block.text)
        else:
            shown = json.loads(following.text) if following.mark == "answer" else None
            yield method, path, json.loads(block.text), shown


@pytest.mark.parametrize(("method", "path", "body", "shown"), list(exchanges()), ids=lambda value: str(value)[:40])
def test_an_answer_has_what_is_shown(server: ServerThread, method: str, path: str, body: Any, shown: Any) -> None:
    answer = server.request(method, path, body)
    assert answer.status == 200, answer.body
    if shown is not None:
        assert differences(shown, answer.json()) == []


def differences(shown: Any, real: Any, place: str = "$") -> list[str]:
    """Where an answer is other than the page says."""
    if isinstance(shown, dict) and isinstance(real, dict):
        if shown.keys() != real.keys():
            return [f"{place}: {sorted(shown)} is shown, {sorted(real)} is there"]
        return [each for key in shown for each in differences(shown[key], real[key], f"{place}.{key}")]
    if isinstance(shown, list) and isinstance(real, list):
        if bool(shown) != bool(real):
            return [f"{place}: {shown} is shown, {real} is there"]
        ends = [(shown[0], real[0]), (shown[-1], real[-1])] if shown else []
        return [each for one, other in ends for each in differences(one, other, f"{place}[]")]
    return [] if _alike(shown, real) else [f"{place}: {shown!r} is shown, {real!r} is there"]


def _alike(shown: Any, real: Any) -> bool:
    if isinstance(shown, str) and isinstance(real, str):
        return shown == real or bool(re.search(r"[\d…]", shown))
    if isinstance(shown, int | float) and isinstance(real, int | float):
        return isinstance(shown, bool) == isinstance(real, bool)
    return type(shown) is type(real)


def test_an_event_of_a_live_query_is_as_shown() -> None:
    """The commit that the page tells of: an update and a delete."""
    [block] = [block for block in blocks(PAGE) if block.mark == "event of a commit"]
    path = "/v1/api/live?" + urlencode({"sql": "SELECT id, amount FROM app.orders"})
    with ServerThread() as server, closing(HTTPConnection(server.host, server.port, timeout=60)) as connection:
        server.sql(SETUP)
        server.sql("INSERT INTO app.orders VALUES (6, 11)")
        connection.request("GET", path, headers={"Authorization": basic("system", PASSWORD)})
        events = parsed(iter(connection.getresponse().readline, b""))
        next(event for event in events if event["event"] == "live")
        server.sql("BEGIN; UPDATE app.orders SET amount = 13 WHERE id = 7; DELETE FROM app.orders WHERE id = 6; COMMIT")
        told = next(event for event in events if event["event"])
    [shown] = parsed(iter([*block.text.encode().splitlines(keepends=True), b"\n"]))
    assert (told["event"], told.keys()) == (shown["event"], shown.keys())
    assert re.fullmatch(re.sub(r"[0-9a-f]+", "[0-9a-f]+", shown["id"]), told["id"])
    data, real = json.loads(shown["data"]), json.loads(told["data"])
    assert differences(data, real) == []
    assert real["changes"] == data["changes"]
    assert told["id"].endswith(f"-{real['seq']}") and shown["id"].endswith(f"-{data['seq']}")


def parsed(lines: Iterator[bytes]) -> Iterator[dict[str, str]]:
    """Events of a stream."""
    event: dict[str, str] = {"event": ""}
    for line in lines:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            event[name] = value
        else:
            yield event
            event = {"event": ""}


def test_every_call_of_the_api_is_on_the_page(server: ServerThread) -> None:
    text = PAGE.read_text()
    for path in server.get("/openapi.json", user=None).json()["paths"]:
        assert path.removeprefix("/v1/api") in text, path


def test_differences_are_noticed() -> None:
    shown = {"a": 1, "b": ["x"], "c": None, "d": "…"}
    assert differences(shown, {"a": 2.5, "b": ["x", "y", "x"], "c": None, "d": "z"}) == []
    for real in (
        {"a": 1, "b": ["x"], "c": None},
        {"a": "1", "b": ["x"], "c": None, "d": ""},
        {"a": 1, "b": [], "c": None, "d": ""},
        {"a": 1, "b": ["x", "other"], "c": None, "d": ""},
        {"a": True, "b": ["x"], "c": None, "d": ""},
    ):
        assert len(differences(shown, real)) == 1, real
