"""Topics and the sources that feed them."""

from __future__ import annotations

import enum

import msgspec

from tablecast.model.change import Op
from tablecast.model.names import full_name_of


class PayloadMode(enum.StrEnum):
    KEY = "key"
    FULL = "full"
    DIFF = "diff"


class Route(msgspec.Struct, frozen=True):
    """One source: SQL's ADD SOURCE of a table for some ops. `filter` and `partition_by` are SQL text."""

    table_id: int
    ops: tuple[Op, ...]
    filter: str | None = None
    partition_by: str | None = None
    payload: PayloadMode = PayloadMode.FULL
    from_seq: int = 0  # the commit that added it; rows of older commits are on the topic only after a backfill
    backfilled: bool = False


class Topic(msgspec.Struct, frozen=True):
    """A topic. `topic_id` is never reused. `alias` is text: in quotes if it keeps its case."""

    topic_id: int
    namespace: str
    name: str
    partitions: int = 1
    alias: str | None = None
    routes: tuple[Route, ...] = ()
    retention_seconds: int | None = None
    retention_max_bytes: int | None = None
    dedup_window_seconds: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    created_ms: int = 0
    updated_ms: int = 0  # when its definition last changed; 0 if an older version wrote it

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def alias_name(self) -> str | None:
        """The full name that the alias is: it stands in the namespace `default`."""
        return None if self.alias is None else full_name_of(self.alias)
