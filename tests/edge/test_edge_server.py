"""`tablecast serve --mqtt`: a server that is a node, what it shows of it, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from edge_nodes import SCHEMA, node, notes, until
from mqtt_broker import running

import tablecast
from tablecast.server.configuration import PREFIX

PASSWORD = "a password for tests"
STOP_SECONDS = 60
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
pytestmark = pytest.mark.timeout(180)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tablecast", "serve", "--port", "0", *arguments]


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[str]:
    """The address of a server that ends well."""
    said = ENVIRONMENT | {"TABLECAST_PASSWORD": PASSWORD} | environment
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, text=True, env=said) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if found := re.search(r"http://\S+", line):
                break
        else:
            raise AssertionError("the server did not start")
        try:
            yield found[0]
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(STOP_SECONDS) == 0


def scrape(url: str) -> dict[str, float]:
    request = urllib.request.Request(f"{url}/metrics")
    request.add_header("Authorization", "Basic " + b64encode(f"system:{PASSWORD}".encode()).decode())
    with urllib.request.urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_a_server_is_a_node(tmp_path: Path) -> None:
    with running(tmp_path) as broker, node(broker.url, "till") as till:
        with (
            serving("--data", str(tmp_path / "data"), "--node-id", "hall", TABLECAST_MQTT=broker.url) as url,
            tablecast.connect(url, user="system", password=PASSWORD) as client,
        ):
            client.execute(SCHEMA)
            client.execute("INSERT INTO app.notes VALUES (1, 'from the hall')")
            until(till, lambda status: status.applied == 1)
            till.execute("INSERT INTO app.notes VALUES (2, 'from the till')")
            with client.live_table("SELECT id FROM app.notes") as live:
                while (2,) not in live.rows:
                    live.changed()
            until(till, lambda status: status.peers == ("hall",) and not status.pending)
            until_shown(client, "applied = 1 AND published = 1 AND peers <> ''")
            shown = client.query("SELECT node_id, broker, online, applied, peers FROM system.replication").rows
            assert shown == [("hall", broker.url, True, 1, "till")]
            found = scrape(url)
            assert found["replication_events_published_total"] == 1
            assert found["replication_publish_errors_total"] == 0
            assert found["replication_publish_latency_seconds_count"] == 1
            assert found["replication_outbox_flush_duration_seconds_count"] == 1
            assert found["replication_outbox_size"] in (0, 1), "the position is saved a moment later"
            assert found["replication_sequence_number_current"] == 1
            assert found['replication_events_received_total{outcome="applied"}'] == 1
            assert client.query("SELECT count(*) FROM system.replication_quarantine").rows == [(0,)]
        until(till, lambda status: status.peers == ())
        assert notes(till) == [(1, "from the hall"), (2, "from the till")]


def test_a_server_counts_what_cannot_be_published(tmp_path: Path) -> None:
    rights = tmp_path / "rights"
    rights.write_text(
        "topic read #\ntopic write tablecast/replication/nodes/#\ntopic write tablecast/replication/sync/#\n"
    )
    rights.chmod(0o600)
    with (
        running(tmp_path, f"acl_file {rights}") as broker,
        serving("--data", str(tmp_path / "data"), "--node-id", "hall", TABLECAST_MQTT=broker.url) as url,
        tablecast.connect(url, user="system", password=PASSWORD) as client,
    ):
        client.execute(SCHEMA)
        client.execute("INSERT INTO app.notes VALUES (1, ?)", ["x" * 300_000])
        until_shown(client, "set_aside = 1 AND publish_errors = 1 AND last_error LIKE 'invalid_event%'")
        assert scrape(url)["replication_events_set_aside_total"] == 1
        assert scrape(url)["replication_publish_errors_total"] == 1
        client.execute("INSERT INTO app.notes VALUES (2, 'refused')")
        until_shown(client, "publish_errors > 1 AND last_error LIKE '%not authorised%'")
        found = scrape(url)
        assert found["replication_publish_errors_total"] > 1
        assert found["replication_events_set_aside_total"] == 1, "what is refused waits"
        assert found["replication_events_published_total"] == 0


def until_shown(client: tablecast.Client, condition: str) -> None:
    """As soon as the server shows it. Tests have a time limit."""
    while not client.query(f"SELECT * FROM system.replication WHERE {condition}").rows:
        pass


def test_a_server_without_a_broker_shows_no_node(tmp_path: Path) -> None:
    with (
        serving("--data", str(tmp_path)) as url,
        tablecast.connect(url, user="system", password=PASSWORD) as client,
    ):
        assert client.query("SELECT * FROM system.replication").rows == []
        assert "replication_outbox_size" not in scrape(url)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mqtt", "tcp://broker"], "the flag --mqtt: this is not the address of a broker"),
        (["--node-id", "hall"], "the flag --node-id: node_id is set and mqtt is not"),
        (["--mqtt", "mqtt://b", "--node-id", "a/b"], "the flag --node-id: 'a/b' is not a node id"),
        (["--mqtt", "mqtt://b", "--mqtt-prefix", "#"], "the flag --mqtt-prefix: '#' cannot begin a topic"),
        (["--mqtt", "mqtt://b", "--set", "mqtt_overflow=lose"], "it takes block or coalesce or drop_oldest"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, arguments: list[str], said: str) -> None:
    started = [*command("--data", str(tmp_path)), *arguments]
    done = subprocess.run(started, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode != 0
    assert said in " ".join(done.stderr.split())
