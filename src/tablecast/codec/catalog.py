"""Catalog records (family META): version byte 1, then MessagePack.

key                               value
namespace/NAME                    Namespace
table/ID (u32)                    model.schema.TableSchema
topic/ID (u32)                    model.topic.Topic
log-start/TOPIC (u32) PART (u16)  LogStart: where the partition's log begins once something was removed from it
commit                            CommitMark: the last commit, written by every commit
ids                               NextIds: table and topic ids are never reused
job/NAME                          JobRecord: what a job did last
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from tablecast.errors import CorruptData
from tablecast.model.schema import TableSchema
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


Record = Namespace | TableSchema | Topic | LogStart | CommitMark | NextIds | JobRecord
R = TypeVar("R", Namespace, TableSchema, Topic, LogStart, CommitMark, NextIds, JobRecord)

COMMIT_KEY = b"commit"
IDS_KEY = b"ids"
NAMESPACES, TABLES, TOPICS, LOG_STARTS, JOBS = b"namespace/", b"table/", b"topic/", b"log-start/", b"job/"

_ID, _PLACE = struct.Struct(">I"), struct.Struct(">IH")
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
