"""system.topic_redriven: which dead letters were sent back."""

from __future__ import annotations

import tablecast
from tablecast import EARLIEST

SETUP = """
CREATE NAMESPACE app;
CREATE TABLE app.jobs (id INT PRIMARY KEY);
CREATE TOPIC app.work WITH (max_deliveries = 1, dead_letter = 'app.dead');
ALTER TOPIC app.work ADD SOURCE app.jobs ON INSERT;
INSERT INTO app.jobs VALUES (0), (1), (2), (3), (4);
"""
RUNS = "SELECT start_offset, end_offset FROM system.topic_redriven WHERE topic = 'app.dead' ORDER BY start_offset"


def test_runs_of_letters_that_were_sent_back() -> None:
    with tablecast.open(":memory:") as db:
        for statement in SETUP.strip().split(";")[:-1]:
            db.execute(statement)
        offsets = [message.offset for message in db.consume("app.work", group="billing", consumer="ann").messages]
        db.nack("app.work", "billing", offsets, consumer="ann")
        assert db.consume("app.work", group="billing", consumer="ann").messages == []
        assert len(db.consume("app.dead", start=EARLIEST).messages) == 5
        assert db.query(RUNS).rows == []
        seen = []
        for letter in (3, 1, 0, 4):
            db.execute(f"REDRIVE TOPIC app.dead OFFSET {letter}")
            seen.append(_offsets(db))
        assert seen == [{3}, {1, 3}, {0, 1, 3}, {0, 1, 3, 4}]
        db.execute("REDRIVE TOPIC app.dead ALL")
        assert db.query(RUNS).rows == [(0, 5)]
        assert db.query("SELECT count(*) AS n FROM system.topic_redriven").scalar() == 1  # of no other topic


def _offsets(db: tablecast.Database) -> set[int]:
    return {offset for start, end in db.query(RUNS).rows for offset in range(start, end)}
