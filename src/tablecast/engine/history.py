"""Of what commit numbers are numbers: the id of a database's history.

Somebody who was told commits, and comes back with the number of the last one, must mean a commit that this database has.
The number alone does not say so. Commits that were told may be gone, and their numbers used again for others:

    a backup         is older than the database it was taken of, which goes on
    durability       weaker than fsync: the machine may crash and take commits with it that were told

So a number goes with the id of its history, and a database begins another history when it may have lost some of the one
before. That is not found out but foreseen: while it may happen, the stored record says that the history `ends`, and
whoever opens the store next begins another. A clean close takes that back.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from tablecast.codec.catalog import HISTORY_KEY, History, decode_record, encode_record
from tablecast.storage.base import Family, Store

ID_BYTES = 8  # at random: no two histories of a database, nor of any two that a reader may take for one, are the same


def open_history(store: Store, *, may_lose: bool) -> History:
    """That of a store which is being opened. `may_lose`: commits that were told, if the machine crashes."""
    stored = store.get(Family.META, HISTORY_KEY)
    found = None if stored is None else decode_record(History, stored)
    history = History(_new_id() if found is None or found.ends else found.id, ends=may_lose)
    if history != found:
        _put(store, history)
    return history


def begin_history(store: Store, history: History) -> History:
    """For a database that is known to lack commits of the one it had."""
    begun = History(_new_id(), history.ends)
    _put(store, begun)
    return begun


def close_history(store: Store, history: History) -> None:
    """Everything that was told is durable, and nothing more will be told."""
    if history.ends:
        _put(store, History(history.id))


@contextmanager
def ended_in_copies(store: Store, history: History) -> Iterator[None]:
    """A copy made inside begins a history of its own when it is opened; the store itself goes on with the one it has."""
    _put(store, History(history.id, ends=True))
    try:
        yield
    finally:
        _put(store, history)


def _new_id() -> str:
    return secrets.token_hex(ID_BYTES)


def _put(store: Store, history: History) -> None:
    batch = store.batch()
    batch.put(Family.META, HISTORY_KEY, encode_record(history))
    store.write(batch)
    store.sync()
