"""A hash tree over the versions of one replicated table: two nodes find what differs without sending what is equal.

    level 0          one root
    level 1, 2       16 and 256 nodes, each the sum of its 16 children
    level 3          4,096 buckets; an entry lies in the one that its key's hash names

An entry is (key, version, tombstone). A bucket holds how many entries it has and the sum, modulo 2^128, of their
digests. A sum knows no order and can be taken back, so a write changes it by subtracting the old entry and adding the
new one, in its own commit and without looking at the rest of the bucket. Inner nodes are sums of buckets and are
computed when somebody asks.

A node of the tree is named by its level and its index in it, from 0. The children of (level, index) are the sixteen nodes
(level + 1, 16 * index), … to which its buckets belong.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

from tablecast.model.replication import Version

DEPTH: Final = 3
FANOUT: Final = 16
BUCKETS: Final = FANOUT**DEPTH
_BUCKET_SHIFT: Final = 64 - 12  # the first 12 bits of the hash
_MODULUS_MASK: Final = 2**128 - 1
_ENTRY = struct.Struct(">IQQB")


class Sum(NamedTuple):
    """What a node of the tree says of its entries. Equal sums: equal entries, but for one chance in 2^128."""

    digest: int = 0
    entries: int = 0

    def __add__(self, other: Sum) -> Sum:  # type: ignore[override]  # of two sums, not of two tuples
        return Sum((self.digest + other.digest) & _MODULUS_MASK, self.entries + other.entries)

    def __sub__(self, other: Sum) -> Sum:
        return Sum((self.digest - other.digest) & _MODULUS_MASK, self.entries - other.entries)


NOTHING: Final = Sum()


def bucket_of(key: str) -> int:
    bucket: int = xxh3_64_intdigest(key.encode()) >> _BUCKET_SHIFT
    return bucket


def entry_sum(key: str, version: Version, tombstone: bool) -> Sum:
    """The sum of a single entry. The key's length comes first, so that no two entries are written alike."""
    encoded = key.encode()
    head = _ENTRY.pack(len(encoded), version.timestamp_ms, version.seq, tombstone)
    return Sum(xxh3_128_intdigest(head + encoded + version.node_id.encode()), 1)


def buckets_below(level: int, index: int) -> range:
    """The buckets that a node of the tree is the sum of."""
    width = FANOUT ** (DEPTH - level)
    return range(index * width, (index + 1) * width)


def node_sum(buckets: Mapping[int, Sum], level: int, index: int) -> Sum:
    """`buckets` need not hold empty ones."""
    found = [buckets[bucket] for bucket in buckets_below(level, index) if bucket in buckets]
    return Sum(sum(total.digest for total in found) & _MODULUS_MASK, sum(total.entries for total in found))


def children(buckets: Mapping[int, Sum], level: int, index: int) -> list[Sum]:
    """What is right below an inner node."""
    first = index * FANOUT
    return [node_sum(buckets, level + 1, child) for child in range(first, first + FANOUT)]
