"""A request with an idempotency key commits once.

The key, a fingerprint of the request and its answer are records of the same commit as what the request did; a repeat
within a day is answered from them, also after a restart, and one that asks for something else under the same key is
refused. A key belongs to its user: two users may choose the same one.

Key: the byte "i", the user as a key's text, the client's key. Value: version byte 1, then MessagePack of `Remembered`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tablecast.codec import keys
from tablecast.codec.rows import row_header
from tablecast.engine.decision import Command, Decision, Record, View
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

    user: str
    key: str
    fingerprint: bytes
    command: Command
    table_id: int | None = None
    answer: bytes = b""

    @property
    def weight(self) -> int:
        return self.command.weight

    def decide(self, view: View) -> Decision:
        known = recall(view, self.user, self.key, self.fingerprint)
        if known is not None:
            return Decision(known.written)
        decision = self.command.decide(view)
        decision.records += self._remembered(view, idempotency_key(self.user, self.key), decision.response)
        return decision

    @property
    def together(self) -> tuple[str, Any] | None:
        """As for the command itself: see `InsertRows.together`."""
        kind = getattr(self.command, "together", None)
        return None if kind is None else ("once", kind)

    @staticmethod
    def decide_together(commands: Sequence[Once], view: View) -> Decision | None:
        """One decision for many requests; None if any of them may have been here before."""
        stored_keys = [idempotency_key(once.user, once.key) for once in commands]
        if len(set(stored_keys)) < len(stored_keys) or any(view.get_many(Family.KEYS, stored_keys)):
            return None
        inner: Any = commands[0].command
        decision: Decision | None = inner.decide_together([once.command for once in commands], view)
        if decision is not None:
            for once, stored_key, answer in zip(commands, stored_keys, decision.response, strict=True):
                decision.records += once._remembered(view, stored_key, answer)
        return decision

    def _remembered(self, view: View, stored_key: bytes, answer: Written) -> list[Record]:
        expires = view.ts_ms + KEPT_MS
        bodies: list[bytes] = []
        if answer.rows and self.table_id is not None:
            bodies = [view.catalog.tables[self.table_id].codec.encode(row) for row in answer.rows]
        assert answer.seq is not None, "the writer decides it, in a commit"
        answer.answer = self.answer
        remembered = Remembered(self.fingerprint, expires, answer.seq, answer.count, self.table_id, bodies, self.answer)
        return [
            (Family.KEYS, stored_key, encode_remembered(remembered)),
            (Family.EXPIRY, keys.expiry_key(expires, Family.KEYS, stored_key), b""),
        ]


@dataclass(slots=True)
class Known:
    """What a request was answered, and the table that `written.rows` are of: they are lost if it was dropped."""

    written: Written
    table_id: int | None


@dataclass(slots=True)
class Recall:
    """Asks the writer what a key was answered with (`Known` or None): what it knows is durable when it says so."""

    user: str
    key: str
    fingerprint: bytes
    weight: int = 1

    def decide(self, view: View) -> Decision:
        return Decision(recall(view, self.user, self.key, self.fingerprint))


def may_be_known(reader: Reader, user: str, key: str) -> bool:
    """False if no request with this key was ever committed, or its day is long over."""
    return reader.get(Family.KEYS, idempotency_key(user, key)) is not None


def recall(view: View, user: str, key: str, fingerprint: bytes) -> Known | None:
    """What the request with this key was answered in the last day; None if there was none."""
    stored = view.get(Family.KEYS, idempotency_key(user, key))
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
    return Known(Written(remembered.seq, remembered.count, rows, remembered.answer), remembered.table_id)


def idempotency_key(user: str, key: str) -> bytes:
    return idempotency_keys(user, (key,))[0]


def idempotency_keys(user: str, given: Sequence[str]) -> list[bytes]:
    prefix = b"i" + keys.encode_text(user)
    return [prefix + _checked(key) for key in given]


def _checked(key: str) -> bytes:
    if not isinstance(key, str):
        raise InvalidRequest(f"an idempotency key is a text, not {type(key).__name__}")
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"idempotency key {key!r} holds a lone surrogate, which is not Unicode text") from None
    if not 1 <= len(encoded) <= MAX_KEY_BYTES:
        raise InvalidRequest(f"an idempotency key has 1 to {MAX_KEY_BYTES} bytes, not {len(encoded)}")
    return encoded


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
