"""The console's page and files, as a browser is given them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_fixture import Answer, ServerThread

from tablecast.server import app
from tablecast.server.console_page import BUNDLE, console_routes

SCRIPT = "document.title = 'a console';\n" * 100


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        yield running


def get(server: ServerThread, path: str, method: str = "GET", **headers: str) -> Answer:
    return server.request(method, path, user=None, headers={k.replace("_", "-"): v for k, v in headers.items()})


def assets(page: Answer) -> list[str]:
    return [f"/{path}" for path in re.findall(r'(?:src|href)="\./(assets/[^"]+)"', page.body.decode())]


# --- the bundle of the package --------------------------------------------------------------------------------------


def test_the_page_is_whole(server: ServerThread) -> None:
    page = get(server, "/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    named = assets(page)
    assert any(path.endswith(".js") for path in named) and any(path.endswith(".css") for path in named)
    for path in named:
        asset = get(server, path)
        assert (asset.status, asset.body) == (200, (BUNDLE / path[1:]).read_bytes())
        assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"


def test_the_policy_allows_nothing_but_our_own(server: ServerThread) -> None:
    for path in ("/", assets(get(server, "/"))[0]):
        headers = get(server, path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["img-src"] == "'self'"
        host = f"{server.host}:{server.port}"
        assert policy["connect-src"] == f"'self' ws://{host} wss://{host}"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("host", ["evil.example; script-src *", "a b", "'unsafe-inline'", ""])
def test_a_host_that_is_none_does_not_get_into_the_policy(server: ServerThread, host: str) -> None:
    policy = get(server, "/", Host=host).headers.get("content-security-policy", "")
    assert "connect-src 'self';" in policy or not policy  # not even answered


def test_the_page_is_asked_for_each_time_and_answered_once(server: ServerThread) -> None:
    page = get(server, "/")
    assert page.headers["cache-control"] == "no-cache"
    again = get(server, "/", If_None_Match=page.headers["etag"])
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", page.headers["etag"])
    assert get(server, "/", If_None_Match='"another"').status == 200


def test_it_is_packed_for_who_can_unpack(server: ServerThread) -> None:
    plain, packed = get(server, "/"), get(server, "/", Accept_Encoding="br, gzip")
    assert (plain.headers.get("content-encoding"), packed.headers["content-encoding"]) == (None, "gzip")
    assert gzip.decompress(packed.body) == plain.body
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    "path",
    ["/assets/none.js", "/assets/", "/assets/../index.html", "/assets/%2e%2e/BUILT_FROM", "/assets/..%2fBUILT_FROM"],
)
def test_what_is_no_file_of_it_is_not_found(server: ServerThread, path: str) -> None:
    answer = get(server, path)
    assert (answer.status, answer.error["code"]) == (404, "not_found")


def test_it_is_only_read(server: ServerThread) -> None:
    answer = get(server, "/", "POST")
    assert (answer.status, answer.error["code"], answer.headers["allow"]) == (405, "method_not_allowed", "GET, HEAD")
    head = get(server, "/", "HEAD")
    assert (head.status, head.body) == (200, b"")


def test_a_server_may_have_no_console() -> None:
    with ServerThread(console=False) as own:
        assert get(own, "/").status == 404
        assert get(own, "/assets/index.js").status == 404
        assert get(own, "/docs").status == 200


# --- any bundle -------------------------------------------------------------------------------------------------------


def test_files_are_served_by_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "assets" / "index-1a2b.js").write_text(SCRIPT)
    (tmp_path / "assets" / "font-1a2b.woff2").write_bytes(b"wOF2")
    (tmp_path / "assets" / "notes").write_bytes(b"?")
    monkeypatch.setattr(app, "console_routes", lambda metrics: console_routes(metrics, tmp_path))
    with ServerThread() as own:
        script = get(own, "/assets/index-1a2b.js", Accept_Encoding="gzip")
        assert gzip.decompress(script.body).decode() == SCRIPT
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        font = get(own, "/assets/font-1a2b.woff2", Accept_Encoding="gzip")
        assert (font.body, font.headers["content-type"]) == (b"wOF2", "font/woff2")
        assert "content-encoding" not in font.headers
        assert get(own, "/assets/notes").headers["content-type"] == "application/octet-stream"


def test_a_checkout_without_a_bundle_has_no_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "console_routes", lambda metrics: console_routes(metrics, tmp_path))
    with ServerThread() as own:
        assert get(own, "/").status == 404


# --- how large an answer may be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack", "application/vnd.apache.arrow.stream"])
def test_an_answer_over_its_limit_is_refused(accept: str) -> None:
    limit = 20_000
    with ServerThread(max_answer_bytes=limit) as own:
        own.sql("CREATE NAMESPACE app; CREATE TABLE app.t (id INT PRIMARY KEY, v TEXT)")
        for key in range(10):
            own.sql("INSERT INTO app.t VALUES (?, ?)", [key, "x" * 5_000])

        def ask(sql: str) -> Answer:
            return own.post("/sql", {"sql": sql}, headers={"Accept": accept})

        assert ask("SELECT * FROM app.t WHERE id < 2").status == 200
        for sql in (
            "SELECT * FROM app.t",  # rows as they are stored
            "SELECT v || 'y' AS v FROM app.t",  # a result of the query engine
            "SELECT * FROM app.t WHERE id < 2; SELECT * FROM app.t WHERE id > 7; SELECT * FROM app.t WHERE id = 5",
        ):
            answer = ask(sql)
            if answer.status == 200:  # Arrow carries the last result only
                assert accept.endswith("stream") and ";" in sql and len(answer.body) <= limit
                continue
            assert (answer.status, answer.error["code"]) == (413, "too_large")
            assert answer.error["details"]["limit"] == limit


def test_what_grows_only_when_it_is_encoded_is_refused_too() -> None:
    """A control character is one byte in memory and six in JSON."""
    with ServerThread(max_answer_bytes=20_000) as own:
        answer = own.post("/sql", {"sql": "SELECT repeat(?, 10000) AS v", "params": ["\x01"]})
        assert (answer.status, answer.error["code"]) == (413, "too_large")
        assert answer.error["details"]["size"] > 60_000
        assert json.loads(own.post("/sql", {"sql": "SELECT repeat('x', 10000) AS v"}).body)["status"] == "success"
