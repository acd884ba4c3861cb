"""Three shops with a copy of the same stock each, a broker that goes away, and writes on both sides of the outage.

    python examples/edge_three_nodes.py [mqtt://broker:1883]

Without an address it starts mosquitto (Debian: mosquitto) and stops it in between. Prints what each shop has, and how it came.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from secrets import token_hex

from rich.console import Console
from rich.table import Table

import tablecast
from tablecast import Database
from tablecast.model.replication_status import ReplicationStatus

SHOPS = ("north", "south", "west")
TABLE = "CREATE TABLE app.stock (sku TEXT PRIMARY KEY, count INT) WITH (REPLICATE = TRUE)"
console = Console()


class OwnBroker:
    """mosquitto on a free port, which keeps its sessions while it is stopped."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"mqtt://127.0.0.1:{port}"
        self._file = folder / "mosquitto.conf"
        self._file.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {folder}/\n"
            f"user {Path(folder).owner()}\nmax_queued_messages 0\nlog_dest none\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/sbin")
        if program is None:
            raise SystemExit("mosquitto is missing: apt-get install mosquitto, or give the address of a broker")
        self._process = subprocess.Popen([program, "-c", self._file], stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None


@contextmanager
def shop(folder: Path, name: str, url: str, prefix: str) -> Iterator[Database]:
    with tablecast.open(folder / name) as db:
        db.execute("CREATE NAMESPACE app")
        db.execute(TABLE)
        db.replicate(url, node_id=name, prefix=prefix, compare_seconds=2)
        yield db


def until(db: Database, condition: Callable[[ReplicationStatus], bool]) -> None:
    for status in db.replication.watch():
        if condition(status):
            return


def until_equal(shops: dict[str, Database]) -> None:
    for db in shops.values():
        until(db, lambda status: not status.pending)
    first, *others = shops.values()
    for other in others:
        until(other, lambda _, other=other: first.replication.roots() == other.replication.roots())  # type: ignore[misc]


def show(title: str, shops: dict[str, Database]) -> None:
    table = Table(title=title, title_justify="left")
    for heading in ("shop", "stock", "online", "pending", "published", "applied", "beaten", "pulled"):
        table.add_column(heading)
    for name, db in shops.items():
        now = db.replication.status()
        stock = ", ".join(f"{sku} {count}" for sku, count in db.query("SELECT * FROM app.stock ORDER BY sku"))
        counts = now.pending, now.published, now.applied, now.beaten, now.pulled
        table.add_row(name, stock, "yes" if now.online else "no", *map(str, counts))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="a broker that is there already")
    url = parser.parse_args().url
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tablecast-edge-")))
        broker = None if url else OwnBroker(folder)
        if broker is not None:
            broker.start()
            stack.callback(broker.stop)
        address, prefix = url or (broker.url if broker else ""), f"example-{token_hex(4)}"
        shops = {name: stack.enter_context(shop(folder, name, address, prefix)) for name in SHOPS}
        play(shops, broker)


def play(shops: dict[str, Database], broker: OwnBroker | None) -> None:
    for db in shops.values():
        until(db, lambda status: status.online)
    shops["north"].execute("INSERT INTO app.stock VALUES ('apple', 10), ('pear', 4)")
    until_equal(shops)
    show("A delivery in the north, and everybody knows", shops)
    if broker is not None:
        broker.stop()
        for db in shops.values():
            until(db, lambda status: not status.online)
    shops["north"].execute("UPDATE app.stock SET count = 9 WHERE sku = 'apple'")
    shops["south"].execute("UPDATE app.stock SET count = 7 WHERE sku = 'apple'")
    shops["west"].execute("DELETE FROM app.stock WHERE sku = 'pear'")
    shops["west"].execute("INSERT INTO app.stock VALUES ('plum', 1)")
    if broker is not None:
        show("No broker: each goes on alone", shops)
        broker.start()
    until_equal(shops)
    show("Together again: the later write of each row is everywhere", shops)


if __name__ == "__main__":
    main()
