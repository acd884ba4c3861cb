"""The programs of docs/spark.md run as they stand, against a real server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from reading import Shop

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

from pages import ROOT, blocks

MARK = "with Spark and a server"


def test_programs(shop: Shop, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the etl user\n")
    shop.sql(
        "CREATE USER 'etl' WITH PASSWORD 'of the etl user' ROLE 'service'",
        "CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer TEXT)",
        "CREATE TABLE app.copied (id BIGINT PRIMARY KEY, customer TEXT)",
        "CREATE TOPIC app.order_events PARTITIONS 2",
        "ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY",
        "INSERT INTO app.orders VALUES (1, 'ann'), (2, 'bob'), (3, 'cid')",
        "DELETE FROM app.orders WHERE id = 3",
    )
    places = {
        "http://127.0.0.1:8080": shop.server.url,
        "/run/secrets/etl": str(secret),
        "/data/": f"{tmp_path}/data/",
    }
    names: dict[str, Any] = {}
    for block in blocks(ROOT / "docs" / "spark.md"):
        if block.mark == MARK:
            program = block.text
            for place, here in places.items():
                program = program.replace(place, here)
            exec(compile(program, f"docs/spark.md:{block.line}", "exec"), names)
    assert names["events"].count() == 4
    written = shop.spark.read.parquet(str(tmp_path / "data" / "orders"))
    assert sorted(row.id for row in written.collect()) == [1, 2, 3]
    assert sorted(row.customer for row in names["orders"].collect()) == ["ann", "bob"]
    assert shop.server.sql("SELECT customer FROM app.copied ORDER BY id")[0]["rows"] == [["ann"], ["bob"]]
