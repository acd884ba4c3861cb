"""A backup and a verification of a running server: by SDK and command line, for dba, one at a time, whole or not at all."""

from __future__ import annotations

import asyncio
import io
import random
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_fixture import run as cli
from server_fixture import PASSWORD, ServerThread, basic

import tablecast
from tablecast.cli.backup import restore_from
from tablecast.client import maintenance
from tablecast.client.bulk_transport import Arriving
from tablecast.errors import BackupError, InUse, PermissionDenied, Timeout, Unauthenticated
from tablecast.server import api_maintenance
from tablecast.server.maintenance import Parcel

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.t (id BIGINT PRIMARY KEY, v TEXT);
CREATE TABLE app.large (id BIGINT PRIMARY KEY, v BYTES);
CREATE TOPIC app.e;
ALTER TOPIC app.e ADD SOURCE app.t ON ANY;
CREATE USER 'ops' WITH PASSWORD 'a password of ops' ROLE 'dba';
CREATE USER 'svc' WITH PASSWORD 'a password of svc' ROLE 'service';
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    with ServerThread(tmp_path_factory.mktemp("server") / "data") as running:
        db = running.db.database
        for statement in SETUP.strip().split(";")[:-1]:
            db.execute(statement)
        db.insert("app.t", [{"id": i, "v": "x" * 100} for i in range(5_000)])
        for i in range(24):  # more than sockets hold
            db.insert("app.large", [{"id": i, "v": random.Random(i).randbytes(1_000_000)}])
        yield running


def connect(server: ServerThread, name: str = "ops") -> tablecast.Client:
    return tablecast.connect(server.url, user=name, password=f"a password of {name}")


def left(server: ServerThread) -> list[str]:
    return [path.name for path in Path(server.db.database.engine.store.staging()).iterdir()]


def test_a_backup_is_the_database_at_one_moment_and_restores(server: ServerThread, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with connect(server) as client:
        before = client.execute("INSERT INTO app.t VALUES (100000, 'last')").seq
        client.backup(tmp_path / "backup", lambda done, total: told.append((done, total)))
        client.execute("DELETE FROM app.t WHERE id = 100000")
    assert told[-1][0] == told[-1][1] > 0
    restore_from(tmp_path / "backup", tmp_path / "restored", check=True)
    with tablecast.open(tmp_path / "restored", create=False) as db:
        assert db.query("SELECT COUNT(*) FROM app.t").scalar() == 5_001
        assert db.engine.seq >= (before or 0)
        assert db.verify().sound
    assert left(server) == []
    assert not (tmp_path / "backup.partial").exists()
    wide = [p for p in [tmp_path / "backup", *(tmp_path / "backup").rglob("*")] if p.stat().st_mode & 0o077]
    assert wide == []


def test_verify_tells_what_the_embedded_database_tells(server: ServerThread) -> None:
    told: dict[str, int] = {}
    with connect(server) as client:
        report = client.verify(told.__setitem__)
    assert report.sound
    assert (report.tables, report.rows >= 5_000, report.topics) == (2, True, 1)

    async def verified() -> bool:
        async with await tablecast.connect_async(server.url, user="ops", password="a password of ops") as client:
            return (await client.verify()).sound

    assert asyncio.run(verified())


def test_asyncio_backs_up_too(server: ServerThread, tmp_path: Path) -> None:
    async def backed_up() -> None:
        async with await tablecast.connect_async(server.url, user="ops", password="a password of ops") as client:
            await client.backup(tmp_path / "backup")

    asyncio.run(backed_up())
    with tablecast.open(tmp_path / "backup", create=False) as db:
        assert db.verify().sound


def test_it_takes_dba_and_both_are_audited(server: ServerThread, tmp_path: Path) -> None:
    with connect(server, "svc") as client:
        with pytest.raises(PermissionDenied, match="takes dba"):
            client.backup(tmp_path / "backup")
        with pytest.raises(PermissionDenied, match="takes dba"):
            client.verify()
    with pytest.raises(Unauthenticated):
        maintenance.verify(maintenance.Server(server.url))
    with connect(server) as client:
        client.backup(tmp_path / "backup")
        client.verify()
    found = server.db.database.query(
        "SELECT user_id, action, outcome FROM system.audit_log WHERE action IN ('BACKUP', 'VERIFY')"
    ).rows
    assert {("svc", "BACKUP", "denied"), ("svc", "VERIFY", "denied")} <= set(found)
    assert {("ops", "BACKUP", "ok"), ("ops", "VERIFY", "ok")} <= set(found)


def test_the_next_one_is_refused_while_one_runs_and_taken_when_its_client_is_gone(
    server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that takes nothing keeps the files until it goes, or has been silent for a minute."""
    with connect(server) as client:
        with socket.socket() as stalled:
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stalled.connect((server.host, server.port))
            who = basic("ops", "a password of ops")
            stalled.sendall(
                f"POST /v1/api/backup HTTP/1.1\r\nHost: x\r\nAuthorization: {who}\r\nContent-Length: 0\r\n\r\n".encode()
            )
            assert stalled.recv(12) == b"HTTP/1.1 200"
            assert len(left(server)) == 1
            with pytest.raises(InUse, match="user 'ops' is at a backup"):
                client.backup(tmp_path / "second")
            client.execute("INSERT INTO app.t VALUES (200000, 'x') ON CONFLICT (id) DO NOTHING")  # writes go on
        wait_for_room(client, tmp_path / "third")
    assert left(server) == []


def wait_for_room(client: tablecast.Client, path: Path) -> None:
    """The server hears of it when the socket is closed: asking again is all that there is to wait for."""
    for _ in range(100_000):
        try:
            return client.backup(path)
        except InUse:
            continue
    raise AssertionError("the backup of a client that went away is never over")


def test_a_stalled_client_is_let_go(server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_maintenance, "STALLED_SECONDS", 0.05)
    with connect(server) as client, socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect((server.host, server.port))
        who = basic("ops", "a password of ops")
        stalled.sendall(
            f"POST /v1/api/backup HTTP/1.1\r\nHost: x\r\nAuthorization: {who}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        assert stalled.recv(12) == b"HTTP/1.1 200"
        monkeypatch.setattr(api_maintenance, "STALLED_SECONDS", 60.0)
        wait_for_room(client, tmp_path / "next")


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.9, 1.0])
def test_what_was_cut_off_is_no_backup(
    server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: float
) -> None:
    """Also where the cut falls between two files, or behind the last: then a tar looks whole."""
    pieces = Parcel.pieces

    def fewer(parcel: Parcel) -> Iterator[bytes]:
        every = list(pieces(parcel))
        yield from every[: int((len(every) - 1) * cut)]

    monkeypatch.setattr(Parcel, "pieces", fewer)
    with connect(server) as client, pytest.raises((BackupError, Timeout)):
        client.backup(tmp_path / "backup")
    assert list(tmp_path.iterdir()) == []
    assert left(server) == []


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "store/../../evil", "link"])
def test_a_server_that_is_somebody_elses_writes_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as tar:
        info = tarfile.TarInfo(name)
        if name == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
        tar.addfile(tarfile.TarInfo("TABLECAST"))
    size = len(sent.getvalue())

    arriving = Arriving(200, {"content-length": str(size)}, io.BufferedReader(io.BytesIO(sent.getvalue())))  # type: ignore[arg-type]
    monkeypatch.setattr(maintenance.BulkClient, "_post", lambda client, path, accept: arriving)
    with pytest.raises(BackupError, match="no file of a backup"):
        maintenance.back_up(maintenance.Server("http://x"), tmp_path / "backup")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_taken_is_not_written_to(server: ServerThread, tmp_path: Path) -> None:
    with connect(server) as client, pytest.raises(BackupError, match="exists already"):
        client.backup(tmp_path)


def test_on_the_command_line(server: ServerThread, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    who = ("--user", "system", "--password-file", str(password))
    done = cli("backup", server.url, str(tmp_path / "backup"), *who)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("backed up to ")
    assert cli("verify", str(tmp_path / "backup")).stdout.endswith("sound\n")
    there = cli("verify", server.url, *who)
    assert (there.returncode, there.stdout.endswith("sound\n")) == (0, True), there.stderr
    again = cli("backup", server.url, str(tmp_path / "backup"), *who)
    assert (again.returncode, "exists already" in again.stderr) == (1, True)
