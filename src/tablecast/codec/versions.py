"""What a replicated table keeps besides its rows: a version per row, and the sums of its hash tree (core.merkle).

Family VERSIONS, one entry per row and per tombstone:

    key      table id (u32), bucket of the row's event key (u16), the row's primary key (codec.keys)
    value    byte 0       format version, 1
             byte 1       0 a row, 1 a tombstone
             bytes 2-9    timestamp_ms, u64 big-endian
             bytes 10-17  seq, u64 big-endian
             rest         node_id, UTF-8

The bucket stands before the primary key, so that the entries of one bucket are one range: what nodes ask each other for.

Family BUCKETS, one entry per bucket that has entries:

    key      table id (u32), bucket (u16)
    value    byte 0       format version, 1
             bytes 1-16   the sum of the entries' digests modulo 2^128, u128 big-endian
             bytes 17-24  how many entries, u64 big-endian
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tablecast.errors import CorruptData
from tablecast.model.replication import Version

VERSION_FORMAT = 1
_KEY = struct.Struct(">IH")
_HEAD = struct.Struct(">BBQQ")
_SUM_BYTES = 16
_SUM_SIZE = 1 + _SUM_BYTES + 8
_TABLE_ID_BYTES = 4


class Kept(NamedTuple):
    """What is kept about a row: the write it is of, and whether that was its end."""

    version: Version
    tombstone: bool


def version_key(table_id: int, bucket: int, row_key: bytes) -> bytes:
    """`row_key` is the row's storage key."""
    return _KEY.pack(table_id, bucket) + row_key[_TABLE_ID_BYTES:]


def decode_version_key(key: bytes) -> tuple[int, int, bytes]:
    """Table id, bucket, and the row's storage key."""
    if len(key) <= _KEY.size:
        raise CorruptData(f"the key {key.hex()} is not that of a version", key=key.hex())
    table_id, bucket = _KEY.unpack_from(key)
    return table_id, bucket, key[:_TABLE_ID_BYTES] + key[_KEY.size :]


def encode_version(kept: Kept) -> bytes:
    version = kept.version
    return _HEAD.pack(VERSION_FORMAT, kept.tombstone, version.timestamp_ms, version.seq) + version.node_id.encode()


def decode_version(value: bytes) -> Kept:
    if len(value) <= _HEAD.size:
        raise CorruptData(f"a version of {len(value)} bytes is shorter than its head and a node's name")
    form, flag, timestamp_ms, seq = _HEAD.unpack_from(value)
    if form != VERSION_FORMAT or flag > 1:
        raise CorruptData(f"a version has format {form} and flag {flag}; this tablecast reads format {VERSION_FORMAT}")
    try:
        return Kept(Version(timestamp_ms, value[_HEAD.size :].decode(), seq), flag == 1)
    except UnicodeDecodeError as e:
        raise CorruptData("a version's node name is not UTF-8") from e


def bucket_key(table_id: int, bucket: int) -> bytes:
    return _KEY.pack(table_id, bucket)


def decode_bucket_key(key: bytes) -> tuple[int, int]:
    if len(key) != _KEY.size:
        raise CorruptData(f"the key {key.hex()} is not that of a bucket", key=key.hex())
    table_id, bucket = _KEY.unpack(key)
    return table_id, bucket


def encode_bucket(digest: int, entries: int) -> bytes:
    return bytes([VERSION_FORMAT]) + digest.to_bytes(_SUM_BYTES, "big") + entries.to_bytes(8, "big")


def decode_bucket(value: bytes) -> tuple[int, int]:
    """The sum of the digests, and how many entries it is of."""
    if len(value) != _SUM_SIZE or value[0] != VERSION_FORMAT:
        raise CorruptData(f"the bucket {value.hex()} is not {_SUM_SIZE} bytes of format {VERSION_FORMAT}")
    return int.from_bytes(value[1 : 1 + _SUM_BYTES], "big"), int.from_bytes(value[1 + _SUM_BYTES :], "big")
