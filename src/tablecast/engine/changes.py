"""Reading what changed: in one commit, and between a commit and now. For who keeps a view of a table in step.

A `NetChange` is a row before and after. Within one commit, and between two, a row's several changes are one. Rows are told
as they are stored: one whose time is over is a row until the job removes it, and then its removal is a change.

The index is an undo log (codec.changes), so the difference between a commit and now is found by going forwards through the
records since: the first that has a row tells what it was, the table tells what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tablecast.codec import keys
from tablecast.codec.changes import decode_changes
from tablecast.codec.rows import Row
from tablecast.engine.catalog import Table
from tablecast.engine.commit import Commit
from tablecast.storage.base import Family, Reader

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine, Published


class NetChange(NamedTuple):
    """One row's difference; None where there is no row. Not both are None."""

    key: bytes  # the whole storage key
    before: Row | None
    after: Row | None


def commit_changes(commit: Commit, table_id: int) -> list[NetChange]:
    """What the commit did to a table whose changes are kept, each row once, in the order of the first touch.

    Nothing if `commit.unlisted` has the table: then what it did is not known.
    """
    befores = commit.befores.get(table_id)
    if befores is None:
        return []
    table = commit.catalog.tables[table_id]
    afters: dict[bytes, Row] = {}
    for run in commit.runs:
        if run.table_id == table_id:
            afters.update(zip(run.keys, run.after or [None] * len(run.keys), strict=True))
    found = [NetChange(key, _row(table, before), afters.get(key)) for key, before in befores.items()]
    return [change for change in found if change.before is not None or change.after is not None]


def changes_since(
    engine: Engine, published: Published, table: Table, owner: str | None, since: int
) -> list[NetChange] | None:
    """The difference between commit `since` and `published`, of the owner's rows (None: of all), each row once, in the
    order of the last change. None if that is no longer kept, or if `since` has not happened yet.
    """
    if not _is_kept(engine, table, since) or since > published.seq:
        return None
    befores = _befores(engine.store, table, owner, since, published.seq)
    if not _is_kept(engine, table, since):
        return None  # a trim overtook the reading
    afters = published.snapshot.get_many(Family.ROWS, list(befores))
    found = []
    for (key, before), after in zip(befores.items(), afters, strict=True):
        change = NetChange(key, _row(table, before), _row(table, after))
        # Where rows expire, one that was written again is told though its values are equal: it may have been over before.
        if change.before != change.after or (table.ttl_ms is not None and before != after):
            found.append(change)
    return found


def _is_kept(engine: Engine, table: Table, since: int) -> bool:
    start = engine.changes_from(table.table_id)
    return start is not None and start <= since


def _befores(reader: Reader, table: Table, owner: str | None, since: int, upto: int) -> dict[bytes, bytes | None]:
    """What the rows changed after `since` were then, in the order of their last change."""
    prefix = table.codec.prefix(owner)
    found: dict[bytes, bytes | None] = {}
    start, end = keys.change_key(table.table_id, since + 1), keys.change_key(table.table_id, upto + 1)
    for _, value in reader.scan(Family.CHANGES, start, end):
        for key, before in decode_changes(value).items():
            if key.startswith(prefix):
                found[key] = found.pop(key, before)
    return found


def _row(table: Table, stored: bytes | None) -> Row | None:
    return None if stored is None else table.codec.decode(stored)
