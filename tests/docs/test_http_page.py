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
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))  # for server_fixture
from pages import ROOT, Block, blocks
from server_fixture import ServerThread

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
