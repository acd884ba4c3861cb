"""What two nodes say to each other when they compare their tables: a byte for the version, then MessagePack.

    01                     format version
    array                  [kind, field, field …] in the order of the classes below; kinds are short texts

A node asks and its peer replies, one question at a time. Tables go by their full names: numbers differ between nodes.
Sums are those of the tree of versions (`core.merkle`), 16 bytes each. Events are the bytes that a broker would get
(`codec.events`). A message that does not decode raises `InvalidRequest`: whoever got it lets it go, and whoever sent it
asks again another day.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tablecast.errors import InvalidRequest

T = TypeVar("T")
FORMAT = 1
Sums = list[bytes]  # of sixteen sisters
MAX_SYNC_BYTES = 64 * 2**10  # of one message, so that comparing never holds up events; one event may be larger


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


class Entry(_Message, frozen=True):
    """A row or a tombstone in its bucket: the key of its event and its version."""

    key: str
    timestamp_ms: int
    node_id: str
    seq: int


class Listed(_Message, frozen=True):
    """Entries of one bucket in the order of their keys; not `complete` if the message had no room for the rest."""

    bucket: int
    entries: list[Entry]
    complete: bool


# --- questions --------------------------------------------------------------------------------------------------------


class AskRoots(_Message, frozen=True, tag="roots?"):
    """Which of these tables differ from yours?"""

    roots: dict[str, bytes]


class AskNodes(_Message, frozen=True, tag="nodes?"):
    """What are the children of these nodes of your tree?"""

    table: str
    level: int
    indexes: list[int]


class AskEntries(_Message, frozen=True, tag="entries?"):
    """What is in these buckets? In the first of them, only what comes after the key `after`."""

    table: str
    buckets: list[int]
    after: str | None


class AskEvents(_Message, frozen=True, tag="events?"):
    """What are the events of these keys?"""

    table: str
    keys: list[str]


class Push(_Message, frozen=True, tag="push"):
    """Take these events, which you do not have."""

    events: list[bytes]


Question = AskRoots | AskNodes | AskEntries | AskEvents | Push

# --- replies ----------------------------------------------------------------------------------------------------------


class Roots(_Message, frozen=True, tag="roots"):
    """The children of the roots that differ, by table."""

    children: dict[str, Sums]


class Nodes(_Message, frozen=True, tag="nodes"):
    """The children of each node asked for."""

    children: list[Sums]


class Entries(_Message, frozen=True, tag="entries"):
    """Of the buckets asked for as many as had room, at least a part of the first."""

    buckets: list[Listed]


class Events(_Message, frozen=True, tag="events"):
    """`looked_at` says for how many of the keys; one that has no event any more is left out."""

    events: list[bytes]
    looked_at: int


class Taken(_Message, frozen=True, tag="taken"):
    """The pushed events are durable."""


class Busy(_Message, frozen=True, tag="busy"):
    """What differs may be on its way already: ask again later."""


class Gone(_Message, frozen=True, tag="gone"):
    """There is no such replicated table here."""

    table: str


Reply = Roots | Nodes | Entries | Events | Taken | Busy | Gone

_encoder = msgspec.msgpack.Encoder()
_questions: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Question | Reply) -> bytes:
    return bytes([FORMAT]) + _encoder.encode(message)


def decode_question(data: bytes) -> Question:
    return _decoded(data, _questions)


def decode_reply(data: bytes) -> Reply:
    return _decoded(data, _replies)


def _decoded(data: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    if not data or data[0] != FORMAT:
        said = f"format {data[0]}" if data else "nothing"
        raise InvalidRequest(f"a message about differences has {said}; this node speaks format {FORMAT}")
    try:
        return decoder.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # msgspec lets the latter through
        raise InvalidRequest(f"a message about differences cannot be read: {error}") from error
