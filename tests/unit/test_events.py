"""The event: the specified bytes, what reading refuses, what it bears, and that no bytes break it."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tablecast.codec.events import (
    MAX_EVENT_BYTES,
    MAX_INTEGER,
    MAX_KEY_BYTES,
    MAX_NODE_ID_BYTES,
    MAX_VALUE_BYTES,
    decode_event,
    encode_event,
)
from tablecast.errors import InvalidEvent
from tablecast.model.replication import Event, Version

MS_2022 = 1_640_995_200_000
HEAD = "636b6579"  # "key"
NODE = "676e6f64655f6964616e"  # "node_id": "n"

VECTORS = {
    "specified": (
        Event("golden-key", Version(MS_2022, "golden-node", 12345), "golden-value"),
        "a6636b65796a676f6c64656e2d6b6579676e6f64655f69646b676f6c64656e2d6e6f6465637365711930396c74696d657374616d705f6d731b"
        "0000017e12ef9c0069746f6d6273746f6e65f46576616c75656c676f6c64656e2d76616c7565",
    ),
    "specified tombstone": (
        Event("test-key", Version(MS_2022, "node-1", 42), None),
        "a5636b657968746573742d6b6579676e6f64655f6964666e6f64652d3163736571182a6c74696d657374616d705f6d731b0000017e12ef9c00"
        "69746f6d6273746f6e65f5",
    ),
    "unicode": (
        Event("clé/鍵", Version(0, "n", 0), "naïve 🦊"),
        f"a6{HEAD}68636cc3a92fe98db5{NODE}63736571006c74696d657374616d705f6d730069746f6d6273746f6e65f4"
        "6576616c75656b6e61c3af766520f09fa68a",
    ),
    "empty key and value": (
        Event("", Version(23, "n", 24), ""),
        f"a6{HEAD}60{NODE}6373657118186c74696d657374616d705f6d731769746f6d6273746f6e65f46576616c756560",
    ),
    "2^53": (
        Event("k", Version(2**53, "n", 2**53), None),
        f"a5{HEAD}616b{NODE}637365711b00200000000000006c74696d657374616d705f6d731b002000000000000069746f6d6273746f6e65f5",
    ),
    "2^63 - 1": (
        Event("k", Version(2**63 - 1, "n", 2**63 - 1), None),
        f"a5{HEAD}616b{NODE}637365711b7fffffffffffffff6c74696d657374616d705f6d731b7fffffffffffffff69746f6d6273746f6e65f5",
    ),
    "65,535 and 65,536": (
        Event("k", Version(65_535, "n", 65_536), None),
        f"a5{HEAD}616b{NODE}637365711a000100006c74696d657374616d705f6d7319ffff69746f6d6273746f6e65f5",
    ),
}

FIELDS: dict[str, Any] = {
    "key": "k", "node_id": "n", "seq": 1, "timestamp_ms": 2, "tombstone": False, "value": "v",
}  # fmt: skip
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
integers = st.integers(0, MAX_INTEGER) | st.sampled_from([0, 23, 24, 255, 256, 65_535, 65_536, 2**32, MAX_INTEGER])
versions = st.builds(Version, integers, texts.filter(lambda t: 0 < len(t.encode()) <= MAX_NODE_ID_BYTES), integers)
events = st.builds(Event, texts, versions, st.none() | texts)


@pytest.mark.parametrize("name", VECTORS)
def test_the_bytes_are_these(name: str) -> None:
    event, expected = VECTORS[name]
    assert encode_event(event).hex() == expected
    assert decode_event(bytes.fromhex(expected)) == event


@given(events)
def test_what_was_written_is_read(event: Event) -> None:
    assert decode_event(encode_event(event)) == event


@given(
    st.permutations(list(FIELDS)),
    st.dictionaries(st.text(max_size=5), st.text() | st.floats() | st.lists(st.integers())),
)
def test_order_and_unknown_fields_do_not_matter(order: list[str], more: dict[str, Any]) -> None:
    fields = {name: value for name, value in more.items() if name not in FIELDS}
    fields |= {name: FIELDS[name] for name in order}
    assert decode_event(cbor2.dumps(fields)) == Event("k", Version(2, "n", 1), "v")


@pytest.mark.parametrize(
    "unknown", [cbor2.CBORTag(0, "no date"), cbor2.CBORTag(35, "(("), cbor2.CBORTag(29, 7), cbor2.CBORTag(99, [1])]
)
def test_a_tag_in_an_unknown_field_is_not_looked_into(unknown: cbor2.CBORTag) -> None:
    assert decode_event(cbor2.dumps({**FIELDS, "later": unknown})).value == "v"


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_must_be_there(name: str) -> None:
    with pytest.raises(InvalidEvent, match=f"has no {name}"):
        decode_event(cbor2.dumps({k: v for k, v in FIELDS.items() if k != name}))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("key", b"k", "key is bytes, not text"),
        ("key", None, "key is null, not text"),
        ("node_id", 5, "node_id is an integer, not text"),
        ("node_id", "", "node_id is empty"),
        ("seq", "1", "seq is text, not an integer"),
        ("seq", True, "seq is a boolean, not an integer"),
        ("seq", 1.0, "seq is a float"),
        ("seq", -1, "not within"),
        ("seq", 2**63, "not within"),
        ("seq", cbor2.CBORTag(2, b"\x05"), "something else"),
        ("timestamp_ms", -1, "not within"),
        ("timestamp_ms", 2**63, "not within"),
        ("tombstone", 0, "tombstone is an integer, not a boolean"),
        ("tombstone", True, "has a value"),
        ("value", b"v", "value is bytes"),
        ("value", {"a": 1}, "value is a map"),
        ("value", None, "value is null"),
    ],
)
def test_a_wrong_field_is_named(name: str, value: Any, said: str) -> None:
    with pytest.raises(InvalidEvent, match=said):
        decode_event(cbor2.dumps({**FIELDS, name: value}))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not CBOR"),
        (cbor2.dumps(FIELDS)[:-1], "not CBOR"),
        (cbor2.dumps(FIELDS) + b"\x00", "bytes follow"),
        (cbor2.dumps(FIELDS) * 2, "bytes follow"),
        (cbor2.dumps([FIELDS]), "not a map"),
        (b"\xf6", "not a map"),
        (b"\xbf" + cbor2.dumps(FIELDS)[1:] + b"\xff", "indefinite"),
        (b"\xa7" + cbor2.dumps(FIELDS)[1:] + b"\x63seq\x02", "[Dd]uplicate"),
        (b"\xa1\x63key\x61\xff", "not CBOR"),
        (b"\xa1" + b"\x81" * 5000, "not CBOR"),
        (b"\xbb" + b"\xff" * 8, "not CBOR"),
    ],
)
def test_what_is_no_event_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(InvalidEvent, match=said):
        decode_event(data)


@pytest.mark.parametrize(
    ("name", "limit", "fits"),
    [
        ("key", MAX_KEY_BYTES, "é" * 128),
        ("value", MAX_VALUE_BYTES, "é" * 131_072),
        ("node_id", MAX_NODE_ID_BYTES, "n" * 64),
    ],
)
def test_limits_count_bytes_and_are_exact(name: str, limit: int, fits: str) -> None:
    decode_event(cbor2.dumps({**FIELDS, name: fits}))
    with pytest.raises(InvalidEvent, match=f"{name} takes {limit + 1} bytes; the limit is {limit}"):
        decode_event(cbor2.dumps({**FIELDS, name: fits + "x"}))


def test_writing_keeps_the_limits_too() -> None:
    version = Version(1, "n", 1)
    assert len(encode_event(Event("k" * MAX_KEY_BYTES, version, "v" * MAX_VALUE_BYTES))) < MAX_EVENT_BYTES
    for event in (Event("k" * 257, version, None), Event("k", version, "v" * (MAX_VALUE_BYTES + 1))):
        with pytest.raises(InvalidEvent, match="the limit is"):
            encode_event(event)


def test_a_message_over_the_limit_is_not_even_parsed() -> None:
    with pytest.raises(InvalidEvent, match="the limit is 307200"):
        decode_event(cbor2.dumps({**FIELDS, "later": b"x" * MAX_EVENT_BYTES}))


@settings(max_examples=500)
@given(st.binary(max_size=200))
@example(b"\xa1\xfb\x7f\xf8\x00\x00\x00\x00\x00\x00\x01")
@example(b"\xd8\x1c\xa1\x61a\xd8\x1d\x00")  # a map that holds itself
def test_no_bytes_break_it(data: bytes) -> None:
    try:
        decode_event(data)
    except InvalidEvent:
        pass


@settings(max_examples=500)
@given(events, st.data())
def test_no_damaged_event_breaks_it(event: Event, data: st.DataObject) -> None:
    whole = bytearray(encode_event(event))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode_event(bytes(whole))
    except InvalidEvent:
        return
    assert decode_event(encode_event(read)) == read
