"""tablecast: every table write, on every channel, exactly once."""

from tablecast.errors import TablecastError
from tablecast.model.change import Op
from tablecast.model.message import Message
from tablecast.model.position import EARLIEST, LATEST, Start, StartKind
from tablecast.model.schema import Role
from tablecast.sql.aio import AsyncDatabase, open_async
from tablecast.sql.consumer import Consumer, Retry
from tablecast.sql.database import Database, open
from tablecast.sql.plan_topic import Consumed
from tablecast.sql.result import Result
from tablecast.sql.session import Session

__version__ = "0.1.0"

__all__ = [
    "EARLIEST",
    "LATEST",
    "AsyncDatabase",
    "Consumed",
    "Consumer",
    "Database",
    "Message",
    "Op",
    "Result",
    "Retry",
    "Role",
    "Session",
    "Start",
    "StartKind",
    "TablecastError",
    "open",
    "open_async",
]
