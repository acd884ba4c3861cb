"""`tablecast sql` with -c and -f over a local database: formats, parameters, sessions, scripts."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import SETUP, csv_lines, invoke, plain, run, shop
from hypothesis import given
from hypothesis import strategies as st

from tablecast.cli.grid import MIN_WIDTH, fitted
from tablecast.cli.script import is_complete, read_statements
from tablecast.cli.sql import parameter
from tablecast.sql.parse import MAX_SQL_BYTES, parse


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return shop(tmp_path)


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
    assert (done.exit_code, done.stdout) == (1, "BEGIN\nDELETE 2\n")
    error, remark = done.stderr.splitlines()
    assert error.startswith("error [transaction_state]: stdin: ")
    assert remark == "rolled back: the transaction was not committed"
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
