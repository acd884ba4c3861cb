"""The shell over a local database, in a terminal."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_fixture import Terminal, Terminals, shop

import tablecast
from tablecast.cli.complete import Names


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return shop(tmp_path)


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    with Terminals() as opened:
        yield opened


@pytest.fixture
def shell(path: Path, tmp_path: Path, terminals: Terminals) -> Terminal:
    return terminals.open("sql", path, XDG_STATE_HOME=str(tmp_path / "state"))


def test_the_shell(shell: Terminal, tmp_path: Path) -> None:
    shell.expect("shop>")
    shell.type("SELECT customer,\r")
    shell.expect("...")
    shell.type("  amount FROM app.orders ORDER BY id;\r")
    assert "ann                │  13.00" in shell.expect("(2 rows)")

    shell.type("BEGIN;\r")
    shell.expect("shop*>")
    shell.type("INSERT INTO app.orders (id, customer) VALUES (1, 'dup');\r")
    shell.expect("error [duplicate_key]: ")
    shell.expect("shop*>")
    shell.type("COMMIT;\r")
    shell.expect("shop>")

    shell.type("SELECT this is not what I me")
    shell.expect("I me")
    shell.type("\x03")
    shell.type("SELECT 'after' || 'wards' AS later;\r")
    assert "error" not in shell.expect("afterwards")

    shell.type("SELECT cust\t")
    shell.expect("cust")
    shell.expect("omer")  # names come a moment later: they may have to come from a server
    shell.type(" FROM app.ord\t")
    shell.expect("app.ord")
    shell.expect("ers")
    shell.type(" WHERE id = 1;\r")
    assert "ann" in shell.expect("(1 row)")

    shell.type("CREATE USER 'eve' WITH PASSWORD 'secret password';\r")
    shell.type("SELECT name, role FROM system.users;\r")
    assert "eve" in shell.expect("(1 row)")
    shell.type("BEGIN;\r")
    shell.expect("shop*>")
    shell.type("\x04")
    code, last = shell.end()
    assert code == 0
    assert last.rstrip().endswith("rolled back: the transaction was not committed")

    history = tmp_path / "state" / "tablecast" / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+  amount FROM app.orders ORDER BY id;" in history.read_text()
    assert "secret" not in history.read_text()


def test_commands_of_the_shell(shell: Terminal) -> None:
    for typed, answered in {
        r"\?": r"\timing",
        r"\dt": "orders │ SHARED │ PRIVATE",
        r"\d": "carts  │ USER",
        r"\d app.orders": "DECIMAL(12,2)",
        r"\topics": "order_events │ orders",
        r"\watch": r"error [invalid_request]: \watch repeats the last query, and there was none",
        r"\groups": "lag_seconds",
        r"\timing": "timing is on",
        "SELECT 'sl' || 'ow' AS a;": " ms",
        r"\format xml": "error [invalid_request]: there is no format 'xml': the formats are table, json, csv, ndjson",
        r"\format json": "format is json",
        "SELECT 1::BIGINT AS a;": '{"a":"1"}',
        r"\nonsense": r"error [invalid_request]: there is no command \nonsense",
    }.items():
        shell.expect("shop>")
        shell.type(typed + "\r")
        shell.expect(answered)
    shell.expect("shop>")
    shell.type("\\q\r")
    assert shell.end()[0] == 0


def test_watching_a_query(shell: Terminal) -> None:
    shell.expect("shop>")
    shell.type("SELECT 'once ' || 'more' AS again; INSERT INTO app.orders (id, customer) VALUES (60, 'x');\r")
    shell.expect("INSERT 1")
    shell.enter("shop>", r"\watch soon")
    shell.expect(r"error [invalid_request]: \watch soon: say how many seconds to wait")
    shell.enter("shop>", r"\watch 0.01")
    for _ in range(3):
        shell.expect("every 0.01 s")
        shell.expect("once more")
    shell.press_until("\x03", "interrupted")
    shell.expect("shop>")
    shell.type("\x04")
    assert shell.end()[0] == 0


def test_the_shell_without_prompt_toolkit(path: Path, terminals: Terminals) -> None:
    without = "import sys; sys.modules['prompt_toolkit'] = None; from tablecast.cli import main; main()"
    shell = terminals.run([sys.executable, "-c", without, "sql", str(path)])
    shell.expect("pip install 'tablecast[shell]'")
    shell.expect("shop> ")
    shell.type("SELECT customer\n")
    shell.expect("... ")
    shell.type("FROM app.orders WHERE id = 1;\n")
    assert "ann" in shell.expect("(1 row)")
    shell.expect("shop> ")
    shell.type("SELECT drop this")
    shell.expect("drop this")
    shell.press_until("\x03", "shop> ")
    shell.type("BEGIN;\n")
    shell.expect("shop*> ")
    shell.type("\x04")
    code, last = shell.end()
    assert code == 0
    assert last.split("\n")[-2] == "rolled back: the transaction was not committed"


NOISE = "nanobind|leaked|Traceback|Error"
SLOW = "SELECT count(*) AS n FROM slow a, slow b, slow c WHERE a.id + b.id + c.id = 7"


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A database in which SLOW runs for longer than anybody waits."""
    with tablecast.open(tmp_path / "slow", durability="none") as database:
        database.execute("CREATE TABLE slow (id INT PRIMARY KEY)")
        database.insert("slow", [{"id": i} for i in range(5_000)])
    return tmp_path / "slow"


def test_ctrl_c_stops_a_query_and_the_shell_goes_on(slow: Path, tmp_path: Path, terminals: Terminals) -> None:
    shell = terminals.open("sql", slow, XDG_STATE_HOME=str(tmp_path / "state"))
    shell.expect("slow>")
    shell.type(f"{SLOW};\r")
    shell.expect("running …")
    shell.type("\x03")
    shell.expect("interrupted")
    shell.expect("slow>")
    shell.type("SELECT 'still' || ' here' AS a;\r")
    shell.expect("still here")
    shell.expect("slow>")
    shell.type("\x04")
    code, last = shell.end()
    assert code == 0
    assert not re.search(NOISE, last)


@pytest.mark.parametrize("what", ["query", "tail", "watch"])
def test_ctrl_c_ends_a_command_without_a_word(what: str, slow: Path, path: Path, terminals: Terminals) -> None:
    """No traceback, and nothing that a library says about objects that are left at the end."""
    args, shown = {
        "query": (("sql", slow, "-c", SLOW), "running …"),
        "tail": (("tail", path, "orders", "--from", "earliest"), "delete app.orders"),
        "watch": (("groups", path, "--watch", "--interval", "0.1"), "committed"),
    }[what]
    command = terminals.open(*args)
    command.expect(shown)
    if what == "watch":
        command.expect("committed")  # shown again
    command.type("\x03")
    code, last = command.end()
    assert code == 130
    assert not re.search(NOISE, last)


def test_ctrl_c_in_a_program_that_embeds_the_database(slow: Path) -> None:
    """It ends the query, long before the query's own end or limit."""
    script = f"""
import os, signal, threading, tablecast
signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background a shell has it ignored
with tablecast.open({str(slow)!r}, query_timeout_seconds=3600) as database:
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        database.query({SLOW!r})
    except KeyboardInterrupt:
        print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


def test_completion_offers_what_fits(path: Path) -> None:
    with tablecast.open(path) as database:
        database.execute("CREATE TABLE plain (customs TEXT PRIMARY KEY)")
        names = Names(database.execute_all, "app")
        assert names.complete("SEL") == ("SEL", ["SELECT"])
        assert names.complete("\\to") == ("\\to", ["\\topics"])
        assert names.complete("SELECT * FROM app.o") == ("app.o", ["app.orders"])
        assert names.complete("SELECT * FROM o") == ("o", ["orders"])
        assert names.complete("SELECT * FROM system.topic_g") == ("system.topic_g", ["system.topic_groups"])
        assert names.complete("SELECT cust") == ("cust", ["customer", "customs"])
        assert names.complete("UPDATE app.orders SET cust") == ("cust", ["customer"])
        assert names.complete("CONSUME FROM ord") == ("ord", ["order_events", "orders"])
        assert names.complete("ALTER TOPIC app.") == ("app.", ["app.order_events"])


def test_what_was_typed_in_one_shell_comes_back_in_the_next(path: Path, tmp_path: Path, terminals: Terminals) -> None:
    state = str(tmp_path / "state")
    first = terminals.open("sql", path, XDG_STATE_HOME=state)
    first.enter("shop>", "SELECT 'yester' || 'day' AS remembered;")
    first.expect("yesterday")
    first.enter("shop>", "\\q")
    assert first.end()[0] == 0
    second = terminals.open("sql", path, XDG_STATE_HOME=state)
    second.expect("shop>")
    second.type("\x1b[A\x1b[A")  # Up: \q, then the statement
    second.expect("AS remembered;")
    second.type("\r")
    second.expect("yesterday")
    second.enter("shop>", "\\q")
    assert second.end()[0] == 0
