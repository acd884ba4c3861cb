"""The JavaScript client against a real server, in a page of Chromium and in node: its rows are those of SELECT."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium
from node_stage import Node
from page_server import PageServer
from server_fixture import PASSWORD, Address, ServerProcess, ServerThread, kept_port
from stage import ROOT, Stage, Thrown, program

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.notes (id INT PRIMARY KEY, room TEXT NOT NULL, text TEXT);
CREATE TABLE app.pairs (a TEXT, b INT, n BIGINT, PRIMARY KEY (a, b));
"""
WHO = json.dumps({"user": "system", "password": PASSWORD})
QUICK = json.dumps({"user": "system", "password": PASSWORD, "retry": {"firstMs": 5, "maxMs": 100}})
NOTES = "SELECT id, room, text FROM app.notes"
IN_A = f"{NOTES} WHERE room = ?"


@pytest.fixture
def server(pages: PageServer) -> Iterator[ServerThread]:
    with ServerThread(allowed_origins=pages.url) as running:
        running.sql(SETUP)
        yield running


def watch(stage: Stage, server: Address, sql: str, params: list[Any] | None = None, who: str = WHO) -> None:
    """`kept.one`: a live table that is ready."""
    given = f"{json.dumps(server.url)}, {who}, {json.dumps(sql)}, {json.dumps(params or [])}"
    stage.evaluate(f"void await watched('one', {given}).table.ready()")


def rows_when(stage: Stage, is_so: str) -> list[Any]:
    """The rows of `kept.one` when that is so of `table`, in order."""
    stage.evaluate(f"until(kept.one.table, (table) => {is_so})")
    return sorted(stage.evaluate("rowsOf(kept.one.table)"))


def selected(server: Address, sql: str, params: list[Any] | None = None) -> list[Any]:
    return sorted(server.sql(sql, params)[0]["rows"])


# --- rows that keep in step -------------------------------------------------------------------------------------


def test_a_live_table_follows_what_is_written(stage: Stage, server: ServerThread) -> None:
    server.sql("INSERT INTO app.notes VALUES (1, 'a', 'there before'), (2, 'b', 'of another room'), (3, 'a', 'to go')")
    watch(stage, server, IN_A, ["a"])
    server.sql("INSERT INTO app.notes VALUES (4, 'a', 'new'), (5, 'b', 'elsewhere')")
    server.sql("UPDATE app.notes SET text = 'changed' WHERE id = 1")
    server.sql("DELETE FROM app.notes WHERE id = 3")
    server.sql("UPDATE app.notes SET room = 'a' WHERE id = 2")
    server.sql("UPDATE app.notes SET room = 'b' WHERE id = 4")
    server.sql("BEGIN; INSERT INTO app.notes VALUES (6, 'a', NULL); DELETE FROM app.notes WHERE id = 2; COMMIT")
    assert rows_when(stage, "table.get(6)") == selected(server, IN_A, ["a"]) == [[1, "a", "changed"], [6, "a", None]]
    told = stage.evaluate("kept.one.told.map(({ op, key }) => [op, ...(key ?? [])])")
    assert told == [
        ["reset"],
        ["insert", 4],
        ["update", 1],
        ["delete", 3],
        ["insert", 2],
        ["delete", 4],
        *told[6:],
    ]
    assert sorted(told[6:]) == [["delete", 2], ["insert", 6]], "one commit, whole"


def test_changes_one_by_one(stage: Stage, server: ServerThread) -> None:
    server.sql("INSERT INTO app.pairs VALUES ('x', 1, 9007199254740993)")
    stage.evaluate(
        f"void (kept.live = tablecast.connect({json.dumps(server.url)}, {WHO}).live('SELECT n FROM pairs', [], "
        "{ namespace: 'app' }))"
    )
    following = "(await kept.live.next()).value"
    first = {"op": "insert", "key": ["x", 1], "row": {"n": "9007199254740993"}, "initial": True}
    assert stage.evaluate(f"{{ ...{following}, seq: undefined }}") == first
    seqs = [
        server.sql("UPDATE app.pairs SET n = 2 WHERE a = 'x'")[0]["seq"],
        server.sql("DELETE FROM app.pairs")[0]["seq"],
    ]
    assert stage.evaluate(following) == {
        "op": "update", "key": ["x", 1], "row": {"n": "2"}, "seq": seqs[0], "initial": False,
    }  # fmt: skip
    assert stage.evaluate(following) == {"op": "delete", "key": ["x", 1], "row": None, "seq": seqs[1], "initial": False}
    stage.evaluate("kept.live.close()")
    assert stage.evaluate("(await kept.live.next()).done") is True


def test_many_rows_come_in_batches(stage: Stage, server: ServerThread) -> None:
    rows = [{"id": n, "room": "a", "text": f"note {n}"} for n in range(5_000)]
    assert server.post("/tables/app.notes/rows", rows).status == 200
    watch(stage, server, NOTES)
    server.sql("DELETE FROM app.notes WHERE id % 2 = 0")
    assert rows_when(stage, "!table.get(0)") == selected(server, NOTES)


def test_many_live_queries_share_one_connection(stage: Stage, server: ServerThread) -> None:
    stage.evaluate(f"void (kept.client = tablecast.connect({json.dumps(server.url)}, {WHO}))")
    stage.evaluate(
        f"void (kept.tables = Array.from({{ length: 50 }}, (_, n) => "
        f"kept.client.liveTable({json.dumps(IN_A)}, [`room ${{n % 10}}`])))"
    )
    stage.evaluate("void await Promise.all(kept.tables.map((table) => table.ready()))")
    values = ", ".join(f"({n}, 'room {n}', 'a note')" for n in range(10))
    server.sql(f"INSERT INTO app.notes VALUES {values}")
    stage.evaluate("void await Promise.all(kept.tables.map((table, n) => until(table, () => table.get(n % 10))))")
    assert stage.evaluate("kept.tables.map((table) => table.rows.size)") == [1] * 50
    assert metric(server, "tablecast_live_connections") == 1
    stage.evaluate("kept.client.close()")


def test_every_type_is_shown_as_a_select_shows_it(stage: Stage, server: ServerThread) -> None:
    server.sql(
        "CREATE TABLE app.types (id INT PRIMARY KEY, big BIGINT, amount DECIMAL(20,4), real DOUBLE, flag BOOLEAN, "
        "name TEXT, raw BYTES, at TIMESTAMP, day DATE, uid UUID, doc JSON)"
    )
    server.sql(
        "INSERT INTO app.types VALUES (1, 9223372036854775807, 12345.6789, 1.5, true, 'é', ?, "
        "'2024-02-29 12:30:00', '2024-02-29', '00112233-4455-6677-8899-aabbccddeeff', '{\"a\": [1, null]}'), "
        "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        [{"$bytes": "AGhp/w=="}],
    )
    everything = "SELECT * FROM app.types"
    watch(stage, server, everything)
    assert rows_when(stage, "true") == selected(server, everything)
    server.sql("UPDATE app.types SET name = 'again'")
    assert rows_when(stage, "table.get(1).name === 'again'") == selected(server, everything)


# --- what happens to tables and connections ---------------------------------------------------------------------


def test_a_server_that_was_killed_and_came_back(stage: Stage, pages: PageServer, tmp_path: Path) -> None:
    allowed = ("--set", f"allowed_origins={pages.url}")
    with kept_port() as port, ServerProcess(tmp_path / "data", "--port", str(port), *allowed) as first:
        first.sql(SETUP)
        first.sql("INSERT INTO app.notes VALUES (1, 'a', 'before'), (2, 'a', 'to go'), (3, 'b', 'elsewhere')")
        watch(stage, first, IN_A, ["a"], QUICK)
        first.sql("INSERT INTO app.notes VALUES (4, 'a', 'seen')")
        rows_when(stage, "table.get(4)")
        first.kill()
        with ServerProcess(tmp_path / "data", "--port", str(port), *allowed) as second:
            second.sql("DELETE FROM app.notes WHERE id = 2")
            second.sql("UPDATE app.notes SET room = 'a' WHERE id = 3")
            second.sql("INSERT INTO app.notes VALUES (5, 'a', 'after')")
            assert rows_when(stage, "table.get(5)") == selected(second, IN_A, ["a"])
            assert stage.evaluate("kept.one.table.rows.size") == 4
            statuses = stage.evaluate("kept.one.statuses")
            assert statuses[:3] == ["connecting", "connected", "waiting: unreachable"]
            assert statuses[-1] == "connected"
            resets = stage.evaluate("kept.one.told.filter(({ op }) => op === 'reset').length")
            assert resets == 1, "it resumed, and did not read everything again"
            stage.evaluate("kept.one.client.close()")


def test_a_table_that_gets_another_column_is_read_again(stage: Stage, server: ServerThread) -> None:
    server.sql("INSERT INTO app.notes VALUES (1, 'a', 'x')")
    watch(stage, server, "SELECT * FROM app.notes")
    server.sql("ALTER TABLE app.notes ADD COLUMN stars INT DEFAULT 3")
    server.sql("UPDATE app.notes SET text = 'y'")
    assert rows_when(stage, "table.get(1).text === 'y' && table.get(1).stars") == [[1, "a", "y", 3]]


def test_a_table_that_is_dropped_ends_its_live_queries(stage: Stage, server: ServerThread) -> None:
    watch(stage, server, NOTES)
    server.sql("DROP TABLE app.notes")
    assert stage.evaluate("(await kept.one.table.ended).code") == "unknown_table"
    with pytest.raises(Thrown, match=r"^unknown_table: .*notes"):
        stage.evaluate("until(kept.one.table, () => false)")


def test_what_is_wrong_is_said(stage: Stage, server: ServerThread) -> None:
    with pytest.raises(Thrown, match=r"^unsupported_sql: "):
        watch(stage, server, "SELECT count(*) FROM app.notes")
    with pytest.raises(Thrown, match=r"^unauthenticated: "):
        watch(stage, server, NOTES, who=json.dumps({"user": "system", "password": "wrong"}))


# --- only there -------------------------------------------------------------------------------------------------


def test_a_page_of_an_origin_that_is_not_allowed(page: Stage) -> None:
    with ServerThread() as strict:
        strict.sql(SETUP)
        who = json.dumps({"user": "system", "password": PASSWORD, "retry": {"attempts": 1}})
        with pytest.raises(Thrown, match=r"^unreachable: .*allowed_origins"):
            watch(page, strict, NOTES, who=who)


def test_a_page_of_the_server_itself_needs_no_leave(chromium: Chromium, pages: PageServer) -> None:
    """And may send statements, too."""
    with ServerThread() as server:
        server.sql(SETUP)
        with chromium.page(f"{server.url}/v1/api/health") as page:
            page.evaluate(f"void await import({json.dumps(pages.url + '/test/support/stage.js')})")
            watch(page, server, NOTES)
            statements(page, "location.origin")
            assert rows_when(page, "table.get(2)") == selected(server, NOTES)


def test_statements_from_node(node: Node, server: ServerThread) -> None:
    statements(node, json.dumps(server.url))
    with pytest.raises(Thrown, match=r"^unreachable: "):
        node.evaluate(f"tablecast.connect('http://127.0.0.1:1', {WHO}).query('SELECT 1')")


def statements(stage: Stage, url: str) -> None:
    stage.evaluate(f"void (kept.sql = tablecast.connect({url}, {{ ...{WHO}, namespace: 'app' }}))")
    written = stage.evaluate(
        "kept.sql.execute('INSERT INTO notes VALUES (?, ?, ?), (2, ?, NULL)', [1n, 'a', 'é', 'b'])"
    )
    assert (written["rowCount"], written["rows"]) == (2, [])
    assert written["seq"] > 0
    assert stage.evaluate("kept.sql.query('SELECT * FROM notes WHERE id < ? ORDER BY id', [3n])") == [
        {"id": 1, "room": "a", "text": "é"},
        {"id": 2, "room": "b", "text": None},
    ]
    stage.evaluate("kept.sql.execute('INSERT INTO pairs VALUES (?, ?, ?)', ['x', 1, 2n ** 60n])")
    larger = stage.evaluate("kept.sql.query('SELECT n FROM pairs WHERE n > ? AND n <= ?', [2n ** 60n - 1n, 2n ** 60n])")
    assert larger == [{"n": str(2**60)}], "as text, and compared as numbers"
    again = "kept.sql.execute(\"DELETE FROM notes WHERE id = 7\", [], { idempotencyKey: 'once' })"
    assert stage.evaluate(again)["seq"] == stage.evaluate(again)["seq"]
    with pytest.raises(Thrown, match=r"^unknown_table: "):
        stage.evaluate("kept.sql.query('SELECT * FROM nothing')")


def test_a_token_that_ends_is_fetched_again(node: Node) -> None:
    with ServerThread(access_token_seconds=1) as server:
        server.sql(SETUP)
        login = (
            f"fetch('{server.url}/v1/api/auth/login', {{ method: 'POST', body: JSON.stringify({WHO}), "
            "headers: { 'Content-Type': 'application/json' } }).then((answer) => answer.json())"
        )
        node.evaluate("void (kept.fetched = 0)")
        token = f"async () => (kept.fetched += 1, (await {login}).access_token)"
        watch(node, server, NOTES, who=f"{{ retry: {{ firstMs: 1 }}, token: {token} }}")
        node.evaluate("new Promise((done) => setInterval(() => kept.fetched > 2 && done(), 10))")
        server.sql("INSERT INTO app.notes VALUES (1, 'a', 'later')")
        assert rows_when(node, "table.get(1)") == selected(server, NOTES)
        assert "waiting: unauthenticated" in node.evaluate("kept.one.statuses")


def test_a_reader_that_stands_still_is_told_so_and_catches_up(node: Node) -> None:
    with ServerThread(live_buffer_bytes=1_000) as server:
        server.sql(SETUP)
        watch(node, server, NOTES)
        os.kill(node.pid, signal.SIGSTOP)
        try:
            text = "x" * 100_000  # so that what the kernel buffers is full soon
            for number in range(1_000):
                server.sql("INSERT INTO app.notes VALUES (?, 'a', ?)", [number, text])
                server.sql("UPDATE app.notes SET text = 'short' WHERE id = ?", [number])
                if metric(server, "tablecast_live_lagging_total") > 0:
                    break
            else:
                raise AssertionError("a reader that stands still was never told so")
        finally:
            os.kill(node.pid, signal.SIGCONT)
        server.sql("DELETE FROM app.notes WHERE id % 3 = 0")
        server.sql("INSERT INTO app.notes VALUES (5000, 'a', 'the last')")
        assert rows_when(node, "table.get(5000)") == selected(server, NOTES)


def metric(server: Address, name: str) -> float:
    lines = server.get("/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_nodes_own_websocket(server: ServerThread) -> None:
    with Node(program("node")) as stage:
        watch(stage, server, NOTES)
        server.sql("INSERT INTO app.notes VALUES (1, 'a', 'x')")
        assert rows_when(stage, "table.get(1)") == selected(server, NOTES)


def test_the_tests_of_the_client_itself() -> None:
    files = [str(file) for file in sorted((ROOT / "test").glob("*.test.js"))]
    done = subprocess.run([program("node"), "--test", *files], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_programs_of_the_guide(server: ServerThread, tmp_path: Path) -> None:
    """Installed as a package, in the order of the page; they print what it says."""
    guide = (ROOT / "README.md").read_text()
    programs = re.findall(r"^```js\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    printed = re.findall(r"^```text\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    server.sql("DROP TABLE app.notes; DROP TABLE app.pairs; DROP NAMESPACE app")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "tablecast").symlink_to(ROOT)
    own = f'import {{ NodeWebSocket }} from "{ROOT}/test/support/node_websocket.js";\nglobalThis.WebSocket ??= NodeWebSocket;\n'
    program_text = own + "\n".join(programs).replace("http://127.0.0.1:8080", server.url).replace("change me", PASSWORD)
    (tmp_path / "guide.mjs").write_text(program_text)
    done = subprocess.run(
        [program("node"), "guide.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("".join(printed), "")
