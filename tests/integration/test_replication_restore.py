"""A database that is restored from a backup is the same node in a new epoch: its numbers never stand for two events."""

from __future__ import annotations

from pathlib import Path

import pytest

import tablecast
from tablecast.cli.backup import restore_from
from tablecast.codec.events import decode_event


@pytest.mark.parametrize("check", [True, False])
def test_a_restored_node_goes_on_in_a_new_epoch(tmp_path: Path, check: bool) -> None:
    with tablecast.open(str(tmp_path / "db")) as db:
        db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY) WITH (REPLICATE = TRUE); INSERT INTO t VALUES (1)")
        db.engine.replication.claim_identity()
        db.backup(tmp_path / "backup")
        db.execute("INSERT INTO t VALUES (2)")
        before = db.engine.replication.identity()
        told = [entry.data for entry in db.engine.replication.outbox(10)]
    restore_from(tmp_path / "backup", tmp_path / "restored", check)
    with tablecast.open(str(tmp_path / "restored")) as restored:
        replication = restored.engine.replication
        after = replication.identity()
        assert before is not None
        assert after is not None
        assert after.node_id == before.node_id
        assert after.epoch > before.epoch
        restored.execute("INSERT INTO t VALUES (3)")
        now_told = [entry.data for entry in replication.outbox(10)]
        assert now_told[0] == told[0], "what the backup had is told as it was"
        assert decode_event(now_told[1]).version.seq == after.epoch << 32 | 1
        assert replication.apply(told[1:])[0].status == "applied"
        assert restored.query("SELECT id FROM t ORDER BY id").rows == [(1,), (2,), (3,)]
        assert restored.verify().problems == []


def test_a_database_that_is_no_node_is_none_after_it(tmp_path: Path) -> None:
    with tablecast.open(str(tmp_path / "db")) as db:
        db.backup(tmp_path / "backup")
    restore_from(tmp_path / "backup", tmp_path / "restored", check=False)
    with tablecast.open(str(tmp_path / "restored")) as restored:
        assert restored.engine.replication.identity() is None
