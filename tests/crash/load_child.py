"""The process that gets killed while it loads.

    python load_child.py one DATABASE KIND      begins one load, stages it, commits it
    python load_child.py many DATABASE FIRST    loads batch after batch, of both kinds, while another thread inserts
    python load_child.py open DATABASE          opens the database, and no more

Where it dies is told by the environment (see `tablecast.testing.failpoints`), armed right before what it is about, or
decided by whoever sends the signal. It prints what was acknowledged.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
import threading
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1] / "behaviour"))

from load_parts import arrow_part, sealed_part

import tablecast
from tablecast.engine import load_sealed
from tablecast.engine.loads import LoadCommitted, LoadInfo
from tablecast.model.schema import SYSTEM_ACTOR
from tablecast.testing.failpoints import VARIABLE, arm_from_environment

ORDERS, EVENTS, WRITER = "app.orders", "app.events", "query"
PARTS, ROWS = 3, 200  # parts of a load, rows of a part
BATCH_IDS = 10_000  # ids from one batch's first to the next one's
OTHERS = -1_000_000  # where the ids of rows begin that are not loaded
SETUP = (
    "CREATE NAMESPACE app",
    f"CREATE TABLE {ORDERS} (id BIGINT PRIMARY KEY, customer TEXT)",
    f"CREATE TOPIC {EVENTS} PARTITIONS 2",
    f"ALTER TOPIC {EVENTS} ADD SOURCE {ORDERS} ON ANY",
)

load_sealed.INLINE_LOG_BYTES = int(os.environ.get("INLINE_LOG_BYTES", "0"))


def part_of(info: LoadInfo, kind: str, batch: int, part: int) -> io.BytesIO:
    """Parts of one load interleave, so that the store has to sort them out."""
    ids = [batch * BATCH_IDS + i * PARTS + part for i in range(ROWS)]
    names = [f"batch {batch}"] * ROWS
    if kind == "rows":
        return arrow_part(pa.table({"id": ids, "customer": names}))
    return sealed_part(info, list(zip(ids, names, strict=True)), batch_messages=64)


def load(db: tablecast.Database, kind: str, batch: int) -> LoadCommitted:
    loads = db.engine.loads
    info = loads.begin(SYSTEM_ACTOR, ORDERS, WRITER, batch, mode="insert", kind=kind)
    if info.committed is not None:
        return info.committed
    if os.environ.get(VARIABLE, "").startswith("during_staging"):
        arm_from_environment()
    for part in range(PARTS):
        loads.stage(info.load_id, part, "a", part_of(info, kind, batch, part))
    if not os.environ.get(VARIABLE, "").startswith("during_staging"):
        arm_from_environment()
    return loads.commit(info.load_id, [(part, "a") for part in range(PARTS)])


def tell(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def kind_of(batch: int) -> str:
    return "rows" if batch % 4 == 0 else "sealed"


def load_many(db: tablecast.Database, first: int) -> None:
    threading.Thread(target=insert_forever, args=(db, first), daemon=True).start()
    for batch in itertools.count(first):
        load(db, kind_of(batch), batch)
        tell(batch)


def insert_forever(db: tablecast.Database, first: int) -> None:
    for i in itertools.count():
        db.insert(ORDERS, [(OTHERS + first * 1000 + i, "other")])


def main(what: str, path: str, argument: str = "") -> None:
    if what == "open":
        arm_from_environment()
    db = tablecast.open(path, jobs_interval_seconds=0.01 if what == "many" else 3600)
    if ORDERS not in db.engine.catalog.table_ids:
        for statement in SETUP:
            db.execute(statement)
        db.insert(ORDERS, [(-1, "first"), (10**9, "last")])
    if what == "one":
        tell(load(db, argument, 0))
    elif what == "many":
        load_many(db, int(argument))
    db.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
