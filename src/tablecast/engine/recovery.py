"""Opening: what a database knows of itself, read back.

Fast, because nothing is scanned but the catalog and the stamps of loads: each partition's counters come from the head
of its last log batch, or from its log start when it holds none. Exact, because all of it was written in the commits
themselves. A load that was cut off is completed first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import CommitMark, LoadStamp, LogStart, Namespace, User, decode_record
from tablecast.core import failpoint
from tablecast.engine.catalog import DEFAULT_NAMESPACE, Catalog, Stamps
from tablecast.engine.intents import resolve_intent
from tablecast.engine.log import last_head
from tablecast.engine.logs import LogState, PartitionLog
from tablecast.errors import CorruptData
from tablecast.model.pipeline import Pipeline
from tablecast.model.schema import TableSchema
from tablecast.model.topic import Topic
from tablecast.storage.base import Family, Reader, Store


@dataclass(slots=True)
class Recovered:
    catalog: Catalog
    logs: LogState
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
    return Recovered(catalog, load_logs(store, catalog), decode_record(CommitMark, stored))


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
    for topic in catalog.topics.values():
        for partition in range(topic.partitions):
            last = last_head(reader, topic.topic_id, partition)
            if last is not None:
                head, size = last
                log = logs.at(topic.topic_id, partition)
                log.next_offset, log.bytes_end = head.end_offset, head.bytes_before + size
    return logs
