"""The programs of docs/spark.md, and the statements and commands of docs/copy.md, run as they stand, against a real server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from reading import Shop
from server_fixture import PASSWORD

import tablecast

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

from commands import Step, Terminal, typed
from pages import ROOT, blocks

MARK = "with Spark and a server"


def test_programs(shop: Shop, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the etl user\n")
    shop.sql(
        "CREATE USER 'etl' WITH PASSWORD 'of the etl user' ROLE 'service'",
        "CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer TEXT)",
        "CREATE TABLE app.copied (id BIGINT PRIMARY KEY, customer TEXT)",
        "CREATE TABLE app.doubled (id BIGINT PRIMARY KEY, twice BIGINT)",
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
    assert shop.server.sql("SELECT id, twice FROM app.doubled ORDER BY id")[0]["rows"] == [["1", "2"], ["2", "4"]]


def test_statements_of_copy(shop: Shop, tmp_path: Path) -> None:
    files = tmp_path / "data" / "orders"
    files.mkdir(parents=True)
    (files / "7.csv").write_text("id,amount\n1,12.50\n7,much\n")
    shop.sql(
        "CREATE NAMESPACE copies",
        "CREATE TABLE copies.orders (id BIGINT PRIMARY KEY, amount DECIMAL(12,2))",
        "CREATE TOPIC copies.order_events; CREATE TOPIC copies.everything",
        "ALTER TOPIC copies.order_events ADD SOURCE copies.orders ON ANY",
    )
    with tablecast.connect(shop.server.url, user="system", password=PASSWORD) as client:
        for block in blocks(ROOT / "docs" / "copy.md"):
            if block.mark == MARK:
                statement = block.text.replace("app.", "copies.")
                for place in ("/data/", "/archive/"):
                    statement = statement.replace(place, f"{tmp_path}{place}")
                client.execute(statement)
        told = client.consume("copies.everything", start=tablecast.EARLIEST).messages
    assert [message.value["id"] for message in told] == ["1"]
    assert shop.spark.read.parquet(str(tmp_path / "archive" / "orders")).count() == 1
    rejects = tmp_path / "data" / "rejects" / "*" / "chunk-00000" / "what=rejects"
    [reject] = shop.spark.read.json(str(rejects)).collect()
    assert (reject.column, reject.code, reject.row.id) == ("amount", "type_mismatch", "7")


ORDERS = """
CREATE NAMESPACE app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY, customer TEXT, amount DECIMAL(12,2));
CREATE TOPIC app.everything;
"""


@pytest.mark.long
def test_commands_of_copy(tmp_path: Path) -> None:
    with tablecast.open(tmp_path / "shop") as db:
        db.execute(ORDERS)
    files = tmp_path / "data" / "orders"
    files.mkdir(parents=True)
    (files / "1.csv").write_text("id,customer,amount\n1,ann,12.50\n2,bob,much\n")
    with Terminal(tmp_path) as terminal:
        terminal.run(Step("export TABLECAST_PASSWORD='a long password'", None))
        terminal.run(Step("tablecast serve --data ./shop", None))
        for step in typed(ROOT / "docs" / "copy.md"):
            terminal.run(step)
    with tablecast.open(tmp_path / "shop") as db:
        assert db.query("SELECT id FROM app.orders").rows == [(1,)]
        assert len(db.consume("app.everything", start=tablecast.EARLIEST).messages) == 1
