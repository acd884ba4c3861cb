"""A request with an idempotency key commits once.

The key, a fingerprint of the request and its answer are records of the same commit as what the request did; a repeat
within a day is answered from them, also after a restart, and one that asks for something else under the same key is
refused. Value: version byte 1, then MessagePack of `Remembered`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tablecast.codec import keys
from tablecast.codec.rows import row_header
from tablecast.engine.decision import Command, Decision, View
from tablecast.engine.rows import Written
from tablecast.errors import CorruptData, IdempotencyMismatch, InvalidRequest
from tablecast.storage.base import Family, Reader

KEPT_MS = 24 * 3600 * 1000
MAX_KEY_BYTES = 255
_FORMAT = 1


class Remembered(msgspec.Struct, frozen=True):
    fingerprint: bytes
    expires_ms: int
    seq: int
    count: int
    table_id: int | None = None
    bodies: list[bytes] = []
    answer: bytes = b""


@dataclass(slots=True)
class Once:
    """Another command, done at most once per key. `table_id` decodes the rows of a RETURNING; `answer` is the caller's
    own account of what the command does, given back with each repeat."""

    key: str
    fingerprint: bytes
    command: Command
    table_id: int | None = None
    answer: bytes = b""

    @property
    def weight(self) -> int:
        return self.command.weight

    def decide(self, view: View) -> Decision:
        repeated = recall(view, self.key, self.fingerprint)
        if repeated is not None:
            return Decision(repeated)
        stored_key = idempotency_key(self.key)
        decision = self.command.decide(view)
        answer: Written = decision.response
        expires = view.ts_ms + KEPT_MS
        bodies: list[bytes] = []
        if answer.rows and self.table_id is not None:
            bodies = [view.catalog.tables[self.table_id].codec.encode(row) for row in answer.rows]
        answer.answer = self.answer
        remembered = Remembered(self.fingerprint, expires, answer.seq, answer.count, self.table_id, bodies, self.answer)
        decision.records += [
            (Family.KEYS, stored_key, encode_remembered(remembered)),
            (Family.EXPIRY, keys.expiry_key(expires, Family.KEYS, stored_key), b""),
        ]
        return decision


@dataclass(slots=True)
class Recall:
    """Asks the writer what a key was answered with: what it knows is durable when it says so."""

    key: str
    fingerprint: bytes
    weight: int = 1

    def decide(self, view: View) -> Decision:
        return Decision(recall(view, self.key, self.fingerprint))


def may_be_known(reader: Reader, key: str) -> bool:
    """False if no request with this key was ever committed, or its day is long over."""
    return reader.get(Family.KEYS, idempotency_key(key)) is not None


def recall(view: View, key: str, fingerprint: bytes) -> Written | None:
    """What the request with this key was answered in the last day; None if there was none."""
    stored = view.get(Family.KEYS, idempotency_key(key))
    remembered = None if stored is None else decode_remembered(stored)
    if remembered is None or remembered.expires_ms <= view.ts_ms:
        return None
    if remembered.fingerprint != fingerprint:
        raise IdempotencyMismatch(
            f"idempotency key {key!r} was used for another request; use a new key for a new request", key=key
        )
    table = view.catalog.tables.get(remembered.table_id) if remembered.table_id is not None else None
    header = row_header(0, 0)
    rows = [table.codec.decode(header + body) for body in remembered.bodies] if table else []
    return Written(remembered.seq, remembered.count, rows, remembered.answer)


def idempotency_key(key: str) -> bytes:
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"idempotency key {key!r} holds a lone surrogate, which is not Unicode text") from None
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise InvalidRequest(f"an idempotency key has 1 to {MAX_KEY_BYTES} bytes, not {len(encoded)}")
    return b"i" + encoded


def encode_remembered(remembered: Remembered) -> bytes:
    return bytes([_FORMAT]) + msgspec.msgpack.encode(remembered)


def decode_remembered(value: bytes) -> Remembered:
    if value[:1] != bytes([_FORMAT]):
        found = value[0] if value else "no byte"
        raise CorruptData(f"an idempotency record has format {found}; this tablecast reads {_FORMAT}")
    try:
        return msgspec.msgpack.decode(value[1:], type=Remembered)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise CorruptData(f"an idempotency record does not decode: {e}") from e
