"""`tablecast demo`: the main job, end to end, and something to look at.

A server, 24 publishers that write orders over HTTP, a live query and a group that read them; on Spark, where there is
one, a pipeline, an archive and an audit. Then a count for every reader: all of it, and nothing twice. The data stays; on
a terminal the server does too, until Ctrl-C, with the console's address and a trickle of orders.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tablecast.cli.console import output
from tablecast.cli.demo_server import Served, served
from tablecast.cli.demo_shop import (
    LIVE,
    LOOK_SECONDS,
    PUBLISHERS,
    SETUP,
    TRICKLE_SECONDS,
    Following,
    Found,
    Published,
    Trickle,
    consumed,
    patiently_until,
    publish,
    signed_in,
)
from tablecast.cli.demo_spark import OnSpark, on_spark, why_not_on_spark
from tablecast.cli.interrupt import interruptible
from tablecast.cli.serve import require_server
from tablecast.client.sync import Client
from tablecast.errors import InvalidRequest, Unreachable
from tablecast.server.settings import Settings


@dataclass(frozen=True, slots=True)
class Request:
    data: Path | None  # None: a new temporary directory
    seconds: float
    keep: bool


def run(request: Request) -> int:
    """The exit code: 0 if every reader found every order once."""
    require_server()
    path, console = _place(request.data), output()
    with served(path) as server:
        is_sound = _play(server, path, console, request.seconds)
        console.print(f"\ndatabase {path / 'db'}\nlogs     {', '.join(map(str, sorted(path.glob('*.log'))))}")
        if request.keep:
            _keep(server, console)
        else:
            _say_again(server, path, console)
    return 0 if is_sound else 1


def _place(data: Path | None) -> Path:
    path = data or Path(tempfile.mkdtemp(prefix="tablecast-demo-"))
    if (path / "db").exists():
        again = f"`{_program()} serve --data {path / 'db'}` opens it"
        raise InvalidRequest(f"{path} holds a demo already: {again}, and another demo needs a free place")
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


# --- the play -------------------------------------------------------------------------------------------------------


def _play(server: Served, path: Path, console: Console, seconds: float) -> bool:
    with signed_in(server.address) as client:
        client.execute_all(SETUP)
        console.print(f"server at {server.address.url}")
        with _spark_if_there(server, client, path, console) as spark, client.live(LIVE) as changes:
            following = Following(changes)
            following.start()
            if spark is not None:
                spark.warm_up()
            published = publish(server.address, following, console, seconds)
            orders = int(client.query("SELECT count(*) FROM shop.orders").scalar())
            patiently_until(lambda: following.has_all(orders))
            console.print(following.shown())
            found = [consumed(client), following.found, *(spark.found() if spark else [])]
            is_audited = spark.audit(console) if spark else True
            _report(console, orders, found)
            _say_speed(console, published, spark.latencies() if spark else None)
    return is_audited and all(reader.orders == reader.distinct == orders for reader in found)


@contextmanager
def _spark_if_there(server: Served, client: Client, path: Path, console: Console) -> Iterator[OnSpark | None]:
    if missing := why_not_on_spark():
        console.print(f"without Spark: {missing}", markup=False)
        yield None
        return
    console.print("starting Spark …")
    with on_spark(server.address, client, path) as spark:
        yield spark


def _report(console: Console, orders: int, found: list[Found]) -> None:
    table = Table(title="Every write, on every channel, once", box=box.SIMPLE)
    for heading in ("reader", "writes", "found", "coverage", "duplication"):
        table.add_column(heading, justify="left" if heading == "reader" else "right")
    for reader in found:
        duplication = reader.orders / max(1, reader.distinct)
        coverage = reader.distinct / max(1, orders)
        table.add_row(reader.reader, f"{orders:,}", f"{reader.orders:,}", f"{coverage:.1%}", f"{duplication:.2f}")
    console.print(table)


def _say_speed(console: Console, published: Published, streamed: list[float] | None) -> None:
    latencies, seconds = published.latencies, published.seconds
    after = "" if streamed is None else " after the one that warmed Spark up,"
    console.print(
        f"{len(latencies):,} orders{after} from {PUBLISHERS} publishers over HTTP in {seconds:.1f} s, each durable (fsync) when "
        f"answered: {len(latencies) / seconds:,.0f} a second, p50 {_at(latencies, 0.5)}, p99 {_at(latencies, 0.99)}"
    )
    if streamed is not None:
        through = f"p50 {_at(streamed, 0.5)}, p99 {_at(streamed, 0.99)}"
        console.print(f"from an order's commit to the revenue table's, through Spark: {through}")


def _at(values: list[float], share: float) -> str:
    return f"{values[min(len(values) - 1, int(len(values) * share))] * 1000:,.0f} ms" if values else "–"


# --- the end --------------------------------------------------------------------------------------------------------


def _keep(server: Served, console: Console) -> None:
    console.print(f"\nThe console is at {server.address.url}/ until Ctrl-C. {_sign_in(server)}", markup=False)
    console.print(f"{1 / TRICKLE_SECONDS:g} orders a second go on being written, so that there is something to see.")
    trickle = Trickle(server.address)
    trickle.start()
    try:
        # Looked at again and again: a signal that another thread was given does not end a wait of this one.
        with interruptible() as check_interrupt:
            while server.process.poll() is None:
                check_interrupt()
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        trickle.stop()
        return
    raise Unreachable(f"the server ended by itself: see {server.log}")


def _say_again(server: Served, path: Path, console: Console) -> None:
    console.print(f"\nTo look at it: {_program()} serve --data {path / 'db'}", markup=False)
    console.print(f"Then open http://127.0.0.1:{Settings().port}/. {_sign_in(server)}", markup=False)


def _program() -> str:
    """This program, as it can be called from here."""
    own = Path(sys.executable).parent / "tablecast"
    if shutil.which("tablecast") == str(own):
        return "tablecast"
    return os.path.relpath(own) if own.exists() else f"{sys.executable} -m tablecast"


def _sign_in(server: Served) -> str:
    return f"Sign in as {server.address.user} with the password {server.address.password}"
