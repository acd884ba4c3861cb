"""Reading and writing over Spark Connect: the client's process has no JVM."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import kill_loop
import msgspec
import pytest
from processes import PASSWORD, ConnectServer, Driver, Server

import tablecast

pytestmark = pytest.mark.long

EVERY_EVENT = {
    "spark.scheduler.listenerbus.logSlowEvent": "true",
    "spark.scheduler.listenerbus.logSlowEvent.threshold": "0",
}
EVENT_LOG = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
CREDENTIALS = ("TABLECAST_USER", "TABLECAST_PASSWORD")
IN_AN_OPTION = b"p-w-in-an-option"

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.loaded (id BIGINT PRIMARY KEY, word TEXT);
CREATE TABLE app.copied (id BIGINT PRIMARY KEY, word TEXT);
CREATE TOPIC app.told PARTITIONS 2;
ALTER TOPIC app.told ADD SOURCE app.loaded ON ANY WITH (payload = 'full');
"""


def test_a_connect_server_that_is_killed_under_a_stream(tmp_path: Path) -> None:
    """It is started again, the stream goes on from its checkpoint, and each change is made once and told once."""
    with Server(tmp_path) as server, ConnectServer(tmp_path) as connect:
        arguments = (server.url, str(tmp_path / "checkpoint"), connect.remote)
        driver = Driver("stream_driver.py", *arguments, log=tmp_path / "client.log")

        def strike() -> None:
            connect.kill()
            driver.kill()
            connect.start()
            driver.start()

        assert kill_loop.live_through(server, driver, 2, strike) >= 2 * kill_loop.MOST_MESSAGES


def test_everything_works_over_connect(tmp_path: Path) -> None:
    with Server(tmp_path) as server, tablecast.connect(server.url, user="system", password=PASSWORD) as client:
        client.execute_all(SETUP)
        # Its environment knows no credentials; and it logs every request, as it logs one by which a listener was slow.
        (events := tmp_path / "events").mkdir()
        event_log = {**EVENT_LOG, "spark.eventLog.dir": str(events)}
        with ConnectServer(tmp_path, **EVERY_EVENT, **event_log, without=CREDENTIALS) as connect:
            arguments = (server.url, str(tmp_path / "checkpoint"))
            with Driver(
                "connect_driver.py", *arguments, log=tmp_path / "client.log", SPARK_REMOTE=connect.remote
            ) as run:
                said = run.finish()
        found = json.loads(said.rpartition("found ")[2])
        assert found.pop("session").startswith("pyspark.sql.connect")
        refused = found.pop("refused")
        assert len(refused) == 5
        assert [told for told in refused if 'SecretInOption: option "password" over Spark Connect' not in told] == []
        assert found == {"topic": 1000, "table": 1000, "words": list("0123456"), "copied": 1000}
        assert client.query("SELECT count(*) FROM app.copied").scalar() == 1000
        server.end()
    written = [path for path in events.rglob("*") if path.is_file()]
    assert any(IN_AN_OPTION in path.read_bytes() for path in written), "why it is refused"
    logs = [*written, *(path for path in tmp_path.glob("*.log") if path.stat().st_size)]
    assert {"connect.log", "client.log"} <= {path.name for path in logs}
    assert b"app.copied" in (tmp_path / "connect.log").read_bytes(), "requests, with their options"
    encoded = b64encode(msgspec.json.encode({"user": "system", "password": PASSWORD}))  # as it is in the class
    told = [path for path in logs for secret in (PASSWORD.encode(), encoded) if secret in path.read_bytes()]
    assert told == []
