"""`/sql`, `/tables/{table}/rows` and `/writes`, spoken to over real sockets."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from server_fixture import ServerThread

from tablecast.engine.once_each import OnceEach

ARROW = "application/vnd.apache.arrow.stream"
MSGPACK = "application/msgpack"
EVERY_TYPE = """CREATE TABLE app.everything (
    id INT PRIMARY KEY, big BIGINT, small SMALLINT, yes BOOLEAN, price DECIMAL(12,2), ratio DOUBLE, name TEXT,
    raw BYTES, doc JSON, at TIMESTAMP, day DATE, hour TIME, ref UUID)"""
ROW: dict[str, Any] = {
    "id": 1, "big": "9007199254740993", "small": 7, "yes": True, "price": "12.50", "ratio": 0.25, "name": "ä",
    "raw": "AP8=", "doc": {"a": [1, None]}, "at": "2026-01-31T12:00:00Z", "day": "2026-01-31", "hour": "12:30:00",
    "ref": "0190b6d1-7c1d-7f00-8000-000000000001",
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql("CREATE NAMESPACE app; CREATE TABLE app.orders (id BIGINT PRIMARY KEY, amount DECIMAL(12,2))")
        running.sql(EVERY_TYPE)
        running.sql("CREATE USER TABLE app.notes (id INT PRIMARY KEY, text TEXT)")
        running.sql("CREATE USER 'ann' WITH PASSWORD 'ann has one' ROLE 'user'")
        yield running


@pytest.fixture(autouse=True)
def empty_tables(server: ServerThread) -> None:
    server.sql("DELETE FROM app.orders; DELETE FROM app.everything")


def rows_of(server: ServerThread, sql: str = "SELECT id, amount FROM app.orders ORDER BY id") -> list[list[Any]]:
    rows: list[list[Any]] = server.sql(sql)[0]["rows"]
    return rows


def arrow_stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


# --- /sql -------------------------------------------------------------------------------------------------------


def test_a_select_answers_schema_rows_and_the_time_it_took(server: ServerThread) -> None:
    server.sql("INSERT INTO app.orders VALUES (7, 12.5)")
    answer = server.post(
        "/sql", {"sql": "SELECT id, amount FROM orders WHERE id = ?", "params": [7], "namespace": "app"}
    )
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.pop("took_ms") > 0
    assert body == {
        "status": "success",
        "results": [
            {
                "schema": [{"name": "id", "type": "BIGINT"}, {"name": "amount", "type": "DECIMAL(12,2)"}],
                "rows": [["7", "12.50"]],
                "row_count": 1,
                "message": "",
                "seq": None,
            }
        ],
    }


def test_every_type_comes_back_from_json_as_it_went_in(server: ServerThread) -> None:
    assert server.post("/tables/app.everything/rows", [ROW]).status == 200
    [result] = server.sql("SELECT * FROM app.everything")
    assert dict(zip([column["name"] for column in result["schema"]], result["rows"][0], strict=True)) == ROW


def test_params_of_every_type_may_be_text(server: ServerThread) -> None:
    marks = ", ".join("?" for _ in ROW)
    params = [{"$bytes": value} if name == "raw" else value for name, value in ROW.items()]
    server.sql(f"INSERT INTO app.everything ({', '.join(ROW)}) VALUES ({marks})", params)
    [result] = server.sql("SELECT * FROM app.everything")
    assert result["rows"] == [list(ROW.values())]


def test_numbers_that_a_browser_would_round_are_strings_also_when_nested(server: ServerThread) -> None:
    [result] = server.sql(
        "SELECT SUM(x) AS s, [9007199254740993, 1] AS l FROM (VALUES (9007199254740993::BIGINT)) t(x)"
    )
    assert result["rows"] == [["9007199254740993", ["9007199254740993", 1]]]


def test_msgpack_answers_rows_as_an_arrow_stream(server: ServerThread) -> None:
    body = msgspec.msgpack.encode({"sql": "INSERT INTO app.orders VALUES (1, 2); SELECT id FROM app.orders"})
    answer = server.post("/sql", body, headers={"Content-Type": MSGPACK, "Accept": MSGPACK})
    assert answer.headers["content-type"] == MSGPACK
    inserted, selected = msgspec.msgpack.decode(answer.body)["results"]
    assert (inserted["message"], inserted["row_count"], inserted["rows"]) == ("INSERT 1", 1, None)
    assert inserted["seq"] > 0
    assert pa.ipc.open_stream(selected["rows"]).read_all().to_pydict() == {"id": [1]}


def test_arrow_answers_the_last_statement(server: ServerThread) -> None:
    answer = server.post(
        "/sql",
        {"sql": "INSERT INTO app.orders VALUES (1, 2); SELECT id, amount FROM app.orders"},
        headers={"Accept": f"{ARROW}, application/json;q=0.5"},
    )
    assert answer.headers["content-type"] == ARROW
    assert answer.headers["x-row-count"] == "1"
    table = pa.ipc.open_stream(answer.body).read_all()
    assert table.schema.field("amount").type == pa.decimal128(12, 2)
    written = server.post("/sql", {"sql": "INSERT INTO app.orders VALUES (2, 2)"}, headers={"Accept": ARROW})
    assert (written.headers["x-message"], int(written.headers["x-seq"]) > 0) == ("INSERT 1", True)


def test_a_large_result_is_rendered_whole(server: ServerThread) -> None:
    server.post("/tables/app.orders/rows", [{"id": i} for i in range(5000)])
    assert rows_of(server) == [[str(i), None] for i in range(5000)]


def test_a_transaction_in_one_text_is_all_or_nothing(server: ServerThread) -> None:
    results = server.sql("BEGIN; INSERT INTO app.orders VALUES (1, 1); INSERT INTO app.orders VALUES (2, 2); COMMIT")
    assert [result["message"] for result in results] == ["BEGIN", "INSERT 1", "INSERT 1", "COMMIT"]
    failed = server.post(
        "/sql", {"sql": "BEGIN; INSERT INTO app.orders VALUES (3, 3); INSERT INTO app.orders VALUES (1, 1); COMMIT"}
    )
    assert failed.error["code"] == "duplicate_key"
    assert [row[0] for row in rows_of(server)] == ["1", "2"]


def test_a_transaction_does_not_outlive_its_request(server: ServerThread) -> None:
    for sql in ("BEGIN; INSERT INTO app.orders VALUES (1, 1)", "BEGIN", "COMMIT"):
        assert server.post("/sql", {"sql": sql}).error["code"] == "transaction_state"
    assert rows_of(server) == []


def test_statements_before_a_failing_one_have_happened(server: ServerThread) -> None:
    text = "INSERT INTO app.orders VALUES (1, 1); INSERT INTO app.orders VALUES (1, 1); INSERT INTO app.orders VALUES (2, 2)"
    failed = server.post("/sql", {"sql": text})
    assert (failed.status, failed.error["code"], failed.error["details"]["statement"]) == (422, "duplicate_key", 2)
    assert [row[0] for row in rows_of(server)] == ["1"]


def test_a_wrong_statement_among_several_is_named_and_none_runs(server: ServerThread) -> None:
    failed = server.post("/sql", {"sql": "INSERT INTO app.orders VALUES (1, 1); SELEKT"})
    assert (failed.status, failed.error["details"]["statement"]) == (400, 2)
    assert rows_of(server) == []


@pytest.mark.parametrize(
    ("sql", "status", "code"),
    [
        ("SELEKT 1", 400, "sql_syntax"),
        ("SELECT * FROM app.nothing", 404, "unknown_table"),
        ("INSERT INTO app.orders (id) VALUES ('x')", 400, "type_mismatch"),
        ("INSERT INTO app.orders (id) VALUES (NULL)", 422, "not_null_violation"),
        ("CREATE TABLE app.orders (id INT PRIMARY KEY)", 409, "already_exists"),
        ("CONSUME FROM app.nothing", 404, "unknown_topic"),
        ("COMMIT", 409, "transaction_state"),
        ("SELECT ?", 400, "invalid_request"),
    ],
)
def test_each_refusal_has_its_status_and_code(server: ServerThread, sql: str, status: int, code: str) -> None:
    answer = server.post("/sql", {"sql": sql})
    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/json"
    assert answer.error["message"]


def test_a_user_sees_only_its_own_rows_and_may_not_write_shared_tables(server: ServerThread) -> None:
    ann = {"user": "ann", "password": "ann has one"}
    server.sql("INSERT INTO app.notes VALUES (1, 'mine')", **ann)
    server.sql("INSERT INTO app.notes VALUES (1, 'the other')")
    assert server.sql("SELECT text FROM app.notes", **ann)[0]["rows"] == [["mine"]]
    refused = server.post("/sql", {"sql": "INSERT INTO app.orders VALUES (1, 1)"}, **ann)
    assert (refused.status, refused.error["code"]) == (403, "permission_denied")


def test_a_changed_role_counts_at_once(server: ServerThread) -> None:
    server.sql("CREATE USER 'bob' WITH PASSWORD 'bob has one' ROLE 'service'")
    bob = {"user": "bob", "password": "bob has one"}
    server.sql("INSERT INTO app.orders VALUES (1, 1)", **bob)
    server.sql("ALTER USER 'bob' SET ROLE 'user'")
    assert server.post("/sql", {"sql": "INSERT INTO app.orders VALUES (2, 2)"}, **bob).status == 403


def test_results_and_texts_have_limits() -> None:
    with ServerThread(max_result_rows=10, max_sql_bytes=200) as server:
        server.sql("CREATE TABLE t (id INT PRIMARY KEY)")
        server.post("/tables/t/rows", [{"id": i} for i in range(11)])
        assert len(server.sql("SELECT id FROM t LIMIT 10")[0]["rows"]) == 10
        too_many = server.post("/sql", {"sql": "SELECT id FROM t"})
        assert (too_many.status, too_many.error["code"], too_many.error["details"]["limit"]) == (413, "too_large", 10)
        too_long = server.post("/sql", {"sql": "SELECT 1 --" + "x" * 200})
        assert (too_long.status, too_long.error["details"]["limit"]) == (413, 200)


def test_a_statement_that_runs_too_long_is_ended() -> None:
    with ServerThread(statement_timeout_seconds=0.05) as server:
        server.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        server.post("/tables/t/rows", [{"id": i} for i in range(3000)])
        answer = server.post("/sql", {"sql": "SELECT SUM(a.id % (b.id + c.id + 1)) FROM t a, t b, t c"})
        assert (answer.status, answer.error["code"]) == (504, "timeout")


# --- /tables/{table}/rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "query", "body"),
    [
        ("application/json", "", b'[{"id": 1, "amount": "1.50"}, {"id": "2"}]'),
        ("application/json; charset=utf-8", "?columns=amount,id", b'[["1.50", 1], [null, 2]]'),
        ("application/x-ndjson", "", b'{"id": 1, "amount": 1.5}\n\n{"id": 2}\n'),
        (MSGPACK, "", msgspec.msgpack.encode([{"id": 1, "amount": "1.50"}, {"id": 2}])),
        (
            ARROW,
            "",
            arrow_stream(pa.table({"id": [1, 2], "amount": pa.array(["1.50", None]).cast(pa.decimal128(12, 2))})),
        ),
    ],
)
def test_rows_arrive_in_every_content_type(server: ServerThread, content_type: str, query: str, body: bytes) -> None:
    answer = server.post(f"/tables/app.orders/rows{query}", body, headers={"Content-Type": content_type})
    assert answer.status == 200, answer.body
    said = answer.json()
    assert said.pop("seq") > 0
    assert said == {"status": "success", "row_count": 2, "message": "INSERT 2"}
    assert rows_of(server) == [["1", "1.50"], ["2", None]]


def test_rows_may_be_packed_with_gzip(server: ServerThread) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    packed = gzip.compress(msgspec.json.encode([{"id": i} for i in range(3000)]))
    assert server.post("/tables/app.orders/rows", packed, headers=headers).json()["row_count"] == 3000
    cut = server.post("/tables/app.orders/rows", packed[:-20], headers=headers)
    assert (cut.status, "cut off" in cut.error["message"]) == (400, True)
    assert server.post("/tables/app.orders/rows", b"plain", headers=headers).status == 400
    assert server.post("/tables/app.orders/rows", b"x", headers={"Content-Encoding": "br"}).status == 415


def test_rows_are_upserted_and_deleted(server: ServerThread) -> None:
    server.post("/tables/app.orders/rows", [{"id": 1, "amount": 1}, {"id": 2, "amount": 2}])
    assert server.post("/tables/app.orders/rows?mode=upsert", [{"id": 1, "amount": 9}]).json()["message"] == "UPSERT 1"
    assert server.post("/tables/app.orders/rows?mode=delete", [{"id": 2}]).json()["message"] == "DELETE 1"
    assert rows_of(server) == [["1", "9.00"]]


def test_rows_are_one_commit_or_none(server: ServerThread) -> None:
    answer = server.post("/tables/app.orders/rows", [{"id": 1}, {"id": 2}, {"id": 1}])
    assert (answer.status, answer.error["code"]) == (422, "duplicate_key")
    assert rows_of(server) == []


@pytest.mark.parametrize(
    ("path", "content_type", "body", "status", "said"),
    [
        ("app.orders/rows", "application/json", b'[{"id": 1}', 400, "cut off after 10 bytes"),
        ("app.orders/rows", "application/json", b"", 400, "empty"),
        ("app.orders/rows", "application/json", b'{"id": 1}', 400, "array"),
        ("app.orders/rows", "application/json", b"[1]", 400, "$[0]"),
        ("app.orders/rows", "application/json", b"[" * 100_000, 400, "nested"),
        ("app.orders/rows", "application/json", b'[{"id": "\xff"}]', 400, "wrong"),
        ("app.orders/rows", "application/x-ndjson", b'{"id": 1}\n{"id": ', 400, "line 2"),
        ("app.orders/rows", "application/x-ndjson", b"[1]", 400, "line 1"),
        ("app.orders/rows", MSGPACK, b"\x91\x81\xa2id", 400, "cut off after 5 bytes"),
        ("app.orders/rows", ARROW, b"ARROW1", 400, "Arrow stream"),
        ("app.orders/rows", ARROW, arrow_stream(pa.table({"id": list(range(100))}))[:-200], 400, "0 record batches"),
        ("app.orders/rows", ARROW, arrow_stream(pa.table({"id": [1] * 9}), compression="zstd"), 400, "compressed"),
        ("app.orders/rows", ARROW, arrow_stream(pa.table({"id": pa.array(["1"]).dictionary_encode()})), 400, "'id'"),
        ("app.orders/rows", ARROW, arrow_stream(pa.table({"id": pa.nulls(1_000_001)})), 413, "1000000 rows"),
        ("app.orders/rows", ARROW, arrow_stream(pa.table({"nope": [1]})), 404, "nope"),
        ("app.orders/rows", "text/csv", b"1,2", 415, "text/csv"),
        ("app.orders/rows?mode=merge", "application/json", b"[]", 400, "merge"),
        ("app.orders/rows?mod=upsert", "application/json", b"[]", 400, "mod"),
        ("app.nothing/rows", "application/json", b"[]", 404, "app.nothing"),
        ("system.users/rows", "application/json", b"[]", 403, "system"),
        ("app.everything/rows", "application/json", b'[{"id": 1, "raw": "?"}]', 400, "base64"),
        ("app.everything/rows", "application/json", b'[{"id": 1, "raw": 1}]', 400, "base64"),
    ],
)
def test_wrong_rows_are_refused_with_what_is_wrong(
    server: ServerThread, path: str, content_type: str, body: bytes, status: int, said: str
) -> None:
    answer = server.post(f"/tables/{path}", body, headers={"Content-Type": content_type})
    assert (answer.status, said in answer.error["message"]) == (status, True), answer.body
    assert rows_of(server) == []


# --- /writes ----------------------------------------------------------------------------------------------------


def test_each_write_has_its_own_result_or_error(server: ServerThread) -> None:
    writes = [
        {"table": "app.orders", "rows": [{"id": 1, "amount": 1}, {"id": 2}]},
        {"sql": "INSERT INTO app.orders (id) VALUES (?)", "params": [1]},
        {"sql": "INSERT INTO orders (id) VALUES (?) RETURNING id", "params": [3], "namespace": "app"},
        {"sql": "SELECT 1"},
        {"table": "app.orders", "rows": [[4]], "columns": ["id"], "mode": "upsert"},
        {"table": "app.orders"},
        {"table": "app.nothing", "rows": []},
        {"sql": "DELETE FROM app.orders WHERE id = 99"},
    ]
    answer = server.post("/writes", {"writes": writes})
    assert answer.status == 200, answer.body
    results = answer.json()["results"]
    codes = [result.get("error", {}).get("code") for result in results]
    assert codes == [None, "duplicate_key", None, "invalid_request", None, "invalid_request", "unknown_table", None]
    assert (results[0]["row_count"], results[0]["message"], "rows" in results[0]) == (2, "INSERT 2", False)
    assert (results[2]["schema"], results[2]["rows"]) == ([{"name": "id", "type": "BIGINT"}], [["3"]])
    assert results[7]["message"] == "DELETE 0"
    assert [row[0] for row in rows_of(server)] == ["1", "2", "3", "4"]


def test_writes_in_msgpack_carry_returning_as_arrow(server: ServerThread) -> None:
    body = msgspec.msgpack.encode(
        {"writes": [{"sql": "INSERT INTO app.orders (id) VALUES (5) RETURNING id"}, {"sql": "nonsense"}]}
    )
    answer = server.post("/writes", body, headers={"Content-Type": MSGPACK, "Accept": MSGPACK})
    returned, failed = msgspec.msgpack.decode(answer.body)["results"]
    assert pa.ipc.open_stream(returned["rows"]).read_all().to_pydict() == {"id": [5]}
    assert failed["error"]["code"] == "sql_syntax"


def written_packed(server: ServerThread, *writes: dict[str, Any]) -> list[dict[str, Any]]:
    body = msgspec.msgpack.encode({"writes": writes})
    answer = server.post("/writes", body, headers={"Content-Type": MSGPACK, "Accept": MSGPACK})
    assert answer.status == 200, answer.body
    results: list[dict[str, Any]] = msgspec.msgpack.decode(answer.body)["results"]
    return results


@pytest.mark.parametrize("count", [3, 300])
def test_rows_in_msgpack_may_have_decimals_as_text(server: ServerThread, count: int) -> None:
    """A few are unpacked at once, many when their table is known; each write fails or succeeds alone, and once."""
    rows = [[i, f"{i}.5"] for i in range(count)]
    fine = {"table": "app.orders", "rows": rows, "decimals": [1], "idempotency_key": f"packed {count}"}
    wrong = {"table": "app.orders", "rows": [*rows[1:], [count, "many"]], "decimals": [1]}
    text = {"table": "app.orders", "rows": [[i + count, "1.5"] for i in range(count)]}
    done, refused, as_text, same = written_packed(server, fine, wrong, text, fine)
    assert (done["row_count"], as_text["row_count"]) == (count, count)
    assert same == done
    assert "'many', is no number: decimals names its position" in refused["error"]["message"]
    assert rows_of(server) == [[str(i), f"{i}.50" if i < count else "1.50"] for i in range(2 * count)]
    other = written_packed(server, fine | {"rows": rows[:-1]})[0]
    assert other["error"]["code"] == "idempotency_mismatch"


@pytest.mark.parametrize("count", [3, 300])
def test_a_decimal_for_a_text_column_is_refused_however_it_is_written(server: ServerThread, count: int) -> None:
    write = {"table": "app.notes", "rows": [[i, "1.5"] for i in range(count)], "decimals": [1]}
    (refused,) = written_packed(server, write)
    assert refused["error"]["code"] == "type_mismatch"
    assert "expected a string" in refused["error"]["message"]


def test_decimals_go_with_msgpack(server: ServerThread) -> None:
    write = {"table": "app.orders", "rows": [[1, "1.5"]], "decimals": [1]}
    (refused,) = server.post("/writes", {"writes": [write]}).json()["results"]
    assert "decimals goes with MessagePack" in refused["error"]["message"]
    body = msgspec.msgpack.encode({"writes": [write | {"decimals": [-1]}]})
    assert "$.writes[0].decimals[0]" in server.post("/writes", body, headers={"Content-Type": MSGPACK}).error["message"]


def test_many_writes_share_commits(server: ServerThread) -> None:
    before = server.db.engine.seq
    writes = [{"table": "app.orders", "rows": [{"id": i}]} for i in range(2000)]
    results = server.post("/writes", {"writes": writes}).json()["results"]
    assert all(result["row_count"] == 1 for result in results)
    assert server.db.engine.seq - before < 200
    assert len(rows_of(server)) == 2000


EQUAL = "INSERT INTO app.orders (id, amount) VALUES (?, ?)"


def send_equal(server: ServerThread, *writes: tuple[str, list[Any]]) -> list[dict[str, Any]]:
    """Writes of equal text, each with its key, as a client sends them that carries many callers'."""
    asked = [{"sql": EQUAL, "params": params, "idempotency_key": key} for key, params in writes]
    body = msgspec.msgpack.encode({"writes": asked})
    answer = server.post("/writes", body, headers={"Content-Type": MSGPACK, "Accept": MSGPACK})
    results: list[dict[str, Any]] = msgspec.msgpack.decode(answer.body)["results"]
    return results


def test_equal_writes_are_one_command_and_each_is_answered(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_equal(server, ("first", [0, 0]))  # planned, from here on
    decided: list[int] = []
    decide = OnceEach.decide
    monkeypatch.setattr(OnceEach, "decide", lambda self, view: decided.append(self.weight) or decide(self, view))
    before = server.db.engine.seq
    results = send_equal(server, *((f"k{n}", [n, n]) for n in range(1, 50)))
    assert results == [{"row_count": 1, "seq": before + 1, "message": "INSERT 1"}] * 49
    assert decided == [49]
    assert len(rows_of(server)) == 50
    assert send_equal(server, *((f"k{n}", [n, n]) for n in range(1, 50))) == results, (
        "a repeat is answered like the first"
    )
    assert len(rows_of(server)) == 50


def test_equal_writes_succeed_and_fail_alone(server: ServerThread) -> None:
    [first] = send_equal(server, ("once", [0, 0]))
    results = send_equal(
        server,
        ("once", [0, 0]), ("a", [1, 1]), ("b", [0, 1]), ("c", [2, "much"]), ("a", [1, 1]), ("once", [9, 9]), ("d", [3]),
        ("e", [4, 4]),
    )  # fmt: skip
    codes = [result.get("error", {}).get("code") for result in results]
    assert codes == [
        None, None, "duplicate_key", "type_mismatch", None, "idempotency_mismatch", "invalid_request", None
    ]  # fmt: skip
    assert results[0] == first
    assert results[1] == results[4], "one key, one row, however often it is sent"
    assert [row[0] for row in rows_of(server)] == ["0", "1", "4"]


def test_writes_that_make_no_sense_as_a_whole_are_refused(server: ServerThread) -> None:
    assert "$.writes" in server.post("/writes", {"writes": []}).error["message"]
    misspelt = server.post("/writes", {"writes": [{"tabel": "app.orders"}]})
    assert "tabel" in misspelt.error["message"]


# --- idempotency ------------------------------------------------------------------------------------------------


def test_a_repeat_is_answered_like_the_first_also_after_a_restart(tmp_path: Path) -> None:
    def send(server: ServerThread) -> list[Any]:
        keyed = {"headers": {"Idempotency-Key": "k1"}}
        sql = server.post("/sql", {"sql": "INSERT INTO t VALUES (1) RETURNING id"}, **keyed).json()["results"]
        rows = server.post("/tables/default.t/rows", [{"id": 2}], headers={"Idempotency-Key": "k2"}).json()
        write = {"table": "default.t", "rows": [{"id": 3}], "idempotency_key": "k3"}
        return [sql, rows, server.post("/writes", {"writes": [write]}).json()]

    with ServerThread(tmp_path / "db") as server:
        server.sql("CREATE TABLE t (id INT PRIMARY KEY)")
        first = send(server)
        assert send(server) == first
        other = server.post("/sql", {"sql": "INSERT INTO t VALUES (9)"}, headers={"Idempotency-Key": "k1"})
        assert (other.status, other.error["code"]) == (409, "idempotency_mismatch")
    with ServerThread(tmp_path / "db") as server:
        assert send(server) == first
        assert server.sql("SELECT id FROM t ORDER BY id")[0]["rows"] == [[1], [2], [3]]


def test_a_key_belongs_to_its_user(server: ServerThread) -> None:
    body, keyed = {"sql": "INSERT INTO app.notes VALUES (50, 'x')"}, {"headers": {"Idempotency-Key": "shared"}}
    assert server.post("/sql", body, **keyed).status == 200
    assert server.post("/sql", body, **keyed, user="ann", password="ann has one").status == 200
    assert server.sql("SELECT id FROM app.notes WHERE id = 50", user="ann", password="ann has one")[0]["rows"] == [[50]]


@pytest.mark.parametrize(
    "sql",
    [
        "BEGIN; INSERT INTO k VALUES (1); UPDATE k SET id = 2 RETURNING id; COMMIT",
        "EXECUTE AS USER 'ann' (INSERT INTO own VALUES (1) RETURNING id)",
    ],
)
def test_a_transaction_and_another_users_write_happen_once_per_key(tmp_path: Path, sql: str) -> None:
    keyed: dict[str, Any] = {"headers": {"Idempotency-Key": "once"}}
    with ServerThread(tmp_path / "db") as server:
        server.sql("CREATE TABLE k (id INT PRIMARY KEY); CREATE USER TABLE own (id INT PRIMARY KEY)")
        first = server.sql(sql, **keyed)
        assert server.sql(sql, **keyed) == first
    with ServerThread(tmp_path / "db") as server:
        assert server.sql(sql, **keyed) == first
        table = "SELECT id FROM k" if "BEGIN" in sql else "EXECUTE AS USER 'ann' (SELECT id FROM own)"
        assert len(server.sql(table)[0]["rows"]) == 1
        other = server.post("/sql", {"sql": "INSERT INTO k VALUES (9)"}, **keyed)
        assert (other.status, other.error["code"]) == (409, "idempotency_mismatch")
