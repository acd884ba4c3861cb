"""What docs/edge.md says to a broker, and of one, with a real broker: its configuration, and the program that waits for it."""

from __future__ import annotations

import sys
from pathlib import Path

import tablecast

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from mqtt_broker import running
from pages import ROOT, blocks

BLOCKS = blocks(ROOT / "docs" / "edge.md")
[CONFIGURATION] = [block for block in BLOCKS if block.mark == "configuration of mosquitto"]
[WAITING] = [block for block in BLOCKS if block.mark == "with a broker"]


def test_everything_is_with_the_broker(tmp_path: Path) -> None:
    with running(tmp_path, *CONFIGURATION.text.splitlines()) as broker, tablecast.open(":memory:") as db:
        db.execute("CREATE TABLE stock (sku TEXT PRIMARY KEY, count INT) WITH (REPLICATE = TRUE)")
        node = db.replicate(broker.url, node_id="till-7")
        db.execute("INSERT INTO stock VALUES ('apple', 3)")
        exec(WAITING.text, {"db": db})
        assert db.replication.status().pending == 0
        node.stop()
