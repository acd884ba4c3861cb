"""Transactions mean the same on every face; a request leaves none open; a commit number tells what is committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from cli_fixture import invoke
from faces import FACES, face, face_of
from hypothesis import given
from hypothesis import strategies as st
from server_fixture import PASSWORD, ServerThread

import tablecast
from tablecast.client.connection import Connection
from tablecast.client.transport import NoAnswer
from tablecast.errors import (
    DuplicateKey,
    InvalidRequest,
    Overloaded,
    Timeout,
    TooLarge,
    TransactionConflict,
    TransactionState,
    Unauthenticated,
)
from tablecast.server import transactions
from tablecast.sql.keyed import check_ended
from tablecast.sql.parse import parse

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql("CREATE NAMESPACE app")
        running.sql(TABLE)
        running.sql(TABLE.replace("t (", "app.t (").replace("'x'", "'y'"))
        yield running


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> None:
    if "server" in request.fixturenames:
        request.getfixturevalue("server").sql("DELETE FROM t; DELETE FROM app.t")


@pytest.fixture
def client(server: ServerThread) -> Iterator[tablecast.Client]:
    with face_of("remote", server) as found:
        yield found


def ids(database: Any) -> list[int]:
    return [row[0] for row in database.query("SELECT id FROM t ORDER BY id")]


# --- a request ends what it begins ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "BEGIN",
        "START TRANSACTION",
        "BEGIN; INSERT INTO t VALUES (1, 'x')",
        "INSERT INTO t VALUES (1, 'x'); BEGIN; INSERT INTO t VALUES (2, 'x')",
        "BEGIN; INSERT INTO t VALUES (1, 'x'); COMMIT; BEGIN; INSERT INTO t VALUES (2, 'x')",
        "BEGIN; ROLLBACK; BEGIN",
    ],
)
def test_a_request_that_leaves_a_transaction_open_does_nothing(sql: str, server: ServerThread) -> None:
    answer = server.post("/sql", {"sql": sql})
    assert (answer.status, answer.error["code"]) == (409, "transaction_state")
    assert "COMMIT or ROLLBACK" in answer.error["message"]
    for kind in ("remote", "remote_async"):
        with face_of(kind, server) as found, pytest.raises(TransactionState, match=r"client\.transaction"):
            found.execute_all(sql)
    assert server.sql("SELECT id FROM t")[0]["rows"] == []


_CONTROL = st.lists(st.sampled_from(["BEGIN", "COMMIT", "ROLLBACK", "SELECT 1"]), min_size=1, max_size=6)


@given(_CONTROL)
def test_a_text_is_refused_just_if_a_session_would_be_left_in_a_transaction(words: list[str]) -> None:
    """As running it one by one tells, where it runs to its end."""
    with tablecast.open(":memory:") as database, suppress(TransactionState):
        for word in words:
            database.execute(word)
        is_refused = False
        try:
            check_ended(parse(";".join(words)))
        except TransactionState:
            is_refused = True
        assert is_refused == database.in_transaction


@pytest.mark.parametrize("way", ["-c", "-f", "stdin"])
@pytest.mark.parametrize("place", ["local", "server"])
def test_a_command_or_script_that_leaves_a_transaction_open_fails(
    way: str, place: str, server: ServerThread, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABLECAST_PASSWORD", PASSWORD)
    target = server.url if place == "server" else tmp_path / "data"
    if place == "local":
        assert invoke("sql", target, "-c", TABLE).exit_code == 0
    script = "BEGIN; INSERT INTO t VALUES (1, 'x');"
    (tmp_path / "script.sql").write_text(script)
    arguments = {"-c": ("-c", script), "-f": ("-f", tmp_path / "script.sql"), "stdin": ()}[way]
    done = invoke("sql", target, *arguments, text=script if way == "stdin" else "")
    assert done.exit_code == 1
    assert "error [transaction_state]" in done.stderr
    assert "COMMIT or ROLLBACK" in done.stderr
    assert "0" in invoke("sql", target, "-c", "SELECT count(*) AS n FROM t", "--format", "csv").stdout


# --- a commit number is that of a commit -------------------------------------------------------------------------


INSIDE = [
    "INSERT INTO t VALUES (1, 'x')",
    "INSERT INTO t VALUES (2, 'x') RETURNING id",
    "INSERT INTO t VALUES (1, 'y') ON CONFLICT (id) DO UPDATE SET v = 'z' RETURNING v",
    "UPDATE t SET v = 'u' WHERE id = 1",
    "UPDATE t SET v = (SELECT max(v) FROM t) WHERE id = 1 RETURNING v",
    "UPDATE t SET v = 'u' WHERE id = 100",
    "DELETE FROM t WHERE id = 1 RETURNING id",
    "EXECUTE AS USER 'ann' (INSERT INTO own VALUES (1))",
]


@pytest.mark.parametrize("kind", FACES)
def test_no_statement_inside_a_transaction_tells_a_commit_number(kind: str) -> None:
    with face(kind) as database:
        database.execute(f"{TABLE}; CREATE USER TABLE own (id INT PRIMARY KEY)")
        with database.transaction() as tx:
            assert [tx.execute(sql).seq for sql in INSIDE] == [None] * len(INSIDE)
            assert tx.insert("t", [{"id": 7, "v": "x"}]).seq is None
            committed = tx.commit()
        assert committed.seq == database.query("SELECT max(_seq) FROM t").scalar()
        database.execute("DELETE FROM t; EXECUTE AS USER 'ann' (DELETE FROM own)")
        for key in (None, "a key"):
            *inside, committed = database.execute_all("; ".join(["BEGIN", *INSIDE, "COMMIT"]), idempotency_key=key)
            assert [result.seq for result in inside] == [None] * len(inside)
            assert committed.seq == database.query("SELECT max(_seq) FROM t").scalar()
            if key is None:
                database.execute("DELETE FROM t; EXECUTE AS USER 'ann' (DELETE FROM own)")


def test_a_transaction_that_writes_nothing_has_no_commit_number(server: ServerThread) -> None:
    for kind in ("remote", "remote_async"):
        with face_of(kind, server) as found, found.transaction() as tx:
            tx.query("SELECT * FROM t")
            assert tx.commit().seq is None


# --- one face ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FACES)
def test_a_transaction_reads_its_own_writes_and_nobody_else_does(kind: str) -> None:
    with face(kind) as database:
        database.execute(TABLE)
        with database.transaction() as tx:
            assert tx.in_transaction
            tx.execute("INSERT INTO t VALUES (?, ?)", [1, "x"])
            tx.insert("t", [(2, "y")], columns=["id", "v"])
            tx.insert("t", pa.table({"id": pa.array([3], pa.int32()), "v": ["z"]}))
            tx.insert("t", [{"id": 1, "v": "xx"}], mode="upsert")
            assert tx.query("SELECT v FROM t ORDER BY id").rows == [("xx",), ("y",), ("z",)]
            assert ids(database) == []
            assert [result.message for result in tx.execute_all("DELETE FROM t WHERE id = 3; SELECT 1")] == [
                "DELETE 1",
                "",
            ]
        assert ids(database) == [1, 2]


@pytest.mark.parametrize("kind", FACES)
def test_an_exception_rolls_back(kind: str) -> None:
    with face(kind) as database:
        database.execute(TABLE)
        with pytest.raises(ZeroDivisionError), database.transaction() as tx:
            tx.execute("INSERT INTO t VALUES (1, 'x')")
            raise ZeroDivisionError
        assert ids(database) == []


@pytest.mark.parametrize("kind", FACES)
@pytest.mark.parametrize(("end", "left"), [("COMMIT", [1]), ("rollback work;", [])])
def test_sql_ends_it_as_its_methods_do(kind: str, end: str, left: list[int]) -> None:
    with face(kind) as database:
        database.execute(TABLE)
        with database.transaction() as tx:
            tx.execute("INSERT INTO t VALUES (1, 'x')")
            tx.execute(end)
            assert not tx.in_transaction
            with pytest.raises(TransactionState):
                tx.commit()
        assert ids(database) == left


@pytest.mark.parametrize("kind", FACES)
def test_a_statement_that_fails_leaves_the_transaction_open(kind: str) -> None:
    with face(kind) as database:
        database.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'x')")
        with database.transaction() as tx:
            tx.execute("INSERT INTO t VALUES (2, 'x')")
            with pytest.raises(DuplicateKey):
                tx.execute("INSERT INTO t VALUES (3, 'x'), (1, 'x')")
            with pytest.raises(TransactionState):
                tx.execute("CREATE TABLE other (id INT PRIMARY KEY)")
            with pytest.raises(InvalidRequest):
                tx.query("DELETE FROM t")
        assert ids(database) == [1, 2]


@pytest.mark.parametrize("kind", FACES)
def test_the_first_to_commit_wins(kind: str) -> None:
    with face(kind) as database:
        database.execute(f"{TABLE}; INSERT INTO t VALUES (1, 'x')")
        with pytest.raises(TransactionConflict), database.transaction() as tx:
            tx.execute("UPDATE t SET v = 'mine' WHERE id = 1")
            database.execute("UPDATE t SET v = 'theirs'")
            assert tx.query("SELECT v FROM t").scalar() == "mine"
        assert not tx.in_transaction
        assert database.query("SELECT v FROM t").scalar() == "theirs"


def test_names_are_looked_up_in_the_namespace_of_each_request(server: ServerThread) -> None:
    begun = server.post("/transactions").json()["transaction_id"]
    within = {"Transaction-Id": begun}
    for namespace in ("default", "app", "default"):
        insert = {"sql": "INSERT INTO t SELECT count(*), ? FROM t", "params": [namespace], "namespace": namespace}
        assert server.post("/sql", insert, headers=within).status == 200
    assert server.post(f"/transactions/{begun}/commit").json()["row_count"] == 3
    assert server.sql("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM app.t)")[0]["rows"] == [["2", "1"]]


# --- answers that are lost ---------------------------------------------------------------------------------------


class Lossy:
    """Loses the answers to requests whose path ends so, as often as told: the server has done what they ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, end: str, times: int) -> None:
        self.left = times
        exchange = Connection._exchange

        async def lossy(connection: Connection, request: Any, authorization: Any) -> Any:
            answer = await exchange(connection, request, authorization)
            if request.path.endswith(end) and self.left:
                self.left -= 1
                raise NoAnswer("lost by the test", sent=True)
            return answer

        monkeypatch.setattr(Connection, "_exchange", lossy)


@pytest.mark.parametrize("kind", ["remote", "remote_async"])
def test_a_commit_whose_answer_is_lost_happens_once(
    kind: str, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.sql("INSERT INTO t VALUES (1, '0')")
    with face_of(kind, server) as found, found.transaction() as tx:
        tx.execute("UPDATE t SET v = v || '1' WHERE id = 1")
        lossy = Lossy(monkeypatch, "/commit", 2)
        assert tx.commit().row_count == 1
        assert lossy.left == 0
    assert server.sql("SELECT v FROM t")[0]["rows"] == [["01"]]


def test_a_repeated_commit_is_answered_alike_also_after_a_restart(tmp_path: Any) -> None:
    with ServerThread(tmp_path) as first:
        first.sql(TABLE)
        begun = first.post("/transactions").json()["transaction_id"]
        within = {"Transaction-Id": begun}
        assert first.post("/sql", {"sql": "INSERT INTO t VALUES (1, 'x')"}, headers=within).status == 200
        once = first.post(f"/transactions/{begun}/commit").json()
        empty = first.post("/transactions").json()["transaction_id"]
        assert first.post(f"/transactions/{empty}/commit").json()["seq"] is None
        left_open = first.post("/transactions").json()["transaction_id"]
    with ServerThread(tmp_path) as second:
        assert second.post(f"/transactions/{begun}/commit").json() == once
        assert second.post(f"/transactions/{empty}/commit").json()["seq"] is None
        assert second.post(f"/transactions/{left_open}/commit").error["code"] == "transaction_state"
        assert second.sql("SELECT count(*) FROM t")[0]["rows"] == [["1"]]


@pytest.mark.parametrize("kind", ["remote", "remote_async"])
def test_a_statement_whose_answer_is_lost_ends_the_transaction(
    kind: str, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.sql("INSERT INTO t VALUES (1, 'x')")
    with face_of(kind, server) as found, pytest.raises(TransactionState, match="lost"), found.transaction() as tx:
        Lossy(monkeypatch, "/sql", 1)
        with pytest.raises(Timeout):
            tx.execute("UPDATE t SET v = 'y' WHERE id = 1")
    assert server.sql("SELECT v FROM t")[0]["rows"] == [["x"]]


def test_a_read_whose_answer_is_lost_is_asked_for_again(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.transaction() as tx:
        tx.execute("INSERT INTO t VALUES (1, 'x')")
        Lossy(monkeypatch, "/sql", 1)
        assert tx.query("SELECT count(*) FROM t").scalar() == 1


def test_a_commit_that_found_no_room_may_be_asked_for_again(client: Any, server: ServerThread) -> None:
    engine, full = server.db.engine, [Overloaded("full, says the test")] * 2
    execute = engine.execute

    def busy(command: Any) -> Any:
        if full:
            raise full.pop()
        return execute(command)

    with client.transaction() as tx:
        tx.execute("INSERT INTO t VALUES (1, 'x')")
        engine.execute = busy  # type: ignore[method-assign]
        try:
            assert tx.commit().row_count == 1
        finally:
            engine.execute = execute  # type: ignore[method-assign]
    assert not full


# --- their bounds ------------------------------------------------------------------------------------------------


def test_one_that_nobody_uses_ends_and_says_so(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransactionState, match="not open"), client.transaction() as tx:
        tx.execute("INSERT INTO t VALUES (1, 'x')")
        monkeypatch.setattr(transactions, "IDLE_SECONDS", 0.0)
        with pytest.raises(TransactionState, match="not open"):
            tx.execute("INSERT INTO t VALUES (2, 'x')")
    assert ids(client) == []


def test_one_account_has_so_many_open(server: ServerThread) -> None:
    server.sql("CREATE USER 'many' WITH PASSWORD 'the password' ROLE 'service'")
    many: dict[str, Any] = {"user": "many", "password": "the password"}
    begun = [server.post("/transactions", **many).json()["transaction_id"] for _ in range(transactions.MAX_OF_ONE_USER)]
    refused = server.post("/transactions", **many)
    assert (refused.status, refused.error["code"]) == (429, "too_many_requests")
    assert [server.request("DELETE", f"/v1/api/transactions/{each}", **many).json() for each in begun[:2] * 2] == [
        {"rolled_back": True}, {"rolled_back": True}, {"rolled_back": False}, {"rolled_back": False},
    ]  # fmt: skip
    assert [server.post("/transactions", **many).status for _ in range(3)] == [200, 200, 429]
    server.sql("DROP USER 'many'")


def test_users_leave_room_for_services(server: ServerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MAX_OF_USERS", 1)
    for name, role in (("una", "user"), ("ulf", "user"), ("sue", "service")):
        server.sql(f"CREATE USER '{name}' WITH PASSWORD 'the password' ROLE '{role}'")
    answers = [server.post("/transactions", user=name, password="the password") for name in ("una", "ulf", "sue")]
    assert [answer.status for answer in answers] == [200, 503, 200]
    server.sql("DROP USER 'una'; DROP USER 'ulf'; DROP USER 'sue'")


def test_what_is_not_committed_has_a_bound(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "MAX_UNCOMMITTED_BYTES", 5_000)
    with pytest.raises(TransactionState, match="not open"), client.transaction() as tx:
        tx.execute("INSERT INTO t VALUES (1, ?)", ["x" * 3_000])
        with pytest.raises(TooLarge, match="rolled back"):
            tx.execute("INSERT INTO t VALUES (2, ?)", ["x" * 3_000])
    assert ids(client) == []


def test_what_cannot_be_answered_is_not_committed() -> None:
    with ServerThread(max_result_rows=2) as server, face_of("remote", server) as client:
        client.execute(TABLE)
        with pytest.raises(TransactionState, match="not open"), client.transaction() as tx, pytest.raises(TooLarge):
            tx.execute("INSERT INTO t VALUES (1, 'x'), (2, 'x'), (3, 'x') RETURNING id")
        assert ids(client) == []


@pytest.mark.parametrize(
    "change",
    ["ALTER USER 'bea' SET ROLE 'user'", "ALTER USER 'bea' SET PASSWORD 'another one'", "DROP USER 'bea'"],
)
def test_it_ends_with_the_account_that_began_it(change: str, server: ServerThread) -> None:
    server.sql("CREATE USER 'bea' WITH PASSWORD 'the password' ROLE 'service'")
    with tablecast.connect(server.url, user="bea", password="the password") as client:
        with pytest.raises((TransactionState, Unauthenticated)), client.transaction() as tx:
            tx.execute("INSERT INTO t VALUES (1, 'x')")
            server.sql(change)
        assert server.sql("SELECT count(*) FROM t")[0]["rows"] == [["0"]]
    with suppress(AssertionError):
        server.sql("DROP USER IF EXISTS 'bea'")


def test_nobody_else_may_use_it(server: ServerThread) -> None:
    server.sql("CREATE USER 'eve' WITH PASSWORD 'the password' ROLE 'dba'")
    begun = server.post("/transactions").json()["transaction_id"]
    eve: dict[str, Any] = {"user": "eve", "password": "the password"}
    used = server.post("/sql", {"sql": "SELECT 1"}, headers={"Transaction-Id": begun}, **eve)
    assert used.error["code"] == "transaction_state"
    assert server.post(f"/transactions/{begun}/commit", **eve).error["code"] == "transaction_state"
    assert server.request("DELETE", f"/v1/api/transactions/{begun}", **eve).json() == {"rolled_back": False}
    assert server.request("DELETE", f"/v1/api/transactions/{begun}").json() == {"rolled_back": True}
    server.sql("DROP USER 'eve'")


@pytest.mark.parametrize("sql", ["BEGIN", "COMMIT", "ROLLBACK", "SELECT 1; COMMIT"])
def test_sql_over_http_neither_begins_nor_ends_it(sql: str, server: ServerThread) -> None:
    begun = server.post("/transactions").json()["transaction_id"]
    refused = server.post("/sql", {"sql": sql}, headers={"Transaction-Id": begun})
    assert refused.error["code"] == "transaction_state"
    assert server.post(f"/transactions/{begun}/commit").status == 200


def test_what_would_not_be_a_part_of_it_is_refused(server: ServerThread) -> None:
    begun = server.post("/transactions").json()["transaction_id"]
    within = {"Transaction-Id": begun}
    writes = {"writes": [{"table": "t", "rows": [{"id": 1}]}]}
    assert server.post("/writes", writes, headers=within).error["code"] == "transaction_state"
    keyed = within | {"Idempotency-Key": "k"}
    assert server.post("/sql", {"sql": "INSERT INTO t VALUES (1, 'x')"}, headers=keyed).status == 400
    assert server.post("/tables/t/rows", [{"id": 1}], headers=keyed).status == 400
    assert server.post(f"/transactions/{begun}/commit", headers={"Idempotency-Key": "k"}).status == 400
    assert server.post(f"/transactions/{begun}/commit").json()["row_count"] == 0


def test_requests_of_one_transaction_run_one_after_the_other(server: ServerThread) -> None:
    begun = server.post("/transactions").json()["transaction_id"]
    insert = {"sql": "INSERT INTO t SELECT count(*), 'x' FROM t"}
    threads = [
        threading.Thread(target=server.post, args=("/sql", insert), kwargs={"headers": {"Transaction-Id": begun}})
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.post(f"/transactions/{begun}/commit").json()["row_count"] == 8
