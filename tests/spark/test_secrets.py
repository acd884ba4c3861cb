"""A password or token is in no plan, no event log, no log line at any level, no error, whatever Spark is made to tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from reading import Shop
from server_fixture import ServerThread

pytestmark = pytest.mark.long

DRIVER = Path(__file__).with_name("secrets_driver.py")
SECRET, WRONG = "s3cret-of-the-reader", "wr0ng-of-the-reader"
DEADLINE_SECONDS = 300


def test_a_password_and_a_token_are_told_nowhere(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    with ServerThread(tmp_path / "db") as server:
        server.sql(f"CREATE NAMESPACE app; CREATE USER 'reader' WITH PASSWORD '{SECRET}' ROLE 'service'")
        Shop(server, None).topic("ev")  # type: ignore[arg-type]  # no Spark of this process is needed
        server.sql(
            "INSERT INTO app.ev VALUES (1, 'a'), (2, 'b'); CREATE TABLE app.copy (id BIGINT PRIMARY KEY, v TEXT);"
            "CREATE TABLE app.piped (id BIGINT PRIMARY KEY, v TEXT);"
            "CREATE PIPELINE app.piped INTO app.piped AS SELECT id, v FROM TOPIC app.ev_ev"
        )
        signed_in = server.post("/auth/login", {"user": "reader", "password": SECRET}, user=None)
        token = signed_in.json()["access_token"]
        said = subprocess.run(
            [sys.executable, str(DRIVER), server.url, "reader", SECRET, str(events), WRONG, token],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_SECONDS, check=False,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        ).stdout  # fmt: skip
        assert len(server.sql("SELECT id FROM app.piped")[0]["rows"]) == 2
    written = b"".join(file.read_bytes() for file in events.rglob("*") if file.is_file())
    assert b"done" in said, said[-3000:]
    assert said.count(b"rows 2\n") == 3
    assert said.count(b"rows 12\n") == 1
    assert said.count(b"failed as it should") == 6
    assert said.count(b"the runner ended with 0\n") == 1
    assert said.count(b"the runner ended with 1\n") == 1
    assert b"DEBUG" in said
    assert b"SparkListenerSQLExecutionStart" in written
    for secret in (SECRET.encode(), WRONG.encode(), token.encode(), token.rpartition(".")[2].encode()):
        for told in (said, written):
            assert secret not in told, told[max(0, told.find(secret) - 300) : told.find(secret) + 50]
