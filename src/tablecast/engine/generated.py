"""Values a statement or a load generates: NOW(), SNOWFLAKE_ID(), UUID_V7(), CURRENT_USER().

All rows of one statement share one NOW().
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

from tablecast.codec.keys import timestamp_from_us
from tablecast.core.snowflake import SnowflakeIds
from tablecast.core.uuids import RANDOM_BYTES, uuid_v7


class StatementValues:
    """Implements codec.rows.Defaults for one statement."""

    __slots__ = ("_clock", "_ids", "_now", "_user")

    def __init__(self, clock: Callable[[], int], ids: SnowflakeIds, user: str) -> None:
        self._clock = clock
        self._ids = ids
        self._user = user
        self._now: datetime | None = None

    def now(self) -> datetime:
        if self._now is None:
            self._now = timestamp_from_us(self._clock() * 1000)
        return self._now

    def snowflake_id(self) -> int:
        return self._ids.take(self._clock())

    def uuid_v7(self) -> UUID:
        return uuid_v7(self._clock(), os.urandom(RANDOM_BYTES))

    def current_user(self) -> str:
        return self._user
