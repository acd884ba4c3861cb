"""Many requests that insert one row each into one table, each with an idempotency key of its own, as one command.

What a small request costs the writer is mostly what it costs to be a command: a ticket, a decision, an answer, two
records that say the same as its neighbours' but for a few bytes. A client that carries many callers' writes sends them
together (server.api_writes), and here they stay together. What is stored is, byte for byte, what `Once` stores for each.

It is all or nothing only in how it is decided: if one of them may have been here before, or meets a row, it raises
StalePlan, nothing has happened, and the caller sends each alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tablecast.codec import keys
from tablecast.engine.decision import Decision, Records, StalePlan, View
from tablecast.engine.idempotency import KEPT_MS, Remembered, encode_remembered, idempotency_keys
from tablecast.engine.rows import InsertRows, Written
from tablecast.storage.base import Family

FINGERPRINT_BYTES = 16
_NO_FINGERPRINT = bytes(FINGERPRINT_BYTES)


@dataclass(slots=True)
class OnceEach:
    """`insert` has a row for each key, in their order. Answers one `Written`, which is everybody's."""

    user: str
    keys: Sequence[str]
    fingerprints: Sequence[bytes]  # of FINGERPRINT_BYTES each
    insert: InsertRows

    @property
    def weight(self) -> int:
        return len(self.keys)

    def decide(self, view: View) -> Decision:
        stored_keys = idempotency_keys(self.user, self.keys)
        if len(set(stored_keys)) < len(stored_keys) or any(view.get_many(Family.KEYS, stored_keys)):
            raise StalePlan("a request may be a repeat")
        decision = InsertRows.decide_together((self.insert,), view)
        if decision is None:
            raise StalePlan("a request meets a row")
        decision.response = Written(view.seq, 1)
        decision.bulk += self._remembered(view, stored_keys)
        return decision

    def _remembered(self, view: View, stored_keys: list[bytes]) -> list[Records]:
        """They differ in the fingerprint alone."""
        expires = view.ts_ms + KEPT_MS
        alike = encode_remembered(Remembered(_NO_FINGERPRINT, expires, view.seq, 1, self.insert.table_id))
        head, tail = alike.split(_NO_FINGERPRINT, 1)
        expiry = keys.expiry_key(expires, Family.KEYS, b"")
        return [
            (Family.KEYS, stored_keys, [head + fingerprint + tail for fingerprint in self.fingerprints]),
            (Family.EXPIRY, [expiry + key for key in stored_keys], [b""] * len(stored_keys)),
        ]
