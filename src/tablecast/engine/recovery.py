"""Opening: what a database knows of itself, read back.

Fast, because nothing is scanned but the catalog and the stamps of loads: each partition's counters come from the head
of its last log batch, or from its log start when it holds none. Exact, because all of it was written in the commits
themselves. A load that was cut off is completed first.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TypeVar

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import ChangeStart, CommitMark, LoadStamp, LogStart, Namespace, User, decode_record
from tablecast.codec.changes import decode_change_head
from tablecast.core import failpoint
from tablecast.engine.catalog import DEFAULT_NAMESPACE, Catalog, Stamps
from tablecast.engine.intents import resolve_intent
from tablecast.engine.log import last_head
from tablecast.engine.logs import OUTBOX, LogState, PartitionLog
from tablecast.engine.undo import ChangeIndex, KeptTable
from tablecast.errors import CorruptData
from tablecast.model.pipeline import Pipeline
from tablecast.model.schema import TableSchema
from tablecast.model.topic import Topic
from tablecast.storage.base import Family, Reader, Store

_log = logging.getLogger("tablecast.catalog")


@dataclass(slots=True)
class Recovered:
    catalog: Catalog
    logs: LogState
    changes: ChangeIndex
    mark: CommitMark


def recover(store: Store, now_ms: int) -> Recovered:
    if store.get(Family.META, records.COMMIT_KEY) is None:
        _initialise(store, now_ms)
    failpoint.hit("during_open")
    resolve_intent(store)
    stored = store.get(Family.META, records.COMMIT_KEY)
    if stored is None:
        raise CorruptData("the database has no commit record")
    catalog = load_catalog(store)
    for clash in catalog.alias_clashes():
        _log.warning("%s", clash)
    return Recovered(catalog, load_logs(store, catalog), load_changes(store), decode_record(CommitMark, stored))


def _initialise(store: Store, now_ms: int) -> None:
    batch = store.batch()
    namespace = Namespace(DEFAULT_NAMESPACE, now_ms)
    batch.put(Family.META, records.namespace_key(namespace.name), records.encode_record(namespace))
    batch.put(Family.META, records.COMMIT_KEY, records.encode_record(CommitMark(0, now_ms, -1)))
    store.write(batch)
    store.sync()


def load_catalog(reader: Reader) -> Catalog:
    return Catalog.of(
        _all(reader, records.NAMESPACES, Namespace),
        _all(reader, records.TABLES, TableSchema),
        _all(reader, records.TOPICS, Topic),
        _all(reader, records.USERS, User),
        _all(reader, records.PIPELINES, Pipeline),
        load_stamps(reader),
    )


def load_stamps(reader: Reader) -> dict[int, Stamps]:
    found: dict[int, Stamps] = {}
    for key, value in reader.scan(Family.META, records.LOADS, keys.after(records.LOADS)):
        table_id, number = records.decode_load_key(key)
        stamp = decode_record(LoadStamp, value)
        found.setdefault(table_id, {})[number] = stamp.seq, stamp.ts_ms
    return found


R = TypeVar("R", Namespace, TableSchema, Topic, User, Pipeline)


def _all(reader: Reader, prefix: bytes, kind: type[R]) -> list[R]:
    return [decode_record(kind, value) for _, value in reader.scan(Family.META, prefix, keys.after(prefix))]


def load_logs(reader: Reader, catalog: Catalog) -> LogState:
    logs = LogState()
    for key, value in reader.scan(Family.META, records.LOG_STARTS, keys.after(records.LOG_STARTS)):
        start = decode_record(LogStart, value)
        place = records.decode_log_start_key(key)
        logs.partitions[place] = PartitionLog(start.offset, start.bytes_before, start)
    places = [(topic.topic_id, p) for topic in catalog.topics.values() for p in range(topic.partitions)]
    for place in [*places, OUTBOX]:
        last = last_head(reader, *place)
        if last is not None:
            head, size = last
            log = logs.at(*place)
            log.next_offset, log.bytes_end = head.end_offset, head.bytes_before + size
    return logs


def load_changes(reader: Reader) -> ChangeIndex:
    index = ChangeIndex()
    for key, value in reader.scan(Family.META, records.CHANGE_STARTS, keys.after(records.CHANGE_STARTS)):
        start = decode_record(ChangeStart, value)
        index.tables[records.decode_change_start_key(key)] = KeptTable(start, start.bytes_before)
    for table_id, kept in index.tables.items():
        prefix = keys.table_prefix(table_id)
        for _, value in reader.scan(Family.CHANGES, prefix, keys.after(prefix), reverse=True):
            kept.bytes_end = decode_change_head(value).bytes_before + len(value)
            break
    return index
