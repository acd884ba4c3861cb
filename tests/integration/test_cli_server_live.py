"""The command line against a server, in a terminal: prompts, the shell, live views, and a server that goes away."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_fixture import SETUP, Terminal, Terminals, program
from server_fixture import PASSWORD, ServerProcess, ServerThread, kept_port

NOISE = re.compile("Traceback|Exception|Error|leaked|was never")
SLOW = "SELECT count(*) AS n FROM app.slow a, app.slow b, app.slow c WHERE a.id + b.id + c.id = 7"


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    with Terminals() as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread() as started:
        started.sql(SETUP)
        yield started


def ended(terminal: Terminal, code: int) -> str:
    found, last = terminal.end()
    assert (found, NOISE.search(last)) == (code, None), last
    return last


# --- passwords --------------------------------------------------------------------------------------------------


def test_the_password_is_asked_for_and_not_shown(server: ServerThread, terminals: Terminals) -> None:
    asked = terminals.open("topics", server.url, TABLECAST_PASSWORD="")
    asked.expect(f"password of system at 127.0.0.1:{server.port}: ")
    asked.type(f"{PASSWORD}\r")
    assert PASSWORD not in asked.expect("app.order_events")
    ended(asked, 0)


def test_a_wrong_password_that_was_typed(server: ServerThread, terminals: Terminals) -> None:
    asked = terminals.open("sql", server.url, "--user", "ann", TABLECAST_PASSWORD="")
    asked.expect("password of ann at ")
    asked.type("nonsense\r")
    asked.expect(f"error [unauthenticated]: {server.url} refused user 'ann'")
    assert "nonsense" not in ended(asked, 1)


def test_ctrl_c_at_the_password(server: ServerThread, terminals: Terminals) -> None:
    asked = terminals.open("topics", server.url, TABLECAST_PASSWORD="")
    asked.expect("password of system")
    asked.type("\x03")
    ended(asked, 130)


def test_a_new_password_is_asked_for_twice(server: ServerThread, terminals: Terminals) -> None:
    for again, said, code in (
        ("another one", "error [invalid_request]: the two passwords differ", 1),
        ("long one", "added ann", 0),
    ):
        asked = terminals.open("user", "add", server.url, "ann", TABLECAST_PASSWORD=PASSWORD)
        asked.expect("new password of ann: ")
        asked.type("long one\r")
        asked.expect("the same again: ")
        asked.type(f"{again}\r")
        assert "long one" not in asked.expect(said)
        ended(asked, code)
    assert server.get("/v1/api/auth/me", user="ann", password="long one").json()["user"] == "ann"


# --- the shell --------------------------------------------------------------------------------------------------


@pytest.fixture
def shell(server: ServerThread, terminals: Terminals, tmp_path: Path) -> Terminal:
    started = terminals.open("sql", server.url, TABLECAST_PASSWORD=PASSWORD, XDG_STATE_HOME=str(tmp_path / "state"))
    started.expect(f"127.0.0.1:{server.port}>")
    return started


def test_the_shell(shell: Terminal, server: ServerThread) -> None:
    ready, collecting = f"{server.port}>", f"{server.port}*>"
    shell.type("SELECT cust\t")
    shell.expect("omer")
    shell.type(" FROM app.ord\t")
    shell.expect("ers")
    shell.type("\rWHERE id = 1;\r")
    assert "ann" in shell.expect("(1 row)")
    shell.enter(ready, r"\d app.orders")
    shell.expect("DECIMAL(12,2)")
    shell.enter(ready, r"\topics")
    shell.expect("order_events")

    shell.enter(ready, "BEGIN;")
    shell.enter(collecting, "INSERT INTO app.orders (id, customer) VALUES (4, 'dee');")
    shell.enter(collecting, "UPDATE app.orders SET customer = 'di' WHERE id = 4;")
    shell.expect(collecting)
    assert server.sql("SELECT count(*) FROM app.orders WHERE id = 4")[0]["rows"] == [["0"]]
    shell.type("COMMIT;\r")
    shell.expect("INSERT 1")
    shell.expect("UPDATE 1")
    shell.expect("COMMIT")

    shell.enter(ready, r"\timing")
    shell.expect("timing is on")
    shell.enter(ready, "SELECT customer || '!' AS c FROM app.orders WHERE id = 4;")
    shell.expect("di!")
    shell.expect(" ms")
    shell.enter(ready, r"\watch 0.01")
    for _ in range(3):
        shell.expect("di!")
    shell.press_until("\x03", "interrupted")
    shell.expect(ready)
    shell.type("\x04")
    ended(shell, 0)


def test_ctrl_c_drops_a_request_and_the_shell_goes_on(shell: Terminal, server: ServerThread) -> None:
    server.sql("CREATE TABLE app.slow (id INT PRIMARY KEY)")
    server.post("/tables/app.slow/rows", [{"id": i} for i in range(5_000)])
    ready = f"{server.port}>"
    shell.type(f"{SLOW};\r")
    shell.expect("running …")
    shell.press_until("\x03", "interrupted")
    shell.enter(ready, "SELECT 'still' || ' here' AS a;")
    shell.expect("still here")
    shell.expect(ready)
    shell.type("\x04")
    ended(shell, 0)
    server.db.database.interrupt()  # the server has its own limit for it, which is longer than a test


# --- live views -------------------------------------------------------------------------------------------------


def test_groups_are_watched(server: ServerThread, terminals: Terminals) -> None:
    server.post("/topics/consume", {"topic": "orders", "group_id": "billing", "timeout_seconds": 0})
    ends = server.sql("SELECT partition_id, end_offset FROM system.topic_partitions ORDER BY partition_id")[0]["rows"]
    watching = terminals.open("groups", server.url, "--watch", "--interval", "0.1", TABLECAST_PASSWORD=PASSWORD)
    watching.expect("billing")
    watching.expect("━")
    for partition, end in ends:
        server.post(
            "/topics/ack",
            {"topic": "orders", "group_id": "billing", "partition_id": int(partition), "upto_offset": int(end) - 1},
        )
    [last] = [end for partition, end in ends if partition == "1"]
    watching.expect(f"billing          1  {last:>9}        0")
    watching.type("\x03")
    ended(watching, 130)


def test_tail_follows_all_partitions(server: ServerThread, terminals: Terminals) -> None:
    following = terminals.open("tail", server.url, "orders", TABLECAST_PASSWORD=PASSWORD)
    following.expect("delete app.orders")
    for i in range(20, 40):
        server.sql("INSERT INTO app.orders (id, customer) VALUES (?, 'late')", [i])
        following.expect(f'"id":"{i}"')
    following.type("\x03")
    ended(following, 130)


class Restarted:
    """A server that is killed and comes back at the same address, with the same database."""

    def __init__(self, data: Path, port: int) -> None:
        self._command = (data, "--port", str(port))
        self.server = ServerProcess(*self._command)

    def restart(self) -> None:
        self.server = ServerProcess(*self._command)


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Restarted]:
    with kept_port() as port:
        found = Restarted(tmp_path / "db", port)
        try:
            found.server.sql(SETUP)
            yield found
        finally:
            with found.server:
                pass


def lag(server: ServerProcess) -> int:
    return int(server.sql("SELECT sum(lag) AS n FROM system.topic_groups")[0]["rows"][0][0])


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + Terminal.PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline


@pytest.mark.parametrize("group", [(), ("--group", "g")], ids=["cursors", "group"])
def test_tail_goes_on_after_a_restart(group: tuple[str, ...], restarted: Restarted, terminals: Terminals) -> None:
    url, insert = restarted.server.url, "INSERT INTO app.orders (id, customer) VALUES (?, 'late')"
    args = ("orders", "--from", "earliest", "--format", "ndjson", "--limit", "8", *group)
    following = terminals.open("tail", url, *args, TABLECAST_PASSWORD=PASSWORD)
    following.expect('"op":"delete"')
    restarted.server.sql(insert, [50])
    following.expect('["50"]')
    if group:  # else it would be shown again, as what was not acknowledged is
        until(lambda: lag(restarted.server) == 0)
    restarted.server.kill()
    following.expect("waiting: ")
    restarted.restart()
    restarted.server.sql(f"{insert}; {insert}", [51, 52])
    following.expect("it is back: going on")
    last = ended(following, 0)
    assert sorted(re.findall(r'"key":\["(5\d)"\]', last)) == ["51", "52"]
    assert all(json.loads(line)["delivery"] == 1 for line in last.splitlines() if line.startswith("{"))


def test_tail_ends_while_the_server_is_away(restarted: Restarted, terminals: Terminals) -> None:
    following = terminals.open("tail", restarted.server.url, "orders", "--group", "g", TABLECAST_PASSWORD=PASSWORD)
    following.expect("delete app.orders")
    restarted.server.kill()
    following.expect("waiting: ")
    following.type("\x03")
    ended(following, 130)


def test_a_view_says_that_it_is_out_of_date_and_goes_on(restarted: Restarted, terminals: Terminals) -> None:
    url = restarted.server.url
    watching = terminals.open("topics", url, "--watch", "--interval", "0.1", TABLECAST_PASSWORD=PASSWORD)
    watching.expect("app.order_events")
    restarted.server.kill()
    watching.expect(f"not up to date: {url} cannot be reached")
    restarted.restart()
    restarted.server.sql("CREATE TOPIC app.fresh")
    watching.expect("app.fresh")
    watching.type("\x03")
    ended(watching, 130)


# --- progress ---------------------------------------------------------------------------------------------------


def test_rows_written_to_a_file_are_counted(terminals: Terminals, tmp_path: Path) -> None:
    rows = "SELECT unnest(range(40000)) AS n"
    for form in ("csv", "json", "ndjson"):
        file = tmp_path / form
        command = shlex.join(program("sql", ":memory:", "-c", rows, "--format", form))
        writing = terminals.run(["sh", "-c", f"{command} > {shlex.quote(str(file))}"])
        writing.expect("writing")
        writing.expect("/40000")
        ended(writing, 0)
        assert file.read_text().count("\n") >= 40_000


def test_a_script_shows_how_far_it_is(server: ServerThread, terminals: Terminals, tmp_path: Path) -> None:
    script = tmp_path / "load.sql"
    script.write_text("".join(f"INSERT INTO app.orders (id, customer) VALUES ({i}, 'x');\n" for i in range(100, 200)))
    command = shlex.join(program("sql", server.url, "-f", script))
    loading = terminals.run(["sh", "-c", f"{command} > /dev/null"], TABLECAST_PASSWORD=PASSWORD)
    loading.expect("running")
    ended(loading, 0)
    assert server.sql("SELECT count(*) FROM app.orders WHERE id >= 100 AND id < 200")[0]["rows"] == [["100"]]
