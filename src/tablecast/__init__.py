"""tablecast: every table write, on every channel, exactly once.

The names below are imported when they are first used: `import tablecast` alone loads no database, so that a command
line can answer `--help` at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tablecast.client.asynchronous import AsyncClient, connect_async
    from tablecast.client.consumer import Consumer
    from tablecast.client.consumer_async import AsyncConsumer
    from tablecast.client.live_sync import LiveTable
    from tablecast.client.live_table import AsyncLiveTable
    from tablecast.client.retry import Retry
    from tablecast.client.sync import Client, connect
    from tablecast.codec.result import Result
    from tablecast.errors import TablecastError
    from tablecast.model.change import Op
    from tablecast.model.live import LiveChange
    from tablecast.model.message import Consumed, Message
    from tablecast.model.position import EARLIEST, LATEST, Start, StartKind
    from tablecast.model.schema import Role
    from tablecast.sql.aio import AsyncDatabase, open_async
    from tablecast.sql.database import Database, open  # noqa: A004 - tablecast.open(path), as gzip.open
    from tablecast.sql.session import Session

__version__: str  # that of the installed package: pyproject.toml has it

__all__ = [
    "EARLIEST",
    "LATEST",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDatabase",
    "AsyncLiveTable",
    "Client",
    "Consumed",
    "Consumer",
    "Database",
    "LiveChange",
    "LiveTable",
    "Message",
    "Op",
    "Result",
    "Retry",
    "Role",
    "Session",
    "Start",
    "StartKind",
    "TablecastError",
    "connect",
    "connect_async",
    "open",
    "open_async",
]

_HOMES = {
    "EARLIEST": "tablecast.model.position",
    "LATEST": "tablecast.model.position",
    "AsyncClient": "tablecast.client.asynchronous",
    "AsyncConsumer": "tablecast.client.consumer_async",
    "AsyncDatabase": "tablecast.sql.aio",
    "AsyncLiveTable": "tablecast.client.live_table",
    "Client": "tablecast.client.sync",
    "Consumed": "tablecast.model.message",
    "Consumer": "tablecast.client.consumer",
    "Database": "tablecast.sql.database",
    "LiveChange": "tablecast.model.live",
    "LiveTable": "tablecast.client.live_sync",
    "Message": "tablecast.model.message",
    "Op": "tablecast.model.change",
    "Result": "tablecast.codec.result",
    "Retry": "tablecast.client.retry",
    "Role": "tablecast.model.schema",
    "Session": "tablecast.sql.session",
    "Start": "tablecast.model.position",
    "StartKind": "tablecast.model.position",
    "TablecastError": "tablecast.errors",
    "connect": "tablecast.client.sync",
    "connect_async": "tablecast.client.asynchronous",
    "open": "tablecast.sql.database",
    "open_async": "tablecast.sql.aio",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _installed_version()
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def _installed_version() -> str:
    from importlib.metadata import version

    return version("tablecast")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
