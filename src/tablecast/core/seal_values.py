"""What fills the columns that a load does not give: codec.rows.Defaults for whoever seals.

All rows of a load share one NOW(), which its beginning fixes. A UUID_V7 has 74 random bits, so those of different
machines differ. A SNOWFLAKE_ID is unique only where one generator gives them all: the server is one, the executors of a
load are many, so a table whose omitted column needs one is not sealed (`NotSealable`) but loaded as rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import pyarrow as pa

from tablecast.codec.keys import timestamp_from_us
from tablecast.codec.rows import RowCodec
from tablecast.core.columns_cast import nulls, typed_array
from tablecast.core.uuids import RANDOM_BYTES, uuid_v7
from tablecast.errors import NotSealable
from tablecast.model.schema import DefaultKind


class LoadValues:
    """`now_ms` is the load's NOW(); `random` gives that many random bytes."""

    def __init__(self, now_ms: int, user_id: str, random: Callable[[int], bytes] = os.urandom) -> None:
        self._now_ms = now_ms
        self._user_id = user_id
        self._random = random

    def now(self) -> datetime:
        return timestamp_from_us(self._now_ms * 1000)

    def snowflake_id(self) -> int:
        raise NotSealable("a load that is sealed cannot generate SNOWFLAKE_ID(): give the column, or load rows")

    def uuid_v7(self) -> UUID:
        return uuid_v7(self._now_ms, self._random(RANDOM_BYTES))

    def current_user(self) -> str:
        return self._user_id


def default_array(codec: RowCodec, index: int, values: LoadValues, rows: int) -> pa.Array:
    """A column that was not given: its default in every row, NULL if it has none."""
    column = codec.schema.columns[index]
    default = column.default
    if default is None or (default.kind is DefaultKind.LITERAL and default.literal is None):
        return nulls(column.type, rows)
    if default.kind is DefaultKind.UUID_V7:
        return typed_array(column.type, [codec.default_value(index, values) for _ in range(rows)])
    return typed_array(column.type, [codec.default_value(index, values)] * rows)
