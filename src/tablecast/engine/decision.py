"""The contract of deciding: what a command may read, and what it answers.

A command is a value. `decide` reads a `View` and returns a `Decision`: rows changed, messages, records, a response. It
changes nothing; whoever called it takes the decision in (`engine.commit`), whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tablecast.codec.catalog import ChangeStart, LoadIntent, LogStart
from tablecast.core.merkle import Sum
from tablecast.core.routing import Append
from tablecast.engine.catalog import Catalog
from tablecast.engine.undo import KeptTable
from tablecast.errors import TablecastError
from tablecast.model.change import ChangeRun
from tablecast.storage.base import Family

Record = tuple[Family, bytes, bytes | None]  # None removes the key
Records = tuple[Family, list[bytes], list[bytes]]  # many of one family: keys, values
Sums = dict[tuple[int, int], Sum]  # (table, bucket) -> by how much its sum changes


class RowView(Protocol):
    """What deciding about rows may read: the state as of everything decided before."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def seq(self) -> int: ...
    @property
    def ts_ms(self) -> int: ...
    def get(self, family: Family, key: bytes) -> bytes | None: ...
    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]: ...
    def are_new(self, prefix: bytes, lowest: bytes, keys: Sequence[bytes]) -> bool:
        """True only if no row has any of these keys, which all begin with `prefix`, and of which `lowest` is the first in
        order. False: they must be looked up."""
        ...

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """As `Reader.scan`; `floor` sees only what is already written."""
        ...


class View(RowView, Protocol):
    """And about logs. Messages of this very commit are counted by `log_end` only: they cannot be read yet."""

    def log_start(self, topic_id: int, partition: int) -> int: ...
    def log_end(self, topic_id: int, partition: int) -> int: ...
    def written_end(self, topic_id: int, partition: int) -> int: ...
    def written_bytes(self, topic_id: int, partition: int) -> int:
        """Bytes of log ever written to the partition."""
        ...

    def kept_changes(self, table_id: int) -> KeptTable | None:
        """What is kept of the table's changes, as of the commits before this one; None if nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a partition's log ends after messages that were encoded elsewhere."""

    offset: int
    bytes: int
    appended: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """A sealed load on its way into a commit. Its log batches are in `records` of the decision, or in files."""

    table_id: int
    load_number: int
    rows: int
    ts_ms: int
    first_key: bytes
    last_key: bytes
    ends: dict[tuple[int, int], LogEnd]
    intent: LoadIntent | None  # None: everything is in the batch


@dataclass(slots=True)
class Decision:
    """What a command does and answers."""

    response: Any = None
    runs: list[ChangeRun] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)  # messages of rows that do not change: a backfill
    letters: list[Append] = field(default_factory=list)  # dead letters, and what is sent back: never a repeat
    expired: dict[bytes, bytes] = field(default_factory=dict)  # rows whose time is over, with their keys: they go
    records: list[Record] = field(default_factory=list)
    bulk: list[Records] = field(default_factory=list)  # likewise
    ranges: list[tuple[Family, bytes, bytes]] = field(default_factory=list)
    catalog: Catalog | None = None
    log_starts: dict[tuple[int, int], LogStart] = field(default_factory=dict)
    loaded: Loaded | None = None  # only of a command that is alone
    untold: list[ChangeRun] = field(default_factory=list)  # rows that stay as they are, and are told to other nodes
    arrived: bool = False  # rows of other nodes, whose versions are among the records: nothing for the outbox
    sums: Sums = field(default_factory=dict)  # of the versions among the records
    change_starts: dict[int, ChangeStart | None] = field(default_factory=dict)  # None: no longer kept; only if alone


class Command(Protocol):
    """A typed request to the writer. `weight` is about how many rows it touches.

    One that has `alone = True` gets a commit of its own.
    """

    @property
    def weight(self) -> int: ...
    def decide(self, view: View) -> Decision: ...


class StalePlan(TablecastError):
    """The table changed between planning a statement and deciding it. The caller plans again; users never see it."""

    code = "stale_plan"
    retryable = True
