"""A program that ends without closing its database: what was acknowledged is there, and nothing is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tablecast

PROGRAM = """
import sys, threading, tablecast
db = tablecast.open(sys.argv[1], durability="interval(60000)", jobs_interval_seconds=3600)
db.execute("CREATE TABLE t (id INT PRIMARY KEY)")
db.execute("INSERT INTO t VALUES (1)")
assert db.query("SELECT count(*) FROM t AS a JOIN t AS b USING (id)").scalar() == 1
threading.Thread(target=lambda: [db.query("SELECT count(*) FROM t") for _ in iter(int, 1)], daemon=True).start()
"""


def test_a_database_that_nobody_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "nanobind" not in done.stderr
    with tablecast.open(path) as db:
        assert db.query("SELECT id FROM t").rows == [(1,)]
