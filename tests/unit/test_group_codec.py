"""The bytes of a group state: golden vectors, round trips, and bytes that must be refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tablecast.codec.group import ACKED, Claim, Fragment, GroupState, Returned, Status, decode, decode_record, encode
from tablecast.errors import CorruptData, FormatTooNew

GOLDEN = {  # without the version, the array's head and what follows the fragments
    "a new group": (GroupState(0), "00" "90"),
    "a large position": (GroupState(2**40), "cf0000010000000000" "90"),
    "one claim": (
        GroupState(7, (Fragment(7, 17, Claim("ann", 60_000, 1)),)),
        "07" "91" "920a" "9401a3616e6ecdea6001",
    ),
    "each status": (
        GroupState(
            100,
            (
                Fragment(100, 101, Returned(None, 2, "bad row")),
                Fragment(101, 104, ACKED),
                Fragment(104, 105, Returned("bob", 1, "visibility timeout")),
                Fragment(105, 361, Claim("#4", 1_640_995_200_000, 3)),
            ),
        ),
        "64"
        "94"
        "9201" "9402c002a762616420726f77"
        "9203" "9100"
        "9201" "9402a3626f6201b27669736962696c6974792074696d656f7574"
        "92cd0100" "9401a22334cf0000017e12ef9c0003",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str) -> None:
    state, text = GOLDEN[name]
    for updated_ms, simple, rest in ((None, False, "c0c2"), (1_640_995_200_000, True, "cf0000017e12ef9c00c3")):
        told = GroupState(state.committed, state.fragments, simple)
        assert encode(told, updated_ms).hex() == "0294" + text + rest
        assert decode_record(bytes.fromhex("0294" + text + rest)) == (told, updated_ms)


@pytest.mark.parametrize("name", GOLDEN)
def test_what_version_1_wrote_is_read(name: str) -> None:
    state, text = GOLDEN[name]
    assert decode_record(bytes.fromhex("0192" + text)) == (state, None)


offsets = st.integers(0, 2**63)
names = st.text(max_size=8)
counts = st.integers(0, 2**32)
statuses: st.SearchStrategy[Status] = st.one_of(
    st.just(ACKED),
    st.builds(Claim, names, offsets, counts),
    st.builds(Returned, st.none() | names, counts, names),
)


@st.composite
def states(draw: st.DrawFn) -> GroupState:
    committed = start = draw(offsets)
    below: Status = ACKED
    fragments = []
    for length, status in draw(st.lists(st.tuples(st.integers(1, 2**40), statuses), max_size=12)):
        if status != below:
            fragments.append(Fragment(start, start + length, status))
            start, below = start + length, status
    return GroupState(committed, tuple(fragments), draw(st.booleans()))


@settings(deadline=None)
@given(states(), st.none() | offsets)
def test_round_trip(state: GroupState, updated_ms: int | None) -> None:
    assert decode_record(encode(state, updated_ms)) == (state, updated_ms)


@settings(deadline=None)
@given(states(), states())
def test_equal_states_and_only_those_have_equal_bytes(one: GroupState, other: GroupState) -> None:
    assert (one == other) == (encode(one) == encode(other))


@settings(deadline=None)
@given(states(), st.data())
def test_damaged_bytes_are_a_state_or_one_of_our_errors(state: GroupState, data: st.DataObject) -> None:
    """Checksums belong to the store. Here: what decodes is canonical, and no foreign error gets out."""
    damaged = bytearray(encode(state))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(bytes(damaged))
    except (CorruptData, FormatTooNew):
        return
    assert decode(encode(decoded)) == decoded


@settings(max_examples=30, deadline=None)
@given(states())
def test_a_torn_state_is_refused(state: GroupState) -> None:
    whole = encode(state)
    for size in range(1, len(whole)):
        with pytest.raises(CorruptData):
            decode(whole[:size])


def packed(value: object) -> bytes:
    return b"\x01" + msgspec.msgpack.encode(value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "begins with b''"),
        (b"\x00\x92\x00\x90", "begins with b'\\x00'"),
        (packed([0]), "does not decode"),
        (packed([-1, []]), "does not decode"),
        (packed([0, [[0, [0]]]]), "does not decode"),
        (packed([0, [[1, [9]]]]), "does not decode"),
        (packed([0, [[1, [2, "ann", 1]]]]), "does not decode"),
        (packed([0, [[1, [1, "ann", 5, 1, 7]]]]), "does not decode"),
        (packed([0, []]) + b"\x00", "does not decode"),
        (packed([4, [[1, [0]]]]), "meet at offset 4"),
        (packed([4, [[1, [1, "a", 5, 1]], [2, [1, "a", 5, 1]]]]), "meet at offset 5"),
        (packed([2**64 - 1, [[1, [1, "a", 5, 1]]]]), "past the last possible"),
        (b"\x01\x92\x00\x91\x92\x01\x94\x02\xa1\xff\x01\xa0", "does not decode"),
        (packed([0, [], None, False]), "does not decode"),
        (b"\x02" + packed([0, []])[1:], "does not decode"),
        (b"\x02" + packed([0, [], -1, False])[1:], "does not decode"),
        (b"\x02" + packed([0, [], None, 0])[1:], "does not decode"),
        (b"\x02" + packed([4, [[1, [0]]], None, False])[1:], "meet at offset 4"),
    ],
)
def test_what_encode_would_not_write_is_corrupt(data: bytes, said: str) -> None:
    with pytest.raises(CorruptData) as refused:
        decode(data)
    assert said in refused.value.message


def test_a_later_version_is_named() -> None:
    with pytest.raises(FormatTooNew) as refused:
        decode(b"\x03anything")
    assert refused.value.details == {"found": 3, "supported": 2}
