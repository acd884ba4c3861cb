"""The command line against a server: what it prints is what it prints for a local database."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import SETUP, invoke, plain, program, run
from server_fixture import PASSWORD, ServerProcess, ServerThread
from typer.testing import Result

import tablecast
from tablecast.cli.credentials import Credentials, credentials
from tablecast.cli.target import Target
from tablecast.errors import InvalidRequest, Unauthenticated


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """The shop of `cli_fixture`, served; the environment has the password."""
    monkeypatch.setenv("TABLECAST_PASSWORD", PASSWORD)
    with ServerThread() as started:
        started.sql(SETUP)
        yield started


@pytest.fixture
def local(tmp_path: Path) -> Path:
    with tablecast.open(tmp_path / "shop") as database:
        database.execute(SETUP)
    return tmp_path / "shop"


def ok(done: Result) -> str:
    assert (done.exit_code, done.stderr) == (0, ""), done.stderr
    return done.stdout


def count(server: ServerThread) -> int:
    return int(server.sql("SELECT count(*) AS n FROM app.orders")[0]["rows"][0][0])


# --- sql --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["table", "json", "csv", "ndjson"])
def test_results_are_those_of_a_local_database(form: str, server: ServerThread, local: Path) -> None:
    text = (
        "SELECT * FROM orders ORDER BY id; SELECT list(id ORDER BY id) AS ids, INTERVAL 3 DAY AS i FROM orders; "
        "SELECT ? AS a, ? AS b; SELECT * FROM orders WHERE id < 0; DELETE FROM orders WHERE id = ?"
    )
    params = [arg for value in ("0.10", "null", "1") for arg in ("--param", value)]
    args = ("-c", text, *params, "--namespace", "app", "--format", form)
    there, here = invoke("sql", server.url, *args), invoke("sql", local, *args)
    seq = re.compile(r'"seq":\d+')
    assert seq.sub("", there.stdout) == seq.sub("", here.stdout)
    assert (there.exit_code, there.stderr) == (0, here.stderr)
    assert count(server) == 1


def test_the_real_program_says_nothing_else(server: ServerThread) -> None:
    done = run("sql", server.url, "-c", "SELECT 1 AS one")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\n───\n  1\n(1 row)\n", "")


def test_an_unknown_namespace_is_named(server: ServerThread) -> None:
    done = invoke("sql", server.url, "--namespace", "nope", "-c", "SELECT 1")
    assert (done.exit_code, done.stderr) == (1, "error [unknown_namespace]: there is no namespace 'nope'\n")


def test_a_slip_in_the_last_statement_leaves_the_first_undone(server: ServerThread) -> None:
    done = invoke("sql", server.url, "-c", "DELETE FROM app.orders; SELEKT 1")
    assert (done.exit_code, count(server)) == (1, 2)
    assert done.stderr.startswith("error [sql_syntax]: statement 2 of 2: ")


def test_the_statement_that_failed_is_told(server: ServerThread) -> None:
    insert = "INSERT INTO app.orders (id, customer) VALUES"
    done = invoke("sql", server.url, "-c", f"{insert} (5, 'x'); {insert} (1, 'x')")
    assert (done.exit_code, count(server)) == (1, 3)
    assert done.stderr.startswith("error [duplicate_key]: statement 2 (those before it have happened): app.orders ")


def test_a_script_stops_at_its_first_error_and_says_where(server: ServerThread, tmp_path: Path) -> None:
    script = tmp_path / "load.sql"
    script.write_text("DELETE FROM app.orders;\n\nSELECT nope\n  FROM app.orders;\nSELECT 1 AS one;\n")
    done = run("sql", server.url, "-f", script)
    assert (done.returncode, done.stdout) == (1, "DELETE 2\n")
    assert re.fullmatch(rf"error \[\w+\]: {re.escape(str(script))}, statement at line 3: .*nope.*\n", done.stderr)


def test_a_transaction_of_a_script_is_sent_as_a_whole(server: ServerThread) -> None:
    done = invoke(
        "sql",
        server.url,
        text="START TRANSACTION; DELETE FROM app.orders; SELECT count(*) AS n FROM app.orders; COMMIT;",
    )
    assert ok(done) == "BEGIN\nDELETE 2\nn\n─\n0\n(1 row)\nCOMMIT\n"
    assert count(server) == 0


@pytest.mark.parametrize(
    ("script", "stdout", "stderr"),
    [
        (
            "BEGIN; DELETE FROM app.orders;",
            "BEGIN\n",
            r"error \[transaction_state\]: stdin: .*\ndropped: the transaction was not committed\n",
        ),
        ("BEGIN; DELETE FROM app.orders; ROLLBACK; SELEKT;", "BEGIN\nROLLBACK\n", r"error \[sql_syntax\]: .*\n"),
        ("BEGIN; BEGIN;", "BEGIN\n", r"error \[transaction_state\]: .*already.*\n.*not committed\n"),
        ("COMMIT;", "", r"error \[transaction_state\]: .*COMMIT without BEGIN.*\n"),
        (
            "BEGIN; DELETE FROM app.orders; SELECT nope FROM app.orders; COMMIT;",
            "BEGIN\n",
            r"error \[\w+\]: stdin, statement at line 1: statement 3 \(BEGIN is 1; nothing of the transaction has "
            r"happened\): .*nope.*\n",
        ),
    ],
)
def test_a_transaction_that_comes_to_nothing(script: str, stdout: str, stderr: str, server: ServerThread) -> None:
    done = invoke("sql", server.url, text=script)
    assert done.stdout == stdout
    assert re.fullmatch(stderr, done.stderr), done.stderr
    assert count(server) == 2


# --- topics, groups, tail ---------------------------------------------------------------------------------------


def test_topics_and_groups(server: ServerThread, local: Path) -> None:
    assert ok(invoke("topics", server.url)) == ok(invoke("topics", local))
    server.post("/topics/consume", {"topic": "orders", "group_id": "billing", "partition_id": 0, "timeout_seconds": 0})
    shown = [line.split() for line in ok(invoke("groups", server.url)).splitlines()[1:]]
    assert [line[:3] for line in shown] == [["app.order_events", "billing", partition] for partition in "01"]
    assert int(shown[0][6]) == int(shown[0][4]) > 0  # the lag is what it claimed
    assert int(shown[1][6]) > int(shown[1][4]) == 0


def tail(server: ServerThread, *args: object) -> list[dict[str, Any]]:
    done = invoke("tail", server.url, "orders", "--no-follow", "--format", "ndjson", *args)
    return [json.loads(line) for line in ok(done).splitlines()]


def test_tail_shows_all_partitions_in_the_order_of_commits(server: ServerThread) -> None:
    found = tail(server)
    assert [message["op"] for message in found] == ["insert", "insert", "insert", "update", "delete"]
    assert {message["partition_id"] for message in found} == {0, 1}
    assert [m["op"] for m in tail(server, "--filter", "payload.customer=ann", "--limit", 2)] == ["insert", "update"]
    assert [m["op"] for m in tail(server, "--from", found[-1]["ts"])][-1] == "delete"
    assert tail(server, "--from", "latest") == []


def test_tail_of_a_long_topic_goes_through_its_pages(server: ServerThread) -> None:
    server.post("/tables/app.orders/rows", [{"id": i, "customer": "c"} for i in range(100, 2_100)])
    ids = [int(message["message_id"]) for message in tail(server, "--from", "earliest")]
    assert (len(ids), ids) == (2_005, sorted(ids))


def test_tail_as_a_group_acknowledges_what_it_showed(server: ServerThread) -> None:
    assert len(tail(server, "--group", "g", "--limit", 2)) == 2
    rest = tail(server, "--group", "g", "--filter", "op=delete")
    assert [message["delivery"] for message in rest] == [1]
    assert tail(server, "--group", "g") == []
    assert server.sql("SELECT sum(lag), sum(claimed) FROM system.topic_groups")[0]["rows"] == [["0", "0"]]


def test_tail_of_a_topic_that_is_not_there(server: ServerThread) -> None:
    done = invoke("tail", server.url, "app.order_event")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "did you mean app.order_events?" in done.stderr


# --- user -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["server", "local"])
def test_users_from_first_to_last(where: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(where)
    target = found.url if isinstance(found, ServerThread) else found
    name = "ann o'hara"
    assert ok(invoke("user", "add", target, name, "--role", "service", text="it's long\n")) == (
        f"added {name} with role service\n"
    )
    assert ok(invoke("user", "role", target, name, "dba")) == f"{name} has role dba\n"
    assert ok(invoke("user", "passwd", target, name, text="another; one\r\n")) == f"changed the password of {name}\n"
    if isinstance(found, ServerThread):
        assert found.get("/v1/api/auth/me", user=name, password="another; one").json()["role"] == "dba"
    users = json.loads(ok(invoke("user", "list", target, "--format", "json")))
    assert [(user["role"], user["can_sign_in"]) for user in users if user["name"] == name] == [("dba", True)]
    assert ok(invoke("user", "drop", target, name)) == f"dropped {name}\n"
    assert name not in ok(invoke("user", "list", target))


@pytest.mark.parametrize(
    ("args", "text", "code"),
    [
        (("add", "ann"), "p4ss\n", "invalid_request"),
        (("add", "ann"), "", "invalid_request"),
        (("add", "ann"), "long enough\n", "already_exists"),
        (("passwd", "nobody"), "long enough\n", "unknown_user"),
        (("drop", "nobody"), "", "unknown_user"),
        (("drop", "system"), "", "invalid_request"),
    ],
)
def test_what_users_cannot_be(args: tuple[str, str], text: str, code: str, server: ServerThread) -> None:
    if code == "already_exists":
        server.sql(f"CREATE USER '{args[1]}' WITH PASSWORD 'the first one'")
    done = invoke("user", args[0], server.url, args[1], text=text)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error [{code}]: ")
    assert not text or text.strip() not in done.stderr


def test_roles_hold_on_the_command_line_too(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    server.sql("CREATE USER 'eve' WITH PASSWORD 'eve has one'")
    monkeypatch.setenv("TABLECAST_USER", "eve")
    monkeypatch.setenv("TABLECAST_PASSWORD", "eve has one")
    assert ok(invoke("sql", server.url, "-c", "INSERT INTO app.carts VALUES ('pen')")) == "INSERT 1\n"
    for args in (("topics",), ("groups",), ("tail", "orders"), ("user", "list"), ("user", "drop", "system")):
        command = args[:2] if args[0] == "user" else args[:1]
        done = invoke(*command, server.url, *args[len(command) :])
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("error [permission_denied]: 'eve' has role user;")


# --- who signs in -----------------------------------------------------------------------------------------------

URL = "http://db.example:8080"


@pytest.mark.parametrize(
    ("target", "environment", "expected"),
    [
        (Target(URL), {"TABLECAST_PASSWORD": "p"}, Credentials("system", "p")),
        (Target(URL), {"TABLECAST_PASSWORD": "p", "TABLECAST_USER": "ann"}, Credentials("ann", "p")),
        (Target(URL, user="bob"), {"TABLECAST_PASSWORD": "p", "TABLECAST_USER": "ann"}, Credentials("bob", "p")),
        (Target("http://b%40b:x%3Ay@db"), {"TABLECAST_PASSWORD": "p"}, Credentials("b@b", "x:y")),
        (Target("http://bob@db"), {"TABLECAST_PASSWORD": "p", "TABLECAST_TOKEN": "t"}, Credentials("bob", "p")),
        (Target(URL), {"TABLECAST_PASSWORD": "p", "TABLECAST_TOKEN": "t"}, Credentials(token="t")),
        (Target(URL, user="bob"), {"TABLECAST_PASSWORD": "p", "TABLECAST_TOKEN": "t"}, Credentials("bob", "p")),
        (Target(URL, token="t"), {"TABLECAST_PASSWORD": "p", "TABLECAST_USER": "ann"}, Credentials(token="t")),
    ],
)
def test_the_command_line_wins_over_the_environment(
    target: Target, environment: dict[str, str], expected: Credentials
) -> None:
    assert credentials(target, environment) == expected


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        (Target(URL), Unauthenticated, f"{URL} takes a password for 'system': set TABLECAST_PASSWORD"),
        (Target("http://ann:x@db", user="bob"), InvalidRequest, "--user is 'bob' and the address names 'ann'"),
        (Target(URL, user="bob", token="t"), InvalidRequest, "a user with a password, or a token, not both"),
        (Target(URL, password_file=Path("none")), InvalidRequest, "the password file none cannot be read: "),
        (Target(URL, password_file=Path("/dev/null")), InvalidRequest, "the password file /dev/null is empty"),
    ],
)
def test_credentials_that_make_no_sense(target: Target, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        credentials(target, {})


def test_a_password_in_the_address_is_taken_and_warned_about(server: ServerThread) -> None:
    address = server.url.replace("//", f"//system:{PASSWORD.replace(' ', '%20')}@")
    done = invoke("topics", address)
    assert done.exit_code == 0
    assert done.stderr.startswith("a password in an address can be read by others on this machine: use TABLECAST_")
    assert PASSWORD not in done.output


def test_a_password_file_and_a_token(server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TABLECAST_PASSWORD")
    (tmp_path / "password").write_text(PASSWORD + "\n")
    expected = ok(invoke("topics", server.url, "--password-file", tmp_path / "password"))
    token = server.post("/auth/login", {"user": "system", "password": PASSWORD}).json()["access_token"]
    assert ok(invoke("topics", server.url, "--token", token)) == expected
    refused = invoke("topics", server.url, "--token", token[:-4] + "AAAA")
    assert refused.stderr.startswith(f"error [unauthenticated]: {server.url} refused the token: ")


# --- what may be wrong ------------------------------------------------------------------------------------------


def test_a_wrong_password_and_then_the_lock(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLECAST_PASSWORD", "not this one")
    for _ in range(5):
        done = invoke("topics", server.url, "--user", "ann")
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == (
            f"error [unauthenticated]: {server.url} refused user 'ann': the user name or the password is wrong\n"
        )
    locked = invoke("topics", server.url, "--user", "ann")
    assert locked.stderr.startswith(
        f"error [locked_out]: {server.url}: too many wrong passwords for ann from 127.0.0.1;"
    )


@pytest.mark.parametrize("command", [("sql", "-c", "SELECT 1"), ("topics",), ("tail", "t"), ("user", "list")])
def test_no_server_there(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLECAST_PASSWORD", "x")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        words = command[:2] if command[0] == "user" else command[:1]
        done = invoke(*words, url, *command[len(words) :])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        f"error [unreachable]: {url} cannot be reached: Connection refused; is a server running there?\n"
    )


def test_a_name_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLECAST_PASSWORD", "x")
    done = invoke("topics", "http://nobody.invalid:8080")
    assert done.exit_code == 1
    assert done.stderr.startswith("error [unreachable]: http://nobody.invalid:8080 cannot be reached: ")


@pytest.mark.parametrize("address", ["ftp://db.example", "http://"])
def test_an_address_that_is_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLECAST_PASSWORD", "x")
    done = invoke("topics", address)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error [invalid_request]: the address of a server is http://host:port or https://…")


def test_https_at_a_server_without_tls(server: ServerThread) -> None:
    url = server.url.replace("http:", "https:")
    done = invoke("topics", url)
    assert done.stderr == (
        f"error [unreachable]: {url} cannot be reached: it does not speak TLS there; is the address http://…?\n"
    )


def test_roles_are_for_local_databases(server: ServerThread) -> None:
    done = invoke("sql", server.url, "--user", "ann", "--role", "dba", "-c", "SELECT 1")
    assert done.exit_code == 2
    assert "--role goes with a local database: a server knows the roles of its users" in plain(done.stderr)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that it signed itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    file, key = directory / "certificate.pem", directory / "key.pem"
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    named = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = [*new.split(), *named.split(), "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file, key


def test_tls_takes_an_authority(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes: an authority is chosen once in the life of one."""
    monkeypatch.setenv("TABLECAST_PASSWORD", PASSWORD)
    file, key = certificate
    with ServerProcess(tmp_path / "db", "--tls-certificate", str(file), "--tls-key", str(key)) as server:
        url = f"https://127.0.0.1:{server.port}"
        trusting = run("sql", url, "--ca", file, "-c", "SELECT 1 AS one", "--format", "csv")
        assert (trusting.returncode, trusting.stdout, trusting.stderr) == (0, "one\r\n1\r\n", "")
        following = run("tail", url, "nothing", "--ca", file)
        assert following.stderr == "error [unknown_topic]: there is no topic default.nothing\n"
        doubting = run("topics", url)
        assert (doubting.returncode, doubting.stdout) == (1, "")
        assert doubting.stderr.startswith(
            f"error [unreachable]: {url} cannot be reached: its certificate does not hold ("
        )
        assert doubting.stderr.endswith("); if the authority that signed it is your own, name it with --ca FILE\n")
        plain_text = run("topics", url.replace("https:", "http:"))
        assert plain_text.stderr.endswith("cannot be reached: it hung up; is the address https://…?\n")


def test_an_authority_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLECAST_PASSWORD", "x")
    (tmp_path / "ca").write_text("not a certificate")
    for file in (tmp_path / "ca", tmp_path / "nothing"):
        done = invoke("topics", "https://db.example", "--ca", file)
        assert done.exit_code == 1
        assert done.stderr.startswith(
            f"error [invalid_request]: --ca {file} cannot be used as a PEM file of certificat"
        )


def test_a_command_for_a_server_loads_no_storage(server: ServerThread) -> None:
    script = """
import sys
from tablecast.cli import main
try:
    main()
finally:
    print(sorted({"duckdb", "rocksdict"} & set(sys.modules)))
"""
    command = [*program("topics", server.url)[:1], "-c", script, "topics", server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
