"""The first steps of a new user, run by the Python of a fresh environment: no checkout is in sight.

    python smoke.py ADDRESS PASSWORD

Exits with 0 if what was written arrived everywhere, once.
"""

from __future__ import annotations

import re
import sys
import urllib.request
from pathlib import Path

import tablecast


def look(address: str, path: str) -> str:
    with urllib.request.urlopen(f"{address}/{path}") as answer:
        assert answer.status == 200
        text: str = answer.read().decode()
    return text


def main(address: str, password: str) -> None:
    assert Path(tablecast.__file__).is_relative_to(sys.prefix), tablecast.__file__
    parts = re.findall(r'(?:src|href)="\./(assets/[^"]+\.(?:js|css))"', look(address, ""))
    assert parts, "the console is in the package"
    assert all(look(address, part) for part in parts)
    with tablecast.connect(address, user="system", password=password) as client:
        client.execute_all(
            "CREATE TABLE t (id INT PRIMARY KEY, v TEXT); CREATE TOPIC e; ALTER TOPIC e ADD SOURCE t ON ANY"
        )
        client.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        with client.live_table("SELECT v FROM t") as live:
            assert dict(live.ready().rows) == {(1,): ("a",), (2,): ("b",)}
            client.execute("UPDATE t SET v = 'c' WHERE id = 2")
            live.changed()
            assert dict(live.rows) == {(1,): ("a",), (2,): ("c",)}
        seen = []
        client.consumer("e", "billing").run(lambda message: seen.append(message.value["v"]), until_idle=True)
        assert seen == ["a", "b", "c"], seen
        assert client.query("SELECT sum(lag) FROM system.topic_groups").scalar() == 0
    with tablecast.open(":memory:") as db:
        db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        assert db.verify().sound


if __name__ == "__main__":
    main(*sys.argv[1:])
