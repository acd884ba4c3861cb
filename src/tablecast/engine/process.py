"""The process that has the database open, as `system.cluster`, `system.metrics` and `system.settings` tell of it.

The engine knows when it was opened. Whether somebody serves it, where, and what is counted there, is told by the server.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import NamedTuple


@cache
def installed_version() -> str | None:
    """Of tablecast; None where it runs without having been installed."""
    try:
        return metadata.version("tablecast")
    except metadata.PackageNotFoundError:
        return None


class MetricSample(NamedTuple):
    """One number of a metric; `kind` is that of the metric: counter, gauge, histogram."""

    name: str
    labels: Mapping[str, str]
    kind: str
    value: float


@dataclass(slots=True)
class Process:
    """Each of these may be asked from any thread."""

    started_ms: int
    host: str = field(default_factory=socket.gethostname)
    address: str | None = None  # where it is served, if it is
    is_draining: Callable[[], bool] = bool
    metrics: Callable[[], Iterable[MetricSample]] = tuple
    settings: tuple[tuple[str, str], ...] = ()  # of the server, by name, without secrets
