"""A consumer group of one partition, offset by offset, in a dict: what the database keeps as ranges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tablecast.errors import Conflict, OffsetOutOfRange


@dataclass(frozen=True)
class Fate:
    """What became of one offset: claimed, returned or acked."""

    status: str
    consumer: str | None = None
    deadline_ms: int = 0
    deliveries: int = 0
    reason: str = ""


ACKED = Fate("acked")


@dataclass
class Dead:
    offset: int
    deliveries: int
    reason: str


@dataclass
class GroupModel:
    """`fates` holds every offset from `begin` on that was ever given; below `begin` all is acknowledged. A `simple` one
    was made by an ack or a reset and claimed nothing yet: any offset of the log can be acknowledged."""

    begin: int
    fates: dict[int, Fate] = field(default_factory=dict)
    simple: bool = False

    @property
    def next_offset(self) -> int:
        return self.begin + len(self.fates)

    @property
    def committed(self) -> int:
        return min((at for at, fate in self.fates.items() if fate.status != "acked"), default=self.next_offset)

    def where(self, status: str, consumer: str | None = None) -> list[int]:
        found = (at for at, fate in self.fates.items() if fate.status == status)
        return sorted(at for at in found if consumer is None or self.fates[at].consumer == consumer)

    def lag(self, log_end: int) -> int:
        return max(log_end, self.next_offset) - self.begin - len(self.where("acked"))

    # --- claims ---

    def expire(self, now_ms: int) -> int:
        overdue = [at for at in self.where("claimed") if self.fates[at].deadline_ms <= now_ms]
        for at in overdue:
            self.fates[at] = replace(self.fates[at], status="returned", deadline_ms=0, reason="visibility timeout")
        return len(overdue)

    def lost(self, log_start: int) -> list[int]:
        """What retention took before the group was done with it."""
        returned = [at for at in self.where("returned") if at < log_start]
        return returned + list(range(self.next_offset, log_start))

    def skip_lost(self, log_start: int) -> None:
        for at in self.lost(log_start):
            self.fates[at], self.simple = ACKED, False

    def bury(self, limit: int, max_deliveries: int, log_start: int) -> list[Dead]:
        """At most `limit` of those that used up their deliveries and are still there."""
        used_up = [at for at in self.where("returned") if 0 < max_deliveries <= self.fates[at].deliveries]
        dead = [at for at in used_up if at >= log_start][:limit]
        letters = [Dead(at, self.fates[at].deliveries, self.fates[at].reason) for at in dead]
        for at in dead:
            self.fates[at] = ACKED
        return letters

    def give(self, consumer: str, limit: int, log_end: int, deadline_ms: int, max_deliveries: int) -> dict[int, int]:
        """Offset -> delivery count of one contiguous range: the oldest that came back, else new ones."""
        waiting = [
            at for at in self.where("returned") if not max_deliveries or self.fates[at].deliveries < max_deliveries
        ]
        given = [at for i, at in enumerate(waiting) if at == waiting[0] + i][:limit]
        given = given or list(range(self.next_offset, min(self.next_offset + limit, log_end)))
        for at in given:
            before = self.fates.get(at, Fate("returned"))
            self.fates[at], self.simple = Fate("claimed", consumer, deadline_ms, before.deliveries + 1), False
        return {at: self.fates[at].deliveries for at in given}

    def extend(self, consumer: str, deadline_ms: int) -> int:
        held = self.where("claimed", consumer)
        for at in held:
            self.fates[at] = replace(self.fates[at], deadline_ms=deadline_ms)
        return len(held)

    def release(self, consumer: str) -> int:
        held = self.where("claimed", consumer)
        for at in held:
            self.fates[at] = replace(
                self.fates[at], status="returned", deadline_ms=0, reason="released by its consumer"
            )
        return len(held)

    # --- settling ---

    def _require_given(self, offset: int) -> None:
        if offset >= self.next_offset:
            raise OffsetOutOfRange(f"{offset} was not given")

    @property
    def acknowledged(self) -> int | None:
        return self.committed - 1 if self.committed else None

    def commit(self, offsets: list[int], log_end: int) -> int | None:
        """Of a simple one, which was given nothing."""
        if max(offsets) >= log_end:
            raise OffsetOutOfRange(f"{max(offsets)} is not in the log")
        for at in range(self.next_offset, max(offsets) + 1):
            self.fates[at] = Fate("returned")
        for at in set(offsets) & set(self.fates):
            self.fates[at] = ACKED
        return self.acknowledged

    def ack_upto(self, upto: int, consumer: str | None) -> int | None:
        self._require_given(upto)
        if upto >= self.committed:
            holder = consumer if consumer is not None else self.fates[upto].consumer
            for at in [at for at, fate in self.fates.items() if at <= upto and fate.status != "acked"]:
                if holder is not None and self.fates[at].consumer == holder:
                    self.fates[at] = ACKED
        return self.acknowledged

    def ack(self, offsets: list[int], consumer: str | None) -> int | None:
        self._require_given(max(offsets))
        for at in offsets:
            fate = self.fates.get(at, ACKED)
            others = consumer is not None and fate.status == "claimed" and fate.consumer != consumer
            if at in self.fates and not others:
                self.fates[at] = ACKED
        return self.acknowledged

    def nack(self, offsets: list[int], consumer: str | None, reason: str) -> int | None:
        self._require_given(max(offsets))
        held = self.where("claimed", consumer)
        if not set(offsets) <= set(held):
            raise Conflict("not claimed")
        for at in offsets:
            self.fates[at] = Fate("returned", None, 0, self.fates[at].deliveries, reason)
        return self.acknowledged

    def restore(self, offset: int) -> None:
        """A dead letter is sent back: the offset is given once more, its deliveries forgotten."""
        if offset >= self.next_offset:
            return
        for at in range(offset, self.begin):
            self.fates[at] = ACKED
        self.begin = min(self.begin, offset)
        if self.fates[offset].status == "acked":
            self.fates[offset] = Fate("returned", None, 0, 0, "redriven")
