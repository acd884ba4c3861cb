"""`tablecast bench`: figures of a temporary database, of one that is there, and of a server; nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_fixture import Terminals, invoke, plain, run, shop
from server_fixture import PASSWORD, ServerThread

import tablecast

QUICK = ("--seconds", "0.1", "--threads", "4", "--format", "json")
NAMES = ["single rows", "batches of 1,000", "reading the topic", "fsync"]


def figures(text: str) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in json.loads(text)}


def test_a_temporary_database_is_measured() -> None:
    done = run("bench", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    found = figures(done.stdout)
    assert list(found) == NAMES
    written = int(found["single rows"]["count"]) + int(found["batches of 1,000"]["count"])
    assert int(found["single rows"]["count"]) >= 4, "each thread at least once"
    assert int(found["reading the topic"]["count"]) % written == 0, "every reading saw all that was written"
    for row in found.values():
        assert row["per_second"] > 0
        assert 0 < row["p50_ms"] <= row["p99_ms"]


def test_what_is_there_stays_as_it_was(tmp_path: Path) -> None:
    path = shop(tmp_path)
    assert list(figures(invoke("bench", "--path", path, *QUICK).stdout)) == NAMES
    with tablecast.open(path) as db:
        assert db.query("SELECT count(*) FROM system.namespaces WHERE name LIKE 'bench%'").scalar() == 0
        assert db.query("SELECT count(*) FROM app.orders").scalar() == 2
        assert db.verify().problems == []


def test_a_server_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLECAST_PASSWORD", PASSWORD)
    with ServerThread() as server:
        found = figures(invoke("bench", "--url", server.url, *QUICK).stdout)
        assert list(found) == NAMES[:3]
        assert server.sql("SELECT name FROM system.tables WHERE namespace LIKE 'bench%'")[0]["rows"] == []


def test_it_can_be_watched_on_a_terminal() -> None:
    with Terminals() as terminals:
        terminal = terminals.open("bench", "--seconds", "0.5", "--threads", "2")
        terminal.expect("single rows")
        code, said = terminal.end()
        assert code == 0
        assert "per_second" in said


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--path", "x", "--url", "http://x"), "give --path or --url, not both"),
        (("--path", "http://x"), "a server's address goes with --url"),
        (("--user", "ann"), "--user and --password-file go with --url"),
        (("--path", "x", "--durability", "none"), "--durability goes with the temporary database"),
        (("--seconds", "0"), "0.05"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], why: str) -> None:
    done = invoke("bench", *options)
    assert done.exit_code == 2
    assert why in plain(done.output)
