"""Who is measured: version, where it comes from, how it was set, and what a write that it acknowledged survives.

The settings are those that the benchmarks really start each side with; nothing is told twice.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import tablecast
from bench.measure import NotInstalled
from bench.peers import PRAGMAS


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    version: str
    client: str
    settings: str
    acknowledged: str  # what a write survives once it is answered


def sides() -> list[dict[str, Any]]:
    """Without those whose Python client is not installed: their rows say so."""
    found = []
    for side in (_tablecast, _postgres, _jetstream, _lazy_jetstream, _redis, _sqlite, _mosquitto, _spark):
        try:
            found.append(asdict(side()))
        except ModuleNotFoundError:
            continue
    return found


def _tablecast() -> Side:
    return Side(
        "tablecast", tablecast.__version__,
        "its SDK over HTTP: one client for all callers, which sends together what comes together; or embedded",
        "as it comes; limits of requests per second raised", "kill and power cut: fsync before the answer",
    )  # fmt: skip


def _postgres() -> Side:
    from bench.server.postgres import SETTINGS, executable

    return Side(
        "PostgreSQL + outbox", _said(lambda: [executable(), "--version"]), f"asyncpg {_package('asyncpg')}, a connection per caller",
        _listed(SETTINGS, " = "), "kill and power cut: fsync before the answer (synchronous_commit = on)",
    )  # fmt: skip


def _jetstream() -> Side:
    from bench.server.jetstream import EACH, executable

    return Side(
        "NATS JetStream, synced", _said(lambda: [executable(), "--version"]),
        f"nats-py {_package('nats-py')}, a connection per caller",
        f"file storage{EACH}", "kill and power cut: fsync before the answer",
    )  # fmt: skip


def _lazy_jetstream() -> Side:
    synced = _jetstream()
    return Side(
        "NATS JetStream, as it comes", synced.version, synced.client, "file storage, sync_interval 2m (its default)",
        "kill; a power cut loses up to two minutes",
    )  # fmt: skip


def _redis() -> Side:
    from bench.server.redis_streams import SETTINGS, executable

    return Side(
        "Redis Streams", _said(lambda: [executable(), "--version"]), f"redis-py {_package('redis')}, a connection per caller",
        _listed(SETTINGS, " "), "kill and power cut: fsync before the answer (appendfsync always)",
    )  # fmt: skip


def _sqlite() -> Side:
    return Side(
        "SQLite + outbox", sqlite3.sqlite_version, "Python's sqlite3, a connection per thread", _listed(PRAGMAS, " = "),
        "kill and power cut: fsync before COMMIT returns (synchronous = FULL)",
    )  # fmt: skip


def _mosquitto() -> Side:
    from bench.edge.broker import mosquitto

    return Side(
        "mosquitto, paho in a bare loop", _said(lambda: [mosquitto(), "-h"]), f"paho-mqtt {_package('paho-mqtt')}",
        "QoS 1, 100 in flight, nothing dropped", "nothing: the broker keeps its queue in memory, the loop counts in memory",
    )  # fmt: skip


def _spark() -> Side:
    return Side(
        "Spark with Parquet", _package("pyspark"), "the same session of local[2]", "as it comes",
        "kill; Spark does not fsync the files it writes",
    )  # fmt: skip


def _listed(settings: dict[str, str], between: str) -> str:
    return ", ".join(f"{name}{between}{value or '(none)'}" for name, value in settings.items())


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _said(command: Callable[[], list[str]]) -> str:
    """The version in what a program says of itself."""
    try:
        said = subprocess.run(command(), check=False, capture_output=True, text=True)
    except NotInstalled as e:
        return str(e)
    found = re.search(r"\d+\.\d+(\.\d+)?", said.stdout + said.stderr)
    return found[0] if found else "unknown"
