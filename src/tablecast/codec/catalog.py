"""Catalog records (family META): version byte 1, then MessagePack.

key                               value
namespace/NAME                    Namespace
table/ID (u32)                    model.schema.TableSchema
topic/ID (u32)                    model.topic.Topic
log-start/TOPIC (u32) PART (u16)  LogStart: where the partition's log begins once something was removed from it
commit                            CommitMark: the last commit, written by every commit
ids                               NextIds: table and topic ids are never reused
job/NAME                          JobRecord: what a job did last
user/NAME                         User: an account
dropped-user/NAME                 DroppedUser: an account that is gone, but left rows
audit/COMMIT (u64) NUMBER (u32)   AuditEntry: numbered from 0 within its commit
pipeline/NAME                     model.pipeline.Pipeline, under its full name
load/TABLE (u32) NUMBER (u64)     LoadStamp: which commit a sealed load became
load-writer/TABLE (u32) WRITER    LoadWriter: the last batch that a writer loaded into a table
load-intent                       LoadIntent: files that the last commit takes in; gone with the next commit
change-start/TABLE (u32)          ChangeStart: the table's changes are kept, from here on
history                           History: of what commit numbers are numbers
node                              model.replication.Node: who this database is among its peers
outbox                            model.replication.OutboxMark: how far its events were published
seen/NODE                         model.replication.SeenEvents: which events of another node were taken in
quarantine/NUMBER (u64)           model.replication.Quarantined: an event that was set aside
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from tablecast.errors import CorruptData
from tablecast.model.pipeline import Pipeline
from tablecast.model.replication import Node, OutboxMark, Quarantined, SeenEvents
from tablecast.model.schema import Role, TableSchema
from tablecast.model.topic import Topic

RECORD_FORMAT = 1


class Namespace(msgspec.Struct, frozen=True):
    name: str
    created_ms: int = 0


class LogStart(msgspec.Struct, frozen=True):
    """The first offset still kept, and how many log bytes and messages went before it."""

    offset: int
    bytes_before: int = 0


class CommitMark(msgspec.Struct, frozen=True):
    seq: int
    ts_ms: int
    last_id: int


class NextIds(msgspec.Struct, frozen=True):
    table: int = 1
    topic: int = 1
    load: int = 1


class JobRecord(msgspec.Struct, frozen=True):
    """One row of system.jobs."""

    name: str
    status: str
    started_ms: int
    finished_ms: int | None = None
    runs: int = 0
    removed: int = 0
    bytes_freed: int = 0
    error: str | None = None


class User(msgspec.Struct, frozen=True):
    """An account. `password` is an argon2id hash; without one nobody signs in as this user. `token_epoch` is the commit
    that last changed password or role."""

    name: str
    role: Role
    password: str | None = None
    created_ms: int = 0
    changed_ms: int = 0
    token_epoch: int = 0

    def __repr__(self) -> str:
        return f"User({self.name!r}, {self.role.name}, token_epoch={self.token_epoch})"  # the hash is nobody's business


class DroppedUser(msgspec.Struct, frozen=True):
    name: str
    dropped_ms: int


class AuditEntry(msgspec.Struct, frozen=True):
    """One row of system.audit_log; its commit number is in its key. No role: somebody who did not sign in."""

    user: str
    role: Role | None
    action: str
    target: str
    outcome: str
    detail: str = ""
    request_id: str | None = None
    time_ms: int = 0


class LoadStamp(msgspec.Struct, frozen=True):
    """What the headers of a sealed load's rows stand for. `rows` is how many it brought."""

    seq: int
    ts_ms: int
    rows: int = 0


class LoadWriter(msgspec.Struct, frozen=True):
    """Batches up to `batch_id` are done. `seq`, `rows` and `ts_ms` are of that batch, `total_rows` of all of them (0 in a
    record older than the field)."""

    writer_id: str
    batch_id: int
    seq: int
    rows: int
    ts_ms: int
    total_rows: int = 0


class LoadIntent(msgspec.Struct, frozen=True):
    """What the commit `seq` takes in besides its batch: files in staging, by family. `row_key` and `log_key` are keys
    that are in the store once that has happened; empty if the family gets no file."""

    load_id: str
    seq: int
    row_files: tuple[str, ...] = ()
    log_files: tuple[str, ...] = ()
    row_key: bytes = b""
    log_key: bytes = b""
    load_number: int = 0


class ChangeStart(msgspec.Struct, frozen=True):
    """The changes of every commit after `from_seq` are kept. `bytes_before` of the table's change records went before."""

    from_seq: int
    bytes_before: int = 0


class History(msgspec.Struct, frozen=True):
    """Commit numbers of the same id are numbers of the same commits. `ends` says that the next opening begins another."""

    id: str
    ends: bool = False


Record = (
    Pipeline | Namespace | TableSchema | Topic | LogStart | CommitMark | NextIds | JobRecord | User | DroppedUser | AuditEntry
    | LoadStamp | LoadWriter | LoadIntent | ChangeStart | History | Node | OutboxMark | SeenEvents | Quarantined
)  # fmt: skip
R = TypeVar(
    "R", Pipeline, Namespace, TableSchema, Topic, LogStart, CommitMark, NextIds, JobRecord, User, DroppedUser, AuditEntry,
    LoadStamp, LoadWriter, LoadIntent, ChangeStart, History, Node, OutboxMark, SeenEvents, Quarantined,
)  # fmt: skip

COMMIT_KEY = b"commit"
IDS_KEY = b"ids"
NAMESPACES, TABLES, TOPICS, LOG_STARTS, JOBS = b"namespace/", b"table/", b"topic/", b"log-start/", b"job/"
LOADS, LOAD_WRITERS, INTENT_KEY = b"load/", b"load-writer/", b"load-intent"
USERS, DROPPED_USERS, AUDIT = b"user/", b"dropped-user/", b"audit/"
PIPELINES = b"pipeline/"
CHANGE_STARTS = b"change-start/"
HISTORY_KEY = b"history"
NODE_KEY, OUTBOX_KEY, SEEN, QUARANTINE = b"node", b"outbox", b"seen/", b"quarantine/"

_ID, _PLACE, _ENTRY = struct.Struct(">I"), struct.Struct(">IH"), struct.Struct(">QI")
_LOAD = struct.Struct(">IQ")
_NUMBER = struct.Struct(">Q")
_encode = msgspec.msgpack.Encoder().encode


def encode_record(record: Record) -> bytes:
    return bytes([RECORD_FORMAT]) + _encode(record)


def decode_record(kind: type[R], data: bytes) -> R:
    if not data or data[0] != RECORD_FORMAT:
        found = data[0] if data else "nothing"
        raise CorruptData(f"a {kind.__name__} record has format {found}; this tablecast reads {RECORD_FORMAT}")
    try:
        return msgspec.msgpack.decode(data[1:], type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise CorruptData(f"a {kind.__name__} record does not decode: {e}") from e


def namespace_key(name: str) -> bytes:
    return NAMESPACES + name.encode()


def table_key(table_id: int) -> bytes:
    return TABLES + _ID.pack(table_id)


def topic_key(topic_id: int) -> bytes:
    return TOPICS + _ID.pack(topic_id)


def log_start_key(topic_id: int, partition: int) -> bytes:
    return LOG_STARTS + _PLACE.pack(topic_id, partition)


def decode_log_start_key(key: bytes) -> tuple[int, int]:
    if len(key) != len(LOG_STARTS) + _PLACE.size:
        raise CorruptData(f"the key {key!r} is not that of a log start")
    topic_id, partition = _PLACE.unpack_from(key, len(LOG_STARTS))
    return topic_id, partition


def job_key(name: str) -> bytes:
    return JOBS + name.encode()


def user_key(name: str) -> bytes:
    return USERS + name.encode()


def dropped_user_key(name: str) -> bytes:
    return DROPPED_USERS + name.encode()


def pipeline_key(full_name: str) -> bytes:
    return PIPELINES + full_name.encode()


def load_key(table_id: int, load_number: int) -> bytes:
    return LOADS + _LOAD.pack(table_id, load_number)


def decode_load_key(key: bytes) -> tuple[int, int]:
    if len(key) != len(LOADS) + _LOAD.size:
        raise CorruptData(f"the key {key!r} is not that of a load")
    table_id, load_number = _LOAD.unpack_from(key, len(LOADS))
    return table_id, load_number


def load_writer_key(table_id: int, writer_id: str) -> bytes:
    return LOAD_WRITERS + _ID.pack(table_id) + writer_id.encode()


def change_start_key(table_id: int) -> bytes:
    return CHANGE_STARTS + _ID.pack(table_id)


def decode_change_start_key(key: bytes) -> int:
    if len(key) != len(CHANGE_STARTS) + _ID.size:
        raise CorruptData(f"the key {key!r} is not that of a change start")
    table_id: int = _ID.unpack_from(key, len(CHANGE_STARTS))[0]
    return table_id


def seen_key(node_id: str) -> bytes:
    return SEEN + node_id.encode()


def quarantine_key(number: int) -> bytes:
    return QUARANTINE + _NUMBER.pack(number)


def audit_key(seq: int, number: int) -> bytes:
    return AUDIT + _ENTRY.pack(seq, number)


def decode_audit_key(key: bytes) -> tuple[int, int]:
    if len(key) != len(AUDIT) + _ENTRY.size:
        raise CorruptData(f"the key {key!r} is not that of an audit entry")
    seq, number = _ENTRY.unpack_from(key, len(AUDIT))
    return seq, number
