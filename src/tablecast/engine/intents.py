"""Files that a commit takes in besides its batch, so that a crash leaves all of the commit or nothing.

RocksDB takes files in family by family, and not together with a batch. So the commit of a sealed load goes in steps:

    1. the batch: the commit mark, the load's records and its intent, which names the files     written, then SYNCED
    2. the files of ROWS                                                                        durable when taken in
    3. the files of LOG                                                                         durable when taken in
    4. published, acknowledged
    5. the next commit, whatever it is, removes the intent

What was decided is durable after step 1 and visible only after step 3. An intent that is there at opening therefore
means that its commit is the last one, and that the files may or may not have been taken in. Whether a family has them
is one lookup, because all files of a family come at once; if not, they are taken in now. The files stay in staging
until the intent is gone. Nothing is written while the steps are under way, and no backup is made: `Writer.taking_in`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tablecast.codec.catalog import INTENT_KEY, LoadIntent, decode_record
from tablecast.codec.log import decode_head
from tablecast.codec.rows import row_load
from tablecast.core import failpoint
from tablecast.engine.decision import Decision, View
from tablecast.errors import CorruptData
from tablecast.storage.base import Family, Reader, Store


def stored_intent(reader: Reader | View) -> LoadIntent | None:
    stored = reader.get(Family.META, INTENT_KEY)
    return None if stored is None else decode_record(LoadIntent, stored)


def take_in(store: Store, intent: LoadIntent) -> None:
    """Steps 1 (its second half) to 3."""
    store.sync()
    failpoint.hit("before_ingest")
    for family, paths in _files(store, intent):
        store.ingest(family, paths)
        failpoint.hit("during_ingest")


def resolve_intent(store: Store) -> None:
    """At opening: the last commit is made whole."""
    intent = stored_intent(store)
    if intent is None:
        return
    store.sync()
    for family, paths in _files(store, intent):
        if _is_in(store, family, intent):
            continue
        missing = [path for path in paths if not Path(path).is_file()]
        if missing:
            raise CorruptData(
                f"commit {intent.seq} takes in {missing[0]}, which is gone: restore a backup, or put the file back",
                path=missing[0],
                seq=intent.seq,
            )
        store.ingest(family, paths)
        failpoint.hit("during_resolve")
    batch = store.batch()
    batch.delete(Family.META, INTENT_KEY)
    store.write(batch)
    store.sync()


def _files(store: Store, intent: LoadIntent) -> Iterator[tuple[Family, list[str]]]:
    directory = Path(store.staging(), intent.load_id)
    for family, names in ((Family.ROWS, intent.row_files), (Family.LOG, intent.log_files)):
        if names:
            yield family, [str(directory / name) for name in names]


def _is_in(store: Store, family: Family, intent: LoadIntent) -> bool:
    found = store.get(family, intent.row_key if family is Family.ROWS else intent.log_key)
    if found is None:
        return False
    if family is Family.ROWS:
        return row_load(found) == intent.load_number
    return decode_head(found).seq == intent.seq


class ForgetIntent:
    """Makes a commit, if the intent of this load is still there, so that its files can go. Any other does it too."""

    weight = 1

    def __init__(self, load_id: str) -> None:
        self._load_id = load_id

    def decide(self, view: View) -> Decision:
        intent = stored_intent(view)
        if intent is None or intent.load_id != self._load_id:
            return Decision()
        return Decision(records=[(Family.META, INTENT_KEY, None)])
