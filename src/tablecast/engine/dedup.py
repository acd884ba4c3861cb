"""Dedup windows: a message that says again what its topic heard a moment ago is skipped, and counted.

Per message let through, one entry (family KEYS) remembers when. Its value:

    byte 0      format version, 1
    bytes 1-8   UTC milliseconds, u64 big-endian
"""

from __future__ import annotations

import struct
from hashlib import blake2b

from tablecast.codec import keys
from tablecast.core.routing import Append, picked
from tablecast.engine.decision import Record, RowView
from tablecast.errors import CorruptData
from tablecast.model.topic import Topic
from tablecast.storage.base import Family

DEDUP_DIGEST_BYTES = 16
_SEEN_FORMAT = 1
_SEEN = struct.Struct(">BQ")


def deduplicate(view: RowView, appends: list[Append]) -> tuple[list[Append], list[Record], int]:
    """Drops messages that said the same inside the topic's window, and remembers the others."""
    kept: list[Append] = []
    remembered: dict[bytes, Record] = {}
    found: list[Record] = []
    dropped = 0
    for append in appends:
        topic = view.catalog.topics[append.topic_id]
        if not topic.dedup_window_seconds:
            kept.append(append)
            continue
        fresh = [i for i in range(len(append.keys)) if _is_fresh(view, topic, append, i, remembered, found)]
        dropped += len(append.keys) - len(fresh)
        if fresh:
            kept.append(picked(append, fresh))
    return kept, found, dropped


def _is_fresh(
    view: RowView, topic: Topic, append: Append, i: int, remembered: dict[bytes, Record], found: list[Record]
) -> bool:
    window_ms = topic.dedup_window_seconds * 1000
    key = dedup_key(append, i)
    seen = view.get(Family.KEYS, key)
    if key in remembered or (seen is not None and view.ts_ms - decode_seen(seen) < window_ms):
        return False
    expires = keys.expiry_key(view.ts_ms + window_ms, Family.KEYS, key)
    remembered[key] = (Family.KEYS, key, encode_seen(view.ts_ms))
    found += [remembered[key], (Family.EXPIRY, expires, b"")]
    return True


def dedup_key(append: Append, i: int) -> bytes:
    """What a dedup entry is filed under: topic, then a digest of source table, op, user, key and content.

    A cryptographic digest: two messages taken for one would be a lost event. The user is part of a row's identity:
    in a USER table two people's rows may have one key and say the same.
    """
    said = blake2b(digest_size=DEDUP_DIGEST_BYTES)
    source, op, _, user_id = append.message_class
    for part in (source.encode(), op.label.encode(), (user_id or "").encode(), append.keys[i]):
        said.update(len(part).to_bytes(4, "big"))
        said.update(part)
    said.update(append.payloads[i])
    return b"d" + keys.topic_prefix(append.topic_id) + said.digest()


def encode_seen(ts_ms: int) -> bytes:
    """The value of a dedup entry: when the message was last let through."""
    return _SEEN.pack(_SEEN_FORMAT, ts_ms)


def decode_seen(value: bytes) -> int:
    if len(value) != _SEEN.size or value[0] != _SEEN_FORMAT:
        raise CorruptData(f"a dedup entry is {value.hex()}, which is not format {_SEEN_FORMAT} and a time")
    ts_ms: int = _SEEN.unpack(value)[1]
    return ts_ms
