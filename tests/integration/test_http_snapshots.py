"""Snapshots of tables over HTTP: one commit, however long the reading takes and whatever is written meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from server_fixture import PASSWORD, ServerThread
from test_http_log import Breaking

from tablecast.client.bulk import BulkClient, Server
from tablecast.client.retry import Retry
from tablecast.codec.rows import row_header
from tablecast.engine import snapshots
from tablecast.engine.catalog import compile_table
from tablecast.engine.snapshots import IDLE_MS, MAX_SNAPSHOTS, RESERVED_SNAPSHOTS, SNAPSHOTS_PER_USER, Snapshots
from tablecast.errors import InvalidRequest, Overloaded, PermissionDenied, SnapshotGone
from tablecast.model.schema import Actor, Column, ColumnType, Role, TableKind, TableSchema, TypeName
from tablecast.storage.base import Family
from tablecast.storage.memory import MemoryStore
from tablecast.testing.clock import FakeClock

ROWS = 3_000
PASSWORDS = {"ann": "ann has one", "bob": "bob has one", "svc": "svc has one"}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    with ServerThread() as running:
        running.sql("CREATE NAMESPACE app; CREATE TABLE app.t (id BIGINT PRIMARY KEY, v TEXT, d DECIMAL(12,2), u UUID)")
        for first in range(0, ROWS, 1000):
            rows = [
                {"id": i, "v": f"value {i}", "d": f"{i}.25", "u": f"00000000-0000-0000-0000-{i:012}"}
                for i in range(first, first + 1000)
            ]
            assert running.post("/tables/app.t/rows", rows).status == 200
        running.sql("CREATE TABLE app.open (id BIGINT PRIMARY KEY) WITH (ACCESS_LEVEL = 'PUBLIC')")
        running.sql("CREATE TABLE app.closed (id BIGINT PRIMARY KEY) WITH (ACCESS_LEVEL = 'RESTRICTED')")
        running.sql("CREATE USER TABLE app.own (id BIGINT PRIMARY KEY, v TEXT)")
        for name, password in PASSWORDS.items():
            role = "service" if name == "svc" else "user"
            running.sql(f"CREATE USER '{name}' WITH PASSWORD '{password}' ROLE '{role}'")
        yield running


def bulk(server: ServerThread, user: str = "system", **settings: Any) -> BulkClient:
    return BulkClient(Server(server.url, user, PASSWORDS.get(user, PASSWORD), **settings))


@pytest.fixture
def client(server: ServerThread) -> Iterator[BulkClient]:
    with bulk(server) as made:
        yield made


def ids(batches: Any) -> list[int]:
    return [value for batch in batches for value in batch.column("id").to_pylist()]


def whole(client: BulkClient, table: str, **options: Any) -> pa.Table:
    opened = client.open_snapshot(table)
    [(start, end)] = opened.ranges
    found = pa.Table.from_batches(client.read_snapshot(opened.snapshot_id, start, end, **options))
    client.close_snapshot(opened.snapshot_id)
    return found


# --- what is read -----------------------------------------------------------------------------------------------


def test_it_is_what_a_select_shows_with_its_types(server: ServerThread, client: BulkClient) -> None:
    selected = client.sql("SELECT * FROM app.t ORDER BY id")[-1].arrow()
    found = whole(client, "app.t")
    assert found.schema == selected.schema
    assert found.to_pylist() == selected.to_pylist()
    assert [str(field.type) for field in found.schema][:3] == ["int64", "string", "decimal128(12, 2)"]


def test_the_plan_is_the_tables_schema(server: ServerThread, client: BulkClient) -> None:
    opened = client.open_snapshot("app.t")
    assert opened.table == server.db.engine.catalog.table("app.t").schema
    assert opened.seq == server.db.engine.seq


def test_with_seq_each_row_has_its_commit(server: ServerThread, client: BulkClient) -> None:
    found = whole(client, "app.t", seq=True)
    assert found.column_names[-1] == "_seq"
    seqs = found.column("_seq").to_pylist()
    assert len(set(seqs)) == 3
    assert seqs == sorted(seqs)
    assert max(seqs) <= server.db.engine.seq


@pytest.mark.parametrize("splits", [1, 2, 7, 100])
def test_ranges_are_even_and_together_the_whole(server: ServerThread, client: BulkClient, splits: int) -> None:
    opened = client.open_snapshot("app.t", splits=splits)
    assert len(opened.ranges) == splits
    parts = [ids(client.read_snapshot(opened.snapshot_id, start, end)) for start, end in opened.ranges]
    assert [i for part in parts for i in part] == list(range(ROWS))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    client.close_snapshot(opened.snapshot_id)


def test_an_empty_table_is_one_empty_range_with_columns(server: ServerThread, client: BulkClient) -> None:
    opened = client.open_snapshot("app.open", splits=8)
    assert len(opened.ranges) == 1
    assert list(client.read_snapshot(opened.snapshot_id, *opened.ranges[0])) == []
    answer = server.get(f"/v1/api/snapshots/{opened.snapshot_id}/rows?seq=true")
    assert pa.ipc.open_stream(answer.body).schema.names == ["id", "_seq"]


def test_pieces_end_anywhere_and_nothing_is_lost(
    server: ServerThread, client: BulkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("PIECE_ROWS", 1), ("PIECE_ROWS", 700), ("PIECE_BYTES", 10_000)):
        with monkeypatch.context() as patch:
            patch.setattr(snapshots, name, size)
            assert whole(client, "app.t").column("id").to_pylist() == list(range(ROWS))


# --- one commit -------------------------------------------------------------------------------------------------


def test_what_is_written_meanwhile_is_not_in_it() -> None:
    with ServerThread() as server, bulk(server) as client:
        server.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, v INT)")
        server.sql(f"INSERT INTO t VALUES {', '.join(f'({i}, 0)' for i in range(100))}")
        opened = client.open_snapshot("t", splits=4)
        first = list(client.read_snapshot(opened.snapshot_id, *opened.ranges[0]))
        server.sql("UPDATE t SET v = 1; DELETE FROM t WHERE id % 2 = 0; INSERT INTO t VALUES (1000, 1)")
        server.sql("ALTER TABLE t ADD COLUMN w INT")
        rest = [b for r in opened.ranges[1:] for b in client.read_snapshot(opened.snapshot_id, *r, seq=True)]
        assert ids(first) + ids(rest) == list(range(100))
        assert {v for b in rest for v in b.column("v").to_pylist()} == {0}
        assert {s for b in rest for s in b.column("_seq").to_pylist()} == {opened.seq}
        server.sql("DROP TABLE t")
        assert ids(client.read_snapshot(opened.snapshot_id)) == list(range(100))


def test_a_snapshot_and_its_number_are_of_one_commit() -> None:
    """While commits go on, a snapshot at commit n holds just what was written up to n."""
    with ServerThread() as server, bulk(server) as client:
        server.sql("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        base, stop = server.db.engine.seq, threading.Event()

        def write() -> None:
            i = 0
            while not stop.is_set():
                server.db.database.execute("INSERT INTO t VALUES (?)", [i])
                i += 1

        writing = threading.Thread(target=write)
        writing.start()
        try:
            for _ in range(30):
                opened = client.open_snapshot("t")
                found = list(client.read_snapshot(opened.snapshot_id, seq=True))
                count = sum(b.num_rows for b in found)
                assert count == opened.seq - base
                client.close_snapshot(opened.snapshot_id)
        finally:
            stop.set()
            writing.join()


# --- whose --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "user"), [("app.t", "ann"), ("app.closed", "ann"), ("app.closed", "svc")])
def test_who_may_not_select_may_not_open(server: ServerThread, table: str, user: str) -> None:
    with bulk(server, user) as client, pytest.raises(PermissionDenied):
        client.open_snapshot(table)


def test_users_see_their_own_rows_and_nothing_beyond(server: ServerThread) -> None:
    for user in ("ann", "bob"):
        rows = [{"id": i, "v": user} for i in range(20)]
        server.post("/tables/app.own/rows", rows, user=user, password=PASSWORDS[user])
    with bulk(server, "ann") as ann, bulk(server, "bob") as bob:
        opened = ann.open_snapshot("app.own", splits=3)
        parts = [b for r in opened.ranges for b in ann.read_snapshot(opened.snapshot_id, *r)]
        assert ids(parts) == list(range(20))
        assert {v for b in parts for v in b.column("v").to_pylist()} == {"ann"}
        with pytest.raises(SnapshotGone):
            list(bob.read_snapshot(opened.snapshot_id))
        bob.close_snapshot(opened.snapshot_id)  # which is not his: it stays
        theirs = bob.open_snapshot("app.own")
        with pytest.raises(InvalidRequest, match="beyond this snapshot"):
            list(ann.read_snapshot(opened.snapshot_id, *theirs.ranges[0]))
        assert ids(ann.read_snapshot(opened.snapshot_id)) == list(range(20))


def test_expired_rows_are_those_that_were_when_it_was_opened() -> None:
    clock = FakeClock()
    table = compile_table(
        TableSchema(
            3, "app", "s", TableKind.STREAM, (Column("id", ColumnType(TypeName.BIGINT)),), ("id",), ttl_seconds=60
        ),
        [],
    )
    store = MemoryStore()
    batch = store.batch()
    for i, written_ms in enumerate((0, 10_000, 50_000)):
        row = table.codec.struct(i)
        key = table.codec.key_of_row(table.codec.prefix("ann"), row)
        batch.put(Family.ROWS, key, row_header(1, written_ms) + table.codec.encode(row))
    store.write(batch)
    opened = Snapshots(clock).open(store, table, 1, 65_000, actor=ANN, owner="ann")
    clock.advance(10**9)
    assert ids(opened.batches(*opened.bounds, with_seq=False)) == [1, 2]


# --- leases -----------------------------------------------------------------------------------------------------


ANN = Actor("ann", Role.USER)


def leases(clock: FakeClock) -> tuple[Snapshots, Any]:
    table = compile_table(
        TableSchema(3, "app", "t", TableKind.SHARED, (Column("id", ColumnType(TypeName.BIGINT)),), ("id",)), []
    )
    kept = Snapshots(clock)
    return kept, lambda actor=ANN: kept.open(MemoryStore(), table, 1, 0, actor=actor, owner=None).snapshot_id


def test_what_nobody_reads_ends_and_what_is_read_stays() -> None:
    clock = FakeClock()
    kept, opened = leases(clock)
    read, unread = opened(), opened()
    for _ in range(3):
        clock.advance(IDLE_MS - 1)
        kept.use(read, "ann")
    with pytest.raises(SnapshotGone):
        kept.use(unread, "ann")
    assert len(kept) == 1
    clock.advance(IDLE_MS)
    kept.expire()
    assert len(kept) == 0


def test_there_are_few_and_closing_or_time_makes_room() -> None:
    clock = FakeClock()
    kept, opened = leases(clock)
    made = [opened() for _ in range(SNAPSHOTS_PER_USER)]
    with pytest.raises(
        Overloaded, match="'ann' has 64 snapshots open, and max_snapshots_per_user allows 64: close some"
    ):
        opened()
    assert kept.close(made[0], "ann")
    assert not kept.close(made[0], "ann")
    opened()
    clock.advance(IDLE_MS)
    opened()
    assert len(kept) == 1


def opened_by(opened: Any, actors: list[Actor]) -> int:
    """How many snapshots those get who ask in turn, until nobody gets one."""
    count = 0
    while True:
        before = count
        for actor in actors:
            try:
                opened(actor)
                count += 1
            except Overloaded:
                pass
        if count == before:
            return count


@pytest.mark.parametrize("role", Role)
def test_one_account_cannot_take_all(role: Role) -> None:
    _, opened = leases(FakeClock())
    assert opened_by(opened, [Actor("greedy", role)]) == SNAPSHOTS_PER_USER
    opened(Actor("another", Role.SERVICE))


def test_accounts_of_role_user_cannot_take_all_together() -> None:
    _, opened = leases(FakeClock())
    assert opened_by(opened, [Actor(f"user {n}", Role.USER) for n in range(100)]) == MAX_SNAPSHOTS - RESERVED_SNAPSHOTS
    with pytest.raises(Overloaded, match="accounts of role user have 192 snapshots open") as caught:
        opened(Actor("one more", Role.USER))
    assert caught.value.details["bound"] == "RESERVED_SNAPSHOTS"
    services = [Actor(f"service {n}", Role.SERVICE) for n in range(100)]
    assert opened_by(opened, services) == RESERVED_SNAPSHOTS
    with pytest.raises(Overloaded, match="256 snapshots are open"):
        opened(Actor("one more", Role.SYSTEM))


def test_what_services_have_does_not_count_against_users() -> None:
    _, opened = leases(FakeClock())
    services = [Actor(f"service {n}", Role.SERVICE) for n in range(2)]
    assert opened_by(opened, services) == 2 * SNAPSHOTS_PER_USER
    users = [Actor(f"user {n}", Role.USER) for n in range(100)]
    assert opened_by(opened, users) == MAX_SNAPSHOTS - 2 * SNAPSHOTS_PER_USER


def test_how_many_an_account_may_have_is_a_setting() -> None:
    with ServerThread(max_snapshots_per_user=2) as server:
        server.sql("CREATE TABLE t (id INT PRIMARY KEY)")
        answers = [server.post("/snapshots", {"table": "t"}) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 503]
        assert answers[2].error["details"]["bound"] == "max_snapshots_per_user"
        assert "retry-after" in answers[2].headers
        server.request("DELETE", f"/v1/api/snapshots/{answers[0].json()['snapshot_id']}")
        assert server.post("/snapshots", {"table": "t"}).status == 200


def test_a_closed_or_unknown_snapshot_is_gone(server: ServerThread, client: BulkClient) -> None:
    opened = client.open_snapshot("app.t")
    client.close_snapshot(opened.snapshot_id)
    client.close_snapshot(opened.snapshot_id)
    for gone in (opened.snapshot_id, "none"):
        with pytest.raises(SnapshotGone):
            list(client.read_snapshot(gone))
    assert server.get(f"/v1/api/snapshots/{opened.snapshot_id}/rows").status == 410


@pytest.mark.parametrize("query", ["start=%25", "start=AAAA", "end=AAAAAAAAAA==", "seq=1", "limit=7"])
def test_wrong_parameters_are_told(server: ServerThread, client: BulkClient, query: str) -> None:
    opened = client.open_snapshot("app.t")
    answer = server.get(f"/v1/api/snapshots/{opened.snapshot_id}/rows?{query}")
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


# --- trouble on the way -----------------------------------------------------------------------------------------


def test_a_broken_read_goes_on_without_a_row_lost_or_twice(
    server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PIECE_ROWS", 100)
    with (
        Breaking(server, after_bytes=25_000, times=4) as proxy,
        BulkClient(Server(proxy.url, "system", PASSWORD, retry=Retry(attempts=6, backoff_seconds=0.001))) as client,
    ):
        opened = client.open_snapshot("app.t")
        assert ids(client.read_snapshot(opened.snapshot_id)) == list(range(ROWS))
    assert proxy.left <= 0
