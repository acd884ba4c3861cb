"""What a server answers to a bulk client, as values."""

from __future__ import annotations

import msgspec

from tablecast.codec.load_plan import Plan, decode_plan
from tablecast.model.schema import TableSchema
from tablecast.model.topic import Route, Topic


class PartitionInfo(msgspec.Struct, frozen=True):
    partition_id: int
    start_offset: int
    end_offset: int
    offset_at_timestamp: int | None = None


class SourceInfo(msgspec.Struct, frozen=True):
    table: str
    op: str
    payload: str
    filter: str | None = None
    partition_by: str | None = None


class TopicInfo(msgspec.Struct, frozen=True):
    topic_id: int
    name: str
    alias: str | None
    partitions: tuple[PartitionInfo, ...]
    sources: tuple[SourceInfo, ...]
    plan: bytes

    @property
    def tables(self) -> tuple[TableSchema, ...]:
        """The schemas of the source tables."""
        return decode_plan(self.plan).tables

    @property
    def routes(self) -> tuple[tuple[Topic, Route], ...]:
        """Its sources in full, each with the topic."""
        return decode_plan(self.plan).routes


class SnapshotOpened(msgspec.Struct, frozen=True):
    """`ranges`: start and end for `read_snapshot`, to be passed on as they are."""

    snapshot_id: str
    seq: int
    ranges: tuple[tuple[str, str | None], ...]
    plan: bytes

    @property
    def table(self) -> TableSchema:
        return decode_plan(self.plan).table


class LoadDone(msgspec.Struct, frozen=True):
    """`already`: it was committed before. `total_rows`: of every batch that the writer has committed into the table; 0 if
    the server is too old to count them."""

    seq: int
    row_count: int
    already: bool = False
    total_rows: int = 0


class LoadBegun(msgspec.Struct, frozen=True):
    """`created_ms` and `user_id`: the load's NOW() and CURRENT_USER(), for whoever seals its rows."""

    load_id: str
    load_number: int
    committed: LoadDone | None
    plan: bytes
    created_ms: int = 0
    user_id: str = ""

    @property
    def decoded_plan(self) -> Plan:
        return decode_plan(self.plan)

    @property
    def table(self) -> TableSchema:
        return self.decoded_plan.table

    @property
    def routes(self) -> tuple[tuple[Topic, Route], ...]:
        """The table's insert routes."""
        return self.decoded_plan.routes


class PartStaged(msgspec.Struct, frozen=True):
    part: int
    attempt: str
    rows: int
    bytes: int
