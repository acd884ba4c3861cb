"""Values a statement generates: NOW(), SNOWFLAKE_ID(), UUID_V7(), CURRENT_USER().

All rows of one statement share one NOW(). In trees that are compiled, each such call becomes a parameter, so that the
evaluator stays a pure function.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlglot import exp

from tablecast.codec.keys import timestamp_from_us
from tablecast.core.snowflake import SnowflakeIds

GENERATED = ("now", "snowflake_id", "uuid_v7", "current_user")


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
        return uuid_v7(self._clock())

    def current_user(self) -> str:
        return self._user


def uuid_v7(now_ms: int) -> UUID:
    """RFC 9562: 48 bits of milliseconds, then random bits."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (now_ms & (1 << 48) - 1) << 80 | random & (1 << 80) - 1
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    return UUID(int=value)


def generator_name(node: exp.Expr) -> str | None:
    """Which generated value a call stands for, if any."""
    if isinstance(node, exp.CurrentTimestamp):
        return "now"
    if isinstance(node, exp.CurrentUser):
        return "current_user"
    if isinstance(node, exp.Anonymous | exp.Func):
        name = str(node.name if isinstance(node, exp.Anonymous) else node.sql_name()).lower()
        return name if name in GENERATED and not node.expressions else None
    return None


def lift_generated(
    tree: exp.Expr, first_number: int, lifted: tuple[str, ...] = GENERATED
) -> tuple[exp.Expr, list[str]]:
    """The tree with each generating call replaced by a parameter, numbered from `first_number` on, and their names."""
    names: list[str] = []
    if not any(generator_name(node) in lifted for node in tree.walk()):
        return tree, names

    def lift(node: exp.Expr) -> exp.Expr:
        name = generator_name(node)
        if name is None or name not in lifted:
            return node
        names.append(name)
        return exp.Placeholder(this=str(first_number + len(names) - 1))

    return tree.copy().transform(lift), names


def generate(values: StatementValues, names: list[str]) -> tuple[Any, ...]:
    return tuple(getattr(values, name)() for name in names)
