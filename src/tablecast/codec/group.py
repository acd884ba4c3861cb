"""The state of one consumer group on one partition, and its bytes.

A state tiles the offsets from `committed` to `next_offset` with *fragments*: contiguous ranges that share
one status. There is no gap and no overlap, so only the lengths are stored: a fragment starts where the one
before it ends, the first at `committed`. Fragments in conflict cannot even be written down.

    record    version (1 byte, 0x02), then MessagePack: [committed, [fragment, …], updated_ms | nil, simple]
    fragment  [length >= 1, status]
    status    [0]                                       acknowledged
              [1, consumer, deadline_ms, deliveries]    claimed until the deadline (UTC ms)
              [2, consumer | nil, deliveries, reason]   came back and waits to be given again

The form is canonical: neighbours of equal status are one fragment, and an acknowledged one is never first
(it would belong below `committed`). Equal states of one time are therefore equal bytes. `deliveries` counts
how often the offsets were given to a consumer, an open claim included.

Version 1 ended after the fragments: its time is not known, and its group has claimed.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec

from tablecast.errors import CorruptData, FormatTooNew

VERSION: Final = 2
MAX_OFFSET: Final = 2**64 - 1

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Length = Annotated[int, msgspec.Meta(ge=1)]


class Acked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=0):
    """Done, but something below is not."""


class Claim(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=1):
    """In the hands of one consumer."""

    consumer: str
    deadline_ms: int
    deliveries: _Count


class Returned(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=2):
    """Nacked, expired or released. `consumer` held it last and may still finish it; None after a nack."""

    consumer: str | None
    deliveries: _Count
    reason: str


Status = Acked | Claim | Returned
ACKED: Final = Acked()


class Fragment(msgspec.Struct, frozen=True, gc=False):
    """Offsets start <= offset < end, all of one status."""

    start: int
    end: int
    status: Status


class GroupState(msgspec.Struct, frozen=True):
    """Everything below `committed` is acknowledged; the fragments tile [committed, next_offset).

    `simple`: nothing was ever claimed here, the group only stores what its readers commit (core.simple_group).
    """

    committed: int
    fragments: tuple[Fragment, ...] = ()
    simple: bool = False

    @property
    def next_offset(self) -> int:
        """The first offset that was never claimed."""
        return self.fragments[-1].end if self.fragments else self.committed

    @property
    def acknowledged_offset(self) -> int | None:
        """The last offset of the gapless acknowledged prefix; None when that is empty."""
        return self.committed - 1 if self.committed else None


class GroupRecord(NamedTuple):
    """A state, and when it was written (UTC ms); None if a version 1 did."""

    state: GroupState
    updated_ms: int | None


_Lengths = list[tuple[_Length, Status]]
_encoder = msgspec.msgpack.Encoder()
_decoder_1 = msgspec.msgpack.Decoder(tuple[_Count, _Lengths])
_decoder = msgspec.msgpack.Decoder(tuple[_Count, _Lengths, _Count | None, bool])


def encode(state: GroupState, updated_ms: int | None = None) -> bytes:
    lengths = [(fragment.end - fragment.start, fragment.status) for fragment in state.fragments]
    return b"\x02" + _encoder.encode((state.committed, lengths, updated_ms, state.simple))


def decode(data: bytes) -> GroupState:
    return decode_record(data).state


def decode_record(data: bytes) -> GroupRecord:
    """Raises FormatTooNew for a later version, CorruptData for anything `encode` would not have written."""
    if not data or not 1 <= data[0] <= VERSION:
        raise _wrong_version(data)
    body = memoryview(data)[1:]
    try:
        committed, lengths, updated_ms, simple = (
            (*_decoder_1.decode(body), None, False) if data[0] == 1 else _decoder.decode(body)
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(f"group state does not decode: {error}") from error
    return GroupRecord(GroupState(committed, _tiled(committed, lengths), simple), updated_ms)


def _tiled(committed: int, lengths: list[tuple[int, Status]]) -> tuple[Fragment, ...]:
    fragments = []
    start = committed
    below: Status = ACKED  # all below `committed` counts as one acknowledged fragment
    for length, status in lengths:
        if status == below:
            raise CorruptData(f"group state is not canonical: two fragments of one status meet at offset {start}")
        fragments.append(Fragment(start, start + length, status))
        start, below = start + length, status
    if start > MAX_OFFSET:
        raise CorruptData(f"group state reaches offset {start}, past the last possible one, {MAX_OFFSET}")
    return tuple(fragments)


def _wrong_version(data: bytes) -> CorruptData | FormatTooNew:
    if data and data[0] > VERSION:
        return FormatTooNew(
            f"group state has format {data[0]}, this tablecast reads up to {VERSION}: use a newer one",
            found=data[0],
            supported=VERSION,
        )
    return CorruptData(f"group state begins with {data[:1]!r}, not with a format version from 1 to {VERSION}")
