"""What replication is measured by: events from one database's outbox to another's tables, and finding few differences."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import tablecast
from bench.edge import roles
from bench.edge.broker import broker
from bench.measure import Comparison, in_turns
from tablecast import Database
from tablecast.codec import sync
from tablecast.codec.sync import Push
from tablecast.core.anti_entropy import Dialogue, reply
from tablecast.engine.apply_events import SYNC

WAIT_SECONDS = 300
PIECE = 1_000  # rows per insert
_spawn = get_context("spawn")


# --- events -----------------------------------------------------------------------------------------------------------


def events(path: Path, rounds: int, count: int) -> Iterator[Comparison]:
    """Durable outbox → broker → durable tables, against the same bytes from a loop into a counter."""
    with broker(path) as port:
        turn = iter(range(2 * rounds))
        same = _written(path / "same", count)
        ours, bare = in_turns(
            rounds,
            lambda: _ours(path / f"round-{next(turn)}", port, count),
            lambda: _bare(port, same),
        )
    yield Comparison("events end to end, QoS 1", "paho-mqtt, bare loop", ours, bare, "events/s", 0.6, kind="limit")


def _ours(path: Path, port: int, count: int) -> float:
    path.mkdir()
    _written(path / "sender", count)
    times, may_end = _spawn.Queue(), _spawn.Event()
    receiver = _process(roles.our_receiver, str(path / "receiver"), port, path.name, count, times)
    times.get(timeout=WAIT_SECONDS)
    sender = _process(roles.our_sender, str(path / "sender"), port, path.name, times, may_end)
    seconds = _between(times)
    may_end.set()
    for process in (sender, receiver):
        process.join(WAIT_SECONDS)
    return count / seconds


def _bare(port: int, same: list[bytes]) -> float:
    times = _spawn.Queue()
    receiver = _process(roles.bare_receiver, port, len(same), times)
    times.get(timeout=WAIT_SECONDS)
    sender = _process(roles.bare_sender, port, same, times)
    seconds = _between(times)
    for process in (sender, receiver):
        process.join(WAIT_SECONDS)
    return len(same) / seconds


def _between(times: Any) -> float:
    """Seconds from the sender's beginning to the receiver's end."""
    began, ended = sorted(times.get(timeout=WAIT_SECONDS) for _ in range(2))
    return float(ended - began)


def _process(role: Any, *args: Any) -> Any:
    process = _spawn.Process(target=role, args=args)
    process.start()
    return process


def _written(path: Path, count: int) -> list[bytes]:
    """A database whose outbox has so many events, and their bytes."""
    with tablecast.open(path) as db:
        db.replication.claim_identity("sender")
        _fill(db, count)
        return [entry.data for entry in db.replication.outbox(count)]


def _fill(db: Database, count: int) -> None:
    db.execute_all(roles.SCHEMA)
    for first in range(0, count, PIECE):
        rows = [
            {"id": n, "sensor": f"hall-{n % 50}", "value": n / 8, "unit": "kWh"}
            for n in range(first, min(count, first + PIECE))
        ]
        db.insert("app.readings", rows)


# --- comparing --------------------------------------------------------------------------------------------------------


def comparing(path: Path, count: int, differences: int) -> Iterator[Comparison]:
    """Two databases with the same rows but for a few: the bytes of finding and exchanging those, against all events."""
    with tablecast.open(path / "a") as a, tablecast.open(path / "b") as b:
        a.replication.claim_identity("a")
        b.replication.claim_identity("b")
        _fill(a, count)
        b.execute_all(roles.SCHEMA)
        everything = [entry.data for entry in a.replication.outbox(count)]
        for first in range(0, count, PIECE):
            b.replication.apply(everything[first : first + PIECE])
        for n in range(0, count, count // differences):
            a.execute("UPDATE app.readings SET value = -1.0 WHERE id = ?", [n])
        exchanged = _exchange(b, a)
        assert a.replication.roots() == b.replication.roots()
    full = sum(map(len, everything))
    yield Comparison(
        f"comparing {count:,} rows, {differences} differ",
        "all events",
        exchanged,
        full,
        "bytes",
        0.01,
        at_most=True,
        kind="itself",
    )


def _exchange(asker: Database, peer: Database) -> int:
    """Runs one dialogue as nodes do, and counts the bytes of its messages."""
    dialogue, size = Dialogue(asker.replication.replicas), 0
    while (question := dialogue.question()) is not None:
        assert not isinstance(question, Push), "the asker has nothing new"
        asked = sync.encode(question)
        answer = sync.encode(reply(question, peer.replication.replicas()))
        size += len(asked) + len(answer)
        if events := dialogue.replied(sync.decode_reply(answer)):
            asker.replication.apply(events, source=SYNC)
    return size
