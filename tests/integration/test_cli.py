"""The command line, as a person and as a program meet it.

The main paths run the real program in a process of its own, whose every byte of output counts: also what an
interpreter might say while it ends. Interactive parts are driven through a pseudo-terminal.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import tablecast
from tablecast.cli.app import MessageFormat, app
from tablecast.cli.complete import Names
from tablecast.cli.grid import MIN_WIDTH, fitted
from tablecast.cli.script import is_complete, read_statements
from tablecast.cli.sql import parameter
from tablecast.cli.tail import Tail, parse_filters
from tablecast.cli.topics import duration, lag_bar
from tablecast.errors import BackupError
from tablecast.sql.parse import MAX_SQL_BYTES, parse
from tablecast.storage.base import Family
from tablecast.storage.restore import restore
from tablecast.storage.rocks import RocksStore

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (
  id BIGINT PRIMARY KEY, customer TEXT NOT NULL, amount DECIMAL(12,2), note JSON, at TIMESTAMP, photo BYTES);
CREATE USER TABLE app.carts (item TEXT PRIMARY KEY);
CREATE TOPIC app.order_events ALIAS 'orders' PARTITIONS 2;
ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY;
INSERT INTO app.orders VALUES
  (1, 'ann', 12.50, '{"gift": [true, null]}', '2024-02-29T12:00:00Z', 'hi'::BLOB),
  (9007199254740993, 'Bob, "the" builder', NULL, NULL, NULL, NULL),
  (3, '', 0.01, '"text"', NULL, NULL);
UPDATE app.orders SET amount = 13 WHERE id = 1;
DELETE FROM app.orders WHERE id = 3;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with three inserts, an update and a delete on a topic."""
    with tablecast.open(tmp_path / "shop") as database:
        database.execute(SETUP)
    return tmp_path / "shop"


def program(*args: object) -> list[str]:
    return [sys.executable, "-c", "from tablecast.cli import main; main()", *map(str, args)]


def run(*args: object, text: str = "") -> subprocess.CompletedProcess[str]:
    """The real program, with its own streams."""
    done = subprocess.run(program(*args), input=text.encode(), capture_output=True, timeout=120)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def invoke(*args: object, text: str = "") -> Result:
    """The same in this process, for paths where only the outcome matters."""
    return CliRunner().invoke(app, [*map(str, args)], input=text)


def csv_lines(path: Path, sql: str, *args: object) -> list[str]:
    return invoke("sql", path, "-c", sql, "--format", "csv", *args).stdout.splitlines()


def plain(text: str) -> str:
    """Without the boxes that usage errors are drawn in, nor line ends."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


# --- the program as a whole -------------------------------------------------------------------------------------


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tablecast {tablecast.__version__}\n", "")


def test_every_command_has_a_help_text_with_an_example() -> None:
    commands = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert commands == ["sql", "topics", "groups", "tail", "verify", "backup", "restore"]
    listed = plain(invoke("--help").stdout)
    for command in commands:
        shown = plain(invoke(command, "--help").stdout)
        assert f"Example: tablecast {command} " in shown
        assert f" {command} " in listed


def test_asking_for_help_loads_no_database() -> None:
    script = """
import sys, types
from importlib.util import find_spec
package = types.ModuleType("tablecast")  # the package's own names, which need everything, are not asked for
package.__path__ = find_spec("tablecast").submodule_search_locations
sys.modules["tablecast"] = package
from tablecast.cli import main
try:
    main()
finally:
    print(sorted({"duckdb", "pyarrow", "numpy", "rocksdict", "sqlglot", "prompt_toolkit"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script, "--help"], capture_output=True, text=True, timeout=60)
    assert "Usage: tablecast" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    "command",
    [("sql",), ("topics",), ("groups",), ("tail",), ("verify",), ("backup",), ("restore",)],
    ids=lambda c: c[0],
)
def test_a_url_is_refused(command: tuple[str], tmp_path: Path) -> None:
    more = [] if command[0] in ("sql", "topics", "groups", "verify") else [str(tmp_path / "target")]
    done = invoke(*command, "https://db.example:7000", *more)
    assert done.exit_code == 2
    assert "https://db.example:7000 is a URL; name the directory of a local database instead" in plain(done.stderr)


@pytest.mark.parametrize("command", ["topics", "groups", "verify"])
def test_looking_at_a_database_that_is_not_there_makes_none(command: str, tmp_path: Path) -> None:
    done = invoke(command, tmp_path / "nothing")
    assert done.exit_code == 1
    assert done.stderr == f"error [not_a_database]: there is no database at {tmp_path / 'nothing'}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_another_process_has_open(path: Path) -> None:
    with tablecast.open(path):
        done = run("topics", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (f"error [database_locked]: {path} is open in another process; only one may have it open\n")


# --- sql: one command -------------------------------------------------------------------------------------------


def test_a_command_from_nothing_to_rows(tmp_path: Path) -> None:
    made = run("sql", tmp_path / "db", "-c", "CREATE TABLE t (id INT PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
    assert (made.returncode, made.stdout) == (0, "CREATE TABLE\nINSERT 2\n")
    assert made.stderr == f"made a new database at {tmp_path / 'db'}\n"
    read = run("sql", tmp_path / "db", "-c", "SELECT id, id * 2 AS twice FROM t ORDER BY id")
    assert read.stdout == "id │ twice\n───┼──────\n 1 │     2\n 2 │     4\n(2 rows)\n"
    assert (read.returncode, read.stderr) == (0, "")


def test_an_error_is_one_line_and_exit_code_1(path: Path) -> None:
    done = run("sql", path, "-c", "SELECT CAST(customer AS INT) FROM app.orders")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error \[\w+\]: .*ann.*\n", done.stderr)


def test_a_slip_in_the_last_statement_leaves_the_first_undone(path: Path) -> None:
    done = invoke("sql", path, "-c", "DELETE FROM app.orders; SELEKT 1")
    assert done.exit_code == 1
    assert done.stderr.startswith("error [sql_syntax]: statement 2 of 2: ")
    assert csv_lines(path, "SELECT count(*) AS n FROM app.orders") == ["n", "2"]


def test_results_before_a_failing_statement_are_shown(path: Path) -> None:
    done = invoke("sql", path, "-c", "SELECT 1 AS one; INSERT INTO app.orders (id, customer) VALUES (1, 'x')")
    assert done.exit_code == 1
    assert "(1 row)" in done.stdout
    assert done.stderr.startswith("error [duplicate_key]: ")


QUERY = "SELECT * FROM app.orders ORDER BY id"
COMPUTED = (
    "SELECT list(id ORDER BY id) AS ids, {'a': sum(amount)} AS s, map(['k'], [1::BIGINT]) AS m, INTERVAL 3 DAY AS i"
)


def test_json_keeps_every_digit() -> None:
    done = invoke("sql", ":memory:", "-c", SETUP + QUERY, "--format", "json")
    *written, rows = done.stdout.split("\n[\n")
    assert [json.loads(line)["message"] for line in written[0].splitlines()][-3:] == [
        "INSERT 3",
        "UPDATE 1",
        "DELETE 1",
    ]
    assert json.loads("[" + rows) == [
        {
            "id": "1",
            "customer": "ann",
            "amount": "13.00",
            "note": {"gift": [True, None]},
            "at": "2024-02-29T12:00:00Z",
            "photo": "aGk=",
        },
        {
            "id": "9007199254740993",
            "customer": 'Bob, "the" builder',
            "amount": None,
            "note": None,
            "at": None,
            "photo": None,
        },
    ]


def test_json_of_what_a_query_makes(path: Path) -> None:
    done = invoke("sql", path, "-c", f"{COMPUTED} FROM app.orders", "--format", "ndjson")
    assert json.loads(done.stdout) == {
        "ids": ["1", "9007199254740993"],
        "s": {"a": "13.00"},
        "m": {"k": "1"},
        "i": "P0M3DT0S",
    }


def test_json_of_no_rows_is_an_empty_array(path: Path) -> None:
    assert invoke("sql", path, "-c", "SELECT * FROM app.carts", "--format", "json").stdout == "[]\n"


def test_ndjson_has_rows_only(path: Path) -> None:
    text = f"{QUERY}; INSERT INTO app.orders (id, customer) VALUES (5, 'x'); SELECT note FROM app.orders WHERE id = 1"
    done = invoke("sql", path, "-c", text, "--format", "ndjson")
    assert [sorted(json.loads(line)) for line in done.stdout.splitlines()][-1] == ["note"]
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr == "INSERT 1\n"


def test_csv_is_read_back_by_a_csv_reader(path: Path) -> None:
    done = run(
        "sql", path, "-c", "SELECT id, customer, amount, note, at FROM app.orders ORDER BY id", "--format", "csv"
    )
    assert list(csv.reader(io.StringIO(done.stdout, newline=""))) == [
        ["id", "customer", "amount", "note", "at"],
        ["1", "ann", "13.00", '{"gift":[true,null]}', "2024-02-29T12:00:00Z"],
        ["9007199254740993", 'Bob, "the" builder', "", "", ""],
    ]


def test_csv_tells_null_from_an_empty_text_and_ends_lines_as_rfc_4180_says(path: Path) -> None:
    done = invoke("sql", path, "-c", "SELECT NULL AS a, '' AS b, 'x\ny' AS c", "--format", "csv")
    assert done.stdout_bytes == b'a,b,c\r\n,"","x\ny"\r\n'


def test_the_table_shows_control_characters_instead_of_obeying_them(path: Path) -> None:
    done = invoke("sql", path, "-c", "SELECT ? AS a", "--param", "a\x1b[2Jb\nc")
    assert done.stdout.splitlines()[2] == r"a\x1b[2Jb\nc"


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.integers(20, 200))
def test_columns_are_fitted_to_the_terminal(widths: list[int], available: int) -> None:
    found = fitted(widths, available)
    needed = sum(found) + 3 * (len(found) - 1)
    assert needed <= available or all(width <= MIN_WIDTH for width in found)
    assert all(new == old or MIN_WIDTH <= new < old for new, old in zip(found, widths, strict=True))
    if sum(widths) + 3 * (len(widths) - 1) <= available:
        assert found == widths


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ('"7"', "7"),
        ("null", None),
        ("true", True),
        ("ann", "ann"),
        ("{", "{"),
        ('{"a":1}', {"a": 1}),
        ("", ""),
    ],
)
def test_parameters_are_json_or_text(text: str, value: Any) -> None:
    assert parameter(text) == value


def test_parameters_fill_the_statements_in_order(path: Path) -> None:
    text = "INSERT INTO app.orders (id, customer, amount) VALUES (?, ?, ?); SELECT customer, amount FROM app.orders WHERE id = ?"
    params = [arg for value in ("8", "cy", "0.10", "8") for arg in ("--param", value)]
    assert csv_lines(path, text, *params) == ["customer,amount", "cy,0.10"]
    missing = invoke("sql", path, "-c", text, "--param", "9")
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert missing.stderr == "error [invalid_request]: the statement takes 4 parameter(s), 1 given\n"


def test_a_session_of_another_user(path: Path) -> None:
    ann = ("--user", "ann", "--namespace", "app")
    assert csv_lines(path, "INSERT INTO carts VALUES ('pen') RETURNING item", *ann) == ["item", "pen"]
    assert csv_lines(path, "SELECT * FROM carts", *ann) == ["item", "pen"]
    assert csv_lines(path, "SELECT * FROM app.carts") == ["item"]
    denied = invoke("sql", path, *ann, "-c", "SELECT * FROM orders")
    assert denied.exit_code == 1
    assert denied.stderr.startswith("error [permission_denied]: 'ann' has role user;")
    assert csv_lines(path, "SELECT count(*) AS n FROM orders", *ann, "--role", "service") == ["n", "2"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-c", "SELECT 1", "-f", "x.sql"], "give -c or -f, not both"),
        (["-f", "-", "--param", "1"], "--param goes with -c"),
        (["--role", "dba", "-c", "SELECT 1"], "--role goes with --user"),
        (["-f", "no-such-file.sql"], "no-such-file.sql cannot be read"),
        (["-c", "SELECT 1", "--format", "xml"], "'xml' is not one of"),
    ],
)
def test_wrong_use_is_exit_code_2(args: list[str], message: str) -> None:
    done = invoke("sql", ":memory:", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in plain(done.stderr)


def test_an_unknown_namespace_is_named(path: Path) -> None:
    done = invoke("sql", path, "--namespace", "nope", "-c", "SELECT 1")
    assert done.exit_code == 1
    assert done.stderr.startswith("error [unknown_namespace]: there is no namespace 'nope'")


def test_a_missing_script_makes_no_database(tmp_path: Path) -> None:
    done = invoke("sql", tmp_path / "db", "-f", tmp_path / "typo.sql")
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])


def test_no_create_makes_nothing(tmp_path: Path) -> None:
    done = invoke("sql", tmp_path / "typo", "--no-create", "-c", "SELECT 1")
    assert (done.exit_code, list(tmp_path.iterdir())) == (1, [])


# --- sql: scripts -----------------------------------------------------------------------------------------------


def test_statements_piped_in(path: Path) -> None:
    done = run("sql", path, "--format", "csv", text="-- a; comment\nSELECT 'a;b' AS x;\nSELECT\n  2 AS y")
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\r\na;b\r\ny\r\n2\r\n", "")


def test_a_script_stops_at_its_first_error_and_says_where(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "load.sql"
    script.write_text("DELETE FROM app.orders;\n\n-- next\nSELECT nope\n  FROM app.orders;\nSELECT 1 AS one;\n")
    done = run("sql", path, "-f", script)
    assert (done.returncode, done.stdout) == (1, "DELETE 2\n")
    assert re.fullmatch(rf"error \[\w+\]: {re.escape(str(script))}, statement at line 3: .*nope.*\n", done.stderr)


def test_a_script_that_does_not_commit_is_rolled_back(path: Path) -> None:
    done = invoke("sql", path, "-f", "-", text="BEGIN; DELETE FROM app.orders;")
    assert (done.exit_code, done.stdout) == (0, "BEGIN\nDELETE 2\n")
    assert done.stderr == "rolled back: the transaction was not committed\n"
    assert csv_lines(path, "SELECT count(*) AS n FROM app.orders") == ["n", "2"]


def test_a_script_may_be_longer_than_a_statement(tmp_path: Path) -> None:
    one = "SELECT '" + "x" * (MAX_SQL_BYTES // 3) + "' AS long;\n"
    script = tmp_path / "long.sql"
    script.write_text(one * 5)
    assert invoke("sql", ":memory:", "-f", script, "--format", "ndjson").stdout.count("\n") == 5
    script.write_text(one.replace(";", " ") * 5)
    assert "error [too_large]" in invoke("sql", ":memory:", "-f", script).stderr


_STATEMENTS = st.sampled_from(
    [
        "SELECT 1",
        "SELECT ';' AS a, \"b;\" FROM app.t",
        "SELECT 'it''s;'\n-- a ; comment\n, 2",
        "SELECT /* ; \n */ $$ ; $$",
        "EXECUTE AS USER 'ann' (SELECT 1; SELECT (2))",
        "BEGIN",
    ]
)


@given(st.lists(_STATEMENTS, max_size=6), st.booleans())
def test_a_script_is_cut_where_the_parser_cuts_it(statements: list[str], ended: bool) -> None:
    text = ";\n".join(statements) + (";\n" if ended else "")
    found = [statement.text for statement in read_statements(text.splitlines(keepends=True))]
    assert found == statements
    assert not statements or len(parse(text)) == len(found)


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- done", True),
        ("SELECT ';", False),
        ("SELECT 1; SELECT", False),
        ("EXECUTE AS USER 'a' (SELECT 1;", False),
        ("\\dt", True),
        ("  ", True),
    ],
)
def test_when_a_shell_runs_what_was_typed(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


# --- sql: the shell ---------------------------------------------------------------------------------------------

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Terminal:
    """A program in a terminal of its own. What was seen is text without colours and cursor movements."""

    PATIENCE_SECONDS = 60.0

    def __init__(self, command: list[str], **env: str) -> None:
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
            env={**os.environ, "COLUMNS": "200", "LINES": "50", "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **env},
        )
        os.close(inside)
        self._seen = ""

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def expect(self, wanted: str) -> str:
        """Reads up to `wanted`."""
        until = time.monotonic() + self.PATIENCE_SECONDS
        while wanted not in self._seen:
            assert self._read(until), f"no {wanted!r} in {self._seen!r}"
        before, _, self._seen = self._seen.partition(wanted)
        return before

    def press_until(self, key: str, wanted: str) -> None:
        """As a person does: a signal that comes just before input() reads is noticed with the next one."""
        for _ in range(10):
            self.type(key)
            until = time.monotonic() + self.PATIENCE_SECONDS / 10
            while wanted not in self._seen and time.monotonic() < until:
                self._read(until)
            if wanted in self._seen:
                break
        self.expect(wanted)

    def end(self) -> tuple[int, str]:
        """Waits for its end: exit code, and what it said last."""
        until = time.monotonic() + self.PATIENCE_SECONDS
        while self._read(until):
            pass
        os.close(self._screen)
        return self._process.wait(self.PATIENCE_SECONDS), self._seen

    def _read(self, until: float) -> bool:
        ready, _, _ = select.select([self._screen], [], [], max(0, until - time.monotonic()))
        try:
            more = os.read(self._screen, 65_536) if ready else b""
        except OSError:  # how Linux says that the other side is closed
            more = b""
        self._seen += _CONTROL.sub("", more.decode(errors="replace"))
        return bool(more)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    started: list[Terminal] = []
    yield started
    for terminal in started:
        terminal.kill()


@pytest.fixture
def shell(path: Path, tmp_path: Path, terminals: list[Terminal]) -> Terminal:
    terminals.append(Terminal(program("sql", path), XDG_STATE_HOME=str(tmp_path / "state")))
    return terminals[0]


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
    shell.expect("customer")
    shell.type(" FROM app.ord\t")
    shell.expect("app.orders")
    shell.type(" WHERE id = 1;\r")
    assert "ann" in shell.expect("(1 row)")

    shell.type("CREATE USER 'eve' WITH PASSWORD 'secret';\r")
    shell.expect("error [unsupported_sql]")
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


def test_the_shell_without_prompt_toolkit(path: Path, terminals: list[Terminal]) -> None:
    without = "import sys; sys.modules['prompt_toolkit'] = None; from tablecast.cli import main; main()"
    shell = Terminal([sys.executable, "-c", without, "sql", str(path)])
    terminals.append(shell)
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


def test_ctrl_c_stops_a_query_and_the_shell_goes_on(slow: Path, tmp_path: Path, terminals: list[Terminal]) -> None:
    shell = Terminal(program("sql", slow), XDG_STATE_HOME=str(tmp_path / "state"))
    terminals.append(shell)
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
def test_ctrl_c_ends_a_command_without_a_word(what: str, slow: Path, path: Path, terminals: list[Terminal]) -> None:
    """No traceback, and nothing that a library says about objects that are left at the end."""
    args, shown = {
        "query": (("sql", slow, "-c", SLOW), "running …"),
        "tail": (("tail", path, "orders", "--from", "earliest"), "delete app.orders"),
        "watch": (("groups", path, "--watch", "--interval", "0.1"), "committed"),
    }[what]
    command = Terminal(program(*args))
    terminals.append(command)
    command.expect(shown)
    if what == "watch":
        command.expect("committed")  # shown again
    command.type("\x03")
    code, last = command.end()
    assert code == 130
    assert not re.search(NOISE, last)


def test_ctrl_c_in_a_program_that_embeds_the_database(slow: Path) -> None:
    """DuckDB makes a RuntimeError of it; nobody expects that."""
    script = f"""
import os, signal, threading, tablecast
with tablecast.open({str(slow)!r}, query_timeout_seconds=2) as database:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        database.query({SLOW!r})
    except KeyboardInterrupt:
        print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


def test_completion_offers_what_fits(path: Path) -> None:
    with tablecast.open(path) as database:
        database.execute("CREATE TABLE plain (customs TEXT PRIMARY KEY)")
        names = Names(lambda: database.engine.catalog, "app")
        assert names.complete("SEL") == ("SEL", ["SELECT"])
        assert names.complete("\\to") == ("\\to", ["\\topics"])
        assert names.complete("SELECT * FROM app.o") == ("app.o", ["app.orders"])
        assert names.complete("SELECT * FROM o") == ("o", ["orders"])
        assert names.complete("SELECT * FROM system.topic_g") == ("system.topic_g", ["system.topic_groups"])
        assert names.complete("SELECT cust") == ("cust", ["customer", "customs"])
        assert names.complete("UPDATE app.orders SET cust") == ("cust", ["customer"])
        assert names.complete("CONSUME FROM ord") == ("ord", ["order_events", "orders"])
        assert names.complete("ALTER TOPIC app.") == ("app.", ["app.order_events"])


# --- topics, groups, tail ---------------------------------------------------------------------------------------


def test_topics(path: Path) -> None:
    lines = run("topics", path).stdout.splitlines()
    assert lines[0].split() == [
        "topic",
        "alias",
        "partitions",
        "sources",
        "messages",
        "size",
        "kept",
        "for",
        "kept",
        "up",
        "to",
    ]
    assert lines[1].split()[:5] == ["app.order_events", "orders", "2", "1", "5"]


def test_groups_show_their_lag(path: Path) -> None:
    with tablecast.open(path) as database:
        for message in database.consume("orders", group="billing", limit=5).messages[:1]:
            database.ack("orders", "billing", message.offset, partition=message.partition_id)
    shown = invoke("groups", path).stdout.splitlines()[1:]
    assert sum(int(line.split()[6]) for line in shown) == 4
    assert all(line.split()[:2] == ["app.order_events", "billing"] for line in shown)
    assert any("━" in line for line in shown)


def test_the_lag_bar_is_full_when_nothing_was_read() -> None:
    assert lag_bar(10, 10).percentage_completed == 100
    assert lag_bar(0, 10).percentage_completed == 0
    assert lag_bar(12, 10).percentage_completed == 100  # retention took messages that were not read
    assert lag_bar(0, 0).percentage_completed == 0
    assert (lag_bar(5, 10).complete_style, lag_bar(4, 10).complete_style) == ("red", "yellow")


def test_durations() -> None:
    shown = [duration(seconds) for seconds in (0, 0.25, 59, 90, 3_600, 90_000, 604_800)]
    assert shown == ["0 s", "0.2 s", "59 s", "1.5 min", "1 h", "1 d", "7 d"]


def tail(path: Path, *args: object) -> list[dict[str, Any]]:
    done = invoke("tail", path, "orders", "--no-follow", "--format", "ndjson", *args)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tail_shows_all_partitions_in_the_order_of_commits(path: Path) -> None:
    done = run("tail", path, "orders", "--no-follow")
    shown = [line.split(" ", 4)[2:] for line in done.stdout.splitlines()]
    assert [words[0] for words in shown] == ["insert", "insert", "insert", "update", "delete"]
    assert done.stderr == ""
    found = tail(path)
    assert [message["op"] for message in found] == [words[0] for words in shown]
    assert len({message["partition_id"] for message in found}) == 2
    assert found[3]["payload"]["amount"] == "13.00"
    assert [int(message["seq"]) for message in found] == sorted(int(message["seq"]) for message in found)


def test_tail_begins_with_the_last_messages(path: Path) -> None:
    with tablecast.open(path) as database:
        database.execute("CREATE TOPIC app.one; ALTER TOPIC app.one ADD SOURCE app.orders ON INSERT")
        database.insert("app.orders", [{"id": i, "customer": "c"} for i in range(100, 130)])
    done = invoke("tail", path, "app.one", "--no-follow", "--format", "ndjson")
    assert [json.loads(line)["key"] for line in done.stdout.splitlines()] == [[str(i)] for i in range(120, 130)]


def test_tail_from_limit_and_filter(path: Path) -> None:
    assert len(tail(path, "--from", "earliest")) == 5
    assert tail(path, "--from", "latest") == []
    assert len(tail(path, "--from", "1")) == 5 - len({message["partition_id"] for message in tail(path)})
    assert [m["op"] for m in tail(path, "--limit", 2)] == ["insert", "insert"]
    assert [m["op"] for m in tail(path, "--filter", "op=update,delete")] == ["update", "delete"]
    assert [m["op"] for m in tail(path, "--filter", "op=update,delete", "--limit", 1)] == ["update"]
    assert tail(path, "--filter", "table=app.carts") == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--filter", "op=upsert"], "there is no op 'upsert': insert, update, delete"),
        (["--filter", "colour=red"], "'colour=red' is not op|table|user=value,value"),
        (["--from", "yesterday"], "'yesterday' is not earliest, latest or an offset"),
        (["--limit", "0"], "Invalid value for '--limit'"),
    ],
)
def test_tail_used_wrongly(path: Path, args: list[str], message: str) -> None:
    done = invoke("tail", path, "orders", *args)
    assert done.exit_code == 2
    assert message in plain(done.stderr)


def test_tail_of_a_topic_that_is_not_there(path: Path) -> None:
    done = invoke("tail", path, "app.order_event")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "did you mean app.order_events?" in done.stderr


def test_tail_as_a_group_acknowledges_what_it_showed(path: Path) -> None:
    first = tail(path, "--group", "g", "--limit", 2)
    rest = tail(path, "--group", "g", "--filter", "op=delete")
    assert (len(first), len(rest)) == (2, 1)
    assert {message["delivery"] for message in first + rest} == {1}
    assert tail(path, "--group", "g") == []
    with tablecast.open(path) as database:
        assert database.query("SELECT sum(lag), sum(claimed) FROM system.topic_groups").first() == (0, 0)


@pytest.mark.parametrize("group", [None, "g"])
def test_tail_follows_what_its_process_writes(group: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    with tablecast.open(":memory:") as database:
        database.execute(SETUP)
        following = Tail("orders", group, None, 7, True, parse_filters([]), MessageFormat.NDJSON)
        reader = threading.Thread(target=following.show, args=(database,))
        reader.start()
        for i in (50, 51):
            database.execute("INSERT INTO app.orders (id, customer) VALUES (?, 'late')", (i,))
        reader.join(60)
        assert not reader.is_alive()
    shown = [json.loads(line)["key"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(shown) == sorted([["1"], ["9007199254740993"], ["3"], ["1"], ["3"], ["50"], ["51"]])


# --- verify, backup, restore ------------------------------------------------------------------------------------


def test_verify_a_sound_database(path: Path) -> None:
    done = run("verify", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "tables 2, rows 2, topics 1, messages 5, group positions 0, topics equal to their tables 1: sound\n"
    )


def damage(path: Path) -> None:
    """Takes away all messages, as if nothing had ever been told."""
    store = RocksStore.open(str(path))
    batch = store.batch()
    batch.delete_range(Family.LOG, b"", b"\xff")
    store.write(batch)
    store.sync()
    store.close()


def test_verify_names_the_problem_first(path: Path) -> None:
    damage(path)
    done = invoke("verify", path)
    assert done.exit_code == 1
    first, *_, last = done.stdout.splitlines()
    assert re.fullmatch(r"the write of app.orders \S+ in commit \d+ is not on app.order_events", first)
    assert last.endswith(": not sound")


def test_backup_and_restore(path: Path, tmp_path: Path) -> None:
    copy, again = tmp_path / "monday", tmp_path / "again"
    backed_up = run("backup", path, copy)
    assert (backed_up.returncode, backed_up.stderr) == (0, "")
    assert backed_up.stdout.startswith(f"backed up to {copy} (")
    run("sql", path, "-c", "DELETE FROM app.orders")
    restored = run("restore", copy, again)
    assert (restored.returncode, restored.stderr) == (0, "")
    figures, where = restored.stdout.splitlines()
    assert figures.endswith(": sound")
    assert where.startswith(f"restored to {again} (")
    for database in (copy, again):
        assert csv_lines(database, "SELECT count(*) AS n FROM app.orders") == ["n", "2"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "monday", "shop"]


def test_a_taken_target_is_refused(path: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    for command in ("backup", "restore"):
        done = invoke(command, path, taken)
        assert done.exit_code == 1
        assert done.stderr.startswith(f"error [backup_error]: {taken} exists already")
    assert list(taken.iterdir()) == []


@pytest.mark.parametrize("missing", ["TABLECAST", "SYNCED", "store"])
def test_an_incomplete_backup_is_refused(missing: str, path: Path, tmp_path: Path) -> None:
    away = path / missing
    shutil.rmtree(away) if away.is_dir() else away.unlink()
    done = invoke("restore", path, tmp_path / "target", "--no-verify")
    assert done.exit_code == 1
    assert f"is not a complete backup: {missing} is missing" in done.stderr
    assert not (tmp_path / "target").exists()


def test_a_backup_that_was_never_finished_is_refused(path: Path, tmp_path: Path) -> None:
    (path / "TABLECAST").write_text('{"format":1,"created_by":"0.1.0","creating":true}')
    done = invoke("restore", path, tmp_path / "target", "--no-verify")
    assert "TABLECAST says that it was never finished" in done.stderr


def test_an_unsound_backup_is_not_restored_unless_told_so(path: Path, tmp_path: Path) -> None:
    damage(path)
    done = invoke("restore", path, tmp_path / "target")
    assert done.exit_code == 1
    assert "is not sound, so nothing was restored: " in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["shop"]
    assert invoke("restore", path, tmp_path / "target", "--no-verify").exit_code == 0
    assert (tmp_path / "target").is_dir()


def test_restoring_counts_bytes_up_to_the_total(path: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    restore(path, tmp_path / "target", lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert seen[-1] == (total, total)


def test_a_backup_that_changes_while_it_is_copied_is_refused(path: Path, tmp_path: Path) -> None:
    def write_meanwhile(done: int, total: int) -> None:
        (path / "store" / "000999.log").write_bytes(b"x" * done)

    with pytest.raises(BackupError, match="changed while it was copied"):
        restore(path, tmp_path / "target", write_meanwhile)
    assert [p.name for p in tmp_path.iterdir()] == ["shop"]


def test_an_interrupted_restore_leaves_nothing(path: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(path, tmp_path / "target", interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["shop"]


def test_long_work_shows_a_bar_on_a_terminal(path: Path, tmp_path: Path, terminals: list[Terminal]) -> None:
    for args, shown in (
        (("backup", path, tmp_path / "copy"), ["copying"]),
        (("restore", tmp_path / "copy", tmp_path / "again"), ["copying", "messages"]),
        (("verify", path), ["rows", "messages", "5/5"]),
    ):
        command = Terminal(program(*args))
        terminals.append(command)
        for text in shown:
            command.expect(text)
        assert command.end()[0] == 0
