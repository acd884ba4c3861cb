"""Keys: the bytes order exactly as the values do, come back as they went in, and never leave their range."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal, localcontext
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tablecast.codec import keys
from tablecast.errors import CorruptData
from tablecast.model.schema import ColumnType, TypeName


def of(name: TypeName, precision: int = 0, scale: int = 0) -> ColumnType:
    return ColumnType(name, precision, scale)


def unscaled(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    bound = 10**precision - 1
    return st.integers(-bound, bound).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


# NUL and FF are what the escape is made of; the rest is any Unicode, beyond the BMP too.
texts = st.text(st.sampled_from("\x00\x01\xff\ufffd\U0010ffff") | st.characters(exclude_categories=["Cs"]), max_size=8)
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)

VALUES: dict[str, tuple[ColumnType, st.SearchStrategy[Any]]] = {
    "BOOLEAN": (of(TypeName.BOOLEAN), st.booleans()),
    "SMALLINT": (of(TypeName.SMALLINT), st.integers(-(2**15), 2**15 - 1)),
    "INT": (of(TypeName.INT), st.integers(-(2**31), 2**31 - 1)),
    "BIGINT": (of(TypeName.BIGINT), st.integers(-(2**63), 2**63 - 1)),
    "FLOAT": (of(TypeName.FLOAT), floats32),
    "DOUBLE": (of(TypeName.DOUBLE), st.floats(allow_nan=False, allow_infinity=False)),
    "DECIMAL(1,0)": (of(TypeName.DECIMAL, 1, 0), unscaled(1, 0)),
    "DECIMAL(12,2)": (of(TypeName.DECIMAL, 12, 2), unscaled(12, 2)),
    "DECIMAL(18,18)": (of(TypeName.DECIMAL, 18, 18), unscaled(18, 18)),
    "DECIMAL(19,3)": (of(TypeName.DECIMAL, 19, 3), unscaled(19, 3)),
    "DECIMAL(38,0)": (of(TypeName.DECIMAL, 38, 0), unscaled(38, 0)),
    "DECIMAL(38,20)": (of(TypeName.DECIMAL, 38, 20), unscaled(38, 20)),
    "TEXT": (of(TypeName.TEXT), texts),
    "BYTES": (of(TypeName.BYTES), st.binary(max_size=8) | st.lists(st.sampled_from(b"\x00\x01\xff")).map(bytes)),
    "TIMESTAMP": (of(TypeName.TIMESTAMP), st.datetimes(timezones=st.just(UTC))),
    "DATE": (of(TypeName.DATE), st.dates()),
    "TIME": (of(TypeName.TIME), st.times()),
    "UUID": (of(TypeName.UUID), st.uuids()),
}
CASES = pytest.mark.parametrize("name", VALUES)

EDGES: dict[str, list[Any]] = {  # each list ascends
    "SMALLINT": [-(2**15), -1, 0, 1, 2**15 - 1],
    "INT": [-(2**31), -1, 0, 1, 2**31 - 1],
    "BIGINT": [-(2**63), -1, 0, 1, 2**63 - 1],
    "FLOAT": [-3.4028234663852886e38, -1.0, -1.401298464324817e-45, 0.0, 1.401298464324817e-45, 1.0],
    "DOUBLE": [-1.7976931348623157e308, -1.0, -5e-324, 0.0, 5e-324, 1.0, 1.7976931348623157e308],
    "DECIMAL(38,0)": [Decimal(n) for n in (-(10**38) + 1, -(10**28) - 1, -(10**28), 0, 10**37, 10**37 + 1, 10**38 - 1)],
    "DECIMAL(38,20)": [Decimal(t) for t in ("-999999999999999999.99999999999999999999", "0E-20", "1E-20", "2E-20")],
    "TEXT": ["", "\x00", "\x00\x00", "\x00\x01", "\x00a", "\x01", "a", "a\x00", "a\x00b", "aa", "\ue000", "\U00010000"],
    "BYTES": [
        b"",
        b"\x00",
        b"\x00\x00",
        b"\x00\x01",
        b"\x00\xff",
        b"\x01",
        b"\xfe\xff",
        b"\xff",
        b"\xff\x00",
        b"\xff\xff",
    ],
    "TIMESTAMP": [
        datetime.min.replace(tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
    "DATE": [date.min, date(1969, 12, 31), date(1970, 1, 1), date.max],
    "TIME": [time.min, time(0, 0, 0, 1), time(23, 59, 59), time.max],
    "UUID": [UUID(int=0), UUID(int=1), UUID(int=2**127), UUID(int=2**128 - 1)],
}


@CASES
@given(data=st.data())
def test_bytes_order_as_values(name: str, data: st.DataObject) -> None:
    column_type, values = VALUES[name]
    encode, decode = keys.element(column_type)
    a, b = data.draw(values), data.draw(values)
    assert (encode(a) < encode(b)) == (a < b)
    assert (encode(a) == encode(b)) == (a == b)
    assert decode(encode(a), 0) == (a, len(encode(a)))


@pytest.mark.parametrize("name", EDGES)
def test_the_edges_of_each_type_ascend_and_come_back(name: str) -> None:
    encode, decode = keys.element(VALUES[name][0])
    for lower, higher in pairwise(EDGES[name]):
        assert encode(lower) < encode(higher), (lower, higher)
    for value in EDGES[name]:
        assert decode(b"xx" + encode(value), 2) == (value, 2 + len(encode(value)))


@pytest.mark.parametrize("name", ["FLOAT", "DOUBLE"])
def test_negative_zero_is_zero(name: str) -> None:
    encode, decode = keys.element(VALUES[name][0])
    assert encode(-0.0) == encode(0.0)
    assert str(decode(encode(-0.0), 0)[0]) == "0.0"


def test_decimal_digits_survive_whatever_the_threads_context() -> None:
    encode, decode = keys.element(of(TypeName.DECIMAL, 38, 2))
    number = Decimal("123456789012345678901234567890123456.78")
    with localcontext() as context:
        context.prec = 3
        stored = encode(number)
        assert decode(stored, 0)[0] == number
    assert encode(Decimal("123456789012345678901234567890123456.79")) > stored


def test_a_decoded_decimal_keeps_its_scale() -> None:
    encode, decode = keys.element(of(TypeName.DECIMAL, 12, 2))
    assert str(decode(encode(Decimal("5.00")), 0)[0]) == "5.00"
    assert str(decode(encode(Decimal("0.00")), 0)[0]) == "0.00"


# --- composite keys ------------------------------------------------------------------------------------------

columns = st.sampled_from(sorted(VALUES))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[list[ColumnType], tuple[Any, ...], tuple[Any, ...]]:
    """Two keys of the same columns that often share their first values."""
    names = draw(st.lists(columns, min_size=1, max_size=4))
    a = [draw(VALUES[name][1]) for name in names]
    shared = draw(st.integers(0, len(names)))
    b = a[:shared] + [draw(VALUES[name][1]) for name in names[shared:]]
    return [VALUES[name][0] for name in names], tuple(a), tuple(b)


def encoded(types: list[ColumnType], values: tuple[Any, ...]) -> bytes:
    return b"".join(keys.element(t)[0](v) for t, v in zip(types, values, strict=True))


@given(pairs())
def test_composite_keys_order_element_by_element(
    case: tuple[list[ColumnType], tuple[Any, ...], tuple[Any, ...]],
) -> None:
    types, a, b = case
    assert (encoded(types, a) < encoded(types, b)) == (a < b)
    assert keys.decode_elements(types, b"prefix" + encoded(types, a), 6) == a


@given(pairs(), st.data())
def test_a_damaged_key_is_corrupt_data_or_another_key(
    case: tuple[list[ColumnType], tuple[Any, ...], tuple[Any, ...]], data: st.DataObject
) -> None:
    types, a, _ = case
    whole = encoded(types, a)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptData):
        keys.decode_elements(types, whole[:cut], 0)
    with pytest.raises(CorruptData):
        keys.decode_elements(types, whole + b"\x00", 0)
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    try:
        keys.decode_elements(types, whole[:at] + bytes([byte]) + whole[at + 1 :], 0)
    except CorruptData as e:
        assert "does not decode" in e.message


# --- whole keys ----------------------------------------------------------------------------------------------


@given(st.binary(max_size=6), st.binary(max_size=6))
@example(b"\xff\xff", b"")
@example(b"", b"\x00")
def test_after_is_the_end_of_a_prefix(prefix: bytes, other: bytes) -> None:
    end = keys.after(prefix)
    inside = other >= prefix and (end is None or other < end)
    assert inside == other.startswith(prefix)
    extended = prefix + other
    assert extended >= prefix and (end is None or extended < end)


def test_after_nothing_is_none() -> None:
    assert keys.after(b"") is None
    assert keys.after(b"\xff\xff") is None
    assert keys.after(b"a\xff") == b"b"


ids = st.integers(0, 2**32 - 2)
partitions = st.integers(0, 2**16 - 1)
offsets = st.integers(0, 2**64 - 1)


def within(prefix: bytes, key: bytes) -> bool:
    end = keys.after(prefix)
    assert end is not None
    return prefix <= key < end


@given(ids, ids, texts, texts, st.binary(max_size=12))
def test_no_row_lies_in_another_table_or_under_another_user(
    table: int, other: int, user: str, someone: str, key: bytes
) -> None:
    assert within(keys.table_prefix(table), keys.table_prefix(other) + key) == (table == other)
    mine = keys.user_prefix(table, user)
    theirs = keys.user_prefix(table, someone) + key
    assert within(mine, theirs) == (user == someone)
    assert within(keys.table_prefix(table), theirs)


@given(ids, partitions, offsets, ids, partitions, offsets)
def test_log_keys_stay_in_their_partition_and_order_by_offset(
    topic: int, partition: int, offset: int, topic2: int, partition2: int, offset2: int
) -> None:
    a, b = keys.log_key(topic, partition, offset), keys.log_key(topic2, partition2, offset2)
    assert (a < b) == ((topic, partition, offset) < (topic2, partition2, offset2))
    assert keys.log_offset(a) == offset
    assert within(keys.topic_prefix(topic), a)
    assert within(keys.topic_prefix(topic), b) == (topic == topic2)
    assert within(keys.log_prefix(topic, partition), b) == ((topic, partition) == (topic2, partition2))


@given(ids, texts, partitions, ids, texts, partitions)
def test_group_keys_stay_in_their_topic_and_group(
    topic: int, group: str, partition: int, topic2: int, group2: str, partition2: int
) -> None:
    a, b = keys.group_key(topic, group, partition), keys.group_key(topic2, group2, partition2)
    assert keys.decode_group_key(a) == (topic, group, partition)
    assert (a < b) == ((topic, group, partition) < (topic2, group2, partition2))
    assert within(keys.topic_prefix(topic), b) == (topic == topic2)
    of_group = a[:-2]
    assert b.startswith(of_group) == ((topic, group) == (topic2, group2))


@given(offsets, texts, st.binary(max_size=12), offsets)
def test_expiry_keys_order_by_time_and_come_back(expires: int, family: str, key: bytes, later: int) -> None:
    entry = keys.expiry_key(expires, family, key)
    assert keys.decode_expiry_key(entry) == (expires, family, key)
    if expires != later:
        assert (entry < keys.expiry_key(later, family, key)) == (expires < later)


@pytest.mark.parametrize("cut", range(14))
def test_a_shortened_log_key_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptData):
        keys.log_offset(keys.log_key(1, 2, 3)[:cut])


def test_shortened_group_and_expiry_keys_are_corrupt() -> None:
    group = keys.group_key(1, "billing", 0)
    for cut in range(len(group)):
        with pytest.raises(CorruptData):
            keys.decode_group_key(group[:cut])
    with pytest.raises(CorruptData):
        keys.decode_group_key(group + b"\x00")
    entry = keys.expiry_key(5, "rows", b"")
    for cut in range(len(entry)):
        with pytest.raises(CorruptData):
            keys.decode_expiry_key(entry[:cut])


def test_text_that_is_not_utf8_is_corrupt() -> None:
    with pytest.raises(CorruptData, match="not UTF-8"):
        keys.decode_text(b"\xff\x00\x01", 0)


# --- golden vectors ------------------------------------------------------------------------------------------

GOLDEN: list[tuple[ColumnType, Any, str]] = [
    (of(TypeName.BOOLEAN), True, "01"),
    (of(TypeName.SMALLINT), -2, "7ffe"),
    (of(TypeName.INT), 1, "80000001"),
    (of(TypeName.BIGINT), 1, "8000000000000001"),
    (of(TypeName.FLOAT), -1.5, "403fffff"),
    (of(TypeName.DOUBLE), 1.5, "bff8000000000000"),
    (of(TypeName.DECIMAL, 12, 2), Decimal("-0.01"), "7fffffffffffffff"),
    (of(TypeName.DECIMAL, 38, 2), Decimal("0.01"), "80000000000000000000000000000001"),
    (of(TypeName.TEXT), "a\x00é", "6100ffc3a90001"),
    (of(TypeName.BYTES), b"\x00", "00ff0001"),
    (of(TypeName.TIMESTAMP), datetime(2022, 1, 1, tzinfo=UTC), "8005d479f7f96000"),
    (of(TypeName.DATE), date(2022, 1, 1), "80004a31"),
    (of(TypeName.TIME), time(12), "8000000a0eebb000"),
    (of(TypeName.UUID), UUID(int=1), "00000000000000000000000000000001"),
]


@pytest.mark.parametrize(("column_type", "value", "text"), GOLDEN, ids=[str(t) for t, _, _ in GOLDEN])
def test_golden_elements(column_type: ColumnType, value: Any, text: str) -> None:
    encode, decode = keys.element(column_type)
    assert encode(value).hex() == text
    assert decode(bytes.fromhex(text), 0) == (value, len(text) // 2)


def test_golden_whole_keys() -> None:
    assert keys.user_prefix(7, "ann").hex() == "00000007616e6e0001"
    assert keys.log_key(3, 1, 258).hex() == "0000000300010000000000000102"
    assert keys.group_key(3, "billing", 1).hex() == "0000000362696c6c696e6700010001"
    assert keys.expiry_key(1_640_995_200_000, "rows", b"\x01").hex() == "0000017e12ef9c00726f7773000101"
    assert struct.unpack(">I", keys.table_prefix(7)) == (7,)
