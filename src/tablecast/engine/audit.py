"""The audit log: who did what that takes a right, or tried to.

An entry of something that commits is a record of that very commit (`Audited`): neither can be there without the other.
What commits nothing, a denied attempt or a failed sign-in, is a command of its own (`Audit`), which its cause does not
wait for. Entries are ordered by commit, and kept for AUDIT_KEPT_DAYS; the expiry job removes them.

The request that an entry belongs to is known to whoever serves it, many calls above; it is told through a context
variable, because one session serves many requests at a time.

An entry names things; it never quotes a statement, which may hold a password or somebody's data.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tablecast.codec import catalog as records
from tablecast.codec import keys
from tablecast.codec.catalog import AuditEntry, encode_record
from tablecast.core.printable import printable
from tablecast.engine.decision import Command, Decision, Record, View
from tablecast.errors import TablecastError
from tablecast.model.schema import Actor
from tablecast.storage.base import Family, Reader

if TYPE_CHECKING:
    from tablecast.engine.engine import Engine

AUDIT_KEPT_DAYS = 90
AUDIT_KEPT_MS = AUDIT_KEPT_DAYS * 24 * 3600 * 1000
MAX_AUDIT_CHARS = 512  # of each text of an entry: some are what strangers sent
current_request_id: ContextVar[str | None] = ContextVar("tablecast_request_id", default=None)
_log = logging.getLogger("tablecast.audit")


class Outcome(enum.StrEnum):
    OK = "ok"
    DENIED = "denied"  # the role does not allow it
    FAILED = "failed"  # a wrong password, a backup that was not made


def audit_entry(
    actor: Actor | str,
    action: str,
    target: str = "",
    outcome: str = Outcome.OK,
    detail: str = "",
    request_id: str | None = None,
) -> AuditEntry:
    """An entry without its time, which it gets from its commit. An `actor` who did not sign in is a bare name; the
    request is the current one if none is named."""
    user, role = (actor, None) if isinstance(actor, str) else (actor.user_id, actor.role)
    request = current_request_id.get() if request_id is None else request_id
    return AuditEntry(
        _cut(user), role, _cut(action), _cut(target), _cut(outcome), _cut(detail), request and _cut(request)
    )


def _cut(text: str) -> str:
    clean = printable(text)
    return clean if len(clean) <= MAX_AUDIT_CHARS else clean[: MAX_AUDIT_CHARS - 1] + "…"


@dataclass(slots=True)
class Audit:
    """Adds an entry, and nothing else."""

    entry: AuditEntry
    weight: int = 1

    def decide(self, view: View) -> Decision:
        return Decision(records=entry_records(view, self.entry))


@dataclass(slots=True)
class Audited:
    """Another command and its entry, in one commit. One that finds nothing to do (it answers False) leaves none."""

    command: Command
    entry: AuditEntry

    @property
    def weight(self) -> int:
        return self.command.weight

    @property
    def alone(self) -> bool:
        return getattr(self.command, "alone", False)

    def decide(self, view: View) -> Decision:
        decision = self.command.decide(view)
        if decision.response is not False:
            decision.records = decision.records + entry_records(view, self.entry)
        return decision


def entry_records(view: View, entry: AuditEntry) -> list[Record]:
    """The entry, and what lets the expiry job find it."""
    key = records.audit_key(view.seq, _next_number(view))
    stamped = msgspec.structs.replace(entry, time_ms=view.ts_ms)
    return [
        (Family.META, key, encode_record(stamped)),
        (Family.EXPIRY, keys.expiry_key(view.ts_ms + AUDIT_KEPT_MS, Family.META, key), b""),
    ]


def _next_number(view: View) -> int:
    """How many entries this commit has. They are numbered without gap, so few of them need looking at."""

    def taken(number: int) -> bool:
        return view.get(Family.META, records.audit_key(view.seq, number)) is not None

    free = 0
    while taken(free):
        free = free * 2 + 1
    low = (free + 1) // 2  # everything below is taken, `free` is not
    while low < free:
        middle = (low + free) // 2
        low, free = (middle + 1, free) if taken(middle) else (low, middle)
    return free


def audit_entries(
    reader: Reader, upto_seq: int, first_seq: int = 0, *, reverse: bool = False
) -> Iterator[tuple[int, int, AuditEntry]]:
    """Entries of these commits with their commit number and their place in it, the oldest first."""
    start, end = records.audit_key(first_seq, 0), records.audit_key(upto_seq + 1, 0)
    for key, value in reader.scan(Family.META, start, end, reverse=reverse):
        yield *records.decode_audit_key(key), records.decode_record(AuditEntry, value)


def append(engine: Engine, entry: AuditEntry) -> None:
    """Adds an entry without waiting, not even for room in the write queue: the caller has an answer to give already,
    and may be an event loop. An entry that cannot be taken goes to the program's log instead."""
    try:
        engine.submit(Audit(entry), wait=False)
    except TablecastError as e:
        _log.error("this entry is not in the audit log (%s): %r", e.code, entry)
