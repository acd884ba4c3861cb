"""Events that were set aside, so that one that cannot be told or taken never holds up the rest.

A record says why. It is kept under a number made of what it speaks of: an event that is refused again and again, because
anti-entropy offers it again and again, is one record. There is a limit; beyond it the oldest make room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_64_intdigest

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import decode_record, encode_record
from tablecast.engine.decision import Decision, Record, RowView, View
from tablecast.model.replication import Event, Quarantined
from tablecast.storage.base import Family, Reader

MAX_QUARANTINED: Final = 1_000  # records; enough to see what is wrong, and one scan of them costs a millisecond


def quarantined(reader: Reader) -> list[Quarantined]:
    """All of them, the oldest first."""
    return sorted(quarantined_by_id(reader).values(), key=lambda q: q.time_ms)


def quarantined_by_id(reader: Reader) -> dict[str, Quarantined]:
    prefix = len(records.QUARANTINE)
    return {key[prefix:].hex(): decode_record(Quarantined, value) for key, value in _stored(reader)}


def set_aside(event: Event, reason: str, *, outgoing: bool, size: int, time_ms: int) -> tuple[int, Quarantined]:
    version = event.version
    said = f"{outgoing} {version.node_id} {version.seq} {event.key}"
    return xxh3_64_intdigest(said.encode()), Quarantined(
        reason, outgoing, event.key, version.node_id, version.seq, size, time_ms
    )


def not_an_event(data: bytes, reason: str, time_ms: int) -> tuple[int, Quarantined]:
    return xxh3_64_intdigest(data), Quarantined(reason, False, bytes=len(data), time_ms=time_ms)


def quarantine_records(view: RowView, added: Sequence[tuple[int, Quarantined]]) -> list[Record]:
    """What is written to set these aside. One that is there already for the same reason is not written again."""
    if not added:
        return []
    known = {key: decode_record(Quarantined, value) for key, value in _stored(view)}
    fresh: dict[bytes, Quarantined] = {}
    for number, record in added:
        key = records.quarantine_key(number)
        if key not in known or known[key].reason != record.reason:
            fresh[key] = record
    oldest = sorted((key for key in known if key not in fresh), key=lambda key: known[key].time_ms)
    excess = max(0, len(oldest) + len(fresh) - MAX_QUARANTINED)
    written: list[Record] = [(Family.META, key, None) for key in oldest[:excess]]
    return written + [(Family.META, k, encode_record(fresh[k])) for k in list(fresh)[-MAX_QUARANTINED:]]


def _stored(reader: Reader | RowView) -> list[tuple[bytes, bytes]]:
    return list(reader.scan(Family.META, records.QUARANTINE, keys.after(records.QUARANTINE)))


@dataclass(slots=True)
class ClearQuarantine:
    """Forgets what was set aside; its answer is how many. The events themselves are not brought back by it."""

    weight: int = 1

    def decide(self, view: View) -> Decision:
        known = _stored(view)
        return Decision(len(known), records=[(Family.META, key, None) for key, _ in known])
